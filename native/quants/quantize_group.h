/* Sixteen blocks that are searched side by side, one a lane. */
#ifndef COLIBRI_QUANTIZE_GROUP_H
#define COLIBRI_QUANTIZE_GROUP_H
#include <math.h>

#include "quants/quantize_search.h"

enum { MOST_VALUES = 32 };

/* A group of blocks: columns of values, weights (or NULL) and the integers that were chosen. */
struct group {
    float x[MOST_VALUES * GROUP], weights[MOST_VALUES * GROUP];
    const float *w;
    uint8_t q[MOST_VALUES * GROUP];
};

#define EACH_VECTOR(v) for (int v = 0; v < GROUP; v += LANES)

INLINE void keep_integers(uint8_t *q, int i, vfloat values) {
    vint whole = __builtin_convertvector(values, vint);
    for (int l = 0; l < LANES; l++) q[i * GROUP + l] = (uint8_t)whole[l];
}

/* q = nearest of (x - offset) / scale within low..high, plus `bias` so that it is stored unsigned. */
INLINE void write_integers(struct group *g, int n, const float *scale, const float *offset, float low, float high,
                           float bias) {
    EACH_VECTOR(v) {
        vfloat inverse = reciprocal(load(scale + v));
        vfloat base = offset ? -load(offset + v) * inverse : all(0);
        for (int i = 0; i < n; i++)
            keep_integers(g->q + v, i, nearest_within(value(g->x + v, i) * inverse + base, low, high) + bias);
    }
}

INLINE void put_half(uint8_t *out, float x) { uint16_t bits = to_half(x); memcpy(out, &bits, 2); }
INLINE void put_nibbles(uint8_t *out, const struct group *g, int lane) { /* values i and i + 16 of 32 in byte i */
    for (int i = 0; i < 16; i++)
        out[i] = (uint8_t)((g->q[i * GROUP + lane] & 15) | (g->q[(i + 16) * GROUP + lane] & 15) << 4);
}
#endif
