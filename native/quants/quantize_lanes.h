/* Vectors for the quantisers: one lane is one block, so nothing is ever added across lanes and the result does not
 * depend on the width. Compiler vectors, not native/vec: the kernels' 16 lanes would be two registers on AVX2, which
 * halves the values that a search can keep. */
#ifndef COLIBRI_QUANTIZE_LANES_H
#define COLIBRI_QUANTIZE_LANES_H
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "vec/half.h"

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
enum { GROUP = 16 }; /* blocks that are searched together: GROUP / LANES vectors */

typedef float vfloat __attribute__((vector_size(4 * LANES)));
typedef int32_t vint __attribute__((vector_size(4 * LANES)));
#define INLINE static inline __attribute__((always_inline))

INLINE vfloat load(const float *p) { vfloat v; memcpy(&v, p, sizeof v); return v; }
INLINE void store(float *p, vfloat v) { memcpy(p, &v, sizeof v); }
INLINE vfloat all(float x) { return x - (vfloat){0}; }
INLINE vfloat pick(vint mask, vfloat yes, vfloat no) { return (vfloat)((mask & (vint)yes) | (~mask & (vint)no)); }
INLINE vfloat least(vfloat a, vfloat b) {
    vfloat r;
    for (int i = 0; i < LANES; i++) r[i] = a[i] < b[i] ? a[i] : b[i];
    return r;
}
INLINE vfloat most(vfloat a, vfloat b) {
    vfloat r;
    for (int i = 0; i < LANES; i++) r[i] = a[i] > b[i] ? a[i] : b[i];
    return r;
}
INLINE vfloat magnitude(vfloat a) { return (vfloat)((vint)a & 0x7fffffff); }

/* Nearest integer, ties to even, for |a| < 2^22. */
INLINE vfloat nearest(vfloat a) { return (a + 12582912.0f) - 12582912.0f; }
INLINE vfloat within(vfloat a, float low, float high) { return least(most(a, all(low)), all(high)); }
INLINE vfloat nearest_within(vfloat a, float low, float high) { return nearest(within(a, low, high)); }
/* a / b, and 0 where b is not positive. */
INLINE vfloat ratio(vfloat a, vfloat b) { vint ok = b > 0; return pick(ok, a / pick(ok, b, all(1)), all(0)); }
INLINE vfloat reciprocal(vfloat a) { vint used = a != 0; return pick(used, 1 / pick(used, a, all(1)), all(0)); }

INLINE uint16_t to_half(float x) { uint32_t bits; memcpy(&bits, &x, 4); return f32_bits_to_f16(bits); }
INLINE float from_half(uint16_t half) {
    const uint32_t bits = f16_to_f32_bits(half);
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
INLINE float as_half(float x) { return from_half(to_half(x)); }
#endif
