/* INT8, of Hugging Face directories: Q8_0 whose scale is a float. */
enum { STRIDE_INT8 = STRIDE_Q8_0 };
VEC void tile_int8(uint8_t *tile, struct rows rows, int b, int blocks) {
    const struct place place = place_of(tile, b, blocks, 8, STRIDE_INT8, 64);
    interleave32(place.scales, rows, 0);
    interleave(place.bytes, rows, 4, 2, 128);
}

VEC vb bytes_int8(const uint8_t *block, int g) { return bytes_q8_0(block, g); }
VEC void scales_int8(struct panel *p, const uint8_t *part, int count) { float_scales(p, part + count * STRIDE_INT8, count, 1); }
