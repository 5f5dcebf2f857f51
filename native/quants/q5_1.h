/* Q5_1. Plain: f16 scale, f16 minimum, 4 bytes with the fifth bits, nibbles as in Q4_0.
 * Part: [block]: nibbles [4][row][4], fifth bits [row][4] as in Q5_0; [block]: scales [row], minima [row]. */
enum { STRIDE_Q5_1 = 320 };
VEC void tile_q5_1(uint8_t *tile, struct rows rows, int b, int blocks) {
    const struct place place = place_of(tile, b, blocks, 8, STRIDE_Q5_1, 64);
    interleave16(place.scales, rows, 0);
    interleave16(place.scales + 32, rows, 2);
    interleave_bits(place.bytes + 256, rows, 4);
    interleave(place.bytes, rows, 8, 1, 0);
}

VEC vb bytes_q5_1(const uint8_t *block, int g) {
    return vb_and_or(bit_at(vb_load(block + 256), g, 4), vb_set1(16), nibbles(block, g));
}

VEC void scales_q5_1(struct panel *p, const uint8_t *part, int count) {
    scales_and_minima(p, part + count * STRIDE_Q5_1, count);
}
