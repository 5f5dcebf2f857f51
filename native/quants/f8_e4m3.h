/* F8_E4M3, of Hugging Face directories. Plain, 64 values: 64 bytes of sign, 4 bits of exponent and 3 of mantissa, and their
 * scale, a float. Tile: [block]: bytes [k / 4][row][4], scales [row]; a scale is NaN where a byte stands for NaN. */
#ifndef COLIBRI_QUANTS_F8_E4M3_H
#define COLIBRI_QUANTS_F8_E4M3_H
#include "quants/panel.h"

enum { BLOCK_F8 = 64, TILE_F8 = TILE_ROWS * (BLOCK_F8 + 4) };

VEC void tile_f8_e4m3(uint8_t *tile, struct rows rows, int b, int blocks) {
    uint8_t *out = tile + (size_t)b * TILE_F8, *scales = out + TILE_ROWS * BLOCK_F8;
    (void)blocks;
    interleave(out, rows, 0, BLOCK_F8 / 16, 0);
    for (int row = 0; row < TILE_ROWS; row++) {
        const uint8_t *plain = rows.first + (size_t)row * rows.stride;
        const float nan = __builtin_nanf("");
        uint64_t eight, past = 0;
        for (int i = 0; i < BLOCK_F8; i += 8) {
            memcpy(&eight, plain + i, 8);
            past |= (eight & UINT64_C(0x7f7f7f7f7f7f7f7f)) + UINT64_C(0x0101010101010101);
        }
        const bool finite = !(past & UINT64_C(0x8080808080808080));
        memcpy(scales + 4 * row, finite ? plain + BLOCK_F8 : (const uint8_t *)&nan, 4);
    }
}

VEC vf scale_f8_e4m3(const uint8_t *block) { return vf_load((const float *)(const void *)(block + TILE_ROWS * BLOCK_F8)); }

/* Value i of four. The exponent and the mantissa are those of a float with 120 less in the exponent, also where they are
 * subnormal. */
VEC vf value_f8_e4m3(vb four, int i, vf scale) {
    const vi high = vi_shl(vi_from_vb(four), 24 - 8 * i);
    const vi bits = vi_and(vi_shr_signed(high, 4), vi_set1((int32_t)0x87f00000));
    return vf_mul(vf_mul(vf_bits(bits), vf_set1(0x1p120f)), scale);
}

VEC const float *floats_f8_e4m3(float *out, const uint8_t *tile, int k, int first, int count) {
    const uint8_t *block = tile + (size_t)(first / BLOCK_F8) * TILE_F8;
    (void)k;
    for (float *end = out + 16 * count, *next = out; next < end; block += TILE_F8)
        for (int g = 0; g < BLOCK_F8 / 4; g++, next += 64) {
            const vb four = vb_load(block + 64 * g);
            VEC_UNROLL for (int i = 0; i < 4; i++) vf_store(next + 16 * i, value_f8_e4m3(four, i, scale_f8_e4m3(block)));
        }
    return out;
}
#endif
