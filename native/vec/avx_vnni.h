/* AVX2 with VNNI on 256 bits, in AVX-VNNI's encoding. */
#define VEC_PRODUCTS
#include "vec/avx2.h"
#ifndef VEC_VNNI
#define VEC_VNNI(name) _mm256_##name##_avx_epi32
#endif

VEC vi vi_madd16(vi acc, vi x, vi y) { return (vi){VEC_VNNI(dpwssd)(acc.a, x.a, y.a), VEC_VNNI(dpwssd)(acc.b, x.b, y.b)}; }
VEC vi vi_dot(vi acc, vb w, vb x) { return (vi){VEC_VNNI(dpbusd)(acc.a, w.a, x.a), VEC_VNNI(dpbusd)(acc.b, w.b, x.b)}; }
VEC vi vi_start_biased(int32_t minus_128_sum) { return vi_set1(minus_128_sum); }
VEC vi vi_dot_biased(vi acc, vb w, vb x) { return vi_dot(acc, w, x); }
#undef VEC_VNNI
