/* Floats -> the integer activation formats, and the gated activations of an expert. */
#include "kernels.h"
#include "vec/int8.h"
#include "vec/math.h"
#include "vec/vec.h"

void KERNEL(quantize_q32)(void *out, const float *x, int n) {
    struct q32_block *block = out;
    for (int i = 0; i < n; i += 32, block++) {
        vf inverse;
        block->scale = block_scale(x + i, 32, &inverse);
        const vi first = quantize_16(block->q, x + i, inverse), second = quantize_16(block->q + 16, x + i + 16, inverse);
        const unsigned sum = (unsigned)vi_sum(first);
        block->minus_128_first = (int32_t)(-128u * sum);
        block->minus_128_sum = (int32_t)(-128u * (sum + (unsigned)vi_sum(second)));
    }
}

void KERNEL(quantize_q256)(void *out, const float *x, int n) {
    static const int place[8] = {0, 2, 1, 3, 4, 6, 5, 7};
    struct q256_block *block = out;
    for (int i = 0; i < n; i += 256, block++) {
        vf inverse;
        block->scale = block_scale(x + i, 256, &inverse);
        for (int j = 0; j < 16; j += 2) {
            const unsigned first = (unsigned)vi_sum(quantize_16(block->q + 16 * j, x + i + 16 * j, inverse));
            const unsigned second = (unsigned)vi_sum(quantize_16(block->q + 16 * j + 16, x + i + 16 * j + 16, inverse));
            block->minus_32_sum[j] = (int32_t)(-32u * first);
            block->minus_32_sum[j + 1] = (int32_t)(-32u * second);
            block->sums[place[j / 2]] = (int16_t)(first + second);
            block->sums_of_16[j / 8 * 8 + place[j % 8]] = (int16_t)first;
            block->sums_of_16[j / 8 * 8 + place[j % 8 + 1]] = (int16_t)second;
        }
    }
}

void KERNEL(quantize_f32)(void *out, const float *x, int n) { memcpy(out, x, (size_t)n * sizeof *x); }

/* A NaN stays one: it is the second argument. */
VEC vf at_most(vf x, float limit) { return vf_min(vf_set1(limit), x); }
VEC vf within(vf x, float limit) { return vf_max(vf_set1(-limit), at_most(x, limit)); }

VEC vf silu(vf gate, vf up, struct glu_options o) { return (void)o, vf_mul(vf_silu(gate), up); }
VEC vf gelu_tanh(vf gate, vf up, struct glu_options o) { return (void)o, vf_mul(vf_gelu_tanh(gate), up); }
VEC vf gelu_erf(vf gate, vf up, struct glu_options o) { return (void)o, vf_mul(vf_gelu_erf(gate), up); }
VEC vf relu2(vf gate, vf up, struct glu_options o) {
    const vf positive = vf_max(vf_zero(), gate);
    return (void)o, vf_mul(vf_mul(positive, positive), up);
}
VEC vf silu_clamped(vf gate, vf up, struct glu_options o) {
    return vf_mul(vf_silu(at_most(gate, o.limit)), within(up, o.limit));
}
VEC vf swiglu_oai(vf gate, vf up, struct glu_options o) {
    const vf g = at_most(gate, o.limit), one = vf_set1(1.0f);
    const vf curve = vf_div(g, vf_add(one, vf_exp(vf_mul(g, vf_set1(-o.alpha)))));
    return vf_mul(vf_add(within(up, o.limit), one), curve);
}
#define GLU(name)                                                                                              \
    void KERNEL(glu_##name)(float *out, const float *gate, const float *up, int n, struct glu_options o) {     \
        int i = 0;                                                                                             \
        for (; i + 16 <= n; i += 16)                                                                           \
            vf_store(out + i, name(vf_load(gate + i), up ? vf_load(up + i) : vf_set1(1.0f), o));               \
        if (i == n) return;                                                                                    \
        const vf last = up ? vf_load_first(up + i, n - i) : vf_set1(1.0f);                                     \
        vf_store_first(out + i, name(vf_load_first(gate + i, n - i), last, o), n - i);                         \
    }
GLU(silu)
GLU(gelu_tanh)
GLU(gelu_erf)
GLU(relu2)
GLU(silu_clamped)
GLU(swiglu_oai)

void KERNEL(sigmoid_gate)(float *out, const float *gate, int n) {
    int i = 0;
    for (; i + 16 <= n; i += 16) vf_store(out + i, vf_mul(vf_load(out + i), vf_sigmoid(vf_load(gate + i))));
    if (i < n)
        vf_store_first(out + i, vf_mul(vf_load_first(out + i, n - i), vf_sigmoid(vf_load_first(gate + i, n - i))), n - i);
}

/* An infinity would become the cap and be seen no more: times 0 it is a NaN. */
VEC vf capped(vf x, float cap) { return vf_fma(x, vf_zero(), vf_mul(vf_set1(cap), vf_tanh(vf_div(x, vf_set1(cap))))); }
void KERNEL(soft_cap)(float *x, float cap, int n) {
    int i = 0;
    for (; i + 16 <= n; i += 16) vf_store(x + i, capped(vf_load(x + i), cap));
    if (i < n) vf_store_first(x + i, capped(vf_load_first(x + i, n - i), cap), n - i);
}
