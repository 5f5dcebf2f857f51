/* FP4, NVFP4 of Hugging Face directories, whose blocks have a second scale. Plain, 32 values: two scales of 16 values each,
 * floats, and 16 bytes of e2m1 nibbles ordered as in Q4_0. Part: nibbles [block][4][row][4], scales [block][2][row]. */
enum { STRIDE_FP4 = 256 };
VEC void tile_fp4(uint8_t *tile, struct rows rows, int b, int blocks) {
    const struct place place = place_of(tile, b, blocks, 8, STRIDE_FP4, 128);
    for (int s = 0; s < 2; s++) interleave32(place.scales + 64 * s, rows, 4 * (size_t)s);
    interleave(place.bytes, rows, 8, 1, 0);
}

VEC vb bytes_fp4(const uint8_t *nibbles, int g) { return e2m1(nibbles, g); }
/* Half the scale because the steps are doubled. */
VEC void scales_fp4(struct panel *p, const uint8_t *part, int count) { float_scales(p, part + count * STRIDE_FP4, 2 * count, 0.5f); }
