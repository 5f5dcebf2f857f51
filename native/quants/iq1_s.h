/* IQ1_S. Plain, 256 values: f16 d, for each 8 values a byte with the low bits of the point of the grid, for each 32 values 16
 * bits: three times four high bits, a scale (3 bits) and whether 1/8 is taken off the values (-1, 0 or 1) or added to them.
 * Tile, a block: [8]: values plus 1, two bits each [2]; scales, d. What is added is a minimum of (1 +- 1/8) * scale. */
#include "quants/grids_1.h"
#include "quants/reblock.h"
enum { STRIDE_IQ1_S = TILE_IQ1_S };

VEC uint16_t reblock_iq1_s(uint32_t *out, const uint8_t *plain) {
    out[16] = 0;
    for (int j = 0; j < 8; j++) {
        const uint32_t rest = load16(plain + 34 + 2 * j);
        uint64_t codes[4];
        for (int i = 0; i < 4; i++) codes[i] = iq1_grid[plain[2 + 4 * j + i] | (rest >> 3 * i & 7) << 8];
        put_two_bits(out + 2 * j, codes);
        out[16] |= rest >> 12 << 4 * j;
    }
    return load16(plain);
}
VEC void tile_iq1_s(uint8_t *tile, struct rows rows, int b, int blocks) {
    (void)blocks, tile_reblocked(tile + (size_t)b * TILE_IQ1_S, rows, 18, reblock_iq1_s);
}

VEC vb bytes_iq1_s(const uint8_t *block, int g) { return two_bits(block + 128 * (g / 8), g % 8); }

VEC void scales_iq1_s(struct panel *p, const uint8_t *part, int count) {
    const vi packed = tile_word(part, 16);
    const vf d = tile_float(part, 17);
    vi mins[8]; /* in eighths of d */
    (void)count;
    for (int j = 0; j < 8; j++) {
        const vi scale = odd_scale(packed, j, 3), less = vi_sar(vi_shl(packed, 28 - 4 * j), 31); /* all bits, or none */
        mins[j] = vi_add(vi_sub(vi_shl(scale, 3), scale), vi_and(vi_shl(scale, 1), less));
        vf_store(p->scale[j], vf_mul(d, vf_from_vi(scale)));
    }
    for (int i = 0; i < 4; i++) {
        const int j = i / 2 * 4 + i % 2;
        vi_store(p->mins[i], vi_or(mins[j], vi_shl(mins[j + 2], 16)));
    }
    vf_store(p->min_scale, vf_mul(d, vf_set1(0.125f)));
}
