/* INT4, of Hugging Face directories: Q4_0 whose scale is a float. */
enum { STRIDE_INT4 = STRIDE_Q4_0 };
VEC void tile_int4(uint8_t *tile, struct rows rows, int b, int blocks) {
    const struct place place = place_of(tile, b, blocks, 8, STRIDE_INT4, 64);
    interleave32(place.scales, rows, 0);
    interleave(place.bytes, rows, 4, 1, 0);
}

VEC vb bytes_int4(const uint8_t *block, int g) { return bytes_q4_0(block, g); }
VEC void scales_int4(struct panel *p, const uint8_t *part, int count) { float_scales(p, part + count * STRIDE_INT4, count, 1); }
