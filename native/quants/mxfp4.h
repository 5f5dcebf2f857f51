/* MXFP4 (OCP microscaling). Plain: e8m0 exponent, 16 bytes of e2m1 nibbles ordered as in Q4_0.
 * Tile: all nibbles as [block][4][row][4], then all exponents as [block][row]. */
VEC void tile_mxfp4(uint8_t *tile, struct rows rows, int b, int blocks) {
    uint8_t *exponents = tile + (size_t)blocks * 256 + 16 * (size_t)b;
    for (int row = 0; row < 16; row++) exponents[row] = rows.first[(size_t)row * rows.stride];
    interleave(tile + (size_t)b * 256, rows, 1, 1, 0);
}

/* 2^(e - 128), half the scale because the steps are doubled; in two factors, since e = 0 and 1 give subnormals. */
VEC vf mxfp4_scale(const uint8_t *exponents) {
    vi e = vi_from_u8(exponents), half = vi_shr(e, 1);
    vf a = vf_bits(vi_shl(vi_add(half, vi_set1(63)), 23));
    vf b = vf_bits(vi_shl(vi_add(vi_sub(e, half), vi_set1(63)), 23));
    return vf_mul(a, b);
}

enum { STRIDE_MXFP4 = 256 };
VEC vb bytes_mxfp4(const uint8_t *block, int g) {
    static const uint8_t steps[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};
    return nibbles_through_table(block, g, steps);
}

VEC void scales_mxfp4(struct panel *p, const uint8_t *tile, int blocks, int first, int count) {
    const uint8_t *exponents = tile + (size_t)blocks * STRIDE_MXFP4 + (size_t)first * 16;
    for (int b = 0; b < count; b++) vf_store(p->scale[b], mxfp4_scale(exponents + 16 * b));
}
