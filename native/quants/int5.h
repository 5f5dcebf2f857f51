/* INT5, of Hugging Face directories: Q5_0 whose scale is a float. */
enum { STRIDE_INT5 = STRIDE_Q5_0 };
VEC void tile_int5(uint8_t *tile, struct rows rows, int b, int blocks) {
    const struct place place = place_of(tile, b, blocks, 8, STRIDE_INT5, 64);
    interleave32(place.scales, rows, 0);
    interleave_bits(place.bytes + 256, rows, 4);
    interleave(place.bytes, rows, 8, 1, 0);
}

VEC vb bytes_int5(const uint8_t *block, int g) { return bytes_q5_0(block, g); }
VEC void scales_int5(struct panel *p, const uint8_t *part, int count) { float_scales(p, part + count * STRIDE_INT5, count, 1); }
