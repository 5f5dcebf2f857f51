/* Q4_0. Plain: f16 scale, 16 bytes: k = 0..15 in the low, 16..31 in the high nibbles, plus 8.
 * Tile: all nibbles as [block][4][row][4], then all scales as [block][row]. */
VEC void tile_q4_0(uint8_t *tile, const struct rows *rows, int blocks) {
    for (int b = 0; b < blocks; b++) {
        interleave16(tile + (size_t)blocks * 256 + 32 * (size_t)b, rows, (size_t)b * 18);
        interleave(tile + (size_t)b * 256, rows, (size_t)b * 18 + 2, 4);
    }
}

VEC void expand_q4_0(struct panel *p, const uint8_t *tile, int blocks, int first, int count) {
    static const uint8_t steps[16] = {120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135};
    const uint8_t *nibbles = tile + (size_t)first * 256, *scales = tile + (size_t)blocks * 256 + (size_t)first * 32;
    for (int b = 0; b < count; b++) {
        nibbles_through_table(p->bytes + 8 * b, nibbles + 256 * b, steps);
        vf_store(p->scale[b], scale16(scales + 32 * b));
    }
}
