/* From logits to tokens. Part of bind.cpp. */
#ifndef COLIBRI_BIND_SAMPLING_H
#define COLIBRI_BIND_SAMPLING_H
#include "bind/common.h"

namespace colibri {
namespace {

template <typename T, int dimensions>
using Array = nb::ndarray<T, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;

constexpr size_t SAMPLING_FIELDS = sizeof(struct sampling) / sizeof(double);

/* Arrays and not handles: the sampler works on them. */
void sample(const Array<int32_t, 1> &tokens, const Array<double, 1> &norms, const Array<const float, 2> &logits,
            const Array<const double, 2> &settings) {
    const size_t n = logits.shape(0), vocabulary = logits.shape(1);
    if (!vocabulary || vocabulary > INT32_MAX) wrong("logits", std::to_string(vocabulary) + " columns", "1 to 2^31 - 1");
    if (tokens.size() != n) wrong("tokens", std::to_string(tokens.size()) + " values", std::to_string(n));
    if (norms.size() != n) wrong("norms", std::to_string(norms.size()) + " values", std::to_string(n));
    if (settings.shape(0) != n || settings.shape(1) != SAMPLING_FIELDS)
        wrong("settings", std::to_string(settings.shape(0)) + " x " + std::to_string(settings.shape(1)),
              std::to_string(n) + " x " + std::to_string(SAMPLING_FIELDS));
    check_region(region_sample(tokens.data(), norms.data(), logits.data(), int(n), int(vocabulary),
                               reinterpret_cast<const struct sampling *>(settings.data())));
}

void bind_sampling(nb::module_ &m) {
    m.def("sample", &sample, "tokens"_a.noconvert(), "norms"_a.noconvert(), "logits"_a.noconvert(),
          "settings"_a.noconvert());
}

}  // namespace
}  // namespace colibri
#endif
