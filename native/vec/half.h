/* Half floats by integers: not every compiler knows _Float16, and not every processor has instructions for it. */
#ifndef COLIBRI_VEC_HALF_H
#define COLIBRI_VEC_HALF_H
#include <stdint.h>
#include <string.h>

static inline uint32_t f16_to_f32_bits(uint32_t h) {
    uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ffu;
    if (exponent == 31) return sign | 0x7f800000u | (mantissa ? 0x400000u | mantissa << 13 : 0);
    if (exponent) return sign | (exponent + 112) << 23 | mantissa << 13;
    float value = (float)mantissa * 0x1p-24f;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return sign | bits;
}
static inline uint16_t f32_bits_to_f16(uint32_t f) { /* round to nearest even */
    uint32_t sign = f >> 16 & 0x8000u, magnitude = f & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (magnitude >= 0x38800000u) { /* normal in f16 */
        uint32_t rebased = magnitude - 0x38000000u;
        return (uint16_t)(sign | (rebased + 0xfffu + (rebased >> 13 & 1)) >> 13);
    }
    float value, shifted;
    memcpy(&value, &magnitude, 4);
    shifted = value + 0.5f; /* the unit of the sum is 2^-24, the unit of a subnormal f16 */
    memcpy(&magnitude, &shifted, 4);
    return (uint16_t)(sign | (magnitude - 0x3f000000u));
}
#endif
