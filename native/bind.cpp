/* Everything that Python sees of the native code. Arguments are checked here, once; kernels and regions trust them. */
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

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
using namespace colibri;

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

/* ---- Memory and Tensor ---- */

struct Memory {
    std::shared_ptr<Mapping> mapping;
};

std::shared_ptr<Mapping> map_bytes(size_t bytes) {
    try {
        return std::make_shared<Mapping>(bytes);
    } catch (const std::bad_alloc &) {
        raise(PyExc_MemoryError, "cannot map " + std::to_string(bytes) + " bytes (" + std::to_string(bytes >> 20) + " MiB)");
    }
}

void release(Memory &memory, size_t offset, size_t bytes) {
    const Mapping &m = *memory.mapping;
    if (offset > m.size || bytes > m.size - offset)
        wrong("offset, nbytes", std::to_string(offset) + ", " + std::to_string(bytes),
              "a range within " + std::to_string(m.size) + " bytes");
    const size_t first = round_up(offset, 4096), last = (offset + bytes) / 4096 * 4096;
    if (first < last) madvise(m.data + first, last - first, MADV_DONTNEED);
}

int memory_buffer(PyObject *self, Py_buffer *view, int flags) {
    const Mapping &m = *nb::inst_ptr<Memory>(self)->mapping;
    return PyBuffer_FillInfo(view, self, m.data, Py_ssize_t(m.size), 0, flags);
}

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void *>(memory_buffer)}, {0, nullptr}};

std::vector<int64_t> shape_of(nb::handle shape) {
    std::vector<int64_t> sizes;
    for (nb::handle item : nb::borrow<nb::object>(shape)) {
        const int64_t size = nb::cast<int64_t>(item);
        if (size < 0 || size > INT32_MAX) wrong("shape", std::to_string(size), "sizes from 0 to 2^31 - 1");
        sizes.push_back(size);
    }
    if (sizes.empty() || sizes.size() > MAX_DIMENSIONS) wrong("shape", std::to_string(sizes.size()) + " dimensions", "1 to 4");
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
        wrong("shape", "(" + std::to_string(rows) + ", " + std::to_string(k) + ")",
              "(rows, k) with k a multiple of " + std::to_string(values) + " for " + type_info[type].name);
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
        if (t.dimensions != 2) wrong("shape", std::to_string(t.dimensions) + " dimensions", "(rows, k) for a tiled tensor");
        check_tiled(t.type, t.shape[0], t.shape[1]);
    } else if (t.type < 0 || !is_plain(t.type)) {
        wrong("type", "'" + name + "'", "F32, F16, I32 or U8 for a plain tensor");
    }
    if (!memory && offset) wrong("offset", std::to_string(offset), "0 without memory");
    t.owner = memory ? memory->mapping : map_bytes(t.bytes());
    const size_t alignment = tiled ? 64 : value_bytes(t.type);
    if (offset % alignment) wrong("offset", std::to_string(offset), "a multiple of " + std::to_string(alignment));
    if (offset > t.owner->size || t.bytes() > t.owner->size - offset)
        wrong("offset", std::to_string(offset) + " + " + std::to_string(t.bytes()) + " bytes",
              "a range within " + std::to_string(t.owner->size) + " bytes");
    t.data = t.owner->data + offset;
    return t;
}

nb::tuple shape_tuple(const Tensor &t) {
    nb::list sizes;
    for (int i = 0; i < t.dimensions; i++) sizes.append(t.shape[i]);
    return nb::tuple(sizes);
}

void expect_plain(const Tensor &t, const char *what) {
    if (t.tiled) wrong(what, describe(t), "a plain tensor");
}

nb::object as_numpy(nb::handle self) {
    const Tensor &t = *nb::inst_ptr<Tensor>(self);
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
        wrong("first, last", std::to_string(first) + ", " + std::to_string(last),
              "a range within " + std::to_string(t.shape[0]) + " rows");
    Tensor view = t;
    view.data += size_t(first) * t.row_bytes();
    view.shape[0] = last - first;
    return view;
}

