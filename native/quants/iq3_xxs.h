/* IQ3_XXS. Plain, 256 values: f16 d, a byte with the point of the grid for each 4 values, 32 bits with four times seven signs
 * and a scale for each 32 values. Tile: see iq3.h. */
#include "quants/iq3.h"
enum { STRIDE_IQ3_XXS = 256 };

VEC uint16_t reblock_iq3_xxs(uint32_t *out, const uint8_t *plain) {
    out[32] = 0;
    for (int j = 0; j < 8; j++) {
        const uint32_t rest = load32(plain + 66 + 4 * j);
        uint32_t points[8], signs[4];
        for (int i = 0; i < 8; i++) points[i] = iq3_xxs_grid[plain[2 + 8 * j + i]];
        for (int i = 0; i < 4; i++) signs[i] = eight_signs(rest >> 7 * i & 127);
        put_iq3(out + 4 * j, points, signs);
        out[32] |= rest >> 28 << 4 * j;
    }
    return load16(plain);
}
VEC void tile_iq3_xxs(uint8_t *tile, struct rows rows, int b, int blocks) {
    (void)blocks, tile_reblocked(tile + (size_t)b * TILE_IQ3_XXS, rows, 34, reblock_iq3_xxs);
}

VEC vb bytes_iq3_xxs(const uint8_t *block, int g) {
    static const uint8_t steps[16] = {132, 140, 148, 156, 164, 172, 180, 190, 124, 116, 108, 100, 92, 84, 76, 66};
    return nibbles_through_table(block, g, steps);
}
VEC void scales_iq3_xxs(struct panel *p, const uint8_t *part, int count) { (void)count, iq3_scales(p, part, 0.25f); }
