/* Q3_K. Plain, 256 values plus 4: 32 bytes with the high bits (bit j of byte l: value 32 j + l), 64 bytes with the low two (of
 * each half of 128 values, value 32 q + l at bit 2 q of byte l), 12 bytes with sixteen 6-bit scales plus 32, f16 d.
 * Tile, a block: high bits [8][row][4], low bits [16][row][4], scales [3][row][4], d [row] as floats, which fill a line. */
enum { STRIDE_Q3_K = TILE_Q3_K };

VEC void tile_q3_k(uint8_t *tile, struct rows rows, int b, int blocks) {
    uint16_t d[16];
    (void)blocks, tile += (size_t)b * STRIDE_Q3_K;
    interleave(tile, rows, 0, 6, 0);
    interleave16((uint8_t *)d, rows, 108);
    vf_store((float *)(void *)(tile + 1728), vf_from_f16(d));
    for (int row = 0; row < 16; row++)
        for (int w = 0; w < 3; w++)
            memcpy(tile + 1536 + 64 * w + 4 * row, rows.first + (size_t)row * rows.stride + 96 + 4 * w, 4);
}

VEC vb bytes_q3_k(const uint8_t *block, int g) {
    const int j = g / 8, l = g % 8;
    const vb low = vb_and(vb_shr(vb_load(block + 512 + 64 * (j / 4 * 8 + l)), 2 * (j % 4)), vb_set1(3));
    return vb_add(vb_and_or(bit_at(vb_load(block + 64 * l), j, 2), vb_set1(4), low), vb_set1(32 - 4));
}

VEC void scales_q3_k(struct panel *p, const uint8_t *part, int count) {
    const vi high = vi_from_vb(vb_load(part + 1536 + 128));
    const vf d = vf_load((const float *)(const void *)(part + 1728));
    (void)count;
    for (int j = 0; j < 16; j++) {
        const vi low = vi_shr(vi_from_vb(vb_load(part + 1536 + 64 * (j / 4 % 2))), j / 8 * 4 + j % 4 * 8);
        const vi top = vi_and(vi_shr(high, j / 4 * 2 + j % 4 * 8), vi_set1(3));
        const vi scale = vi_or(vi_and(low, vi_set1(15)), vi_shl(top, 4));
        vf_store(p->scale[j], vf_mul(d, vf_from_vi(vi_sub(scale, vi_set1(32)))));
    }
}
