/* Quantisers of the K formats: 256 values in blocks of 16 or 32, whose scales are whole numbers. */
#ifndef COLIBRI_QUANTIZE_256_H
#define COLIBRI_QUANTIZE_256_H
#include "quants/quantize_group.h"

/* ---- blocks with whole scales of either sign, low..-low - 1, of a factor d: Q3_K, Q6_K, IQ4_XS ---- */

typedef struct sums assign_function(const float *x, const float *w, int n, vfloat inverse, float top);
INLINE struct sums assign_integers(const float *x, const float *w, int n, vfloat inverse, float top) {
    return assign(x, w, n, inverse, all(0), -(top + 1), top);
}

/* From the blocks' own scales the factor (a half float) of each `lanes` of them and whole scales, fitted in turns; scale is
 * then their product. */
INLINE void search_signed(struct group *g, const float *w, int n, int lanes, float low, assign_function *assigned, float top,
                          float *d, float *whole, float *scale) {
    float qq[GROUP], xq[GROUP];
    for (int first = 0; first < GROUP; first += lanes) {
        float peak = 0;
        for (int l = first; l < first + lanes; l++) if (fabsf(scale[l]) > fabsf(peak)) peak = scale[l];
        d[first / lanes] = as_half(peak / low);
    }
    for (int round = 0; round < 3; round++) {
        for (int l = 0; l < GROUP; l++) {
            const float factor = d[l / lanes], near = factor != 0 ? rintf(scale[l] / factor) : 0;
            whole[l] = near < low ? low : near > -low - 1 ? -low - 1 : near;
            scale[l] = factor * whole[l];
        }
        if (round == 2) break;
        EACH_VECTOR(v) {
            struct sums t = assigned(g->x + v, w ? w + v : NULL, n, reciprocal(load(scale + v)), top);
            store(qq + v, t.qq), store(xq + v, t.xq);
        }
        for (int first = 0; first < GROUP; first += lanes) {
            float above = 0, below = 0;
            for (int l = first; l < first + lanes; l++) above += whole[l] * xq[l], below += whole[l] * whole[l] * qq[l];
            if (below > 0) d[first / lanes] = as_half(above / below);
        }
        for (int l = 0; l < GROUP; l++) if (qq[l] > 0) scale[l] = xq[l] / qq[l];
    }
}

INLINE void q6_k_group(struct group *g, const float *w, uint8_t *out, int blocks) {
    float scale[GROUP], whole[GROUP], d[1];
    (void)blocks;
    EACH_VECTOR(v) store(scale + v, search_scale(g->x + v, w ? w + v : NULL, 16, 31, reach_31, 6, 1));
    search_signed(g, w, 16, 16, -128, assign_integers, 31, d, whole, scale);
    write_integers(g, 16, scale, NULL, -32, 31, 32);
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 32; i++) { /* value 128 * half + 32 * part + i is in block 8 * half + 2 * part + i / 16 */
            const uint8_t *q = g->q + (i % 16) * GROUP + half * 8 + i / 16;
            out[half * 64 + i] = (uint8_t)((q[0] & 15) | q[4] << 4);
            out[half * 64 + 32 + i] = (uint8_t)((q[2] & 15) | q[6] << 4);
            out[128 + half * 32 + i] = (uint8_t)(q[0] >> 4 | q[2] >> 4 << 2 | q[4] >> 4 << 4 | q[6] >> 4 << 6);
        }
    for (int l = 0; l < GROUP; l++) out[192 + l] = (uint8_t)(int8_t)whole[l];
    put_half(out + 208, d[0]);
}

/* Two bits of value 128 * half + 32 * part + i are bits 2 * part of byte 32 * half + i. */
static void put_two_bits_each(uint8_t *out, const struct group *g) {
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 32; i++) {
            const uint8_t *q = g->q + (i % 16) * GROUP + half * 8 + i / 16;
            int byte = 0;
            for (int part = 0; part < 4; part++) byte |= (q[2 * part] & 3) << 2 * part;
            out[32 * half + i] = (uint8_t)byte;
        }
}

