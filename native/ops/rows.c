/* Sums of rows, checks and the largest of a row. */
#include "kernels.h"
#include "vec/vec.h"

static const float lane_number[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

void KERNEL(add)(float *out, const float *x, int n) {
    int i = 0;
    for (; i + 16 <= n; i += 16) vf_store(out + i, vf_add(vf_load(out + i), vf_load(x + i)));
    if (i < n) vf_store_first(out + i, vf_add(vf_load_first(out + i, n - i), vf_load_first(x + i, n - i)), n - i);
}

void KERNEL(scale_add)(float *out, const float *x, float scale, int n) {
    const vf s = vf_set1(scale);
    int i = 0;
    for (; i + 16 <= n; i += 16) vf_store(out + i, vf_fma(s, vf_load(x + i), vf_load(out + i)));
    if (i < n) vf_store_first(out + i, vf_fma(s, vf_load_first(x + i, n - i), vf_load_first(out + i, n - i)), n - i);
}

/* x * 0 is 0 for a finite x and NaN for the others, and a sum keeps a NaN. */
bool KERNEL(finite)(const float *x, int64_t n) {
    vf sum = vf_zero();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) sum = vf_fma(vf_load(x + i), vf_zero(), sum);
    if (i < n) sum = vf_fma(vf_load_first(x + i, (int)(n - i)), vf_zero(), sum);
    return vf_sum(sum) == 0.0f;
}

/* Every lane keeps its largest value and where it first was; indices stay exact in floats up to 2^24. */
int KERNEL(argmax)(const float *x, int n) {
    float at[16];
    vf largest = vf_set1(-INFINITY), index = vf_zero(), here = vf_load(lane_number);
    int i = 0;
    for (; i + 16 <= n; i += 16, here = vf_add(here, vf_set1(16.0f))) {
        const vf v = vf_load(x + i);
        index = vf_select_less(largest, v, here, index);
        largest = vf_max(v, largest);
    }
    vf_store(at, index);
    int best = n >= 16 ? (int)at[0] : 0;
    for (int l = 1; l < 16 && n >= 16; l++) {
        const int candidate = (int)at[l];
        if (x[candidate] > x[best] || (x[candidate] == x[best] && candidate < best)) best = candidate;
    }
    for (; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}