Tensor reshape(const Tensor &t, nb::args sizes) {
    expect_plain(t, "reshape()");
    Tensor view = t;
    set_shape(view, shape_of(sizes));
    if (view.values() != t.values()) wrong("shape", describe(t), "as many values as " + shape_text(view.shape, view.dimensions));
    return view;
}

void bind_tensor(nb::module_ &m) {
    nb::class_<Memory>(m, "Memory", nb::type_slots(memory_slots))
        .def("__init__", [](Memory *self, size_t bytes) { new (self) Memory{map_bytes(bytes)}; }, "nbytes"_a)
        .def_prop_ro("nbytes", [](const Memory &memory) { return memory.mapping->size; })
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
    m.def("tensor", &make_tensor, "type"_a, "shape"_a, "memory"_a.none() = nb::none(), "offset"_a = 0, "tiled"_a = false);
    m.def("tiled_bytes", &tiled_bytes, "type"_a, "rows"_a, "k"_a);
}

/* ---- weights ---- */

struct Buffer {
    Py_buffer view;
    explicit Buffer(nb::handle source) {
        if (PyObject_GetBuffer(source.ptr(), &view, PyBUF_SIMPLE)) throw nb::python_error();
    }
    Buffer(const Buffer &) = delete;
    ~Buffer() { PyBuffer_Release(&view); }
};

void tile(Tensor &dst, nb::handle source, int64_t first_row, std::optional<int64_t> row_count) {
    expect_tiled(dst, "dst", -1, -1);
    const int64_t k = dst.shape[1], rows = row_count.value_or(dst.shape[0] - first_row);
    if (first_row < 0 || first_row % TILE_ROWS || rows < 0 || first_row + rows > dst.shape[0])
        wrong("first_row, rows", std::to_string(first_row) + ", " + std::to_string(rows),
              "a range within " + std::to_string(dst.shape[0]) + " rows that starts at a multiple of 16");
    if (rows % TILE_ROWS && first_row + rows != dst.shape[0])
        wrong("rows", std::to_string(rows), "a multiple of 16, or all rows up to the last");
    Buffer buffer(source);
    const size_t bytes = size_t(rows) * size_t(k / type_info[dst.type].values) * size_t(type_info[dst.type].bytes);
    if (size_t(buffer.view.len) != bytes) wrong("src", std::to_string(buffer.view.len) + " bytes", std::to_string(bytes));
    nb::gil_scoped_release unlocked;
    kernels->tile[dst.type](dst.data + size_t(first_row / TILE_ROWS) * tile_stride(dst.type, k), buffer.view.buf,
                            int(rows), int(k));
}

nb::object dequantize(const Tensor &t) {
    expect_tiled(t, "t", -1, -1);
    const size_t rows = size_t(t.shape[0]), k = size_t(t.shape[1]);
    float *values = new float[rows * k];
    nb::capsule owner(values, [](void *p) noexcept { delete[] static_cast<float *>(p); });
    for (size_t row = 0; row < rows; row++) kernels->untile_row[t.type](values + row * k, t.data, int(row), int(k));
    const size_t shape[] = {rows, k};
    return nb::cast(nb::ndarray<nb::numpy, float>(values, 2, shape, owner), nb::rv_policy::reference);
}

void embed(Tensor &out, const Tensor &table, const Tensor &ids) {
    const int64_t n = ids.dimensions ? ids.shape[0] : 0, any[] = {-1};
    expect(ids, "ids", T_I32, any);
    expect_tiled(table, "table", -1, -1);
    float *rows = f32_of(out, "out", n, table.shape[1]);
    for (int64_t i = 0; i < n; i++)
        if (ids.i32()[i] < 0 || ids.i32()[i] >= table.shape[0])
            throw std::out_of_range("ids: found " + std::to_string(ids.i32()[i]) + ", expected 0 to " +
                                    std::to_string(table.shape[0] - 1));
    const struct matrix weights = matrix_of(table);
    region_embed(rows, &weights, ids.i32(), int(n));
}