INLINE void q3_k_group(struct group *g, const float *w, uint8_t *out, int blocks) {
    float scale[GROUP], whole[GROUP], d[1];
    (void)blocks;
    EACH_VECTOR(v) store(scale + v, search_scale(g->x + v, w ? w + v : NULL, 16, 3, reach_3, 8, 2));
    search_signed(g, w, 16, 16, -32, assign_integers, 3, d, whole, scale);
    write_integers(g, 16, scale, NULL, -4, 3, 4);
    memset(out, 0, 32);
    for (int value = 0; value < 256; value++)
        out[value % 32] |= (uint8_t)(g->q[value % 16 * GROUP + value / 16] >> 2 << value / 32);
    put_two_bits_each(out + 32, g);
    uint8_t *scales = out + 96;
    memset(scales, 0, 12);
    for (int l = 0; l < GROUP; l++) {
        const int stored = (int)whole[l] + 32;
        scales[l % 8] |= (uint8_t)((stored & 15) << l / 8 * 4);
        scales[8 + l % 4] |= (uint8_t)(stored >> 4 << l / 4 * 2);
    }
    put_half(out + 108, d[0]);
}

/* ---- blocks with whole scales and mins, 0..limit, of factors d and dmin: Q2_K, Q4_K, Q5_K ---- */

/* lanes: blocks of 256 values, two of which are in a group or one; n: values of a block. */
struct kind { int lanes, n; float limit, top; };

struct lanes { float w[GROUP], x[GROUP], xx[GROUP], q[GROUP], qq[GROUP], xq[GROUP]; };
struct scales { float d[2], dmin[2], scale[GROUP], min[GROUP]; }; /* scale and min are whole */

INLINE void each_of(float *values, const float two[2], int lanes) {
    for (int l = 0; l < GROUP; l++) values[l] = two[l / lanes];
}

/* Given the integers' sums, the whole scale and min of least error, among the neighbours of the best real ones. */
INLINE void choose_scales(struct kind kind, struct scales *s, const struct lanes *sums) {
    float d[GROUP], dmin[GROUP];
    each_of(d, s->d, kind.lanes), each_of(dmin, s->dmin, kind.lanes);
    EACH_VECTOR(v) {
        struct fixed_sums f = {load(sums->w + v), load(sums->x + v), load(sums->xx + v)};
        struct sums t = {load(sums->q + v), load(sums->qq + v), load(sums->xq + v)};
        vfloat step = load(d + v), depth = load(dmin + v);
        vfloat centre = nearest(within(ratio(fit_line(f, t).scale, step), 0, kind.limit));
        vfloat best_scale = all(0), best_min = all(0), error = all(INFINITY);
        for (int near = -1; near <= 1; near++) {
            vfloat scale = within(centre + (float)near, 0, kind.limit);
            vfloat min = nearest_within(ratio(step * scale * t.q - f.x, depth * f.w), 0, kind.limit);
            vfloat now = line_error(f, t, step * scale, -depth * min);
            vint better = now < error;
            error = pick(better, now, error);
            best_scale = pick(better, scale, best_scale), best_min = pick(better, min, best_min);
        }
        store(s->scale + v, best_scale), store(s->min + v, best_min);
    }
}

INLINE void sum_integers(struct kind kind, const struct group *g, const float *w, const struct scales *s, struct lanes *sums) {
    float d[GROUP], dmin[GROUP];
    each_of(d, s->d, kind.lanes), each_of(dmin, s->dmin, kind.lanes);
    EACH_VECTOR(v) {
        vfloat scale = load(d + v) * load(s->scale + v), offset = -load(dmin + v) * load(s->min + v);
        struct sums t = assign(g->x + v, w ? w + v : NULL, kind.n, ratio(all(1), scale), offset, 0, kind.top);
        store(sums->q + v, t.q), store(sums->qq + v, t.qq), store(sums->xq + v, t.xq);
    }
}

/* The d and dmin of least squared error for given integers, whole scales and mins. */
INLINE void refit_super(struct kind kind, struct scales *s, const struct lanes *sums) {
    for (int block = 0; block < GROUP / kind.lanes; block++) {
        float aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
        for (int l = block * kind.lanes; l < (block + 1) * kind.lanes; l++) {
            float scale = s->scale[l], min = s->min[l];
            aa += scale * scale * sums->qq[l], ab += scale * min * sums->q[l], bb += min * min * sums->w[l];
            ax += scale * sums->xq[l], bx += min * sums->x[l];
        }
        float det = aa * bb - ab * ab;
        float d = det > 1e-6f * aa * bb ? (ax * bb - bx * ab) / det : aa > 0 ? (ax + s->dmin[block] * ab) / aa : 0;
        float dmin = det > 1e-6f * aa * bb ? (ax * ab - bx * aa) / det : s->dmin[block];
        if (d > 0 && dmin >= 0) s->d[block] = as_half(d), s->dmin[block] = as_half(dmin);
    }
}

