/* Q6_K. Plain, 256 values plus 32 each: 128 bytes ql, 64 bytes qh, 16 int8 scales, f16 d. Of each half (128 values) of
 * 64 bytes ql and 32 bytes qh, value 32 q + l has its low bits in nibble q / 2 of ql[32 (q % 2) + l] and its high
 * bits at 2 q of qh[l].
 * Tile, a block: ql [32][row][4], qh [16][row][4], scales [16][row], d [row], 32 bytes of padding. */
enum { STRIDE_Q6_K = TILE_Q6_K };

VEC void tile_q6_k(uint8_t *tile, struct rows rows, int b, int blocks) {
    vb scales[4];
    (void)blocks, tile += (size_t)b * STRIDE_Q6_K;
    interleave(tile, rows, 0, 12, 0);
    vb_load_rows(scales, rows.first + 192, rows.stride);
    for (int j = 0; j < 16; j++) vi_to_i8((int8_t *)tile + 3072 + 16 * j, vi_shr(vi_from_vb(scales[j / 4]), 8 * (j % 4)));
    interleave16(tile + 3328, rows, 208);
    memset(tile + 3360, 0, 32);
}

VEC vb bytes_q6_k(const uint8_t *block, int g) {
    int half = g / 32, q = g / 8 % 4, l = g % 8;
    vb packed = vb_load(block + 64 * (16 * half + q % 2 * 8 + l)), bits = vb_load(block + 2048 + 64 * (8 * half + l));
    vb high = q == 0 ? vb_shl(bits, 4) : q == 1 ? vb_shl(bits, 2) : q == 2 ? bits : vb_shr(bits, 2);
    return vb_and_or(high, vb_set1(0x30), vb_and(q < 2 ? packed : vb_shr(packed, 4), vb_set1(15)));
}

VEC void scales_q6_k(struct panel *p, const uint8_t *part, int count) {
    (void)count;
    const uint8_t *scales = part + 3072;
    vf d = scale16(scales + 256);
    for (int j = 0; j < 16; j++) {
        vi scale = vi_from_i8((const int8_t *)scales + 16 * j);
        vf_store(p->scale[j], vf_mul(d, vf_from_vi(scale)));
    }
}
