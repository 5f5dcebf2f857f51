/* Plain C: the definition of every primitive. */
#include "vec/half.h"

#define VEC_UNROLL _Pragma("GCC unroll 1")
#define VEC_ACCUMULATORS 4
#define VEC_TILES 1
typedef struct { float lane[16]; } vf;
typedef struct { int32_t lane[16]; } vi;
typedef struct { uint8_t byte[64]; } vb;

#define LANES for (int i = 0; i < 16; i++)
#define BYTES for (int i = 0; i < 64; i++)

/* floats */
VEC vf vf_load(const float *p) { vf r; memcpy(&r, p, sizeof r); return r; }
VEC void vf_store(float *p, vf a) { memcpy(p, &a, sizeof a); }
VEC vf vf_set1(float x) { vf r; LANES r.lane[i] = x; return r; }
VEC vf vf_zero(void) { return vf_set1(0.0f); }
VEC vf vf_add(vf a, vf b) { LANES a.lane[i] += b.lane[i]; return a; }
VEC vf vf_sub(vf a, vf b) { LANES a.lane[i] -= b.lane[i]; return a; }
VEC vf vf_mul(vf a, vf b) { LANES a.lane[i] *= b.lane[i]; return a; }
VEC vf vf_div(vf a, vf b) { LANES a.lane[i] /= b.lane[i]; return a; }
/* b where the comparison is false, so a NaN in b is kept and one in a is not. */
VEC vf vf_max(vf a, vf b) { LANES a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; return a; }
VEC vf vf_min(vf a, vf b) { LANES a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; return a; }
VEC vf vf_abs(vf a) { LANES a.lane[i] = fabsf(a.lane[i]); return a; }
VEC vf vf_fma(vf a, vf b, vf c) { LANES c.lane[i] = fmaf(a.lane[i], b.lane[i], c.lane[i]); return c; } /* a*b + c */
/* lane by lane: a < b ? x : y */
VEC vf vf_select_less(vf a, vf b, vf x, vf y) { LANES y.lane[i] = a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i]; return y; }

/* reductions: 8+8, 4+4, 2+2, 1+1 */
VEC float vf_sum(vf a) {
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) a.lane[i] += a.lane[i + half];
    return a.lane[0];
}
VEC float vf_reduce_max(vf a) {
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) a.lane[i] = a.lane[i] > a.lane[i + half] ? a.lane[i] : a.lane[i + half];
    return a.lane[0];
}

/* 16-bit floats */
VEC vf vf_from_bits(const uint32_t *bits) { vf r; memcpy(&r, bits, sizeof r); return r; }
VEC vf vf_from_f16(const uint16_t *p) { uint32_t b[16]; LANES b[i] = f16_to_f32_bits(p[i]); return vf_from_bits(b); }
VEC vf vf_from_bf16(const uint16_t *p) { uint32_t b[16]; LANES b[i] = (uint32_t)p[i] << 16; return vf_from_bits(b); }
VEC void vf_to_f16(uint16_t *p, vf a) {
    uint32_t b[16];
    memcpy(b, &a, sizeof b);
    LANES p[i] = f32_bits_to_f16(b[i]);
}

/* integers; overflow wraps */
VEC vi vi_load(const int32_t *p) { vi r; memcpy(&r, p, sizeof r); return r; }
VEC void vi_store(int32_t *p, vi a) { memcpy(p, &a, sizeof a); }
VEC vi vi_set1(int32_t x) { vi r; LANES r.lane[i] = x; return r; }
VEC vi vi_zero(void) { return vi_set1(0); }
VEC vi vi_add(vi a, vi b) { LANES a.lane[i] = (int32_t)((uint32_t)a.lane[i] + (uint32_t)b.lane[i]); return a; }
VEC vi vi_sub(vi a, vi b) { LANES a.lane[i] = (int32_t)((uint32_t)a.lane[i] - (uint32_t)b.lane[i]); return a; }
VEC vi vi_and(vi a, vi b) { LANES a.lane[i] &= b.lane[i]; return a; }
VEC vi vi_or(vi a, vi b) { LANES a.lane[i] |= b.lane[i]; return a; }
VEC vi vi_shl(vi a, int n) { LANES a.lane[i] = (int32_t)((uint32_t)a.lane[i] << n); return a; }
VEC vi vi_shr_signed(vi a, int n) { LANES a.lane[i] >>= n; return a; }
VEC vi vi_shr(vi a, int n) { LANES a.lane[i] = (int32_t)((uint32_t)a.lane[i] >> n); return a; }
VEC vi vi_sar(vi a, int n) { LANES a.lane[i] >>= n; return a; }
VEC vi vi_from_i8(const int8_t *p) { vi r; LANES r.lane[i] = p[i]; return r; }
VEC vi vi_from_u8(const uint8_t *p) { vi r; LANES r.lane[i] = p[i]; return r; }
VEC void vi_to_i8(int8_t *p, vi a) { LANES p[i] = (int8_t)a.lane[i]; } /* low byte */
VEC vf vf_from_vi(vi a) { vf r; LANES r.lane[i] = (float)a.lane[i]; return r; }
/* Round to nearest even; NaN and what does not fit give INT32_MIN. */
VEC vi vi_from_vf(vf a) {
    vi r;
    LANES r.lane[i] = fabsf(a.lane[i]) < 0x1p31f ? (int32_t)rintf(a.lane[i]) : INT32_MIN;
    return r;
}
VEC int32_t vi_sum(vi a) { uint32_t sum = 0; LANES sum += (uint32_t)a.lane[i]; return (int32_t)sum; }
VEC vf vf_bits(vi a) { vf r; memcpy(&r, &a, sizeof r); return r; }
/* Lanes as pairs of int16: acc + a.low * b.low + a.high * b.high */
VEC vi vi_madd16(vi acc, vi a, vi b) {
    LANES acc.lane[i] += (int16_t)a.lane[i] * (int16_t)b.lane[i] + (a.lane[i] >> 16) * (b.lane[i] >> 16);
    return acc;
}

