/* The router of one token: scores of all experts, the k best of the groups that are kept, their weights. */
#include <float.h>

#include "kernels.h"
#include "vec/math.h"
#include "vec/vec.h"

static const float lane_number[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static int padded(int n) { return (n + 15) / 16 * 16; }

/* The first n of 16 lanes, minus infinity behind them. */
VEC vf first_lanes(vf x, int n) {
    return n >= 16 ? x : vf_select_less(vf_load(lane_number), vf_set1((float)n), x, vf_set1(-INFINITY));
}
VEC vf load_some(const float *x, int n) { return n >= 16 ? vf_load(x) : first_lanes(vf_load_first(x, n), n); }

static float largest(const float *x, int n) {
    vf most = vf_set1(-INFINITY);
    for (int i = 0; i < n; i += 16) most = vf_max(load_some(x + i, n - i), most);
    return vf_reduce_max(most);
}

/* x (n) + y (n, may be NULL); out (n rounded up to 16, minus infinity from n on). False: a sum is not finite. */
static bool sums(float *out, const float *x, const float *y, int n) {
    vf check = vf_zero(); /* x * 0 is NaN unless x is finite */
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        const vf sum = y ? vf_add(vf_load(x + i), vf_load(y + i)) : vf_load(x + i);
        check = vf_fma(sum, vf_zero(), check);
        vf_store(out + i, sum);
    }
    if (i < n) {
        const vf last = vf_load_first(x + i, n - i), sum = y ? vf_add(last, vf_load_first(y + i, n - i)) : last;
        check = vf_fma(sum, vf_zero(), check);
        vf_store(out + i, first_lanes(sum, n - i));
    }
    return vf_sum(check) == 0.0f;
}

/* ---- scores (n rounded up to 16) of logits (n) ---- */

static void softmax(float *scores, const float *logits, int n) {
    const vf peak = vf_set1(largest(logits, n));
    vf total = vf_zero();
    for (int i = 0; i < n; i += 16) {
        const vf e = vf_exp(vf_sub(load_some(logits + i, n - i), peak));
        vf_store(scores + i, e);
        total = vf_add(total, e);
    }
    const vf sum = vf_set1(vf_sum(total));
    for (int i = 0; i < n; i += 16) vf_store(scores + i, vf_div(vf_load(scores + i), sum));
}

VEC vf sqrt_softplus(vf x) { return vf_sqrt(vf_softplus(x)); }
VEC vf identity(vf x) { return x; }
#define EACH(name, function)                                                                                     \
    static void name(float *scores, const float *logits, int n) {                                                \
        for (int i = 0; i < n; i += 16) vf_store(scores + i, function(load_some(logits + i, n - i)));            \
    }
EACH(all_sigmoid, vf_sigmoid)
EACH(all_sqrt_softplus, sqrt_softplus)
EACH(all_identity, identity)
#undef EACH

typedef void score_function(float *scores, const float *logits, int n);
static score_function *const score_functions[SCORE_COUNT] = {
    [SCORE_SOFTMAX] = softmax,
    [SCORE_SIGMOID] = all_sigmoid,
    [SCORE_SQRT_SOFTPLUS] = all_sqrt_softplus,
    [SCORE_IDENTITY] = all_identity,
};

/* ---- the choice ---- */

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

/* The largest of the values, or the sum of the two largest; above minus infinity. */
static float group_score(const float *choice, int n, bool two) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (choice[i] > first) second = first, first = choice[i];
        else if (choice[i] > second) second = choice[i];
    }
    return two ? fmaxf(first + second, -FLT_MAX) : first;
}

/* Experts of the groups that are not kept can no longer be chosen; groups: scratch (r->groups rounded up to 16). */
static void keep_groups(float *choice, const struct routing *r, float *groups) {
    const int size = r->experts / r->groups, all = padded(r->groups);
    for (int g = 0; g < all; g++)
        groups[g] = g < r->groups ? group_score(choice + g * size, size, r->group_of_two) : -INFINITY;
    for (int kept = 0; kept < r->kept_groups; kept++) groups[first_largest(groups, all)] = -INFINITY;
    for (int i = 0; i < r->experts; i++)
        if (groups[i / size] > -INFINITY) choice[i] = -INFINITY; /* its group was not taken */
}

/* ---- weights ---- */

static void renormalize(float *weights, const struct routing *r) {
    float total = 0.0f;
    for (int slot = 0; slot < r->k; slot++) total += weights[slot];
    total += r->sum_added;
    if (!(total > r->sum_least)) total = r->sum_least;
    for (int slot = 0; slot < r->k; slot++) weights[slot] /= total;
}

static void softmax_in_place(float *weights, int k, float *scratch) {
    softmax(scratch, weights, k);
    memcpy(weights, scratch, (size_t)k * sizeof *weights);
}

bool KERNEL(router)(int32_t *ids, float *weights, const float *logits, const struct routing *r, float *scratch) {
    const int all = padded(r->experts);
    float *biased = scratch, *scores = biased + all, *choice = scores + all, *groups = choice + all;
    if (!sums(biased, logits, r->bias, r->experts)) return false;
    score_functions[r->score](scores, biased, r->experts);
    /* Without a correction logits give the order of scores, and no ties by rounding. */
    const bool by_score = r->correction || (r->groups > 1 && r->group_of_two);
    if (!sums(choice, by_score ? scores : biased, r->correction, r->experts)) return false;
    if (r->groups > 1) keep_groups(choice, r, groups);
    for (int slot = 0; slot < r->k; slot++) {
        const int best = first_largest(choice, all);
        choice[best] = -INFINITY;
        ids[slot] = best;
        weights[slot] = (r->softmax_of_chosen ? biased : scores)[best];
    }
    if (r->softmax_of_chosen) softmax_in_place(weights, r->k, scores);
    if (r->renormalize) renormalize(weights, r);
    for (int slot = 0; slot < r->k; slot++)
        weights[slot] *= r->expert_scale ? r->scale * r->expert_scale[ids[slot]] : r->scale;
    return sums(scores, weights, NULL, r->k);
}
