/* Q5_0. Plain: f16 scale, 4 bytes with the fifth bits, nibbles as in Q4_0; plus 16.
 * Part: [block]: nibbles [4][row][4], fifth bits [row][4] (bit g of byte i: k = 4 g + i); scales [block][row]. */
enum { STRIDE_Q5_0 = 320 };
VEC void tile_q5_0(uint8_t *tile, struct rows rows, int b, int blocks) {
    const struct place place = place_of(tile, b, blocks, 8, STRIDE_Q5_0, 32);
    interleave16(place.scales, rows, 0);
    interleave_bits(place.bytes + 256, rows, 2);
    interleave(place.bytes, rows, 6, 1, 0);
}

VEC vb bytes_q5_0(const uint8_t *block, int g) {
    return vb_add(vb_and_or(bit_at(vb_load(block + 256), g, 4), vb_set1(16), nibbles(block, g)), vb_set1(128 - 16));
}

VEC void scales_q5_0(struct panel *p, const uint8_t *part, int count) {
    const uint8_t *scales = part + count * STRIDE_Q5_0;
    for (int b = 0; b < count; b++) vf_store(p->scale[b], scale16(scales + 32 * b));
}
