/* Tiles, embedding, products and quantisers. Part of bind.cpp. */
#ifndef COLIBRI_BIND_WEIGHTS_H
#define COLIBRI_BIND_WEIGHTS_H
#include "bind/norm.h"
#include "bind/tensors.h"

namespace colibri {
namespace {

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
        wrong("first_row, rows", text(first_row, ", ", rows),
              text("a range within ", dst.shape[0], " rows that starts at a multiple of 16"));
    if (rows % TILE_ROWS && first_row + rows != dst.shape[0])
        wrong("rows", text(rows), "a multiple of 16, or all rows up to the last");
    Buffer buffer(source);
    const size_t bytes = size_t(rows) * size_t(k / type_info[dst.type].values) * size_t(type_info[dst.type].bytes);
    if (size_t(buffer.view.len) != bytes) wrong("src", text(buffer.view.len, " bytes"), text(bytes));
    nb::gil_scoped_release unlocked;
    kernels->tile[dst.type](dst.data + size_t(first_row / TILE_ROWS) * tile_stride(dst.type, k), buffer.view.buf,
                            int(rows), int(k));
}

nb::object dequantize(const Tensor &t) {
    expect_tiled(t, "t", -1, -1);
    const size_t rows = size_t(t.shape[0]), k = size_t(t.shape[1]);
    float *values = new float[rows * k];
    for (size_t row = 0; row < rows; row++) kernels->untile_row[t.type](values + row * k, t.data, int(row), int(k));
    return owned_array(values, rows, k);
}

void embed(Tensor &out, const Tensor &table, const Tensor &ids) {
    const int64_t n = ids.dimensions ? ids.shape[0] : 0, any[] = {-1};
    expect(ids, "ids", T_I32, any);
    expect_tiled(table, "table", -1, -1);
    float *rows = f32_of(out, "out", n, table.shape[1]);
    expect_apart(out, "out", ids, "ids");
    for (int64_t i = 0; i < n; i++) index_within("ids", ids.i32()[i], table.shape[0]);
    const struct matrix weights = matrix_of(table);
    region_embed(rows, &weights, ids.i32(), int(n));
}

/* Element i of a tuple of tensors; NULL for None where that is allowed. */
const Tensor *element(const nb::tuple &items, size_t i, const char *name, bool optional = false) {
    const nb::object item = items[i];
    if (optional && item.is_none()) return nullptr;
    const Tensor *t = native<Tensor>(item);
    if (!t) wrong(text(name, "[", i, "]"), "another kind of object", "a Tensor");
    return t;
}

/* Several weights times one x, checked first and computed later. */
struct Products {
    const Tensor &x;
    int count = 0;
    struct matrix weights[MAX_WEIGHTS];
    float *outs[MAX_WEIGHTS];
    const float *biases[MAX_WEIGHTS];

