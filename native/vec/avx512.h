/* AVX-512 F, BW, DQ and VL; F16C and FMA. One register a vector. See portable.h for meanings. */
#include <immintrin.h>
#define VEC_UNROLL _Pragma("GCC unroll 16")
#define VEC_ACCUMULATORS 16
#define VEC_TILES 2
typedef __m512 vf;
typedef __m512i vi;
typedef __m512i vb;

/* floats */
VEC vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
VEC void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
VEC vf vf_set1(float x) { return _mm512_set1_ps(x); }
VEC vf vf_zero(void) { return _mm512_setzero_ps(); }
VEC vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
VEC vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
VEC vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
VEC vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
VEC vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
VEC vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
VEC vf vf_abs(vf a) { return _mm512_abs_ps(a); }
VEC vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
VEC vf vf_select_less(vf a, vf b, vf x, vf y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

/* reductions */
VEC __m128 vec_halves(vf a, __m256 (*op8)(__m256, __m256), __m128 (*op4)(__m128, __m128)) {
    __m256 eight = op8(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 four = op4(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = op4(four, _mm_movehl_ps(four, four));
    return op4(two, _mm_movehdup_ps(two));
}
VEC float vf_sum(vf a) { return _mm_cvtss_f32(vec_halves(a, _mm256_add_ps, _mm_add_ps)); }
VEC float vf_reduce_max(vf a) { return _mm_cvtss_f32(vec_halves(a, _mm256_max_ps, _mm_max_ps)); }

/* 16-bit floats */
VEC vf vf_from_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
VEC vf vf_from_bf16(const uint16_t *p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
VEC void vf_to_f16(uint16_t *p, vf a) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* integers */
VEC vi vi_load(const int32_t *p) { return _mm512_loadu_si512(p); }
VEC void vi_store(int32_t *p, vi a) { _mm512_storeu_si512(p, a); }
VEC vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
VEC vi vi_zero(void) { return _mm512_setzero_si512(); }
VEC vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
VEC vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
VEC vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
VEC vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
VEC vi vi_shl(vi a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
VEC vi vi_shr(vi a, int n) { return _mm512_srli_epi32(a, (unsigned)n); }
VEC vi vi_shr_signed(vi a, int n) { return _mm512_srai_epi32(a, (unsigned)n); }
VEC vi vi_sar(vi a, int n) { return _mm512_srai_epi32(a, (unsigned)n); }
VEC vi vi_from_i8(const int8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }
VEC vi vi_from_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
VEC void vi_to_i8(int8_t *p, vi a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a)); }
VEC vf vf_from_vi(vi a) { return _mm512_cvtepi32_ps(a); }
VEC vi vi_from_vf(vf a) { return _mm512_cvtps_epi32(a); }
VEC int32_t vi_sum(vi a) { /* wraps, which the compiler's own reduction leaves undefined */
    __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
VEC vf vf_bits(vi a) { return _mm512_castsi512_ps(a); }

/* bytes */
VEC vb vb_load(const void *p) { return _mm512_loadu_si512(p); }
VEC void vb_store(void *p, vb a) { _mm512_storeu_si512(p, a); }
VEC void vb_stream(void *p, vb a) { _mm512_stream_si512(p, a); }
VEC void vb_streamed(void) { _mm_sfence(); }
VEC __m512i vec_load_four(const uint8_t *p, size_t stride) { /* 16 bytes of rows 0, 4, 8 and 12 */
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)p));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(p + 4 * stride)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(p + 8 * stride)), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(p + 12 * stride)), 3);
}
VEC void vb_load_rows(vb out[4], const uint8_t *first, size_t stride) { /* a transposition of 4 x 4 in each quarter */
    __m512i a = vec_load_four(first, stride), b = vec_load_four(first + stride, stride);
    __m512i c = vec_load_four(first + 2 * stride, stride), d = vec_load_four(first + 3 * stride, stride);
    __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
    __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
    out[0] = _mm512_unpacklo_epi64(ab_low, cd_low), out[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
    out[2] = _mm512_unpacklo_epi64(ab_high, cd_high), out[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}
VEC vb vb_halves(vb a) {
    __m256i low = _mm512_cvtepi32_epi16(a), high = _mm512_cvtepi32_epi16(_mm512_srli_epi32(a, 16));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
VEC vb vb_set1(uint8_t x) { return _mm512_set1_epi8((char)x); }
VEC vb vb_repeat16(const uint8_t *p) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p)); }
/* As assembly, because compilers load the four bytes into a register of another kind first. */
VEC vb vb_repeat4(const void *p) {
    vb r;
    __asm__("vpbroadcastd %1, %0" : "=v"(r) : "m"(*(const uint8_t(*)[4])p));
    return r;
}
VEC vb vb_and(vb a, vb b) { return _mm512_and_si512(a, b); }
VEC vb vb_or(vb a, vb b) { return _mm512_or_si512(a, b); }
VEC vb vb_add(vb a, vb b) { return _mm512_add_epi8(a, b); }
VEC vb vb_and_or(vb a, vb mask, vb b) { return _mm512_ternarylogic_epi32(a, mask, b, 0xea); }
VEC vb vb_shl(vb a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
VEC vb vb_shr(vb a, int n) { return _mm512_srli_epi32(a, (unsigned)n); }
VEC vi vi_from_vb(vb a) { return a; }
VEC vb vb_from_vi(vi a) { return a; }
VEC vb vb_lookup16(vb table, vb index) { return _mm512_shuffle_epi8(table, index); }

#ifndef VEC_PRODUCTS /* of integers; a header that includes this one may have its own */
VEC vi vi_madd16(vi acc, vi a, vi b) { return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b)); }
enum { VB_HIGH4_UNIT = 1 };
VEC vb vb_high4(vb a) { return vb_and(vb_shr(a, 4), vb_set1(15)); }
/* maddubs adds two products in 16 bits: 2 * 127 * 127 fits. */
VEC vi vi_dot(vi acc, vb w, vb x) { return vi_madd16(acc, _mm512_maddubs_epi16(w, x), _mm512_set1_epi16(1)); }
/* Bytes as signed values again: |w| * (x with the sign of w), at most 2 * 128 * 127 in 16 bits; no bias to take off. */
VEC vi vi_start_biased(int32_t minus_128_sum) { (void)minus_128_sum; return vi_zero(); }
VEC vi vi_dot_biased(vi acc, vb w, vb x) {
    w = _mm512_xor_si512(w, _mm512_set1_epi8((char)0x80));
    x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), vi_zero(), x);
    return vi_dot(acc, _mm512_abs_epi8(w), x);
}
#endif
