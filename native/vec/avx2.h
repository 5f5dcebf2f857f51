/* AVX2, FMA and F16C. Two registers a vector. See portable.h for meanings. */
#include <immintrin.h>
#define VEC_UNROLL _Pragma("GCC unroll 16")
#define VEC_ACCUMULATORS 4
#define VEC_TILES 1
typedef struct { __m256 a, b; } vf;
typedef struct { __m256i a, b; } vi;
typedef struct { __m256i a, b; } vb;

#define BINARY(name, type, op) VEC type name(type x, type y) { return (type){op(x.a, y.a), op(x.b, y.b)}; }
#define SHIFT(name, type, op) VEC type name(type x, int n) { return (type){op(x.a, n), op(x.b, n)}; }

/* floats */
VEC vf vf_load(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
VEC void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
VEC vf vf_set1(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
VEC vf vf_zero(void) { return (vf){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
BINARY(vf_add, vf, _mm256_add_ps)
BINARY(vf_sub, vf, _mm256_sub_ps)
BINARY(vf_mul, vf, _mm256_mul_ps)
BINARY(vf_div, vf, _mm256_div_ps)
BINARY(vf_max, vf, _mm256_max_ps)
BINARY(vf_min, vf, _mm256_min_ps)
VEC vf vf_abs(vf x) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
VEC vf vf_fma(vf x, vf y, vf z) { return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
VEC vf vf_select_less(vf p, vf q, vf x, vf y) {
    return (vf){_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(p.a, q.a, _CMP_LT_OQ)),
                _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(p.b, q.b, _CMP_LT_OQ))};
}

/* reductions */
VEC float vf_sum(vf x) {
    __m256 eight = _mm256_add_ps(x.a, x.b);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
VEC float vf_reduce_max(vf x) {
    __m256 eight = _mm256_max_ps(x.a, x.b);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* 16-bit floats */
VEC __m128i vec_load128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
VEC vf vf_from_f16(const uint16_t *p) { return (vf){_mm256_cvtph_ps(vec_load128(p)), _mm256_cvtph_ps(vec_load128(p + 8))}; }
VEC vf vf_from_bf16(const uint16_t *p) {
    return (vf){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(vec_load128(p)), 16)),
                _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(vec_load128(p + 8)), 16))};
}
VEC void vf_to_f16(uint16_t *p, vf x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

/* integers */
VEC __m256i vec_load256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
VEC vi vi_load(const int32_t *p) { return (vi){vec_load256(p), vec_load256(p + 8)}; }
VEC void vi_store(int32_t *p, vi x) { _mm256_storeu_si256((__m256i *)p, x.a); _mm256_storeu_si256((__m256i *)(p + 8), x.b); }
VEC vi vi_set1(int32_t x) { return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
VEC vi vi_zero(void) { return (vi){_mm256_setzero_si256(), _mm256_setzero_si256()}; }
BINARY(vi_add, vi, _mm256_add_epi32)
BINARY(vi_sub, vi, _mm256_sub_epi32)
BINARY(vi_and, vi, _mm256_and_si256)
BINARY(vi_or, vi, _mm256_or_si256)
SHIFT(vi_shl, vi, _mm256_slli_epi32)
SHIFT(vi_shr, vi, _mm256_srli_epi32)
SHIFT(vi_shr_signed, vi, _mm256_srai_epi32)
SHIFT(vi_sar, vi, _mm256_srai_epi32)
VEC __m128i vec_load64(const void *p) { return _mm_loadl_epi64((const __m128i *)p); }
VEC vi vi_from_i8(const int8_t *p) { return (vi){_mm256_cvtepi8_epi32(vec_load64(p)), _mm256_cvtepi8_epi32(vec_load64(p + 8))}; }
VEC vi vi_from_u8(const uint8_t *p) { return (vi){_mm256_cvtepu8_epi32(vec_load64(p)), _mm256_cvtepu8_epi32(vec_load64(p + 8))}; }
VEC void vi_to_i8(int8_t *p, vi x) {
    const __m256i mask = _mm256_set1_epi32(255);
    __m256i words = _mm256_packus_epi32(_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask));
    words = _mm256_permute4x64_epi64(words, 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
VEC vf vf_from_vi(vi x) { return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
VEC vi vi_from_vf(vf x) { return (vi){_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
VEC int32_t vi_sum(vi x) {
    __m256i eight = _mm256_add_epi32(x.a, x.b);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
VEC vf vf_bits(vi x) { return (vf){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }

/* bytes */
VEC vb vb_load(const void *p) { return (vb){vec_load256(p), vec_load256((const char *)p + 32)}; }
VEC void vb_store(void *p, vb x) {
    _mm256_storeu_si256((__m256i *)p, x.a);
    _mm256_storeu_si256((__m256i *)((char *)p + 32), x.b);
}
VEC void vb_stream(void *p, vb x) {
    _mm256_stream_si256((__m256i *)p, x.a);
    _mm256_stream_si256((__m256i *)((char *)p + 32), x.b);
}
VEC void vb_streamed(void) { _mm_sfence(); }
VEC __m256i vec_load_two(const uint8_t *p, size_t stride) { /* 16 bytes of rows 0 and 4 */
    return _mm256_inserti128_si256(_mm256_castsi128_si256(vec_load128(p)), vec_load128(p + 4 * stride), 1);
}
VEC void vec_transpose8(__m256i out[4], const uint8_t *first, size_t stride) { /* 4 x 4 in each half */
    __m256i a = vec_load_two(first, stride), b = vec_load_two(first + stride, stride);
    __m256i c = vec_load_two(first + 2 * stride, stride), d = vec_load_two(first + 3 * stride, stride);
    __m256i ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
    __m256i cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
    out[0] = _mm256_unpacklo_epi64(ab_low, cd_low), out[1] = _mm256_unpackhi_epi64(ab_low, cd_low);
    out[2] = _mm256_unpacklo_epi64(ab_high, cd_high), out[3] = _mm256_unpackhi_epi64(ab_high, cd_high);
}
VEC void vb_load_rows(vb out[4], const uint8_t *first, size_t stride) {
    __m256i low[4], high[4];
    vec_transpose8(low, first, stride);
    vec_transpose8(high, first + 8 * stride, stride);
    for (int w = 0; w < 4; w++) out[w] = (vb){low[w], high[w]};
}
VEC vb vb_halves(vb x) {
    const __m256i mask = _mm256_set1_epi32(0xffff);
    __m256i low = _mm256_packus_epi32(_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask));
    __m256i high = _mm256_packus_epi32(_mm256_srli_epi32(x.a, 16), _mm256_srli_epi32(x.b, 16));
    return (vb){_mm256_permute4x64_epi64(low, 0xd8), _mm256_permute4x64_epi64(high, 0xd8)};
}
VEC vb vb_set1(uint8_t x) { return (vb){_mm256_set1_epi8((char)x), _mm256_set1_epi8((char)x)}; }
VEC vb vb_repeat16(const uint8_t *p) { __m256i t = _mm256_broadcastsi128_si256(vec_load128(p)); return (vb){t, t}; }
VEC vb vb_repeat4(const void *p) {
    int32_t four;
    memcpy(&four, p, 4);
    __m256i x = _mm256_set1_epi32(four);
    return (vb){x, x};
}
BINARY(vb_and, vb, _mm256_and_si256)
BINARY(vb_or, vb, _mm256_or_si256)
BINARY(vb_add, vb, _mm256_add_epi8)
VEC vb vb_and_or(vb x, vb mask, vb y) { return vb_or(vb_and(x, mask), y); }
SHIFT(vb_shl, vb, _mm256_slli_epi32)
SHIFT(vb_shr, vb, _mm256_srli_epi32)
VEC vi vi_from_vb(vb x) { return (vi){x.a, x.b}; }
VEC vb vb_from_vi(vi x) { return (vb){x.a, x.b}; }
BINARY(vb_lookup16, vb, _mm256_shuffle_epi8)
enum { VB_HIGH4_UNIT = 1 };
VEC vb vb_high4(vb x) { return vb_and(vb_shr(x, 4), vb_set1(15)); }

#ifndef VEC_PRODUCTS /* of integers; a header that includes this one may have its own */
VEC vi vi_madd16(vi acc, vi x, vi y) {
    return (vi){_mm256_add_epi32(acc.a, _mm256_madd_epi16(x.a, y.a)), _mm256_add_epi32(acc.b, _mm256_madd_epi16(x.b, y.b))};
}
/* maddubs adds two products in 16 bits: 2 * 127 * 127 fits. */
VEC __m256i vec_dot(__m256i acc, __m256i w, __m256i x) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
VEC vi vi_dot(vi acc, vb w, vb x) {
    return (vi){vec_dot(acc.a, w.a, x.a), vec_dot(acc.b, w.b, x.b)};
}
/* Bytes as signed values again: |w| * (x with the sign of w), at most 2 * 128 * 127 in 16 bits; no bias to take off. */
VEC vi vi_start_biased(int32_t minus_128_sum) { (void)minus_128_sum; return vi_zero(); }
VEC __m256i vec_dot_biased(__m256i acc, __m256i w, __m256i x) {
    w = _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80));
    return vec_dot(acc, _mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
}
VEC vi vi_dot_biased(vi acc, vb w, vb x) {
    return (vi){vec_dot_biased(acc.a, w.a, x.a), vec_dot_biased(acc.b, w.b, x.b)};
}
#endif

#undef BINARY
#undef SHIFT
