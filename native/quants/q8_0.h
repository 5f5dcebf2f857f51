/* Q8_0. Plain: f16 scale, 32 int8. Part: bytes + 128 as [block][k / 4][row][4], scales [block][row]. */
enum { STRIDE_Q8_0 = 512 };
VEC void tile_q8_0(uint8_t *tile, struct rows rows, int b, int blocks) {
    const struct place place = place_of(tile, b, blocks, 8, STRIDE_Q8_0, 32);
    interleave16(place.scales, rows, 0);
    interleave(place.bytes, rows, 2, 2, 128);
}

VEC vb bytes_q8_0(const uint8_t *block, int g) { return vb_load(block + 64 * g); }

VEC void scales_q8_0(struct panel *p, const uint8_t *part, int count) {
    const uint8_t *scales = part + count * STRIDE_Q8_0;
    for (int b = 0; b < count; b++) vf_store(p->scale[b], scale16(scales + 32 * b));
}