/* bytes */
VEC vb vb_load(const void *p) { vb r; memcpy(&r, p, sizeof r); return r; }
VEC void vb_store(void *p, vb a) { memcpy(p, &a, sizeof a); }
VEC void vb_stream(void *p, vb a) { vb_store(p, a); } /* to what is not read soon, p a multiple of 64; see vb_streamed */
VEC void vb_streamed(void) {}                         /* before another thread may read what was stored so */
/* 16 bytes of each of 16 rows, `stride` bytes apart: out[i] is bytes 4 i .. 4 i + 3 of every row. */
VEC void vb_load_rows(vb out[4], const uint8_t *first, size_t stride) {
    LANES for (int w = 0; w < 4; w++) memcpy(out[w].byte + 4 * i, first + (size_t)i * stride + 4 * w, 4);
}
/* The first two bytes of every lane, then the others. */
VEC vb vb_halves(vb a) {
    vb r;
    LANES memcpy(r.byte + 2 * i, a.byte + 4 * i, 2), memcpy(r.byte + 32 + 2 * i, a.byte + 4 * i + 2, 2);
    return r;
}
VEC vb vb_set1(uint8_t x) { vb r; memset(&r, x, sizeof r); return r; }
VEC vb vb_repeat16(const uint8_t *p) { vb r; BYTES r.byte[i] = p[i & 15]; return r; } /* a lookup table */
VEC vb vb_repeat4(const void *p) { vb r; BYTES r.byte[i] = ((const uint8_t *)p)[i & 3]; return r; } /* 4 values of k */
VEC vb vb_and(vb a, vb b) { BYTES a.byte[i] &= b.byte[i]; return a; }
VEC vb vb_or(vb a, vb b) { BYTES a.byte[i] |= b.byte[i]; return a; }
VEC vb vb_add(vb a, vb b) { BYTES a.byte[i] = (uint8_t)(a.byte[i] + b.byte[i]); return a; }
VEC vb vb_and_or(vb a, vb mask, vb b) { BYTES a.byte[i] = (a.byte[i] & mask.byte[i]) | b.byte[i]; return a; }
/* Shifts cross bytes within a lane: mask the result. */
VEC vb vb_shl(vb a, int n) { vi t; memcpy(&t, &a, sizeof t); t = vi_shl(t, n); memcpy(&a, &t, sizeof a); return a; }
VEC vb vb_shr(vb a, int n) { vi t; memcpy(&t, &a, sizeof t); t = vi_shr(t, n); memcpy(&a, &t, sizeof a); return a; }
VEC vi vi_from_vb(vb a) { vi r; memcpy(&r, &a, sizeof r); return r; }
VEC vb vb_from_vi(vi a) { vb r; memcpy(&r, &a, sizeof r); return r; }
/* table is vb_repeat16, every index byte below 16 */
VEC vb vb_lookup16(vb table, vb index) { BYTES index.byte[i] = table.byte[index.byte[i]]; return index; }
/* The high four bits of each byte, times VB_HIGH4_UNIT: an instruction set that need not shift does not. */
enum { VB_HIGH4_UNIT = 1 };
VEC vb vb_high4(vb a) { BYTES a.byte[i] >>= 4; return a; }

/* Lane by lane: acc + sum of 4 products of w (0..127, or what vb_high4 gives) and the 4 int8 of x (-127..127). */
VEC vi vi_dot(vi acc, vb w, vb x) {
    LANES for (int k = 0; k < 4; k++) acc.lane[i] += w.byte[4 * i + k] * (int8_t)x.byte[4 * i + k];
    return acc;
}
/* The same for w = value + 128, value -128..127. Begin with vi_start_biased(-128 * sum of all x). */
VEC vi vi_start_biased(int32_t minus_128_sum) { return vi_set1(minus_128_sum); }
VEC vi vi_dot_biased(vi acc, vb w, vb x) { return vi_dot(acc, w, x); }

#undef LANES
#undef BYTES
