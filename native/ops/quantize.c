/* Quantisers: float32 rows -> plain GGUF blocks. Sixteen blocks are searched side by side, one a lane; the searches are
 * in quants/quantize_search.h, the formats in the headers that are named here. */
#include "kernels.h"
#include "quants/quantize_32.h"
#include "quants/quantize_256.h"
#include "quants/quantize_levels.h"
#include "vec/vec.h"

typedef void group_quantizer(struct group *g, const float *w, uint8_t *out, int blocks);
struct layout { group_quantizer *quantize; int values, group_bytes; }; /* values of one lane; bytes of a full group */

#define WITH_AND_WITHOUT_WEIGHTS(name) \
    static void name(struct group *g, const float *w, uint8_t *out, int blocks) { \
        if (w) name##_group(g, w, out, blocks); else name##_group(g, NULL, out, blocks); \
    }
/* X(NAME, name, values of a lane, bytes of a full group) */
#define QUANTIZED(X)                                                                                                \
    X(Q4_0, q4_0, 32, GROUP * 18) X(Q4_1, q4_1, 32, GROUP * 20) X(Q5_0, q5_0, 32, GROUP * 22)                       \
    X(Q5_1, q5_1, 32, GROUP * 24) X(Q8_0, q8_0, 32, GROUP * 34) X(MXFP4, mxfp4, 32, GROUP * 17)                     \
    X(IQ4_NL, iq4_nl, 32, GROUP * 18) X(IQ4_XS, iq4_xs, 32, 2 * 136) X(Q2_K, q2_k, 16, 84) X(Q3_K, q3_k, 16, 110)   \
    X(Q4_K, q4_k, 32, 2 * 144) X(Q5_K, q5_k, 32, 2 * 176) X(Q6_K, q6_k, 16, 210)
#define X(NAME, name, ...) WITH_AND_WITHOUT_WEIGHTS(name)
QUANTIZED(X)
#undef X

static const struct layout layouts[TYPE_COUNT] = {
#define X(NAME, name, values, bytes) [T_##NAME] = {name, values, bytes},
    QUANTIZED(X)
#undef X
};

static void gather(float *columns, const float *from, int values, int blocks) {
    for (int l = 0; l < blocks; l++)
        for (int i = 0; i < values; i++) columns[i * GROUP + l] = from[l * values + i];
    for (int l = blocks; l < GROUP; l++)
        for (int i = 0; i < values; i++) columns[i * GROUP + l] = 0;
}

static void gather_weights(struct group *g, const float *importance, int k, int64_t at, int values, int blocks) {
    for (int l = 0; l < GROUP; l++) {
        const float *from = importance + (at + (int64_t)(l < blocks ? l : 0) * values) % k;
        for (int i = 0; i < values; i++) g->weights[i * GROUP + l] = from[i];
    }
}

static void quantize_blocks(struct layout layout, uint8_t *out, const float *x, const float *importance, int64_t rows,
                            int k) {
    struct group g;
    int64_t total = rows * k, step = (int64_t)layout.values * GROUP;
    for (int64_t at = 0; at < total; at += step, out += layout.group_bytes) {
        int blocks = (int)((total - at < step ? total - at : step) / layout.values);
        gather(g.x, x + at, layout.values, blocks);
        if (importance) gather_weights(&g, importance, k, at, layout.values, blocks);
        layout.quantize(&g, importance ? g.weights : NULL, out, blocks);
    }
}

static void round_to_half(uint16_t *out, const float *x, int64_t n) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) vf_to_f16(out + i, vf_load(x + i));
    for (; i < n; i++) out[i] = to_half(x[i]);
}

static void round_to_bf16(uint16_t *out, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        out[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

static bool all_within(const float *x, int64_t n, float limit) {
    int32_t peak = 0, bits, most; /* magnitudes compare as integers, and a NaN is above all of them */
    memcpy(&most, &limit, 4);
    for (int64_t i = 0; i < n; i++) {
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        peak = bits > peak ? bits : peak;
    }
    return peak <= most;
}

/* The largest magnitude whose scale is still a finite half float (or, for floats, a finite value). */
static float largest(int type) {
    switch (type) {
    case T_F32: return 3.402823466e38f;
    case T_BF16: return 3.38e38f;
    case T_F16: return 65504;
    case T_MXFP4: return 1e38f;
    default: return 65504 * 5;
    }
}

bool KERNEL(quantize_rows)(int type, void *plain, const float *x, const float *importance, int64_t rows, int k) {
    if (!all_within(x, rows * k, largest(type))) return false;
    switch (type) {
    case T_F32: memcpy(plain, x, (size_t)(rows * k) * 4); break;
    case T_F16: round_to_half(plain, x, rows * k); break;
    case T_BF16: round_to_bf16(plain, x, rows * k); break;
    default: quantize_blocks(layouts[type], plain, x, importance, rows, k);
    }
    return true;
}

bool KERNEL(quantizes)(int type) { return type_info[type].values == 1 || layouts[type].quantize; }
