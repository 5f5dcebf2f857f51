/* The router of one token: scores of all experts, the k best, their weights. */
#include "kernels.h"
#include "vec/math.h"
#include "vec/vec.h"

static const float lane_number[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

VEC vf score_of(vf x, int score, vf peak) { return score == SCORE_SOFTMAX ? vf_exp(vf_sub(x, peak)) : vf_sigmoid(x); }

/* The first n of 16 lanes, minus infinity behind them. */
VEC vf load_some(const float *x, int n) {
    if (n >= 16) return vf_load(x);
    return vf_select_less(vf_load(lane_number), vf_set1((float)n), vf_load_first(x, n), vf_set1(-INFINITY));
}

static float largest(const float *x, int n) {
    vf most = vf_set1(-INFINITY);
    for (int i = 0; i < n; i += 16) most = vf_max(load_some(x + i, n - i), most);
    return vf_reduce_max(most);
}

/* scores (n rounded up to 16) from logits (n) */
static void all_scores(float *scores, const float *logits, int n, int score) {
    const vf peak = vf_set1(score == SCORE_SOFTMAX ? largest(logits, n) : 0.0f);
    vf total = vf_zero();
    for (int i = 0; i < n; i += 16) {
        const vf s = score_of(load_some(logits + i, n - i), score, peak);
        vf_store(scores + i, s);
        total = vf_add(total, n - i < 16 ? vf_load_first(scores + i, n - i) : s);
    }
    if (score != SCORE_SOFTMAX) return;
    const vf sum = vf_set1(vf_sum(total));
    for (int i = 0; i < n; i += 16) vf_store(scores + i, vf_div(vf_load(scores + i), sum));
}

/* What is chosen by: scores + bias; without a bias the logits, which give the same order and no ties by rounding.
 * choice (n rounded up to 16); false: not finite. */
static bool all_choices(float *choice, const float *logits, const float *scores, const float *bias, int n) {
    vf check = vf_zero();
    for (int i = 0; i < n; i += 16) {
        const int lanes = n - i < 16 ? n - i : 16;
        vf c = vf_load_first(logits + i, lanes);
        check = vf_fma(c, vf_zero(), check); /* x * 0 is NaN unless x is finite */
        if (bias) c = vf_add(vf_load_first(scores + i, lanes), vf_load_first(bias + i, lanes));
        check = vf_fma(c, vf_zero(), check);
        vf_store(choice + i, vf_select_less(vf_load(lane_number), vf_set1((float)lanes), c, vf_set1(-INFINITY)));
    }
    return vf_sum(check) == 0.0f;
}

/* The lowest index of the largest value; n a multiple of 16. */
static int first_largest(const float *x, int n) {
    const vf most = vf_set1(largest(x, n));
    vf minus_index = vf_set1(-INFINITY);
    for (int i = 0; i < n; i += 16) {
        const vf here = vf_sub(vf_set1(-(float)i), vf_load(lane_number));
        minus_index = vf_max(vf_select_less(vf_load(x + i), most, vf_set1(-INFINITY), here), minus_index);
    }
    return (int)-vf_reduce_max(minus_index);
}

static void renormalize(float *weights, int k) {
    float total = 0.0f;
    for (int slot = 0; slot < k; slot++) total += weights[slot];
    if (!(total > 1e-20f)) total = 1e-20f;
    for (int slot = 0; slot < k; slot++) weights[slot] /= total;
}

static bool router(int32_t *ids, float *weights, const float *logits, const struct routing *r, float *scratch) {
    const int padded = (r->experts + 15) / 16 * 16;
    float *scores = scratch, *choice = scratch + padded;
    all_scores(scores, logits, r->experts, r->score);
    if (!all_choices(choice, logits, scores, r->bias, r->experts)) return false;
    for (int slot = 0; slot < r->k; slot++) {
        const int best = first_largest(choice, padded);
        choice[best] = -INFINITY;
        ids[slot] = best;
        weights[slot] = scores[best];
    }
    if (r->renormalize) renormalize(weights, r->k);
    for (int slot = 0; slot < r->k; slot++) weights[slot] *= r->scale;
    return true;
}

void COLIBRI_FN(fill_router)(struct kernels *k) { k->router = router; }
