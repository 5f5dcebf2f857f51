/* Q4_K. Plain, 256 values: f16 d, f16 dmin, 12 bytes with eight 6-bit scales and minima, 128 bytes of nibbles: of each 32
 * bytes the low nibbles are 32 values, the high nibbles the next 32.
 * Tile, a block: nibbles [32][row][4], packed scales [3][row][4], d [row], dmin [row]. */
enum { STRIDE_Q4_K = TILE_Q4_K };

/* The scales, minima and their factors, of Q4_K and Q5_K. */
VEC void tile_k_scales(uint8_t *out, struct rows rows) {
    vb words[4]; /* d and dmin, then the packed scales */
    vb_load_rows(words, rows.first, rows.stride);
    for (int w = 1; w < 4; w++) vb_stream(out + 64 * (w - 1), words[w]);
    vb_stream(out + 192, vb_halves(words[0]));
}

/* `high_unit`: what the bytes of odd groups of 32 are multiplied by in the panel, a power of two. */
VEC void k_scales(struct panel *p, const uint8_t *in, int high_unit) {
    const vi six = vi_set1(0x3f3f3f3f), four = vi_set1(0x0f0f0f0f), two = vi_set1(0x30303030);
    vi a = vi_from_vb(vb_load(in)), b = vi_from_vb(vb_load(in + 64)), c = vi_from_vb(vb_load(in + 128));
    vi scales[2] = {vi_and(a, six), vi_or(vi_and(c, four), vi_and(vi_shr(a, 2), two))};
    vi mins[2] = {vi_and(b, six), vi_or(vi_and(vi_shr(c, 4), four), vi_and(vi_shr(b, 2), two))};
    vf d = scale16(in + 192), d_high = vf_mul(d, vf_set1(1.0f / (float)high_unit));
    for (int j = 0; j < 8; j++) {
        vi scale = vi_and(vi_shr(scales[j / 4], 8 * (j % 4)), vi_set1(255));
        vf_store(p->scale[j], vf_mul(vf_from_vi(scale), j & 1 ? d_high : d));
    }
    for (int i = 0; i < 4; i++) vi_store(p->mins[i], vi_and(vi_shr(mins[i / 2], 8 * (i % 2)), vi_set1(0x00ff00ff)));
    vf_store(p->min_scale, scale16(in + 224));
}

VEC void tile_q4_k(uint8_t *tile, struct rows rows, int b, int blocks) {
    (void)blocks, tile += (size_t)b * STRIDE_Q4_K;
    interleave(tile, rows, 16, 8, 0);
    tile_k_scales(tile + 2048, rows);
}

VEC vb bytes_q4_k(const uint8_t *block, int g) {
    vb packed = vb_load(block + 64 * (g / 16 * 8 + g % 8));
    return g & 8 ? vb_high4(packed) : vb_and(packed, vb_set1(15));
}

VEC void scales_q4_k(struct panel *p, const uint8_t *part, int count) {
    (void)count;
    k_scales(p, part + 2048, VB_HIGH4_UNIT);
}
