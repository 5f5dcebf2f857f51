/* Formats whose blocks are other ones in a tile: 256 values of a row are read value by value and written again, lossless, as
 * 32-bit words that lie side by side as [word][row]. The last word is the factor d of the block as a float.
 * A point of a grid becomes the codes of its values, for which kernels have tables: to look points up would take a gather for
 * each four or eight values of a row. */
#ifndef COLIBRI_QUANTS_REBLOCK_H
#define COLIBRI_QUANTS_REBLOCK_H
#include "quants/panel.h"

enum { MOST_WORDS = 36 };
/* One row's block -> its words but for the last; returns d, a half float. */
typedef uint16_t reblock_function(uint32_t *out, const uint8_t *plain);

VEC void tile_reblocked(uint8_t *tile, struct rows rows, int words, reblock_function *reblock) {
    uint32_t copy[TILE_ROWS * MOST_WORDS];
    uint16_t d[TILE_ROWS];
    const int step = (words + 3) / 4 * 4;
    const struct rows out = {(const uint8_t *)copy, sizeof *copy * (size_t)step};
    for (int row = 0; row < TILE_ROWS; row++) d[row] = reblock(copy + row * step, rows.first + (size_t)row * rows.stride);
    for (int w = 0; w < words - 1; w += 4) {
        vb four[4];
        vb_load_rows(four, out.first + 4 * w, out.stride);
        for (int i = 0; i < 4 && w + i < words - 1; i++) vb_stream(tile + 64 * (w + i), four[i]);
    }
    vf_store((float *)(void *)(tile + 64 * (words - 1)), vf_from_f16(d));
}

VEC vi tile_word(const uint8_t *part, int word) { return vi_from_vb(vb_load(part + 64 * word)); }
VEC vf tile_float(const uint8_t *part, int word) { return vf_load((const float *)(const void *)(part + 64 * word)); }
/* Scale j of eight of 4 bits in a word, times 2 and plus 1 */
VEC vi odd_scale(vi word, int j, int bits) {
    const vi scale = vi_and(vi_shr(word, 4 * j), vi_set1((1 << bits) - 1));
    return vi_add(vi_shl(scale, 1), vi_set1(1));
}

VEC uint16_t load16(const uint8_t *p) { uint16_t x; memcpy(&x, p, 2); return x; }
VEC uint32_t load32(const uint8_t *p) { uint32_t x; memcpy(&x, p, 4); return x; }
VEC uint64_t load64(const uint8_t *p) { uint64_t x; memcpy(&x, p, 8); return x; }

/* Seven bits of signs; the eighth makes their number even. */
VEC uint32_t eight_signs(uint32_t seven) { return seven | (uint32_t)__builtin_parity(seven) << 7; }
/* Bit i -> the lowest bit of byte i */
VEC uint64_t bits_to_bytes(uint32_t eight) {
    return ((eight & 127) * UINT64_C(0x0002040810204081) & UINT64_C(0x0101010101010101)) | (uint64_t)(eight >> 7) << 56;
}

/* 32 values of two bits, codes[i] those of values 8 i on, a byte each: value 8 i + b is at bit 2 i of byte b. */
VEC void put_two_bits(uint32_t *out, const uint64_t codes[4]) {
    const uint64_t all = codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6;
    memcpy(out, &all, 8);
}
VEC vb two_bits(const uint8_t *block, int g) { return vb_and(vb_shr(vb_load(block + 64 * (g % 2)), g / 2 * 2), vb_set1(3)); }

/* The same and a sign each, in a third word: of value 8 i + b at bit i + b / 4 * 4 of byte b % 4. A sign is bit 2 of a code. */
VEC void put_three_bits(uint32_t *out, const uint64_t codes[4], const uint32_t signs[4]) {
    uint64_t all = 0;
    put_two_bits(out, codes);
    for (int i = 0; i < 4; i++) all |= bits_to_bytes(signs[i]) << i;
    out[2] = (uint32_t)(all | all >> 28);
}
VEC vb three_bits(const uint8_t *block, int g) {
    return vb_and_or(bit_at(vb_load(block + 128), g / 2 + g % 2 * 4, 2), vb_set1(4), two_bits(block, g));
}
#endif
