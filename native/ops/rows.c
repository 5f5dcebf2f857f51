/* Sums of rows, checks and the largest of a row. */
#include "kernels.h"
#include "vec/vec.h"

static void add(float *out, const float *x, int n) {
    int i = 0;
    for (; i + 16 <= n; i += 16) vf_store(out + i, vf_add(vf_load(out + i), vf_load(x + i)));
    if (i < n) vf_store_first(out + i, vf_add(vf_load_first(out + i, n - i), vf_load_first(x + i, n - i)), n - i);
}

static void scale_add(float *out, const float *x, float scale, int n) {
    const vf s = vf_set1(scale);
    int i = 0;
    for (; i + 16 <= n; i += 16) vf_store(out + i, vf_fma(s, vf_load(x + i), vf_load(out + i)));
    if (i < n) vf_store_first(out + i, vf_fma(s, vf_load_first(x + i, n - i), vf_load_first(out + i, n - i)), n - i);
}

/* x * 0 is 0 for a finite x and NaN for the others, and a sum keeps a NaN. */
static bool all_finite(const float *x, int64_t n) {
    vf sum = vf_zero();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) sum = vf_fma(vf_load(x + i), vf_zero(), sum);
    if (i < n) sum = vf_fma(vf_load_first(x + i, (int)(n - i)), vf_zero(), sum);
    return vf_sum(sum) == 0.0f;
}

static int argmax(const float *x, int n) {
    float largest = x[0];
    int i = 0;
    if (n >= 16) {
        vf most = vf_load(x);
        for (i = 16; i + 16 <= n; i += 16) most = vf_max(vf_load(x + i), most);
        largest = vf_reduce_max(most);
    }
    for (; i < n; i++) largest = x[i] > largest ? x[i] : largest;
    for (i = 0; i < n; i++)
        if (x[i] == largest) return i;
    return 0;
}

void COLIBRI_FN(fill_rows)(struct kernels *k) {
    k->add = add;
    k->scale_add = scale_add;
    k->finite = all_finite;
    k->argmax = argmax;
}
