/* Memory and tensor handles. Part of bind.cpp. */
#ifndef COLIBRI_BIND_TENSORS_H
#define COLIBRI_BIND_TENSORS_H
#include "bind/common.h"

namespace colibri {
namespace {

struct Memory {
    std::shared_ptr<Mapping> mapping;
};

void check_range(const Mapping &m, size_t offset, size_t bytes) {
    if (offset > m.size || bytes > m.size - offset)
        wrong("offset, nbytes", text(offset, ", ", bytes), text("a range within ", m.size, " bytes"));
}

/* Has the system find memory for a range that nothing is being written to. */
void populate(Memory &memory, size_t offset, size_t bytes) {
    const Mapping &m = *memory.mapping;
    check_range(m, offset, bytes);
    nb::gil_scoped_release unlocked;
#ifdef MADV_POPULATE_WRITE
    const size_t first = offset / 4096 * 4096;
    if (!madvise(m.data + first, offset + bytes - first, MADV_POPULATE_WRITE)) return;
#endif
    for (size_t at = offset; at < offset + bytes; at += 4096) { /* a system that cannot be asked */
        volatile uint8_t *page = m.data + at;
        *page = *page;
    }
}

void release(Memory &memory, size_t offset, size_t bytes) {
    const Mapping &m = *memory.mapping;
    check_range(m, offset, bytes);
    const size_t first = round_up(offset, 4096), last = (offset + bytes) / 4096 * 4096;
    if (first < last) madvise(m.data + first, last - first, MADV_DONTNEED);
}

int memory_buffer(PyObject *self, Py_buffer *view, int flags) {
    const Memory *memory = native<Memory>(self);
    view->obj = nullptr;
    if (!memory) return PyErr_SetString(PyExc_BufferError, "found an object without memory, expected Memory(nbytes)"), -1;
    return PyBuffer_FillInfo(view, self, memory->mapping->data, Py_ssize_t(memory->mapping->size), 0, flags);
}

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void *>(memory_buffer)}, {0, nullptr}};

std::vector<int64_t> shape_of(nb::handle shape) {
    std::vector<int64_t> sizes;
    for (nb::handle item : nb::borrow<nb::object>(shape)) {
        const int64_t size = nb::cast<int64_t>(item);
        if (size < 0 || size > INT32_MAX) wrong("shape", text(size), "sizes from 0 to 2^31 - 1");
        sizes.push_back(size);
    }
    if (sizes.empty() || sizes.size() > MAX_DIMENSIONS) wrong("shape", text(sizes.size(), " dimensions"), "1 to 4");
    return sizes;
}

void set_shape(Tensor &t, const std::vector<int64_t> &shape) {
    t.dimensions = int(shape.size());
    for (int i = 0; i < t.dimensions; i++) t.shape[i] = shape[size_t(i)];
}

int weight_type(const std::string &name) {
    const int type = type_of(name);
    if (type < 0 || type >= TYPE_COUNT) wrong("type", "'" + name + "'", "a block type (see BLOCK_TYPES)");
    return type;
}

void check_tiled(int type, int64_t rows, int64_t k) {
    const int values = type_info[type].values;
    if (rows <= 0 || k <= 0 || k % values)
        wrong("shape", text("(", rows, ", ", k, ")"),
              text("(rows, k) with k a multiple of ", values, " for ", type_info[type].name));
}

size_t tiled_bytes(const std::string &name, int64_t rows, int64_t k) {
    const int type = weight_type(name);
    check_tiled(type, rows, k);
    return tiled_size(type, rows, k);
}

