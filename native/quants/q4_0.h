/* Q4_0. Plain: f16 scale, 16 bytes: k = 0..15 in the low, 16..31 in the high nibbles, plus 8.
 * Tile: all nibbles as [block][4][row][4], then all scales as [block][row]. */
VEC void tile_q4_0(uint8_t *tile, struct rows rows, int b, int blocks) {
    interleave16(tile + (size_t)blocks * 256 + 32 * (size_t)b, rows, 0);
    interleave(tile + (size_t)b * 256, rows, 2, 1, 0);
}

enum { STRIDE_Q4_0 = 256 };
VEC vb bytes_q4_0(const uint8_t *block, int g) {
    static const uint8_t steps[16] = {120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135};
    return nibbles_through_table(block, g, steps);
}

VEC void scales_q4_0(struct panel *p, const uint8_t *tile, int blocks, int first, int count) {
    const uint8_t *scales = tile + (size_t)blocks * STRIDE_Q4_0 + (size_t)first * 32;
    for (int b = 0; b < count; b++) vf_store(p->scale[b], scale16(scales + 32 * b));
}
