/* Rotary position embedding (Su et al. 2021) on half-split pairs (i, i + rotary/2) of one head, in place. */
#include "kernels.h"
#include "vec/vec.h"

static void turn(float *first, float *second, const float *cosine, const float *sine, int n) {
    const vf a = vf_load_first(first, n), b = vf_load_first(second, n);
    const vf c = vf_load_first(cosine, n), s = vf_load_first(sine, n);
    vf_store_first(first, vf_sub(vf_mul(a, c), vf_mul(b, s)), n);
    vf_store_first(second, vf_fma(b, c, vf_mul(a, s)), n);
}

void KERNEL(rope)(float *x, const float *cosine, const float *sine, int rotary) {
    const int half = rotary / 2;
    int i = 0;
    for (; i + 16 <= half; i += 16) {
        const vf a = vf_load(x + i), b = vf_load(x + half + i), c = vf_load(cosine + i), s = vf_load(sine + i);
        vf_store(x + i, vf_sub(vf_mul(a, c), vf_mul(b, s)));
        vf_store(x + half + i, vf_fma(b, c, vf_mul(a, s)));
    }
    if (i < half) turn(x + i, x + half + i, cosine + i, sine + i, half - i);
}