/* Element i of a tuple of tensors; NULL for None where that is allowed. */
const Tensor *element(const nb::tuple &items, size_t i, const char *name, bool optional = false) {
    const nb::object item = items[i];
    if (optional && item.is_none()) return nullptr;
    if (!nb::isinstance<Tensor>(item)) wrong(std::string(name) + "[" + std::to_string(i) + "]", "another kind of object", "a Tensor");
    return nb::inst_ptr<Tensor>(item);
}

void matmul(const nb::tuple &outs, const Tensor &x, const nb::tuple &weights, bool exact, bool accumulate,
            const std::optional<nb::tuple> &biases) {
    const size_t count = weights.size();
    if (!count || count > MAX_WEIGHTS || outs.size() != count || (biases && biases->size() != count))
        wrong("outs, weights, biases", std::to_string(outs.size()) + ", " + std::to_string(count), "tuples of one length, 1 to 8");
    f32_of(x, "x", -1, -1);
    const int64_t n = x.shape[0], k = x.shape[1];
    struct matrix matrices[MAX_WEIGHTS];
    float *results[MAX_WEIGHTS];
    const float *bias[MAX_WEIGHTS] = {};
    for (size_t i = 0; i < count; i++) {
        const Tensor &w = *element(weights, i, "weights"), &out = *element(outs, i, "outs");
        expect_tiled(w, "weights[" + std::to_string(i) + "]", -1, k);
        results[i] = f32_of(out, "outs", n, w.shape[0]);
        const Tensor *b = biases ? element(*biases, i, "biases", true) : nullptr;
        if (b) bias[i] = f32_of(*b, "biases", w.shape[0]);
        matrices[i] = matrix_of(w);
        }
    int status;
    {
        nb::gil_scoped_release unlocked;
        status = region_matmul(results, x.f32(), int(n), int(k), matrices, biases ? bias : nullptr, int(count), exact, accumulate);
    }
    check_region(status);
}

void bind_weights(nb::module_ &m) {
    m.def("tile", &tile, "dst"_a.noconvert(), "src"_a, "first_row"_a = 0, "rows"_a = nb::none());
    m.def("dequantize", &dequantize, "t"_a.noconvert());
    m.def("embed", &embed, "out"_a.noconvert(), "table"_a.noconvert(), "ids"_a.noconvert());
    m.def("matmul", &matmul, "outs"_a.noconvert(), "x"_a.noconvert(), "weights"_a.noconvert(), "exact"_a = false,
          "accumulate"_a = false, "biases"_a = nb::none());
}

/* ---- quantisers ---- */

using Floats2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats1 = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::object quantize(const std::string &name, const Floats2 &rows, const std::optional<Floats1> &importance) {
    const int type = weight_type(name);
    const size_t n = rows.shape(0), k = rows.shape(1), values = size_t(type_info[type].values);
    if (!k || k % values) wrong("rows", std::to_string(k) + " columns", "a multiple of " + std::to_string(values));
    if (importance && importance->size() != k)
        wrong("importance", std::to_string(importance->size()) + " columns", std::to_string(k));
    const size_t row_bytes = k / values * size_t(type_info[type].bytes);
    uint8_t *blocks = new uint8_t[n * row_bytes];
    nb::capsule owner(blocks, [](void *p) noexcept { delete[] static_cast<uint8_t *>(p); });
    bool fits;
    {
        nb::gil_scoped_release unlocked;
        fits = kernels->quantize_rows(type, blocks, rows.data(), importance ? importance->data() : nullptr, int64_t(n), int(k));
    }
    if (!fits) wrong("rows", "a value that is not finite or too large for " + name, "finite values");
    const size_t shape[] = {n, row_bytes};
    return nb::cast(nb::ndarray<nb::numpy, uint8_t>(blocks, 2, shape, owner), nb::rv_policy::reference);
}

