/* Quantisers: float32 rows -> plain GGUF blocks. Sixteen blocks are searched side by side, one a lane; the searches are
 * in quants/quantize_search.h, here are the layouts and the scales of scales of the K formats. */
#include <math.h>

#include "kernels.h"
#include "quants/quantize_search.h"
#include "vec/vec.h"

enum { MOST_VALUES = 32, SUPER = 256 };

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

/* ---- 32 values, one scale ---- */

static void pack_nibbles(uint8_t *out, const struct group *g, int lane) {
    for (int i = 0; i < 16; i++)
        out[i] = (uint8_t)(g->q[i * GROUP + lane] | g->q[(i + 16) * GROUP + lane] << 4);
}

INLINE void q4_0_group(struct group *g, const float *w, uint8_t *out, int blocks) {
    float scale[GROUP];
    EACH_VECTOR(v) store(scale + v, search_scale(g->x + v, w ? w + v : NULL, 32, 7, reach_7, 8, 1));
    for (int l = 0; l < GROUP; l++) scale[l] = as_half(scale[l]);
    write_integers(g, 32, scale, NULL, -8, 7, 8);
    for (int l = 0; l < blocks; l++, out += 18) put_half(out, scale[l]), pack_nibbles(out + 2, g, l);
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
        pack_nibbles(out + 1, g, l);
    }
}

/* ---- 256 values: 16 blocks of 16 with int8 scales ---- */

INLINE void q6_k_group(struct group *g, const float *w, uint8_t *out, int blocks) {
    float scale[GROUP], whole[GROUP], qq[GROUP], xq[GROUP];
    (void)blocks;
    EACH_VECTOR(v) store(scale + v, search_scale(g->x + v, w ? w + v : NULL, 16, 31, reach_31, 6, 1));
    float peak = 0;
    for (int l = 0; l < GROUP; l++) if (fabsf(scale[l]) > fabsf(peak)) peak = scale[l];
    float d = as_half(peak / -128.0f);
    for (int round = 0; round < 3; round++) {
        for (int l = 0; l < GROUP; l++) {
            float near = d != 0 ? rintf(scale[l] / d) : 0;
            whole[l] = near < -128 ? -128 : near > 127 ? 127 : near;
            scale[l] = d * whole[l];
        }
        if (round == 2) break;
        EACH_VECTOR(v) {
            vfloat inverse = reciprocal(load(scale + v));
            struct sums t = assign(g->x + v, w ? w + v : NULL, 16, inverse, all(0), -32, 31);
            store(qq + v, t.qq), store(xq + v, t.xq);
        }
        float above = 0, below = 0;
        for (int l = 0; l < GROUP; l++) above += whole[l] * xq[l], below += whole[l] * whole[l] * qq[l];
        if (below > 0) d = as_half(above / below);
        for (int l = 0; l < GROUP; l++) if (qq[l] > 0) scale[l] = xq[l] / qq[l];
    }
    write_integers(g, 16, scale, NULL, -32, 31, 32);
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 32; i++) { /* value 128 * half + 32 * part + i is in block 8 * half + 2 * part + i / 16 */
            const uint8_t *q = g->q + (i % 16) * GROUP + half * 8 + i / 16;
            out[half * 64 + i] = (uint8_t)((q[0] & 15) | q[4] << 4);
            out[half * 64 + 32 + i] = (uint8_t)((q[2] & 15) | q[6] << 4);
            out[128 + half * 32 + i] = (uint8_t)(q[0] >> 4 | q[2] >> 4 << 2 | q[4] >> 4 << 4 | q[6] >> 4 << 6);
        }
    for (int l = 0; l < GROUP; l++) out[192 + l] = (uint8_t)(int8_t)whole[l];
    put_half(out + 208, d);
}

/* ---- 256 values: 8 blocks of 32 with 6-bit scales and mins; a group is two of them ---- */

struct lanes { float w[GROUP], x[GROUP], xx[GROUP], q[GROUP], qq[GROUP], xq[GROUP]; };
struct scales { float d[2], dmin[2], scale[GROUP], min[GROUP]; }; /* scale and min are whole, 0..63 */

INLINE void each_of(float *lanes, const float two[2]) {
    for (int l = 0; l < GROUP; l++) lanes[l] = two[l / 8];
}

