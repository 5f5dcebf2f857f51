/* NEON with dot products and the instructions of i8mm, of which usdot takes w as it is, without a sign. */
#define VEC_PRODUCTS
#include "vec/neon_dotprod.h"

VEC int32x4_t vec_dot(int32x4_t acc, uint8x16_t w, uint8x16_t x) { return vusdotq_s32(acc, w, vreinterpretq_s8_u8(x)); }
VEC vi vi_dot(vi acc, vb w, vb x) {
    return (vi){vec_dot(acc.a, w.a, x.a), vec_dot(acc.b, w.b, x.b), vec_dot(acc.c, w.c, x.c), vec_dot(acc.d, w.d, x.d)};
}
VEC vi vi_start_biased(int32_t minus_128_sum) { return vi_set1(minus_128_sum); }
VEC vi vi_dot_biased(vi acc, vb w, vb x) { return vi_dot(acc, w, x); }