Tensor make_tensor(const std::string &name, nb::handle shape, Memory *memory, size_t offset, bool tiled) {
    Tensor t{};
    t.type = type_of(name);
    t.tiled = tiled;
    set_shape(t, shape_of(shape));
    if (tiled) {
        t.type = weight_type(name);
        if (t.dimensions != 2) wrong("shape", text(t.dimensions, " dimensions"), "(rows, k) for a tiled tensor");
        check_tiled(t.type, t.shape[0], t.shape[1]);
    } else if (t.type < 0 || !is_plain(t.type)) {
        wrong("type", "'" + name + "'", "F32, F16, I32 or U8 for a plain tensor");
    }
    if (!memory && offset) wrong("offset", text(offset), "0 without memory");
    t.owner = memory ? memory->mapping : map_bytes(t.bytes());
    const size_t alignment = tiled ? 64 : value_bytes(t.type);
    if (offset % alignment) wrong("offset", text(offset), text("a multiple of ", alignment));
    check_range(*t.owner, offset, t.bytes());
    t.data = t.owner->data + offset;
    return t;
}

nb::tuple shape_tuple(const Tensor &t) {
    nb::list sizes;
    for (int i = 0; i < t.dimensions; i++) sizes.append(t.shape[i]);
    return nb::tuple(sizes);
}

nb::object as_numpy(nb::handle self) {
    if (!native<Tensor>(self)) wrong("numpy()", "another kind of object", "a Tensor");
    const Tensor &t = *native<Tensor>(self);
    expect_plain(t, "numpy()");
    size_t shape[MAX_DIMENSIONS];
    for (int i = 0; i < t.dimensions; i++) shape[i] = size_t(t.shape[i]);
    nb::dlpack::dtype type = nb::dtype<float>();
    if (t.type == T_I32) type = nb::dtype<int32_t>();
    if (t.type == T_U8) type = nb::dtype<uint8_t>();
    if (t.type == T_F16) type = {uint8_t(nb::dlpack::dtype_code::Float), 16, 1};
    nb::ndarray<nb::numpy> view(t.data, size_t(t.dimensions), shape, self, nullptr, type);
    return nb::cast(view, nb::rv_policy::reference);
}

Tensor row_range(const Tensor &t, int64_t first, int64_t last) {
    expect_plain(t, "rows()");
    if (first < 0 || last < first || last > t.shape[0])
        wrong("first, last", text(first, ", ", last), text("a range within ", t.shape[0], " rows"));
    Tensor view = t;
    view.data += size_t(first) * t.row_bytes();
    view.shape[0] = last - first;
    return view;
}

Tensor reshape(const Tensor &t, nb::args sizes) {
    expect_plain(t, "reshape()");
    Tensor view = t;
    set_shape(view, shape_of(sizes));
    if (view.values() != t.values())
        wrong("shape", describe(t), "as many values as " + shape_text(view.shape, view.dimensions));
    return view;
}

void bind_tensor(nb::module_ &m) {
    nb::class_<Memory>(m, "Memory", nb::type_slots(memory_slots))
        .def("__init__", [](Memory *self, size_t bytes) { new (self) Memory{map_bytes(bytes)}; }, "nbytes"_a)
        .def_prop_ro("nbytes", [](const Memory &memory) { return memory.mapping->size; })
        .def("populate", &populate, "offset"_a, "nbytes"_a)
        .def("release", &release, "offset"_a, "nbytes"_a);
    nb::class_<Tensor>(m, "Tensor")
        .def_prop_ro("type", [](const Tensor &t) { return type_name(t.type); })
        .def_prop_ro("shape", &shape_tuple)
        .def_prop_ro("nbytes", &Tensor::bytes)
        .def_ro("tiled", &Tensor::tiled)
        .def("numpy", &as_numpy)
        .def("rows", &row_range, "first"_a, "last"_a)
        .def("reshape", &reshape)
        .def("__repr__", [](const Tensor &t) { return "Tensor(" + describe(t) + ")"; });
    m.def("tensor", &make_tensor, "type"_a, "shape"_a, optional("memory"), "offset"_a = 0, "tiled"_a = false);
    m.def("tiled_bytes", &tiled_bytes, "type"_a, "rows"_a, "k"_a);
}

}  // namespace
}  // namespace colibri
#endif
