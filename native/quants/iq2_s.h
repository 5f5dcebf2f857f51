/* IQ2_S. Plain, 256 values: f16 d, for each 8 values a byte with the low bits of the point of the grid, then a byte with the
 * signs; for each 32 values a byte with the high two bits of four points; a 4-bit scale for each 16 values. Tile: see iq2.h. */
#include "quants/iq2.h"
enum { STRIDE_IQ2_S = TILE_IQ2_S };

VEC uint16_t reblock_iq2_s(uint32_t *out, const uint8_t *plain) {
    for (int j = 0; j < 8; j++) {
        uint64_t codes[4];
        uint32_t signs[4];
        for (int i = 0; i < 4; i++) {
            codes[i] = iq2_s_grid[plain[2 + 4 * j + i] | (plain[66 + j] >> 2 * i & 3) << 8];
            signs[i] = plain[34 + 4 * j + i];
        }
        put_three_bits(out + 3 * j, codes, signs);
    }
    out[24] = load32(plain + 74), out[25] = load32(plain + 78);
    return load16(plain);
}
VEC void tile_iq2_s(uint8_t *tile, struct rows rows, int b, int blocks) {
    (void)blocks, tile_reblocked(tile + (size_t)b * TILE_IQ2_S, rows, 27, reblock_iq2_s);
}
VEC vb bytes_iq2_s(const uint8_t *block, int g) { return iq2_bytes(block, g); }
VEC void scales_iq2_s(struct panel *p, const uint8_t *part, int count) { (void)count, iq2_scales(p, part); }
