/* Every block format: what the kernels know about it beside its own header. */
#ifndef COLIBRI_QUANTS_FORMATS_H
#define COLIBRI_QUANTS_FORMATS_H
#include "quants/panel.h"
#include "quants/floats.h"
#include "quants/mxfp4.h"
#include "quants/q4_0.h"
#include "quants/q8_0.h"
#include "quants/q4_k.h"
#include "quants/q5_k.h"
#include "quants/q6_k.h"

/* X(NAME, name, dot product (ops/matmul.c), values a block, values a scale, offset, has minima) */
#define INTEGER_FORMATS(X)                   \
    X(Q8_0, q8_0, q32, 32, 32, 128, false)   \
    X(Q4_0, q4_0, q32, 32, 32, 128, false)   \
    X(MXFP4, mxfp4, q32, 32, 32, 128, false) \
    X(Q4_K, q4_k, q256_32, 256, 32, 0, true) \
    X(Q5_K, q5_k, q256_32, 256, 32, 0, true) \
    X(Q6_K, q6_k, q256_16, 256, 16, 32, false)

/* X(NAME, name, bytes a value) */
#define FLOAT_FORMATS(X) X(F32, f32, 4) X(F16, f16, 2) X(BF16, bf16, 2)

/* A part of `count` blocks -> panel. */
#define X(NAME, name, dot, values, ...)                                                                     \
    VEC void expand_##name(struct panel *p, const uint8_t *part, int count) {                               \
        for (int b = 0; b < (values == PANEL ? 1 : count); b++)                                             \
            VEC_UNROLL for (int i = 0; i < values / 32; i++)                                                \
                VEC_UNROLL for (int g = 8 * i; g < 8 * i + 8; g++)                                          \
                    vb_store(p->bytes[b * (values / 4) + g],                                                \
                             bytes_##name(part + b * STRIDE_##NAME, g));                                    \
        scales_##name(p, part, count);                                                                      \
    }
INTEGER_FORMATS(X)
#undef X

/* Values [first, first + count) of k as floats [count][row]; count at most PANEL, first a multiple of it. */
typedef const float *floats_function(float *out, const uint8_t *tile, int k, int first, int count);
#define X(NAME, name, dot, values, values_a_scale, offset, has_mins)                                           \
    VEC const float *floats_##name(float *out, const uint8_t *tile, int k, int first, int count) {             \
        struct panel panel;                                                                                    \
        (void)k;                                                                                               \
        expand_##name(&panel, tile + (size_t)(first / values) * TILE_##NAME, count / values);                  \
        panel_floats(out, &panel, count, values_a_scale, offset, has_mins);                                    \
        return out;                                                                                            \
    }
INTEGER_FORMATS(X)
#undef X
#endif