void bind_quantizers(nb::module_ &m) {
    m.def("quantize", &quantize, "type"_a, "rows"_a.noconvert(), "importance"_a.noconvert() = nb::none());
}

/* ---- the rows of one step ---- */

using Integers = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

struct Batch {
    std::vector<int32_t> position, sequence, group_first;
    std::vector<std::vector<int32_t>> tables;
    std::vector<const int32_t *> table;
    int32_t last_position = -1, last_block = -1;

    struct batch view() const {
        return {int(position.size()), int(group_first.size()) - 1, position.data(), sequence.data(), table.data(), group_first.data()};
    }
};

std::vector<int32_t> copy_of(const Integers &array) { return {array.data(), array.data() + array.size()}; }

void add_table(Batch &batch, const Integers &blocks) {
    for (size_t i = 0; i < blocks.size(); i++) {
        if (blocks.data()[i] < 0) wrong("tables", std::to_string(blocks.data()[i]), "block numbers from 0");
        batch.last_block = std::max(batch.last_block, blocks.data()[i]);
    }
    batch.tables.push_back(copy_of(blocks));
}

void add_row(Batch &batch, size_t row) {
    const int32_t sequence = batch.sequence[row], position = batch.position[row];
    if (sequence < 0 || size_t(sequence) >= batch.tables.size())
        wrong("sequence", std::to_string(sequence), "0 to " + std::to_string(batch.tables.size()) + " exclusive");
    const size_t capacity = batch.tables[size_t(sequence)].size() * KV_BLOCK;
    if (position < 0 || size_t(position) >= capacity)
        wrong("positions", std::to_string(position), "0 to " + std::to_string(capacity) + " exclusive, the blocks of its table");
    batch.last_position = std::max(batch.last_position, position);
    const bool follows = row && batch.sequence[row - 1] == sequence && batch.position[row - 1] + 1 == position;
    if (!follows) batch.group_first.push_back(int32_t(row));
}

void make_batch(Batch *self, const Integers &positions, const Integers &sequence, const nb::list &tables) {
    if (positions.size() != sequence.size())
        wrong("sequence", std::to_string(sequence.size()) + " rows", std::to_string(positions.size()));
    Batch *batch = new (self) Batch{};
    batch->position = copy_of(positions);
    batch->sequence = copy_of(sequence);
    for (nb::handle blocks : tables) add_table(*batch, nb::cast<Integers>(blocks, false));
    for (size_t row = 0; row < positions.size(); row++) add_row(*batch, row);
    batch->group_first.push_back(int32_t(positions.size()));
    for (const auto &blocks : batch->tables) batch->table.push_back(blocks.data());
}

int64_t rows_of(const Tensor &t, const char *name, const Batch &batch) {
    f32_of(t, name, int64_t(batch.position.size()), -1);
    return t.shape[1];
}

void rope(Tensor &x, const Batch &batch, const Tensor &cosine, const Tensor &sine, int head_dim) {
    const int64_t width = rows_of(x, "x", batch);
    f32_of(cosine, "cosine", -1, -1);
    f32_of(sine, "sine", cosine.shape[0], cosine.shape[1]);
    const int64_t rotary = 2 * cosine.shape[1];
    if (head_dim <= 0 || width % head_dim) wrong("x", describe(x), "rows of heads of " + std::to_string(head_dim));
    if (rotary > head_dim) wrong("cosine", describe(cosine), "at most " + std::to_string(head_dim / 2) + " columns");
    if (batch.last_position >= cosine.shape[0])
        wrong("batch", "position " + std::to_string(batch.last_position), "below " + std::to_string(cosine.shape[0]) + ", the rows of cosine");
    const struct batch view = batch.view();
    region_rope(x.f32(), int(width / head_dim), head_dim, cosine.f32(), sine.f32(), int(rotary), &view);
}

