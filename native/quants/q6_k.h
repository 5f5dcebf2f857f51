/* Q6_K. Plain, 256 values plus 32 each: 128 bytes ql, 64 bytes qh, 16 int8 scales, f16 d. Of each half (128 values) of
 * 64 bytes ql and 32 bytes qh, value 32 q + l has its low bits in nibble q / 2 of ql[32 (q % 2) + l] and its high
 * bits at 2 q of qh[l].
 * Tile, a block: ql [32][row][4], qh [16][row][4], scales [16][row], d [row], 32 bytes of padding. */
enum { Q6_K_TILE = 16 * 212 };

VEC void tile_q6_k(uint8_t *tile, const struct rows *rows, int blocks) {
    for (int b = 0; b < blocks; b++, tile += Q6_K_TILE) {
        size_t block = (size_t)b * 210;
        interleave(tile, rows, block, 32);
        interleave(tile + 2048, rows, block + 128, 16);
        for (int row = 0; row < 16; row++) {
            const uint8_t *scales = row_block(rows, row, block + 192);
            for (int j = 0; j < 16; j++) tile[3072 + 16 * j + row] = scales[j];
        }
        interleave16(tile + 3328, rows, block + 208);
        memset(tile + 3360, 0, 32);
    }
}

VEC void expand_q6_k(struct panel *p, const uint8_t *tile, int blocks, int first, int count) {
    (void)blocks, (void)count;
    const uint8_t *block = tile + (size_t)first * Q6_K_TILE;
    const vb low = vb_set1(15), high = vb_set1(0x30);
    for (int i = 0; i < 16; i++) {
        const uint8_t *ql = block + 64 * (i / 8 * 16 + i % 8);
        vb a = vb_load(ql), b = vb_load(ql + 512), h = vb_load(block + 2048 + 64 * i);
        uint8_t(*out)[64] = p->bytes + i / 8 * 32 + i % 8;
        vb_store(out[0], vb_and_or(vb_shl(h, 4), high, vb_and(a, low)));
        vb_store(out[8], vb_and_or(vb_shl(h, 2), high, vb_and(b, low)));
        vb_store(out[16], vb_and_or(h, high, vb_and(vb_shr(a, 4), low)));
        vb_store(out[24], vb_and_or(vb_shr(h, 2), high, vb_and(vb_shr(b, 4), low)));
    }
    vf d = scale16(block + 3328);
    for (int j = 0; j < 16; j++) {
        vi scale = vi_from_i8((const int8_t *)block + 3072 + 16 * j);
        vf_store(p->scale[j], vf_mul(d, vf_from_vi(scale)));
    }
}
