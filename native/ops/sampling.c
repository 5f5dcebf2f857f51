/* Weights of tokens from their scores, and the sums that a draw looks through. */
#include "kernels.h"
#include "vec/math.h"
#include "vec/vec.h"

/* One part: exp((x - high) / temperature) of n values, stored unless out is NULL; the sum in 16 lanes. */
static float exponentials_of_part(float *out, const float *x, float high, float temperature, int n) {
    const vf highest = vf_set1(high), scale = vf_set1(1.0f / temperature);
    vf sum = vf_zero();
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        const vf e = vf_exp(vf_mul(vf_sub(vf_load(x + i), highest), scale));
        if (out) vf_store(out + i, e);
        sum = vf_add(sum, e);
    }
    if (i < n) {
        float lanes[16];
        for (int l = 0; l < 16; l++) lanes[l] = l < n - i ? x[i + l] : -INFINITY;
        const vf e = vf_exp(vf_mul(vf_sub(vf_load(lanes), highest), scale));
        if (out) vf_store_first(out + i, e, n - i);
        sum = vf_add(sum, e);
    }
    return vf_sum(sum);
}

void KERNEL(exponentials)(float *out, double *parts, const float *x, float high, float temperature, int64_t n) {
    for (int64_t first = 0; first < n; first += SAMPLING_PART) {
        const int count = n - first < SAMPLING_PART ? (int)(n - first) : SAMPLING_PART;
        *parts++ = (double)exponentials_of_part(out ? out + first : NULL, x + first, high, temperature, count);
    }
}
