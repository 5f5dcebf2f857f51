/* IQ4_XS. Plain, 256 values: f16 d, 16 bits and 4 bytes with the high 2 and the low 4 bits of eight scales (plus 32), eight
 * times 16 bytes of nibbles as in IQ4_NL.
 * Tile, a block: nibbles [8][4][row][4], low bits [row][4], d [row], high bits [2][row]. */
#include "quants/levels.h"
enum { STRIDE_IQ4_XS = 256 };
VEC void tile_iq4_xs(uint8_t *tile, struct rows rows, int b, int blocks) {
    (void)blocks, tile += (size_t)b * TILE_IQ4_XS;
    interleave(tile, rows, 8, 8, 0);
    interleave16(tile + 2112, rows, 0);
    for (int row = 0; row < 16; row++) {
        const uint8_t *plain = rows.first + (size_t)row * rows.stride;
        memcpy(tile + 2048 + 4 * row, plain + 4, 4);
        tile[2144 + row] = plain[2], tile[2160 + row] = plain[3];
    }
}

VEC vb bytes_iq4_xs(const uint8_t *nibbles, int g) { return levels(nibbles, g); }

VEC void scales_iq4_xs(struct panel *p, const uint8_t *part, int count) {
    const vi low = vi_from_vb(vb_load(part + 2048));
    const vi high[2] = {vi_from_u8(part + 2144), vi_from_u8(part + 2160)};
    const vf d = scale16(part + 2112);
    (void)count;
    for (int j = 0; j < 8; j++) {
        vi scale = vi_or(vi_and(vi_shr(low, 4 * j), vi_set1(15)), vi_shl(vi_and(vi_shr(high[j / 4], 2 * (j % 4)), vi_set1(3)), 4));
        vf_store(p->scale[j], vf_mul(d, vf_from_vi(vi_sub(scale, vi_set1(32)))));
    }
}
