/* Q4_0. Plain: f16 scale, 16 bytes: k = 0..15 in the low, 16..31 in the high nibbles, plus 8.
 * Part: nibbles [block][4][row][4], scales [block][row]. */
enum { STRIDE_Q4_0 = 256 };
VEC void tile_q4_0(uint8_t *tile, struct rows rows, int b, int blocks) {
    const struct place place = place_of(tile, b, blocks, 8, STRIDE_Q4_0, 32);
    interleave16(place.scales, rows, 0);
    interleave(place.bytes, rows, 2, 1, 0);
}

VEC vb bytes_q4_0(const uint8_t *block, int g) {
    static const uint8_t steps[16] = {120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135};
    return nibbles_through_table(block, g, steps);
}

VEC void scales_q4_0(struct panel *p, const uint8_t *part, int count) {
    const uint8_t *scales = part + count * STRIDE_Q4_0;
    for (int b = 0; b < count; b++) vf_store(p->scale[b], scale16(scales + 32 * b));
}
