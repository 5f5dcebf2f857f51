/* Q2_K. Plain, 256 values: 16 bytes with a 4-bit scale (low) and minimum (high) for each 16 values, 64 bytes with the values
 * as the low bits of Q3_K, f16 d, f16 dmin.
 * Tile, a block: scales and minima [4][row][4], values [16][row][4], d [row], dmin [row]. */
enum { STRIDE_Q2_K = TILE_Q2_K };

VEC void tile_q2_k(uint8_t *tile, struct rows rows, int b, int blocks) {
    (void)blocks, tile += (size_t)b * STRIDE_Q2_K;
    interleave(tile, rows, 0, 5, 0);
    interleave16(tile + 1280, rows, 80);
    interleave16(tile + 1312, rows, 82);
}

VEC vb bytes_q2_k(const uint8_t *block, int g) {
    const int j = g / 8, l = g % 8;
    return vb_and(vb_shr(vb_load(block + 256 + 64 * (j / 4 * 8 + l)), 2 * (j % 4)), vb_set1(3));
}

VEC void scales_q2_k(struct panel *p, const uint8_t *part, int count) {
    const vf d = scale16(part + 1280);
    (void)count;
    for (int w = 0; w < 4; w++) {
        const vi packed = vi_from_vb(vb_load(part + 64 * w)), mins = vi_shr(packed, 4);
        for (int j = 0; j < 4; j++)
            vf_store(p->scale[4 * w + j], vf_mul(d, vf_from_vi(vi_and(vi_shr(packed, 8 * j), vi_set1(15)))));
        vi_store(p->mins[2 * w], vi_and(mins, vi_set1(0x000f000f)));
        vi_store(p->mins[2 * w + 1], vi_and(vi_shr(mins, 8), vi_set1(0x000f000f)));
    }
    vf_store(p->min_scale, scale16(part + 1312));
}
