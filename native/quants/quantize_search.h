/* Searches for the scale (and offset) of blocks: weighted least squares in turns. Given the integers, the best scale and
 * offset are a small linear system; given those, the best integers are the nearest ones. Each start is one guess of the
 * range, so that outliers may be cut off where that pays.
 *
 * A block is a column: value i of the block in lane l is x[i * GROUP + l]; w are the weights of the squared errors. */
#ifndef COLIBRI_QUANTIZE_SEARCH_H
#define COLIBRI_QUANTIZE_SEARCH_H
#include "quantize_lanes.h"

/* Weighted sums of a block that do not depend on the integers, and those that do. */
struct fixed_sums { vfloat w, x, xx; };
struct sums { vfloat q, qq, xq; };

INLINE vfloat value(const float *x, int i) { return load(x + i * GROUP); }
INLINE vfloat weight(const float *w, int i) { return w ? load(w + i * GROUP) : all(1); }

INLINE struct fixed_sums fixed_sums(const float *x, const float *w, int n) {
    struct fixed_sums s = {all(0), all(0), all(0)};
    for (int i = 0; i < n; i++) {
        vfloat v = value(x, i), wv = weight(w, i) * v;
        s.w += weight(w, i), s.x += wv, s.xx += wv * v;
    }
    return s;
}

/* The integers for x ~ q / inverse + shift, and their sums. */
INLINE struct sums assign(const float *x, const float *w, int n, vfloat inverse, vfloat shift, float low, float high) {
    struct sums s = {all(0), all(0), all(0)};
    vfloat base = -shift * inverse;
    for (int i = 0; i < n; i++) {
        vfloat q = nearest_within(value(x, i) * inverse + base, low, high), wq = weight(w, i) * q;
        s.q += wq, s.qq += wq * q, s.xq += wq * value(x, i);
    }
    return s;
}

/* ---- x ~ scale * q + offset, q in 0..top, offset <= 0 ---- */

struct line { vfloat scale, offset, error; };

INLINE vfloat line_error(struct fixed_sums f, struct sums s, vfloat scale, vfloat offset) {
    return f.xx + scale * (scale * s.qq - 2 * s.xq + 2 * offset * s.q) + offset * (offset * f.w - 2 * f.x);
}

INLINE struct line fit_line(struct fixed_sums f, struct sums s) {
    vfloat det = f.w * s.qq - s.q * s.q;
    vint solvable = det > f.w * s.qq * 1e-6f;
    vfloat safe = pick(solvable, det, all(1));
    vfloat scale = (f.w * s.xq - f.x * s.q) / safe, offset = (s.qq * f.x - s.q * s.xq) / safe;
    vint inside = solvable & (offset <= 0) & (scale > 0);
    scale = pick(inside, scale, most(ratio(s.xq, s.qq), all(0)));
    offset = pick(inside, offset, all(0));
    return (struct line){scale, offset, line_error(f, s, scale, offset)};
}

INLINE void keep_better(struct line *best, struct line next) {
    vint better = next.error < best->error;
    best->scale = pick(better, next.scale, best->scale);
    best->offset = pick(better, next.offset, best->offset);
    best->error = pick(better, next.error, best->error);
}

/* Where the starts put the ends of the range: steps that are cut off below and above. Picked greedily, each for the
 * largest fall of the mean squared error of gaussian, Laplace and Student-t blocks; six leave 1% to a full grid. */
static const float ends[][2] = {
    {0.28f, 0.28f}, {0.55f, 0.03f}, {-0.24f, 0.28f}, {0.03f, -0.24f}, {0.03f, 0.28f}, {-0.24f, 0.55f},
    {0.28f, -0.24f}, {0.03f, 0.03f},
};

INLINE struct line search_line(const float *x, const float *w, int n, float top, int starts, int refits) {
    vfloat low = all(0), high = value(x, 0);
    for (int i = 0; i < n; i++) low = least(low, value(x, i)), high = most(high, value(x, i));
    vfloat step = (high - low) / top;
    struct fixed_sums f = fixed_sums(x, w, n);
    /* a block of one negative value is all offset */
    struct line best = {all(0), least(ratio(f.x, f.w), all(0)), all(0)};
    best.error = line_error(f, (struct sums){all(0), all(0), all(0)}, best.scale, best.offset);
    for (int start = 0; start < starts; start++) {
        vfloat scale = step * (1 - (ends[start][0] + ends[start][1]) / top);
        vfloat offset = least(low + step * ends[start][0], all(0));
        keep_better(&best, fit_line(f, assign(x, w, n, ratio(all(1), scale), offset, 0, top)));
    }
    for (int refit = 0; refit < refits; refit++)
        keep_better(&best, fit_line(f, assign(x, w, n, ratio(all(1), best.scale), best.offset, 0, top)));
    return best;
}

/* ---- x ~ scale * q, q in -(top + 1)..top; the scale may be negative so that either side gets the longer end ---- */

/* q of the value of the largest magnitude, one for each start, picked like `ends`. */
static const float reach_7[] = {-8.23f, -7.78f, -8.67f, -7.17f, -9.56f, 7.18f, -8.84f, -10.3f};
static const float reach_3[] = {-4.2f, -3.7f, -4.8f, -3.2f, 3.2f, -5.5f, 4.4f, -2.6f};
static const float reach_15[] = {-16.2f, -15.5f, -17, -14.6f, 15.2f, -18.5f, 14.3f, -13.7f};
static const float reach_31[] = {-32.11f, -31.02f, -29.94f, -29.07f, 28.01f, -27.12f};

INLINE vfloat search_scale(const float *x, const float *w, int n, float top, const float *reach, int starts,
                           int refits) {
    vfloat high = all(0), low = all(0);
    for (int i = 0; i < n; i++) low = least(low, value(x, i)), high = most(high, value(x, i));
    vfloat peak = pick(high > -low, high, low); /* the value of the largest magnitude, with its sign */
    vfloat best = all(0), gain = all(0);        /* the squared error is xx - gain */
    for (int start = 0; start < starts + refits; start++) {
        vfloat scale = start < starts ? peak / reach[start] : best;
        struct sums s = assign(x, w, n, reciprocal(scale), all(0), -(top + 1), top);
        scale = ratio(s.xq, s.qq);
        vfloat now = scale * s.xq;
        vint better = now > gain;
        best = pick(better, scale, best), gain = pick(better, now, gain);
    }
    return best;
}
#endif