/* Given the integers' sums, the whole scale and min of least error, among the neighbours of the best real ones. */
INLINE void choose_scales(struct scales *s, const struct lanes *sums) {
    float d[GROUP], dmin[GROUP];
    each_of(d, s->d), each_of(dmin, s->dmin);
    EACH_VECTOR(v) {
        struct fixed_sums f = {load(sums->w + v), load(sums->x + v), load(sums->xx + v)};
        struct sums t = {load(sums->q + v), load(sums->qq + v), load(sums->xq + v)};
        vfloat step = load(d + v), depth = load(dmin + v);
        vfloat centre = nearest(within(ratio(fit_line(f, t).scale, step), 0, 63));
        vfloat best_scale = all(0), best_min = all(0), error = all(INFINITY);
        for (int near = -1; near <= 1; near++) {
            vfloat scale = within(centre + (float)near, 0, 63);
            vfloat min = nearest_within(ratio(step * scale * t.q - f.x, depth * f.w), 0, 63);
            vfloat now = line_error(f, t, step * scale, -depth * min);
            vint better = now < error;
            error = pick(better, now, error);
            best_scale = pick(better, scale, best_scale), best_min = pick(better, min, best_min);
        }
        store(s->scale + v, best_scale), store(s->min + v, best_min);
    }
}

INLINE void sum_integers(const struct group *g, const float *w, const struct scales *s, float top, struct lanes *sums) {
    float d[GROUP], dmin[GROUP];
    each_of(d, s->d), each_of(dmin, s->dmin);
    EACH_VECTOR(v) {
        vfloat scale = load(d + v) * load(s->scale + v), offset = -load(dmin + v) * load(s->min + v);
        struct sums t = assign(g->x + v, w ? w + v : NULL, 32, ratio(all(1), scale), offset, 0, top);
        store(sums->q + v, t.q), store(sums->qq + v, t.qq), store(sums->xq + v, t.xq);
    }
}

/* The d and dmin of least squared error for given integers, whole scales and mins. */
INLINE void refit_super(struct scales *s, const struct lanes *sums) {
    for (int block = 0; block < 2; block++) {
        float aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
        for (int l = block * 8; l < block * 8 + 8; l++) {
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

INLINE void search_super(struct group *g, const float *w, float top, struct scales *s) {
    struct lanes sums;
    float offset[GROUP];
    EACH_VECTOR(v) {
        const float *x = g->x + v, *wv = w ? w + v : NULL;
        struct line best = search_line(x, wv, 32, top, 6, 1);
        store(s->scale + v, best.scale), store(offset + v, best.offset);
        struct fixed_sums f = fixed_sums(x, wv, 32);
        struct sums t = assign(x, wv, 32, ratio(all(1), best.scale), best.offset, 0, top);
        store(sums.w + v, f.w), store(sums.x + v, f.x), store(sums.xx + v, f.xx);
        store(sums.q + v, t.q), store(sums.qq + v, t.qq), store(sums.xq + v, t.xq);
    }
    for (int block = 0; block < 2; block++) {
        float scale = 0, min = 0;
        for (int l = block * 8; l < block * 8 + 8; l++) { /* not fmaxf, which of 0 and -0 gives any */
            scale = s->scale[l] > scale ? s->scale[l] : scale;
            min = -offset[l] > min ? -offset[l] : min;
        }
        s->d[block] = as_half(scale / 63), s->dmin[block] = as_half(min / 63);
    }
    for (int round = 0; round < 2; round++) {
        choose_scales(s, &sums);
        sum_integers(g, w, s, top, &sums);
        refit_super(s, &sums);
    }
    choose_scales(s, &sums);
    float d[GROUP], dmin[GROUP];
    each_of(d, s->d), each_of(dmin, s->dmin);
    for (int l = 0; l < GROUP; l++) d[l] *= s->scale[l], dmin[l] *= -s->min[l];
    write_integers(g, 32, d, dmin, 0, top, 0);
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
    search_super(g, w, 15, &s);
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
    search_super(g, w, 31, &s);
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

/* ---- rows ---- */

typedef void group_quantizer(struct group *g, const float *w, uint8_t *out, int blocks);
struct layout { group_quantizer *quantize; int values, group_bytes; }; /* values of one lane; bytes of a full group */

#define WITH_AND_WITHOUT_WEIGHTS(name) \
    static void name(struct group *g, const float *w, uint8_t *out, int blocks) { \
        if (w) name##_group(g, w, out, blocks); else name##_group(g, NULL, out, blocks); \
    }
WITH_AND_WITHOUT_WEIGHTS(q4_0)
WITH_AND_WITHOUT_WEIGHTS(q8_0)
WITH_AND_WITHOUT_WEIGHTS(mxfp4)
WITH_AND_WITHOUT_WEIGHTS(q4_k)
WITH_AND_WITHOUT_WEIGHTS(q5_k)
WITH_AND_WITHOUT_WEIGHTS(q6_k)

static const struct layout layouts[TYPE_COUNT] = {
    [T_Q4_0] = {q4_0, 32, GROUP * 18}, [T_Q8_0] = {q8_0, 32, GROUP * 34}, [T_MXFP4] = {mxfp4, 32, GROUP * 17},
    [T_Q4_K] = {q4_k, 32, 2 * 144}, [T_Q5_K] = {q5_k, 32, 2 * 176}, [T_Q6_K] = {q6_k, 16, 210},
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
