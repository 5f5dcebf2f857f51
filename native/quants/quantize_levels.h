/* Quantisers of the formats whose 16 levels are not evenly spaced: IQ4_NL, 32 values with a scale, and IQ4_XS, 256 values in
 * blocks of 32 whose scales are whole numbers. */
#ifndef COLIBRI_QUANTIZE_LEVELS_H
#define COLIBRI_QUANTIZE_LEVELS_H
#include "quants/quantize_256.h"

/* The nearest of -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113 and its number: how many middles are below. */
INLINE vfloat nearest_level(vfloat x, vfloat *code) {
    static const float middle[15] = {-115.5f, -93.5f, -74, -57, -42, -28.5f, -16, -4.5f, 7, 19, 31.5f, 45.5f, 61, 79, 101};
    static const float step[15] = {23, 21, 18, 16, 14, 13, 12, 11, 12, 12, 13, 15, 16, 20, 24};
    vfloat level = all(-127);
    *code = all(0);
    for (int t = 0; t < 15; t++) {
        vint above = x > middle[t];
        level += pick(above, all(step[t]), all(0)), *code += pick(above, all(1), all(0));
    }
    return level;
}

INLINE struct sums assign_levels(const float *x, const float *w, int n, vfloat inverse, float top) {
    struct sums s = {all(0), all(0), all(0)};
    vfloat code;
    (void)top;
    for (int i = 0; i < n; i++) {
        vfloat q = nearest_level(value(x, i) * inverse, &code), wq = weight(w, i) * q;
        s.qq += wq * q, s.xq += wq * value(x, i);
    }
    return s;
}

/* As search_scale: the level of the value of the largest magnitude, one for each start. */
INLINE vfloat search_levels(const float *x, const float *w) {
    static const float reach[] = {-127, 113, -113, -135, 100, 121, -104, -145};
    enum { STARTS = sizeof reach / sizeof *reach, REFITS = 2 };
    vfloat peak = all(0), best = all(0), gain = all(0);
    for (int i = 0; i < 32; i++) peak = pick(magnitude(value(x, i)) > magnitude(peak), value(x, i), peak);
    for (int start = 0; start < STARTS + REFITS; start++) {
        vfloat scale = start < STARTS ? peak / reach[start] : best;
        struct sums s = assign_levels(x, w, 32, reciprocal(scale), 0);
        scale = ratio(s.xq, s.qq);
        vfloat now = scale * s.xq;
        vint better = now > gain;
        best = pick(better, scale, best), gain = pick(better, now, gain);
    }
    return best;
}

INLINE void write_levels(struct group *g, const float *scale) {
    EACH_VECTOR(v) {
        vfloat inverse = reciprocal(load(scale + v)), code;
        for (int i = 0; i < 32; i++) nearest_level(value(g->x + v, i) * inverse, &code), keep_integers(g->q + v, i, code);
    }
}

INLINE void iq4_nl_group(struct group *g, const float *w, uint8_t *out, int blocks) {
    float scale[GROUP];
    EACH_VECTOR(v) store(scale + v, search_levels(g->x + v, w ? w + v : NULL));
    for (int l = 0; l < GROUP; l++) scale[l] = as_half(scale[l]);
    write_levels(g, scale);
    for (int l = 0; l < blocks; l++, out += 18) put_half(out, scale[l]), put_nibbles(out + 2, g, l);
}

INLINE void iq4_xs_group(struct group *g, const float *w, uint8_t *out, int blocks) {
    float scale[GROUP], whole[GROUP], d[2];
    EACH_VECTOR(v) store(scale + v, search_levels(g->x + v, w ? w + v : NULL));
    search_signed(g, w, 32, 8, -32, assign_levels, 0, d, whole, scale);
    write_levels(g, scale);
    for (int block = 0; block < blocks / 8; block++, out += 136) {
        int high = 0;
        put_half(out, d[block]);
        for (int j = 0; j < 8; j++) {
            const int stored = (int)whole[8 * block + j] + 32;
            high |= stored >> 4 << 2 * j;
            if (j % 2) out[4 + j / 2] |= (uint8_t)((stored & 15) << 4);
            else out[4 + j / 2] = (uint8_t)(stored & 15);
            put_nibbles(out + 8 + 16 * j, g, 8 * block + j);
        }
        out[2] = (uint8_t)high, out[3] = (uint8_t)(high >> 8);
    }
}
#endif
