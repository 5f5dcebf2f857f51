/* RMSNorm (Zhang and Sennrich 2019): x / sqrt(mean of x^2 + eps) * weight.
 * LayerNorm (Ba and others 2016): (x - mean) / sqrt(mean of (x - mean)^2 + eps) * weight + bias. */
#include "kernels.h"
#include "vec/vec.h"

/* x - mean of up to 16 values; the lanes from n on are zero. */
VEC vf difference(const float *x, int n, vf mean) {
    float lanes[16] = {0};
    if (n >= 16) return vf_sub(vf_load(x), mean);
    vf_store_first(lanes, vf_sub(vf_load_first(x, n), mean), n);
    return vf_load(lanes);
}

/* Four vectors of running sums, added as a tree: the order is part of the specification. */
static float sum_of_squares(const float *x, int n, float mean) {
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    const vf shift = vf_set1(mean);
    int i = 0;
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 4; j++) {
            vf v = vf_sub(vf_load(x + i + 16 * j), shift);
            sum[j] = vf_fma(v, v, sum[j]);
        }
    for (int j = 0; i < n; i += 16, j++) {
        vf v = difference(x + i, n - i, shift);
        sum[j] = vf_fma(v, v, sum[j]);
    }
    return vf_sum(vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3])));
}

static float mean_of(const float *x, int n) {
    vf sum = vf_zero();
    for (int i = 0; i < n; i += 16) sum = vf_add(sum, difference(x + i, n - i, vf_zero()));
    return vf_sum(sum) / (float)n;
}

/* `check` is a sum of x * 0, which is NaN unless every x is finite. */
VEC bool all_finite(float total, vf check) { return total - total == 0.0f && vf_sum(check) == 0.0f; }

bool KERNEL(rms_norm)(float *out, const float *x, const float *weight, int n, float eps) {
    const float total = sum_of_squares(x, n, 0.0f);
    const vf factor = vf_set1(1.0f / sqrtf(total / (float)n + eps));
    vf check = vf_zero();
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        const vf y = vf_mul(vf_mul(vf_load(x + i), factor), vf_load(weight + i));
        vf_store(out + i, y);
        check = vf_fma(y, vf_zero(), check);
    }
    if (i < n) {
        const int rest = n - i;
        const vf y = vf_mul(vf_mul(vf_load_first(x + i, rest), factor), vf_load_first(weight + i, rest));
        vf_store_first(out + i, y, rest);
        check = vf_fma(y, vf_zero(), check);
    }
    return all_finite(total, check);
}

bool KERNEL(layer_norm)(float *out, const float *x, const float *weight, const float *bias, int n, float eps) {
    const float mean = mean_of(x, n), total = sum_of_squares(x, n, mean);
    const vf shift = vf_set1(mean), factor = vf_set1(1.0f / sqrtf(total / (float)n + eps));
    vf check = vf_zero();
    for (int i = 0; i < n; i += 16) {
        const int lanes = n - i < 16 ? n - i : 16;
        const vf scaled = vf_mul(difference(x + i, lanes, shift), factor);
        const vf y = vf_fma(scaled, vf_load_first(weight + i, lanes), vf_load_first(bias + i, lanes));
        vf_store_first(out + i, y, lanes);
        check = vf_fma(y, vf_zero(), check);
    }
    return all_finite(total, check);
}
