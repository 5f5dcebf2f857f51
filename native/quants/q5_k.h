/* Q5_K. Plain, 256 values: as Q4_K, with 32 bytes before the nibbles: bit j of byte l is the fifth bit of value 32 j + l.
 * Tile, a block: nibbles [32][row][4], fifth bits [8][row][4], packed scales [3][row][4], d [row], dmin [row]. */
enum { Q5_K_TILE = 16 * 176 };

VEC void tile_q5_k(uint8_t *tile, const struct rows *rows, int blocks) {
    for (int b = 0; b < blocks; b++, tile += Q5_K_TILE) {
        interleave(tile, rows, (size_t)b * 176 + 48, 32);
        interleave(tile + 2048, rows, (size_t)b * 176 + 16, 8);
        tile_k_scales(tile + 2560, rows, (size_t)b * 176);
    }
}

VEC void expand_q5_k(struct panel *p, const uint8_t *tile, int blocks, int first, int count) {
    (void)blocks, (void)count;
    const uint8_t *block = tile + (size_t)first * Q5_K_TILE;
    const vb low = vb_set1(15), fifth = vb_set1(16);
    for (int i = 0; i < 32; i++) {
        int pair = i / 8; /* groups of 32 values: 2 * pair in the low, 2 * pair + 1 in the high nibbles */
        vb packed = vb_load(block + 64 * i), bits = vb_load(block + 2048 + 64 * (i % 8));
        vb bit_low = pair < 2 ? vb_shl(bits, 4 - 2 * pair) : vb_shr(bits, 2 * pair - 4);
        vb bit_high = pair < 2 ? vb_shl(bits, 3 - 2 * pair) : vb_shr(bits, 2 * pair - 3);
        uint8_t(*out)[64] = p->bytes + pair * 16 + i % 8;
        vb_store(out[0], vb_and_or(bit_low, fifth, vb_and(packed, low)));
        vb_store(out[8], vb_and_or(bit_high, fifth, vb_and(vb_shr(packed, 4), low)));
    }
    expand_k_scales(p, block + 2560, 1);
}
