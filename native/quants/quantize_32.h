/* Quantisers of the formats of 32 values with one scale: Q4_0, Q5_0, Q4_1, Q5_1, Q8_0, MXFP4. */
#ifndef COLIBRI_QUANTIZE_32_H
#define COLIBRI_QUANTIZE_32_H
#include "quants/quantize_group.h"

/* x ~ scale * q, q in -(top + 1)..top */
INLINE void search_halves(struct group *g, const float *w, float top, const float *reach, float *scale) {
    EACH_VECTOR(v) store(scale + v, search_scale(g->x + v, w ? w + v : NULL, 32, top, reach, 8, 1));
    for (int l = 0; l < GROUP; l++) scale[l] = as_half(scale[l]);
    write_integers(g, 32, scale, NULL, -(top + 1), top, top + 1);
}

/* x ~ scale * q + offset, q in 0..top; blocks above zero are searched less their smallest value. */
INLINE void search_lines(struct group *g, const float *w, float top, float *scale, float *offset) {
    float lowest[GROUP], rest[GROUP];
    EACH_VECTOR(v) {
        vfloat low = value(g->x + v, 0);
        for (int i = 1; i < 32; i++) low = least(low, value(g->x + v, i));
        low = most(low, all(0));
        for (int i = 0; i < 32; i++) store(g->x + v + i * GROUP, value(g->x + v, i) - low);
        struct line best = search_line(g->x + v, w ? w + v : NULL, 32, top, 8, 2);
        store(scale + v, best.scale), store(offset + v, best.offset + low), store(lowest + v, low);
    }
    for (int l = 0; l < GROUP; l++) {
        scale[l] = as_half(scale[l]), offset[l] = as_half(offset[l]);
        rest[l] = offset[l] - lowest[l];
    }
    write_integers(g, 32, scale, rest, 0, top, 0);
}

/* The fifth bits of 32 values. */
static void put_fifth_bits(uint8_t *out, const struct group *g, int lane) {
    memset(out, 0, 4);
    for (int i = 0; i < 32; i++) out[i / 8] |= (uint8_t)(g->q[i * GROUP + lane] >> 4 << i % 8);
}

INLINE void q4_0_group(struct group *g, const float *w, uint8_t *out, int blocks) {
    float scale[GROUP];
    search_halves(g, w, 7, reach_7, scale);
    for (int l = 0; l < blocks; l++, out += 18) put_half(out, scale[l]), put_nibbles(out + 2, g, l);
}

INLINE void q5_0_group(struct group *g, const float *w, uint8_t *out, int blocks) {
    float scale[GROUP];
    search_halves(g, w, 15, reach_15, scale);
    for (int l = 0; l < blocks; l++, out += 22)
        put_half(out, scale[l]), put_fifth_bits(out + 2, g, l), put_nibbles(out + 6, g, l);
}

INLINE void q4_1_group(struct group *g, const float *w, uint8_t *out, int blocks) {
    float scale[GROUP], offset[GROUP];
    search_lines(g, w, 15, scale, offset);
    for (int l = 0; l < blocks; l++, out += 20)
        put_half(out, scale[l]), put_half(out + 2, offset[l]), put_nibbles(out + 4, g, l);
}

INLINE void q5_1_group(struct group *g, const float *w, uint8_t *out, int blocks) {
    float scale[GROUP], offset[GROUP];
    search_lines(g, w, 31, scale, offset);
    for (int l = 0; l < blocks; l++, out += 24)
        put_half(out, scale[l]), put_half(out + 2, offset[l]), put_fifth_bits(out + 4, g, l), put_nibbles(out + 8, g, l);
}

/* The largest magnitude is 127 steps, then the step is fitted to the integers it gives. */
INLINE void q8_0_group(struct group *g, const float *w, uint8_t *out, int blocks) {
    float scale[GROUP];
    EACH_VECTOR(v) {
        vfloat peak = all(0);
        for (int i = 0; i < 32; i++) peak = most(peak, magnitude(value(g->x + v, i)));
        struct sums s = assign(g->x + v, w ? w + v : NULL, 32, ratio(all(127), peak), all(0), -127, 127);
        store(scale + v, ratio(s.xq, s.qq));
    }
    for (int l = 0; l < GROUP; l++) scale[l] = as_half(scale[l]);
    write_integers(g, 32, scale, NULL, -127, 127, 0);
    for (int l = 0; l < blocks; l++, out += 34) {
        put_half(out, scale[l]);
        for (int i = 0; i < 32; i++) out[2 + i] = g->q[i * GROUP + l];
    }
}

/* Magnitudes of E2M1 are 0 .5 1 1.5 2 3 4 6: the code is the number of midpoints below. Value and code of x >= 0. */
INLINE vfloat e2m1(vfloat x, vfloat *code) {
    static const float midpoint[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    static const float step[7] = {0.5f, 0.5f, 0.5f, 0.5f, 1, 1, 2};
    vfloat sum = all(0);
    *code = all(0);
    for (int t = 0; t < 7; t++) {
        vint above = x > midpoint[t];
        sum += pick(above, all(step[t]), all(0)), *code += pick(above, all(1), all(0));
    }
    return sum;
}

INLINE vfloat mxfp4_error(const float *x, const float *w, vfloat scale) {
    vfloat error = all(0), code, inverse = 1 / scale;
    for (int i = 0; i < 32; i++) {
        vfloat miss = magnitude(value(x, i)) - scale * e2m1(magnitude(value(x, i)) * inverse, &code);
        error += weight(w, i) * miss * miss;
    }
    return error;
}

/* The power of two that leaves the peak between 4 and 8, or a neighbour of it. */
INLINE void mxfp4_group(struct group *g, const float *w, uint8_t *out, int blocks) {
    float scale[GROUP];
    EACH_VECTOR(v) {
        vfloat peak = all(0), best, error;
        for (int i = 0; i < 32; i++) peak = most(peak, magnitude(value(g->x + v, i)));
        vfloat middle = (vfloat)((vint)most(peak * 0.25f, all(0x1p-125f)) & 0x7f800000);
        best = middle, error = mxfp4_error(g->x + v, w ? w + v : NULL, middle);
        for (int t = 0; t < 2; t++) {
            vfloat other = middle * (t ? 2.0f : 0.5f), e = mxfp4_error(g->x + v, w ? w + v : NULL, other);
            vint better = e < error;
            best = pick(better, other, best), error = pick(better, e, error);
        }
        store(scale + v, best);
        vfloat code;
        for (int i = 0; i < 32; i++) {
            e2m1(magnitude(value(g->x + v, i)) / best, &code);
            vfloat negative = pick((value(g->x + v, i) < 0) & (code > 0), all(8), all(0));
            keep_integers(g->q + v, i, code + negative);
        }
    }
    for (int l = 0; l < blocks; l++, out += 17) {
        int exponent;
        frexpf(scale[l], &exponent); /* scale = 0.5 * 2^exponent */
        out[0] = (uint8_t)(exponent - 1 + 127);
        put_nibbles(out + 1, g, l);
    }
}
#endif