/* Checks a pair of caches against each other and the batch. */
struct cache cache_of(const Tensor &keys, const Tensor &values, const Batch &batch) {
    const int64_t key_shape[] = {-1, -1, -1, KV_BLOCK};
    expect(keys, "keys", T_F16, key_shape);
    const int64_t value_shape[] = {keys.shape[0], keys.shape[1], KV_BLOCK, -1};
    expect(values, "values", T_F16, value_shape);
    if (keys.shape[2] % 8 || values.shape[3] % 8 || !keys.shape[1] || !keys.shape[2] || !values.shape[3])
        wrong("keys, values", describe(keys) + ", " + describe(values), "head dimensions that are multiples of 8");
    if (batch.last_block >= keys.shape[0])
        wrong("batch", "block " + std::to_string(batch.last_block), "below " + std::to_string(keys.shape[0]) + ", the blocks of the cache");
    return {keys.f16(), values.f16(), int(keys.shape[1]), int(keys.shape[2]), int(values.shape[3])};
}

void kv_append(Tensor &keys, Tensor &values, const Tensor &k, const Tensor &v, const Batch &batch) {
    const struct cache cache = cache_of(keys, values, batch);
    const int64_t n = int64_t(batch.position.size());
    f32_of(k, "k", n, int64_t(cache.kv_heads) * cache.key_dim);
    f32_of(v, "v", n, int64_t(cache.kv_heads) * cache.value_dim);
    const struct batch view = batch.view();
    region_kv_append(&cache, k.f32(), v.f32(), &view);
}

void attention(Tensor &out, const Tensor &q, const Tensor &keys, const Tensor &values, const Batch &batch, float scale,
               int window, const Tensor *sinks) {
    const struct cache cache = cache_of(keys, values, batch);
    const int64_t width = rows_of(q, "q", batch), heads = width / cache.key_dim;
    if (width % cache.key_dim || heads % cache.kv_heads || !heads)
        wrong("q", describe(q), "rows of " + std::to_string(cache.key_dim) + " times a multiple of " + std::to_string(cache.kv_heads) + " heads");
    f32_of(out, "out", int64_t(batch.position.size()), heads * cache.value_dim);
    if (window < 0) wrong("window", std::to_string(window), "0 (no window) or more");
    const float *sink = sinks ? f32_of(*sinks, "sinks", heads) : nullptr;
    const struct batch view = batch.view();
    int status;
    {
        nb::gil_scoped_release unlocked;
        status = region_attention(out.f32(), q.f32(), &cache, &view, int(heads), scale, window, sink);
    }
    check_region(status);
}

void bind_attention(nb::module_ &m) {
    nb::class_<Batch>(m, "Batch")
        .def("__init__", &make_batch, "positions"_a.noconvert(), "sequence"_a.noconvert(), "tables"_a)
        .def("__len__", [](const Batch &batch) { return batch.position.size(); });
    m.def("rope", &rope, "x"_a.noconvert(), "batch"_a.noconvert(), "cosine"_a.noconvert(), "sine"_a.noconvert(), "head_dim"_a);
    m.def("kv_append", &kv_append, "keys"_a.noconvert(), "values"_a.noconvert(), "k"_a.noconvert(), "v"_a.noconvert(),
          "batch"_a.noconvert());
    m.def("attention", &attention, "out"_a.noconvert(), "q"_a.noconvert(), "keys"_a.noconvert(), "values"_a.noconvert(),
          "batch"_a.noconvert(), "scale"_a, "window"_a = 0, "sinks"_a.noconvert().none() = nb::none());
    m.attr("KV_BLOCK") = KV_BLOCK;
}

/* ---- norm, sums, router ---- */

