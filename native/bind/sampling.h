/* From scores to the weights of tokens. Part of bind.cpp. */
#ifndef COLIBRI_BIND_SAMPLING_H
#define COLIBRI_BIND_SAMPLING_H
#include "bind/common.h"

namespace colibri {
namespace {

template <typename T> using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/* Arrays and not handles: the sampler works on them, and it is one call a token. */
void exponentials(const Vector<double> &parts, const Vector<const float> &x, float high, float temperature,
                  const std::optional<Vector<float>> &out) {
    const size_t n = x.size(), needed = (n + SAMPLING_PART - 1) / SAMPLING_PART;
    if (parts.size() != needed) wrong("parts", std::to_string(parts.size()) + " values", std::to_string(needed));
    if (out && out->size() != n) wrong("out", std::to_string(out->size()) + " values", std::to_string(n));
    if (!(temperature > 0)) wrong("temperature", std::to_string(temperature), "more than 0");
    kernels->exponentials(out ? out->data() : nullptr, parts.data(), x.data(), high, temperature, int64_t(n));
}

void bind_sampling(nb::module_ &m) {
    m.def("exponentials", &exponentials, "parts"_a.noconvert(), "x"_a.noconvert(), "high"_a, "temperature"_a,
          "out"_a.noconvert() = nb::none());
    m.attr("SAMPLING_PART") = int(SAMPLING_PART);
}

}  // namespace
}  // namespace colibri
#endif