INLINE void search_super(struct kind kind, struct group *g, const float *w, struct scales *s) {
    struct lanes sums;
    float offset[GROUP];
    EACH_VECTOR(v) {
        const float *x = g->x + v, *wv = w ? w + v : NULL;
        struct line best = search_line(x, wv, kind.n, kind.top, 6, 1);
        store(s->scale + v, best.scale), store(offset + v, best.offset);
        struct fixed_sums f = fixed_sums(x, wv, kind.n);
        struct sums t = assign(x, wv, kind.n, ratio(all(1), best.scale), best.offset, 0, kind.top);
        store(sums.w + v, f.w), store(sums.x + v, f.x), store(sums.xx + v, f.xx);
        store(sums.q + v, t.q), store(sums.qq + v, t.qq), store(sums.xq + v, t.xq);
    }
    for (int block = 0; block < GROUP / kind.lanes; block++) {
        float scale = 0, min = 0;
        for (int l = block * kind.lanes; l < (block + 1) * kind.lanes; l++) { /* not fmaxf, which of 0 and -0 gives any */
            scale = s->scale[l] > scale ? s->scale[l] : scale;
            min = -offset[l] > min ? -offset[l] : min;
        }
        s->d[block] = as_half(scale / kind.limit), s->dmin[block] = as_half(min / kind.limit);
    }
    for (int round = 0; round < 2; round++) {
        choose_scales(kind, s, &sums);
        sum_integers(kind, g, w, s, &sums);
        refit_super(kind, s, &sums);
    }
    choose_scales(kind, s, &sums);
    float d[GROUP], dmin[GROUP];
    each_of(d, s->d, kind.lanes), each_of(dmin, s->dmin, kind.lanes);
    for (int l = 0; l < GROUP; l++) d[l] *= s->scale[l], dmin[l] *= -s->min[l];
    write_integers(g, kind.n, d, dmin, 0, kind.top, 0);
}

/* d, dmin and the eight 6-bit scales and mins: 16 bytes. */
static void pack_scales(uint8_t *out, const struct scales *s, int block) {
    put_half(out, s->d[block]), put_half(out + 2, s->dmin[block]);
    for (int j = 0; j < 4; j++) {
        int scale = (int)s->scale[block * 8 + j], min = (int)s->min[block * 8 + j];
        int scale2 = (int)s->scale[block * 8 + j + 4], min2 = (int)s->min[block * 8 + j + 4];
        out[4 + j] = (uint8_t)(scale | scale2 >> 4 << 6);
        out[8 + j] = (uint8_t)(min | min2 >> 4 << 6);
        out[12 + j] = (uint8_t)((scale2 & 15) | (min2 & 15) << 4);
    }
}

INLINE void q4_k_group(struct group *g, const float *w, uint8_t *out, int blocks) {
    struct scales s;
    search_super((struct kind){8, 32, 63, 15}, g, w, &s);
    for (int block = 0; block < blocks / 8; block++, out += 144) {
        pack_scales(out, &s, block);
        for (int pair = 0; pair < 4; pair++)
            for (int i = 0; i < 32; i++) {
                const uint8_t *q = g->q + i * GROUP + block * 8 + 2 * pair;
                out[16 + 32 * pair + i] = (uint8_t)(q[0] | q[1] << 4);
            }
    }
}

INLINE void q5_k_group(struct group *g, const float *w, uint8_t *out, int blocks) {
    struct scales s;
    search_super((struct kind){8, 32, 63, 31}, g, w, &s);
    for (int block = 0; block < blocks / 8; block++, out += 176) {
        pack_scales(out, &s, block);
        for (int i = 0; i < 32; i++) {
            const uint8_t *q = g->q + i * GROUP + block * 8;
            int fifth = 0;
            for (int j = 0; j < 8; j++) fifth |= q[j] >> 4 << j;
            out[16 + i] = (uint8_t)fifth;
            for (int pair = 0; pair < 4; pair++)
                out[48 + 32 * pair + i] = (uint8_t)((q[2 * pair] & 15) | (q[2 * pair + 1] & 15) << 4);
        }
    }
}

INLINE void q2_k_group(struct group *g, const float *w, uint8_t *out, int blocks) {
    struct scales s;
    (void)blocks;
    search_super((struct kind){16, 16, 15, 3}, g, w, &s);
    for (int l = 0; l < GROUP; l++) out[l] = (uint8_t)((int)s.scale[l] | (int)s.min[l] << 4);
    put_two_bits_each(out + 16, g);
    put_half(out + 80, s.d[0]), put_half(out + 82, s.dmin[0]);
}
#endif
