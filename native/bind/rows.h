/* Norm, sums and the router. Part of bind.cpp. */
#ifndef COLIBRI_BIND_ROWS_H
#define COLIBRI_BIND_ROWS_H
#include "bind/common.h"

namespace colibri {
namespace {

bool norm(Tensor &out, const Tensor &x, const Tensor &weight, float eps, const Tensor *bias) {
    expect_plain(x, "x");
    const int64_t dim = weight.shape[0], values = x.values();
    const float *scale = f32_of(weight, "weight", dim), *offset = bias ? f32_of(*bias, "bias", dim) : nullptr;
    if (x.type != T_F32 || !dim || x.shape[x.dimensions - 1] != dim)
        wrong("x", describe(x), "F32 (..., " + std::to_string(dim) + ")");
    if (out.type != T_F32 || out.tiled || out.values() != values) wrong("out", describe(out), describe(x));
    return region_norm(out.f32(), x.f32(), scale, offset, int(values / dim), int(dim), eps);
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

void combine(Tensor &out, const Tensor &slots, const Tensor &weights) {
    f32_of(out, "out", -1, -1);
    f32_of(weights, "weights", out.shape[0], -1);
    f32_of(slots, "slots", out.shape[0] * weights.shape[1], out.shape[1]);
    region_combine(out.f32(), slots.f32(), weights.f32(), int(out.shape[0]), int(weights.shape[1]), int(out.shape[1]));
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
    m.def("norm", &norm, "out"_a.noconvert(), "x"_a.noconvert(), "weight"_a.noconvert(), "eps"_a,
          "bias"_a.noconvert().none() = nb::none());
    m.def("add", &add, "out"_a.noconvert(), "x"_a.noconvert());
    m.def("finite", &finite, "t"_a.noconvert());
    m.def("combine", &combine, "out"_a.noconvert(), "slots"_a.noconvert(), "weights"_a.noconvert());
    m.def("router", &router, "ids"_a.noconvert(), "weights"_a.noconvert(), "logits"_a.noconvert(), "score"_a,
          "renormalize"_a, "bias"_a.noconvert().none() = nb::none(), "scale"_a = 1.0f);
}

}  // namespace
}  // namespace colibri
#endif
