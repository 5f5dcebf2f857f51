/* Q4_1. Plain: f16 scale, f16 minimum, nibbles as in Q4_0. Part: nibbles [block][4][row][4], and behind those of all blocks
 * [block]: scales [row], minima [row]. */
enum { STRIDE_Q4_1 = 256 };
VEC void tile_q4_1(uint8_t *tile, struct rows rows, int b, int blocks) {
    const struct place place = place_of(tile, b, blocks, 8, STRIDE_Q4_1, 64);
    interleave16(place.scales, rows, 0);
    interleave16(place.scales + 32, rows, 2);
    interleave(place.bytes, rows, 4, 1, 0);
}

VEC vb bytes_q4_1(const uint8_t *block, int g) { return nibbles(block, g); }

VEC void scales_q4_1(struct panel *p, const uint8_t *part, int count) {
    scales_and_minima(p, part + count * STRIDE_Q4_1, count);
}
