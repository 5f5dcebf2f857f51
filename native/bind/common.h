/* What every part of bind.cpp uses. */
#ifndef COLIBRI_BIND_COMMON_H
#define COLIBRI_BIND_COMMON_H
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
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

[[noreturn]] void raise(PyObject *type, const std::string &message) {
    PyErr_SetString(type, message.c_str());
    throw nb::python_error();
}

void check_region(int status) {
    if (status) raise(PyExc_MemoryError, "no memory for the scratch of this step");
}

struct matrix matrix_of(const Tensor &t) { return {t.data, t.type, int(t.shape[0]), int(t.shape[1])}; }

std::shared_ptr<Mapping> map_bytes(size_t bytes) {
    try {
        return std::make_shared<Mapping>(bytes);
    } catch (const std::bad_alloc &) {
        raise(PyExc_MemoryError,
              "cannot map " + std::to_string(bytes) + " bytes (" + std::to_string(bytes >> 20) + " MiB)");
    }
}

void expect_plain(const Tensor &t, const char *what) {
    if (t.tiled) wrong(what, describe(t), "a plain tensor");
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
