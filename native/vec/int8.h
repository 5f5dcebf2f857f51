/* Blocks of floats as int8 with one scale. */
#ifndef COLIBRI_VEC_INT8_H
#define COLIBRI_VEC_INT8_H
#include "vec/vec.h"

/* max |x| / 127, NaN when a value is not finite, zero when all are as good as zero (their reciprocal would overflow). */
VEC float block_scale(const float *x, int n, vf *inverse) {
    vf most = vf_zero(), finite = vf_zero();
    for (int i = 0; i < n; i += 16) {
        vf value = vf_load(x + i);
        most = vf_max(vf_abs(value), most);
        finite = vf_fma(value, vf_zero(), finite); /* NaN from now on when a lane is not finite */
    }
    float peak = vf_reduce_max(most);
    bool some = peak > 1e-35f;
    *inverse = vf_set1(some ? 127.0f / peak : 0.0f);
    return (some ? peak / 127.0f : 0.0f) + vf_sum(finite);
}

/* Quantises 16 values; returns them as integers. */
VEC vi quantize_16(int8_t *q, const float *x, vf inverse) {
    vi whole = vi_from_vf(vf_mul(vf_load(x), inverse));
    vi_to_i8(q, whole);
    return whole;
}
#endif
