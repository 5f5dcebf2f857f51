/* AVX-512 with VNNI: one instruction multiplies bytes and adds four products. */
#define VEC_PRODUCTS
#include "vec/avx512.h"

enum { VB_HIGH4_UNIT = 16 };
VEC vb vb_high4(vb a) { return _mm512_and_si512(a, _mm512_set1_epi8((char)0xf0)); }
VEC vi vi_madd16(vi acc, vi a, vi b) { return _mm512_dpwssd_epi32(acc, a, b); }
VEC vi vi_dot(vi acc, vb w, vb x) { return _mm512_dpbusd_epi32(acc, w, x); }
VEC vi vi_start_biased(int32_t minus_128_sum) { return _mm512_set1_epi32(minus_128_sum); }
VEC vi vi_dot_biased(vi acc, vb w, vb x) { return vi_dot(acc, w, x); }
