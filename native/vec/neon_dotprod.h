/* Arm NEON with the dot product instructions of ARMv8.2. Four registers a vector. See portable.h for meanings. */
#include <arm_neon.h>
#define VEC_UNROLL _Pragma("GCC unroll 16")
#define VEC_ACCUMULATORS 4
#define VEC_TILES 1
typedef struct { float32x4_t a, b, c, d; } vf;
typedef struct { int32x4_t a, b, c, d; } vi;
typedef struct { uint8x16_t a, b, c, d; } vb;

#define EACH(type, f, ...) ((type){f(a, __VA_ARGS__), f(b, __VA_ARGS__), f(c, __VA_ARGS__), f(d, __VA_ARGS__)})
#define OF_TWO(part, op, x, y) op(x.part, y.part)
#define OF_ONE(part, op, x) op(x.part)
#define ACCUMULATE(part, op, z, x, y) op(z.part, x.part, y.part)
#define UNARY(name, to, from, op) VEC to name(from x) { return EACH(to, OF_ONE, op, x); }
#define BINARY(name, type, op) VEC type name(type x, type y) { return EACH(type, OF_TWO, op, x, y); }

/* floats */
VEC vf vf_load(const float *p) { return (vf){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
VEC void vf_store(float *p, vf x) { vst1q_f32(p, x.a), vst1q_f32(p + 4, x.b), vst1q_f32(p + 8, x.c), vst1q_f32(p + 12, x.d); }
VEC vf vf_set1(float x) { float32x4_t v = vdupq_n_f32(x); return (vf){v, v, v, v}; }
VEC vf vf_zero(void) { return vf_set1(0.0f); }
/* The instructions for maxima return a NaN on either side. */
VEC float32x4_t vec_max(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
VEC float32x4_t vec_min(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
BINARY(vf_add, vf, vaddq_f32)
BINARY(vf_sub, vf, vsubq_f32)
BINARY(vf_mul, vf, vmulq_f32)
BINARY(vf_div, vf, vdivq_f32)
BINARY(vf_max, vf, vec_max)
BINARY(vf_min, vf, vec_min)
UNARY(vf_abs, vf, vf, vabsq_f32)
VEC vf vf_fma(vf x, vf y, vf z) { return EACH(vf, ACCUMULATE, vfmaq_f32, z, x, y); }
#define LESS(part, p, q, x, y) vbslq_f32(vcltq_f32(p.part, q.part), x.part, y.part)
VEC vf vf_select_less(vf p, vf q, vf x, vf y) { return EACH(vf, LESS, p, q, x, y); }

/* reductions */
VEC float vf_sum(vf x) {
    float32x4_t four = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}
VEC float vf_reduce_max(vf x) {
    float32x4_t four = vec_max(vec_max(x.a, x.c), vec_max(x.b, x.d));
    float32x4_t two = vec_max(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(vec_max(two, vextq_f32(two, two, 1)), 0);
}

/* 16-bit floats */
VEC float32x4_t vec_from_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
VEC float32x4_t vec_from_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
VEC void vec_to_f16(uint16_t *p, float32x4_t x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
VEC vf vf_from_f16(const uint16_t *p) { return (vf){vec_from_f16(p), vec_from_f16(p + 4), vec_from_f16(p + 8), vec_from_f16(p + 12)}; }
VEC vf vf_from_bf16(const uint16_t *p) { return (vf){vec_from_bf16(p), vec_from_bf16(p + 4), vec_from_bf16(p + 8), vec_from_bf16(p + 12)}; }
VEC void vf_to_f16(uint16_t *p, vf x) { vec_to_f16(p, x.a), vec_to_f16(p + 4, x.b), vec_to_f16(p + 8, x.c), vec_to_f16(p + 12, x.d); }

/* integers */
VEC vi vi_load(const int32_t *p) { return (vi){vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)}; }
VEC void vi_store(int32_t *p, vi x) { vst1q_s32(p, x.a), vst1q_s32(p + 4, x.b), vst1q_s32(p + 8, x.c), vst1q_s32(p + 12, x.d); }
VEC vi vi_set1(int32_t x) { int32x4_t v = vdupq_n_s32(x); return (vi){v, v, v, v}; }
VEC vi vi_zero(void) { return vi_set1(0); }
VEC int32x4_t vec_shr(int32x4_t x, int32x4_t n) { return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(x), vnegq_s32(n))); }
VEC int32x4_t vec_sar(int32x4_t x, int32x4_t n) { return vshlq_s32(x, vnegq_s32(n)); }
BINARY(vi_add, vi, vaddq_s32)
BINARY(vi_sub, vi, vsubq_s32)
BINARY(vi_and, vi, vandq_s32)
BINARY(vi_or, vi, vorrq_s32)
VEC vi vi_shl(vi x, int n) { return EACH(vi, OF_TWO, vshlq_s32, x, vi_set1(n)); }
VEC vi vi_shr(vi x, int n) { return EACH(vi, OF_TWO, vec_shr, x, vi_set1(n)); }
VEC vi vi_shr_signed(vi x, int n) { return EACH(vi, OF_TWO, vshlq_s32, x, vi_set1(-n)); }
VEC vi vi_sar(vi x, int n) { return EACH(vi, OF_TWO, vec_sar, x, vi_set1(n)); }
VEC vi vec_widen(int16x8_t low, int16x8_t high) {
    return (vi){vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)};
}
VEC vi vi_from_i8(const int8_t *p) {
    int8x16_t x = vld1q_s8(p);
    return vec_widen(vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x));
}
VEC vi vi_from_u8(const uint8_t *p) {
    uint8x16_t x = vld1q_u8(p);
    return vec_widen(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(x))), vreinterpretq_s16_u16(vmovl_high_u8(x)));
}
VEC void vi_to_i8(int8_t *p, vi x) {
    int16x8_t low = vmovn_high_s32(vmovn_s32(x.a), x.b), high = vmovn_high_s32(vmovn_s32(x.c), x.d);
    vst1q_s8(p, vmovn_high_s16(vmovn_s16(low), high));
}
/* The instruction would turn NaN into 0 and large values into the nearest. */
VEC int32x4_t vec_round(float32x4_t x) {
    return vbslq_s32(vcltq_f32(vabsq_f32(x), vdupq_n_f32(0x1p31f)), vcvtnq_s32_f32(x), vdupq_n_s32(INT32_MIN));
}
UNARY(vf_from_vi, vf, vi, vcvtq_f32_s32)
UNARY(vi_from_vf, vi, vf, vec_round)
UNARY(vf_bits, vf, vi, vreinterpretq_f32_s32)
VEC int32_t vi_sum(vi x) { return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d))); }
VEC int32x4_t vec_madd16(int32x4_t acc, int32x4_t x, int32x4_t y) {
    int16x8_t p = vreinterpretq_s16_s32(x), q = vreinterpretq_s16_s32(y);
    return vaddq_s32(acc, vpaddq_s32(vmull_s16(vget_low_s16(p), vget_low_s16(q)), vmull_high_s16(p, q)));
}
VEC vi vi_madd16(vi acc, vi x, vi y) { return EACH(vi, ACCUMULATE, vec_madd16, acc, x, y); }

