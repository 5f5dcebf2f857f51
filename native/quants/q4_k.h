/* Q4_K. Plain, 256 values: f16 d, f16 dmin, 12 bytes with eight 6-bit scales and minima, 128 bytes of nibbles: of each 32
 * bytes the low nibbles are 32 values, the high nibbles the next 32.
 * Tile, a block: nibbles [32][row][4], packed scales [3][row][4], d [row], dmin [row]. */
#include "quants/k_scales.h"
enum { STRIDE_Q4_K = TILE_Q4_K };

VEC void tile_q4_k(uint8_t *tile, struct rows rows, int b, int blocks) {
    (void)blocks, tile += (size_t)b * STRIDE_Q4_K;
    interleave(tile, rows, 16, 8, 0);
    tile_k_scales(tile + 2048, rows);
}

VEC vb bytes_q4_k(const uint8_t *block, int g) {
    vb packed = vb_load(block + 64 * (g / 16 * 8 + g % 8));
    return g & 8 ? vb_high4(packed) : vb_and(packed, vb_set1(15));
}

VEC void scales_q4_k(struct panel *p, const uint8_t *part, int count) {
    (void)count;
    k_scales(p, part + 2048, VB_HIGH4_UNIT);
}
