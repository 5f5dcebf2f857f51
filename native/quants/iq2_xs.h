/* IQ2_XS. Plain, 256 values: f16 d, for each 8 values 16 bits with the point of the grid (9) and seven signs, a 4-bit scale
 * for each 16 values. Tile: see iq2.h. */
#include "quants/iq2.h"
enum { STRIDE_IQ2_XS = TILE_IQ2_XS };

VEC uint16_t reblock_iq2_xs(uint32_t *out, const uint8_t *plain) {
    for (int j = 0; j < 8; j++) {
        uint64_t codes[4];
        uint32_t signs[4];
        for (int i = 0; i < 4; i++) {
            const uint16_t both = load16(plain + 2 + 8 * j + 2 * i);
            codes[i] = iq2_xs_grid[both & 511], signs[i] = eight_signs(both >> 9);
        }
        put_three_bits(out + 3 * j, codes, signs);
    }
    out[24] = load32(plain + 66), out[25] = load32(plain + 70);
    return load16(plain);
}
VEC void tile_iq2_xs(uint8_t *tile, struct rows rows, int b, int blocks) {
    (void)blocks, tile_reblocked(tile + (size_t)b * TILE_IQ2_XS, rows, 27, reblock_iq2_xs);
}
VEC vb bytes_iq2_xs(const uint8_t *block, int g) { return iq2_bytes(block, g); }
VEC void scales_iq2_xs(struct panel *p, const uint8_t *part, int count) { (void)count, iq2_scales(p, part); }