bool norm(Tensor &out, const Tensor &x, const Tensor &weight, float eps) {
    expect_plain(x, "x");
    const int64_t dim = weight.shape[0], values = x.values();
    const float *scale = f32_of(weight, "weight", dim);
    if (x.type != T_F32 || !dim || x.shape[x.dimensions - 1] != dim) wrong("x", describe(x), "F32 (..., " + std::to_string(dim) + ")");
    if (out.type != T_F32 || out.tiled || out.values() != values) wrong("out", describe(out), describe(x));
    return region_norm(out.f32(), x.f32(), scale, int(values / dim), int(dim), eps);
}

int64_t same_size(const Tensor &out, const Tensor &x) {
    if (x.type != T_F32 || x.tiled) wrong("x", describe(x), "plain F32");
    if (out.type != T_F32 || out.tiled || out.values() != x.values()) wrong("out", describe(out), describe(x));
    return x.values();
}

void add(Tensor &out, const Tensor &x) {
    const int64_t n = same_size(out, x);
    for (int64_t done = 0; done < n; done += INT32_MAX / 2)
        kernels->add(out.f32() + done, x.f32() + done, int(std::min<int64_t>(n - done, INT32_MAX / 2)));
}

bool finite(const Tensor &t) {
    if (t.type != T_F32 || t.tiled) wrong("t", describe(t), "plain F32");
    return kernels->finite(t.f32(), t.values());
}

int64_t argmax(const Tensor &t) {
    if (t.type != T_F32 || t.tiled || !t.values() || t.values() > INT32_MAX) wrong("t", describe(t), "plain F32 with at least one value");
    return kernels->argmax(t.f32(), int(t.values()));
}

