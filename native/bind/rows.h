/* Norm, sums, the router and the choice of tokens. Part of bind.cpp. */
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
        wrong("x", describe(x), text("F32 (..., ", dim, ")"));
    if (out.type != T_F32 || out.tiled || out.values() != values) wrong("out", describe(out), describe(x));
    return region_norm(out.f32(), x.f32(), scale, offset, int(values / dim), int(dim), eps);
}

void add(Tensor &out, const Tensor &x) {
    if (x.type != T_F32 || x.tiled) wrong("x", describe(x), "plain F32");
    if (out.type != T_F32 || out.tiled || out.values() != x.values()) wrong("out", describe(out), describe(x));
    const int64_t n = x.values();
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
    if (k < 1 || k > experts) wrong("weights", describe(weights), text("1 to ", experts, " columns"));
    expect(ids, "ids", T_I32, shape);
    const float *offset = bias ? f32_of(*bias, "bias", experts) : nullptr;
    const int kind = choice(score, "score", {"softmax", "sigmoid"});
    const struct routing routing = {int(experts), int(k), kind, renormalize, scale, offset};
    const int status = region_router(ids.i32(), weights.f32(), logits.f32(), int(n), &routing);
    if (status != REGION_NOT_FINITE) check_region(status);
    return !status;
}

constexpr size_t SAMPLING_FIELDS = sizeof(struct sampling) / sizeof(double);

/* Arrays and not handles: the sampler works on them. */
void sample(const Array<int32_t, 1> &tokens, const Array<double, 1> &norms, const Array<const float, 2> &logits,
            const Array<const double, 2> &settings) {
    const size_t n = logits.shape(0), vocabulary = logits.shape(1);
    if (!vocabulary || vocabulary > INT32_MAX) wrong("logits", text(vocabulary, " columns"), "1 to 2^31 - 1");
    if (tokens.size() != n) wrong("tokens", text(tokens.size(), " values"), text(n));
    if (norms.size() != n) wrong("norms", text(norms.size(), " values"), text(n));
    if (settings.shape(0) != n || settings.shape(1) != SAMPLING_FIELDS)
        wrong("settings", text(settings.shape(0), " x ", settings.shape(1)), text(n, " x ", SAMPLING_FIELDS));
    check_region(region_sample(tokens.data(), norms.data(), logits.data(), int(n), int(vocabulary),
                               reinterpret_cast<const struct sampling *>(settings.data())));
}

void bind_rows(nb::module_ &m) {
    m.def("norm", &norm, "out"_a, "x"_a, "weight"_a, "eps"_a, optional("bias"));
    m.def("add", &add, "out"_a, "x"_a);
    m.def("finite", &finite, "t"_a);
    m.def("combine", &combine, "out"_a, "slots"_a, "weights"_a);
    m.def("router", &router, "ids"_a, "weights"_a, "logits"_a, "score"_a, "renormalize"_a, optional("bias"),
          "scale"_a = 1.0f);
    m.def("sample", &sample, "tokens"_a.noconvert(), "norms"_a.noconvert(), "logits"_a.noconvert(),
          "settings"_a.noconvert());
}

}  // namespace
}  // namespace colibri
#endif
