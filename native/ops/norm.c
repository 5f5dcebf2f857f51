/* RMSNorm (Zhang and Sennrich 2019): x / sqrt(mean of x^2 + eps) * weight. */
#include "kernels.h"
#include "vec/vec.h"

/* Four vectors of running sums, added as a tree: the order is part of the specification. */
static float sum_of_squares(const float *x, int n) {
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int i = 0;
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 4; j++) {
            vf v = vf_load(x + i + 16 * j);
            sum[j] = vf_fma(v, v, sum[j]);
        }
    for (int j = 0; i < n; i += 16, j++) {
        vf v = i + 16 <= n ? vf_load(x + i) : vf_load_first(x + i, n - i);
        sum[j] = vf_fma(v, v, sum[j]);
    }
    return vf_sum(vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3])));
}

static bool rms_norm(float *out, const float *x, const float *weight, int n, float eps) {
    const float total = sum_of_squares(x, n);
    const bool fits = total - total == 0.0f;
    const vf factor = vf_set1(1.0f / sqrtf(total / (float)n + eps));
    int i = 0;
    for (; i + 16 <= n; i += 16) vf_store(out + i, vf_mul(vf_mul(vf_load(x + i), factor), vf_load(weight + i)));
    if (i < n) {
        const int rest = n - i;
        vf_store_first(out + i, vf_mul(vf_mul(vf_load_first(x + i, rest), factor), vf_load_first(weight + i, rest)),
                       rest);
    }
    return fits;
}

void COLIBRI_FN(fill_norm)(struct kernels *k) { k->rms_norm = rms_norm; }
