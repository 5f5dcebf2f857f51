/* What every part of bind.cpp uses. */
#ifndef COLIBRI_BIND_COMMON_H
#define COLIBRI_BIND_COMMON_H
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "tensor.h"
extern "C" {
#include "dispatch.h"
#include "pool.h"
#include "regions/regions.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace colibri {
namespace {

constexpr int KV_BLOCK = ATTENTION_SPLIT;
constexpr int MAX_WEIGHTS = 8;

template <typename T, int dimensions>
using Array = nb::ndarray<T, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;

/* An argument that may be None, and is when it is left out. */
auto optional(const char *name) { return nb::arg(name).none() = nb::none(); }

[[noreturn]] void raise(PyObject *type, const std::string &message) {
    PyErr_SetString(type, message.c_str());
    throw nb::python_error();
}

/* NULL: of another kind, or made by __new__ alone. */
template <typename T> const T *native(nb::handle object) {
    return nb::isinstance<T>(object) && nb::inst_ready(object) ? nb::inst_ptr<T>(object) : nullptr;
}

void expect_finite(const char *name, float value) {
    if (!std::isfinite(value)) wrong(name, text(value), "a finite number");
}

void check_region(int status) {
    if (status) raise(PyExc_MemoryError, "no memory for the scratch of this step");
}

/* work(), while other threads of Python go on. */
template <typename F> auto unlocked(const F &work) {
    nb::gil_scoped_release released;
    return work();
}

struct matrix matrix_of(const Tensor &t) { return {t.data, t.type, int(t.shape[0]), int(t.shape[1])}; }

std::shared_ptr<Mapping> map_bytes(size_t bytes) {
    try {
        return std::make_shared<Mapping>(bytes);
    } catch (const std::bad_alloc &) {
        raise(PyExc_MemoryError, text("cannot map ", bytes, " bytes (", bytes >> 20, " MiB)"));
    }
}

/* numpy's view of an array (rows, columns) that was made with new. */
template <typename T> nb::object owned_array(T *values, size_t rows, size_t columns) {
    const nb::capsule owner(values, [](void *p) noexcept { delete[] static_cast<T *>(p); });
    const size_t shape[] = {rows, columns};
    return nb::cast(nb::ndarray<nb::numpy, T>(values, 2, shape, owner), nb::rv_policy::reference);
}

void expect_plain(const Tensor &t, const char *what) {
    if (t.tiled) wrong(what, describe(t), "a plain tensor");
}

/* An index within 0..count - 1. */
size_t index_within(const char *name, int64_t index, int64_t count) {
    if (index >= 0 && index < count) return size_t(index);
    throw std::out_of_range(text(name, ": found ", index, ", expected 0 to ", count - 1));
}

int choice(const std::string &value, const char *name, std::initializer_list<const char *> names) {
    int index = 0;
    std::string all;
    for (const char *candidate : names) {
        if (value == candidate) return index;
        all += (index++ ? ", '" : "'") + std::string(candidate) + "'";
    }
    wrong(name, "'" + value + "'", all);
}

}  // namespace
}  // namespace colibri
#endif