/* bytes */
VEC vb vb_load(const void *p) {
    const uint8_t *q = p;
    return (vb){vld1q_u8(q), vld1q_u8(q + 16), vld1q_u8(q + 32), vld1q_u8(q + 48)};
}
VEC void vb_store(void *p, vb x) {
    uint8_t *q = p;
    vst1q_u8(q, x.a), vst1q_u8(q + 16, x.b), vst1q_u8(q + 32, x.c), vst1q_u8(q + 48, x.d);
}
VEC void vb_stream(void *p, vb x) { vb_store(p, x); }
VEC void vb_streamed(void) {}
VEC uint32x4_t vec_load_words(const uint8_t *p) { return vreinterpretq_u32_u8(vld1q_u8(p)); }
VEC uint8x16_t vec_low_pairs(uint32x4_t x, uint32x4_t y) {
    return vreinterpretq_u8_u64(vtrn1q_u64(vreinterpretq_u64_u32(x), vreinterpretq_u64_u32(y)));
}
VEC uint8x16_t vec_high_pairs(uint32x4_t x, uint32x4_t y) {
    return vreinterpretq_u8_u64(vtrn2q_u64(vreinterpretq_u64_u32(x), vreinterpretq_u64_u32(y)));
}
VEC void vec_transpose4(uint8x16_t out[4], const uint8_t *first, size_t stride) {
    uint32x4_t a = vec_load_words(first), b = vec_load_words(first + stride);
    uint32x4_t c = vec_load_words(first + 2 * stride), d = vec_load_words(first + 3 * stride);
    uint32x4_t ab_even = vtrn1q_u32(a, b), ab_odd = vtrn2q_u32(a, b), cd_even = vtrn1q_u32(c, d), cd_odd = vtrn2q_u32(c, d);
    out[0] = vec_low_pairs(ab_even, cd_even), out[1] = vec_low_pairs(ab_odd, cd_odd);
    out[2] = vec_high_pairs(ab_even, cd_even), out[3] = vec_high_pairs(ab_odd, cd_odd);
}
VEC void vb_load_rows(vb out[4], const uint8_t *first, size_t stride) {
    uint8x16_t a[4], b[4], c[4], d[4];
    vec_transpose4(a, first, stride), vec_transpose4(b, first + 4 * stride, stride);
    vec_transpose4(c, first + 8 * stride, stride), vec_transpose4(d, first + 12 * stride, stride);
    for (int w = 0; w < 4; w++) out[w] = (vb){a[w], b[w], c[w], d[w]};
}
VEC uint8x16_t vec_even(uint8x16_t x, uint8x16_t y) {
    return vreinterpretq_u8_u16(vuzp1q_u16(vreinterpretq_u16_u8(x), vreinterpretq_u16_u8(y)));
}
VEC uint8x16_t vec_odd(uint8x16_t x, uint8x16_t y) {
    return vreinterpretq_u8_u16(vuzp2q_u16(vreinterpretq_u16_u8(x), vreinterpretq_u16_u8(y)));
}
VEC vb vb_halves(vb x) { return (vb){vec_even(x.a, x.b), vec_even(x.c, x.d), vec_odd(x.a, x.b), vec_odd(x.c, x.d)}; }
VEC vb vec_repeat(uint8x16_t x) { return (vb){x, x, x, x}; }
VEC vb vb_set1(uint8_t x) { return vec_repeat(vdupq_n_u8(x)); }
VEC vb vb_repeat16(const uint8_t *p) { return vec_repeat(vld1q_u8(p)); }
VEC vb vb_repeat4(const void *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return vec_repeat(vreinterpretq_u8_s32(vdupq_n_s32(four)));
}
BINARY(vb_and, vb, vandq_u8)
BINARY(vb_or, vb, vorrq_u8)
BINARY(vb_add, vb, vaddq_u8)
BINARY(vb_lookup16, vb, vqtbl1q_u8)
VEC vb vb_and_or(vb x, vb mask, vb y) { return vb_or(vb_and(x, mask), y); }
UNARY(vi_from_vb, vi, vb, vreinterpretq_s32_u8)
UNARY(vb_from_vi, vb, vi, vreinterpretq_u8_s32)
VEC vb vb_shl(vb x, int n) { return vb_from_vi(vi_shl(vi_from_vb(x), n)); }
VEC vb vb_shr(vb x, int n) { return vb_from_vi(vi_shr(vi_from_vb(x), n)); }
enum { VB_HIGH4_UNIT = 1 };
VEC uint8x16_t vec_high4(uint8x16_t x) { return vshrq_n_u8(x, 4); }
UNARY(vb_high4, vb, vb, vec_high4)

#ifndef VEC_PRODUCTS /* of bytes; a header that includes this one may have its own */
/* Both factors are signed here: w is below 128, or has its 128 taken off first, and there is no bias to start from. */
VEC int32x4_t vec_dot(int32x4_t acc, uint8x16_t w, uint8x16_t x) {
    return vdotq_s32(acc, vreinterpretq_s8_u8(w), vreinterpretq_s8_u8(x));
}
VEC int32x4_t vec_dot_biased(int32x4_t acc, uint8x16_t w, uint8x16_t x) { return vec_dot(acc, veorq_u8(w, vdupq_n_u8(0x80)), x); }
VEC vi vi_dot(vi acc, vb w, vb x) { return EACH(vi, ACCUMULATE, vec_dot, acc, w, x); }
VEC vi vi_start_biased(int32_t minus_128_sum) { (void)minus_128_sum; return vi_zero(); }
VEC vi vi_dot_biased(vi acc, vb w, vb x) { return EACH(vi, ACCUMULATE, vec_dot_biased, acc, w, x); }
#endif

#undef EACH
#undef OF_TWO
#undef OF_ONE
#undef ACCUMULATE
#undef UNARY
#undef BINARY
#undef LESS