void combine(Tensor &out, const Tensor &slots, const Tensor &weights) {
    f32_of(out, "out", -1, -1);
    f32_of(weights, "weights", out.shape[0], -1);
    f32_of(slots, "slots", out.shape[0] * weights.shape[1], out.shape[1]);
    region_combine(out.f32(), slots.f32(), weights.f32(), int(out.shape[0]), int(weights.shape[1]), int(out.shape[1]));
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

bool router(Tensor &ids, Tensor &weights, const Tensor &logits, const std::string &score, bool renormalize,
            const Tensor *bias, float scale) {
    f32_of(logits, "logits", -1, -1);
    const int64_t n = logits.shape[0], experts = logits.shape[1];
    f32_of(weights, "weights", n, -1);
    const int64_t k = weights.shape[1], shape[] = {n, k};
    if (k < 1 || k > experts) wrong("weights", describe(weights), "1 to " + std::to_string(experts) + " columns");
    expect(ids, "ids", T_I32, shape);
    const float *offset = bias ? f32_of(*bias, "bias", experts) : nullptr;
    const int kind = choice(score, "score", {"softmax", "sigmoid", "softmax_chosen", "sqrt_softplus"});
    const struct routing routing = {int(experts), int(k), kind, renormalize, scale, offset};
    const int status = region_router(ids.i32(), weights.f32(), logits.f32(), int(n), &routing);
    if (status != REGION_NOT_FINITE) check_region(status);
    return !status;
}

void bind_rows(nb::module_ &m) {
    m.def("norm", &norm, "out"_a.noconvert(), "x"_a.noconvert(), "weight"_a.noconvert(), "eps"_a);
    m.def("add", &add, "out"_a.noconvert(), "x"_a.noconvert());
    m.def("finite", &finite, "t"_a.noconvert());
    m.def("argmax", &argmax, "t"_a.noconvert());
    m.def("combine", &combine, "out"_a.noconvert(), "slots"_a.noconvert(), "weights"_a.noconvert());
    m.def("router", &router, "ids"_a.noconvert(), "weights"_a.noconvert(), "logits"_a.noconvert(), "score"_a, "renormalize"_a,
          "bias"_a.noconvert().none() = nb::none(), "scale"_a = 1.0f);
}

/* ---- experts ---- */

struct ExpertTable {
    int hidden, intermediate;
    std::vector<struct expert> experts;
    std::vector<std::array<std::shared_ptr<Mapping>, 6>> owners;
    std::vector<uint8_t> wanted; /* scratch of check_resident */

    ExpertTable(int experts, int hidden, int intermediate) : hidden(hidden), intermediate(intermediate) {
        if (experts < 1 || hidden < 1 || intermediate < 1) wrong("experts, hidden, intermediate", "less than 1", "sizes from 1");
        this->experts.resize(size_t(experts));
        owners.resize(size_t(experts));
        wanted.resize(size_t(experts));
    }
    size_t index(int64_t e) const {
        if (e < 0 || size_t(e) >= experts.size())
            throw std::out_of_range("expert: found " + std::to_string(e) + ", expected 0 to " + std::to_string(experts.size() - 1));
        return size_t(e);
    }
};

void set_expert(ExpertTable &table, int64_t e, const Tensor &gate, const Tensor &up, const Tensor &down, const Tensor *gate_bias,
                const Tensor *up_bias, const Tensor *down_bias) {
    const size_t i = table.index(e);
    expect_tiled(gate, "gate", table.intermediate, table.hidden);
    expect_tiled(up, "up", table.intermediate, table.hidden);
    expect_tiled(down, "down", table.hidden, table.intermediate);
    struct expert expert = {matrix_of(gate), matrix_of(up), matrix_of(down), nullptr, nullptr, nullptr, true};
    if (gate_bias) expert.gate_bias = f32_of(*gate_bias, "gate_bias", table.intermediate);
    if (up_bias) expert.up_bias = f32_of(*up_bias, "up_bias", table.intermediate);
    if (down_bias) expert.down_bias = f32_of(*down_bias, "down_bias", table.hidden);
    table.experts[i] = expert;
    const Tensor *parts[] = {&gate, &up, &down, gate_bias, up_bias, down_bias};
    for (size_t p = 0; p < 6; p++) table.owners[i][p] = parts[p] ? parts[p]->owner : nullptr;
}

void clear_expert(ExpertTable &table, int64_t e) {
    const size_t i = table.index(e);
    table.experts[i] = {};
    table.owners[i] = {};
}

/* Every id is an expert, and every expert that this call computes is set. */
void check_resident(ExpertTable &table, const Tensor &ids, const Tensor *only) {
    std::fill(table.wanted.begin(), table.wanted.end(), uint8_t(!only));
    for (int64_t i = 0; only && i < only->values(); i++) table.wanted[table.index(only->i32()[i])] = 1;
    for (int64_t i = 0; i < ids.values(); i++) {
        const size_t e = table.index(ids.i32()[i]);
        if (table.wanted[e] && !table.experts[e].set) wrong("ids", "expert " + std::to_string(e) + ", which is not set", "experts that are set");
    }
}

void moe(Tensor &slots, const Tensor &x, ExpertTable &table, const Tensor &ids, const std::string &activation, bool exact,
         const Tensor *only) {
    f32_of(x, "x", -1, table.hidden);
    const int64_t n = x.shape[0], pairs[] = {n, -1}, any[] = {-1};
    expect(ids, "ids", T_I32, pairs);
    f32_of(slots, "slots", n * ids.shape[1], table.hidden);
    if (only) expect(*only, "only", T_I32, any);
    const int kind = choice(activation, "activation", {"silu", "gelu_tanh", "swiglu_oai"});
    check_resident(table, ids, only);
    int status;
    {
        nb::gil_scoped_release unlocked;
        status = region_moe(slots.f32(), x.f32(), int(n), int(ids.shape[1]), ids.i32(), table.experts.data(), int(table.experts.size()),
                            table.hidden, table.intermediate, kind, exact, only ? only->i32() : nullptr, only ? int(only->shape[0]) : 0);
    }
    check_region(status);
}

void bind_experts(nb::module_ &m) {
    nb::class_<ExpertTable>(m, "ExpertTable")
        .def(nb::init<int, int, int>(), "experts"_a, "hidden"_a, "intermediate"_a)
        .def("set", &set_expert, "e"_a, "gate"_a.noconvert(), "up"_a.noconvert(), "down"_a.noconvert(),
             "gate_bias"_a.noconvert().none() = nb::none(), "up_bias"_a.noconvert().none() = nb::none(),
             "down_bias"_a.noconvert().none() = nb::none())
        .def("clear", &clear_expert, "e"_a)
        .def("resident", [](const ExpertTable &table, int64_t e) { return table.experts[table.index(e)].set; }, "e"_a);
    m.def("moe", &moe, "slots"_a.noconvert(), "x"_a.noconvert(), "table"_a.noconvert(), "ids"_a.noconvert(), "activation"_a = "silu",
          "exact"_a = false, "only"_a.noconvert().none() = nb::none());
}

/* ---- the machine ---- */

nb::tuple isas() {
    nb::list names;
    for (int i = 0; i < isa_count(); i++)
        if (kernels_for(isa_name(i))) names.append(isa_name(i));
    return nb::tuple(names);
}

void choose_isa(const std::string &name) {
    if (::use_isa(name.c_str())) return;
    std::string known;
    for (int i = 0; i < isa_count(); i++)
        if (kernels_for(isa_name(i))) known += (known.empty() ? "" : ", ") + std::string(isa_name(i));
    wrong("instruction set", "'" + name + "'", "one that this build and this processor have: " + known);
}

void set_threads(int threads) {
    if (threads < 1 || threads > POOL_MAX_THREADS) wrong("threads", std::to_string(threads), "1 to " + std::to_string(POOL_MAX_THREADS));
    pool_set_threads(threads);
}

nb::list block_types() {
    static const char *const activations[] = {"f32", "q32", "q256"};
    nb::list types;
    for (const struct type_info &t : type_info)
        types.append(nb::make_tuple(t.name, t.code, t.values, t.bytes, t.tile_bytes, activations[t.activation]));
    return types;
}

void bind_machine(nb::module_ &m) {
    m.def("isa", [] { return kernels->isa; });
    m.def("isas", &isas);
    m.def("use_isa", &choose_isa, "name"_a);
    m.def("threads", &pool_threads);
    m.def("cpus", &pool_cpus);
    m.def("set_threads", &set_threads, "n"_a);
    m.def("block_types", &block_types);
}

/* ---- the machine's limits ---- */

constexpr int MAX_RATES = 4096;

nb::tuple rates_of(const std::vector<double> &rates, int count) {
    nb::list list;
    for (int i = 0; i < count; i++) list.append(rates[size_t(i)]);
    return nb::tuple(list);
}

nb::tuple measure_read(size_t bytes, double seconds) {
    if (bytes < 1 << 20 || bytes > size_t(1) << 40) wrong("bytes", std::to_string(bytes), "1 MiB to 1 TiB");
    const auto mapping = map_bytes(bytes);
    std::vector<double> rates(MAX_RATES);
    int count;
    {
        nb::gil_scoped_release unlocked;
        count = region_measure_read(mapping->data, bytes >> 20 << 20, seconds, rates.data(), MAX_RATES);
    }
    return rates_of(rates, count);
}

nb::tuple measure_dot(double seconds) {
    std::vector<double> rates(MAX_RATES);
    int count;
    {
        nb::gil_scoped_release unlocked;
        count = region_measure_dot(seconds, rates.data(), MAX_RATES);
    }
    return rates_of(rates, count);
}

void bind_limits(nb::module_ &m) {
    m.def("measure_read", &measure_read, "bytes"_a, "seconds"_a);
    m.def("measure_dot", &measure_dot, "seconds"_a);
}

}  // namespace

NB_MODULE(_native, m) {
    bind_machine(m);
    bind_limits(m);
    bind_tensor(m);
    bind_weights(m);
    bind_quantizers(m);
    bind_attention(m);
    bind_rows(m);
    bind_experts(m);
}
