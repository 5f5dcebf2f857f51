/* IQ1_M. Plain, 256 values: for each 8 values a byte with the low bits of the point of the grid and a nibble with three high
 * bits and whether 1/8 is taken off the values or added; four times 16 bits with four 3-bit scales, of 16 values each, and
 * four bits of the f16 d. Tile, a block: [8]: values plus 1, two bits each [2]; the bits of the eighths, scales [2], d. */
#include "quants/grids_1.h"
#include "quants/reblock.h"
enum { STRIDE_IQ1_M = TILE_IQ1_M };

VEC uint16_t reblock_iq1_m(uint32_t *out, const uint8_t *plain) {
    uint32_t d = 0;
    out[16] = out[17] = out[18] = 0;
    for (int j = 0; j < 8; j++) {
        uint64_t codes[4];
        for (int i = 0; i < 4; i++) {
            const uint32_t nibble = plain[32 + 2 * j + i / 2] >> i % 2 * 4 & 15;
            codes[i] = iq1_grid[plain[4 * j + i] | (nibble & 7) << 8];
            out[16] |= nibble >> 3 << (4 * j + i);
        }
        put_two_bits(out + 2 * j, codes);
    }
    for (int i = 0; i < 16; i++) out[17 + i / 8] |= (uint32_t)(load16(plain + 48 + i / 4 * 2) >> i % 4 * 3 & 7) << i % 8 * 4;
    for (int i = 0; i < 4; i++) d |= (uint32_t)(load16(plain + 48 + 2 * i) >> 12) << 4 * i;
    return (uint16_t)d;
}
VEC void tile_iq1_m(uint8_t *tile, struct rows rows, int b, int blocks) {
    (void)blocks, tile_reblocked(tile + (size_t)b * TILE_IQ1_M, rows, 20, reblock_iq1_m);
}

VEC vb bytes_iq1_m(const uint8_t *block, int g) { /* eighths, plus 32 */
    static const uint8_t steps[16] = {25, 33, 41, 32, 23, 31, 39, 32};
    const vb less = vb_from_vi(vi_sar(vi_shl(tile_word(block, 16), 31 - g / 2), 31)); /* all bits of a row, or none */
    return vb_lookup16(vb_repeat16(steps), vb_and_or(less, vb_set1(4), two_bits(block + 128 * (g / 8), g % 8)));
}

VEC void scales_iq1_m(struct panel *p, const uint8_t *part, int count) {
    const vf eighth = vf_mul(tile_float(part, 19), vf_set1(0.125f));
    (void)count;
    for (int j = 0; j < 16; j++)
        vf_store(p->scale[j], vf_mul(eighth, vf_from_vi(odd_scale(tile_word(part, 17 + j / 8), j % 8, 3))));
}
