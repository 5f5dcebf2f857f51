/* Norms. Part of bind.cpp. */
#ifndef COLIBRI_BIND_NORM_H
#define COLIBRI_BIND_NORM_H
#include "bind/common.h"

namespace colibri {
namespace {

/* LayerNorm with a bias, RMSNorm without, over rows of as many values as the weight has. */
struct Norm {
    Tensor weight;
    std::optional<Tensor> bias;
    float eps;

    Norm(const Tensor &weight, float eps, const Tensor *bias) : weight(weight), eps(eps) {
        f32_of(weight, "weight", -1);
        if (!dim()) wrong("weight", describe(weight), "at least one value");
        if (!(eps >= 0 && std::isfinite(eps))) wrong("eps", text(eps), "a finite number from 0");
        if (bias) f32_of(*bias, "bias", dim()), this->bias = *bias;
    }
    int64_t dim() const { return weight.shape[0]; }

    /* Whether all values are finite; out may be x. */
    bool apply(Tensor &out, const Tensor &x) const {
        return region_norm(out.f32(), x.f32(), weight.f32(), bias ? bias->f32() : nullptr, int(x.values() / dim()),
                           int(dim()), eps);
    }
};

bool norm(Tensor &out, const Tensor &x, const Norm &norm) {
    if (x.type != T_F32 || x.tiled || x.shape[x.dimensions - 1] != norm.dim())
        wrong("x", describe(x), text("F32 (..., ", norm.dim(), ")"));
    if (out.type != T_F32 || out.tiled || out.values() != x.values()) wrong("out", describe(out), describe(x));
    expect_same_or_apart(out, x);
    return norm.apply(out, x);
}

void bind_norm(nb::module_ &m) {
    nb::class_<Norm>(m, "Norm").def(nb::init<const Tensor &, float, const Tensor *>(), "weight"_a, "eps"_a,
                                    optional("bias"));
    m.def("norm", &norm, "out"_a, "x"_a, "norm"_a);
}

}  // namespace
}  // namespace colibri
#endif