    explicit Products(const Tensor &x) : x(x) { f32_of(x, "x", -1, -1); }
    Products(const nb::tuple &outs, const Tensor &x, const nb::tuple &weights, const std::optional<nb::tuple> &biases)
        : Products(x) {
        const size_t n = weights.size();
        if (!n || n > MAX_WEIGHTS || outs.size() != n || (biases && biases->size() != n))
            wrong("outs, weights, biases", text(outs.size(), ", ", n), "tuples of one length, 1 to 8");
        for (size_t i = 0; i < n; i++) {
            const Tensor &out = *element(outs, i, "outs");
            add(out, *element(weights, i, "weights"), biases ? element(*biases, i, "biases", true) : nullptr);
            for (size_t j = 0; j < i; j++) expect_apart(out, "outs", *element(outs, j, "outs"), "another of outs");
        }
    }
    void add(const Tensor &out, const Tensor &weight, const Tensor *bias) {
        expect_tiled(weight, "weights", -1, x.shape[1]);
        outs[count] = f32_of(out, "outs", x.shape[0], weight.shape[0]);
        expect_apart(out, "outs", x, "x");
        biases[count] = bias ? f32_of(*bias, "biases", weight.shape[0]) : nullptr;
        weights[count++] = matrix_of(weight);
    }
    void compute(bool exact, bool accumulate) const {
        check_region(unlocked([&] {
            return region_matmul(outs, x.f32(), int(x.shape[0]), int(x.shape[1]), weights, biases, count, exact, accumulate);
        }));
    }
};

void matmul(const nb::tuple &outs, const Tensor &x, const nb::tuple &weights, bool exact, bool accumulate,
            const std::optional<nb::tuple> &biases) {
    Products(outs, x, weights, biases).compute(exact, accumulate);
}

/* The first k values of each head of x (n, heads * x_step) times the head's own rows of weight (heads * rows, k) are the first of
 * the head's values in out (n, heads * out_step); with `rest` what lies behind is copied. */
void head_matmul(Tensor &out, const Tensor &x, const Tensor &weight, int heads, bool exact, bool rest) {
    if (heads < 1) wrong("heads", text(heads), "1 or more");
    expect_tiled(weight, "weight", -1, -1);
    f32_of(x, "x", -1, -1);
    f32_of(out, "out", x.shape[0], -1);
    const int64_t k = weight.shape[1], rows = weight.shape[0] / heads;
    if (weight.shape[0] % heads || rows % TILE_ROWS)
        wrong("weight", describe(weight), text(heads, " heads of a multiple of 16 rows"));
    const int64_t x_step = x.shape[1] / heads, out_step = out.shape[1] / heads;
    if (x.shape[1] % heads || x_step < k || (!rest && x_step != k))
        wrong("x", describe(x), text("rows of ", heads, " times ", k, rest ? " or more" : ""));
    if (out.shape[1] % heads || out_step - rows != x_step - k)
        wrong("out", describe(out), text("rows of ", heads, " times ", rows + x_step - k));
    expect_apart(out, "out", x, "x");
    const struct head_product product = {x.f32(),     matrix_of(weight), int(x.shape[0]),   heads,
                                         int(x_step), int(out_step),     int(x_step - k), exact};
    check_region(unlocked([&] { return region_head_matmul(out.f32(), &product); }));
}

/* normed = the norm of x; outs = its products. False, and no products: x is not finite. */
bool norm_matmul(const nb::tuple &outs, Tensor &normed, const Tensor &x, const Norm &before, const nb::tuple &weights,
                 bool exact, const std::optional<nb::tuple> &biases) {
    const Products products(outs, normed, weights, biases);
    if (!norm(normed, x, before)) return false;
    products.compute(exact, false);
    return true;
}

nb::object quantize(const std::string &name, const Array<const float, 2> &rows,
                    const std::optional<Array<const float, 1>> &importance) {
    const int type = weight_type(name);
    if (!kernels->quantizes(type)) wrong("type", name + ", which is only read", "a type that has a quantiser");
    const size_t n = rows.shape(0), k = rows.shape(1), values = size_t(type_info[type].values);
    if (!k || k % values) wrong("rows", text(k, " columns"), text("a multiple of ", values));
    if (importance && importance->size() != k) wrong("importance", text(importance->size(), " columns"), text(k));
    const size_t row_bytes = k / values * size_t(type_info[type].bytes);
    uint8_t *blocks = new uint8_t[n * row_bytes];
    const nb::object result = owned_array(blocks, n, row_bytes);
    const float *weights = importance ? importance->data() : nullptr;
    const bool fits = unlocked(
        [&] { return kernels->quantize_rows(type, blocks, rows.data(), weights, int64_t(n), int(k)); });
    if (!fits) wrong("rows", "a value that is not finite or too large for " + name, "finite values");
    return result;
}

void bind_weights(nb::module_ &m) {
    m.def("tile", &tile, "dst"_a, "src"_a, "first_row"_a = 0, "rows"_a = nb::none());
    m.def("dequantize", &dequantize, "t"_a);
    m.def("embed", &embed, "out"_a, "table"_a, "ids"_a);
    m.def("matmul", &matmul, "outs"_a, "x"_a, "weights"_a, "exact"_a = false, "accumulate"_a = false,
          "biases"_a = nb::none());
    m.def("head_matmul", &head_matmul, "out"_a, "x"_a, "weight"_a, "heads"_a, "exact"_a = false, "rest"_a = false);
    m.def("norm_matmul", &norm_matmul, "outs"_a, "normed"_a, "x"_a, "norm"_a, "weights"_a, "exact"_a = false,
          "biases"_a = nb::none());
    m.def("quantize", &quantize, "type"_a, "rows"_a.noconvert(), "importance"_a.noconvert() = nb::none());
}

}  // namespace
}  // namespace colibri
#endif
