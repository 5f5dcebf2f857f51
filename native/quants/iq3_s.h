/* IQ3_S. Plain, 256 values: f16 d, for each 4 values a byte with the low bits of the point of the grid, for each 32 values a
 * byte with the highest bits of eight points, four bytes of signs for each 32 values, a 4-bit scale for each 32 values.
 * Tile: see iq3.h. */
#include "quants/iq3.h"
enum { STRIDE_IQ3_S = 256 };

VEC uint16_t reblock_iq3_s(uint32_t *out, const uint8_t *plain) {
    for (int j = 0; j < 8; j++) {
        uint32_t points[8], signs[4];
        for (int i = 0; i < 8; i++) points[i] = iq3_s_grid[plain[2 + 8 * j + i] | (plain[66 + j] >> i & 1) << 8];
        for (int i = 0; i < 4; i++) signs[i] = plain[74 + 4 * j + i];
        put_iq3(out + 4 * j, points, signs);
    }
    out[32] = load32(plain + 106);
    return load16(plain);
}
VEC void tile_iq3_s(uint8_t *tile, struct rows rows, int b, int blocks) {
    (void)blocks, tile_reblocked(tile + (size_t)b * TILE_IQ3_S, rows, 34, reblock_iq3_s);
}

VEC vb bytes_iq3_s(const uint8_t *block, int g) {
    static const uint8_t steps[16] = {129, 131, 133, 135, 137, 139, 141, 143, 127, 125, 123, 121, 119, 117, 115, 113};
    return nibbles_through_table(block, g, steps);
}
VEC void scales_iq3_s(struct panel *p, const uint8_t *part, int count) { (void)count, iq3_scales(p, part, 1.0f); }
