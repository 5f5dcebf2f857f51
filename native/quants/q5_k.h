/* Q5_K. Plain, 256 values: as Q4_K, with 32 bytes before the nibbles: bit j of byte l is the fifth bit of value 32 j + l.
 * Tile, a block: nibbles [32][row][4], fifth bits [8][row][4], packed scales [3][row][4], d [row], dmin [row]. */
#include "quants/k_scales.h"
enum { STRIDE_Q5_K = TILE_Q5_K };

VEC void tile_q5_k(uint8_t *tile, struct rows rows, int b, int blocks) {
    (void)blocks, tile += (size_t)b * STRIDE_Q5_K;
    interleave(tile, rows, 48, 8, 0);
    interleave(tile + 2048, rows, 16, 2, 0);
    tile_k_scales(tile + 2560, rows);
}

VEC vb bytes_q5_k(const uint8_t *block, int g) {
    int j = g / 8; /* the group of 32 values: even in the low, odd in the high nibbles; its fifth bit is bit j */
    vb packed = vb_load(block + 64 * (j / 2 * 8 + g % 8)), bits = vb_load(block + 2048 + 64 * (g % 8));
    vb fifth = j < 4 ? vb_shl(bits, 4 - j) : vb_shr(bits, j - 4);
    return vb_and_or(fifth, vb_set1(16), vb_and(j & 1 ? vb_shr(packed, 4) : packed, vb_set1(15)));
}

VEC void scales_q5_k(struct panel *p, const uint8_t *part, int count) {
    (void)count;
    k_scales(p, part + 2560, 1);
}
