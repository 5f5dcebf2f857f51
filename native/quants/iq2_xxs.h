/* IQ2_XXS. Plain, 256 values: f16 d, for each 32 values four bytes with the points of the grid and 32 bits with four times
 * seven signs and a scale. Tile, a block: [8]: codes [3]; scales, d. */
#include "quants/iq2.h"
enum { STRIDE_IQ2_XXS = 192 };

VEC uint16_t reblock_iq2_xxs(uint32_t *out, const uint8_t *plain) {
    out[24] = 0;
    for (int j = 0; j < 8; j++) {
        const uint8_t *points = plain + 2 + 8 * j;
        const uint32_t rest = load32(points + 4);
        uint64_t codes[4];
        uint32_t signs[4];
        for (int i = 0; i < 4; i++) codes[i] = iq2_xxs_grid[points[i]], signs[i] = eight_signs(rest >> 7 * i & 127);
        put_three_bits(out + 3 * j, codes, signs);
        out[24] |= rest >> 28 << 4 * j;
    }
    return load16(plain);
}
VEC void tile_iq2_xxs(uint8_t *tile, struct rows rows, int b, int blocks) {
    (void)blocks, tile_reblocked(tile + (size_t)b * TILE_IQ2_XXS, rows, 26, reblock_iq2_xxs);
}

VEC vb bytes_iq2_xxs(const uint8_t *block, int g) {
    static const uint8_t steps[16] = IQ2_STEPS(128);
    return vb_lookup16(vb_repeat16(steps), three_bits(block, g));
}

VEC void scales_iq2_xxs(struct panel *p, const uint8_t *part, int count) {
    const vf eighth = vf_mul(tile_float(part, 25), vf_set1(0.125f));
    (void)count;
    for (int j = 0; j < 8; j++) vf_store(p->scale[j], vf_mul(eighth, vf_from_vi(odd_scale(tile_word(part, 24), j, 4))));
}
