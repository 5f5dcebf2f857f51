/* Q8_0. Plain: f16 scale, 32 int8. Tile: all bytes + 128 as [block][k / 4][row][4], then all scales as [block][row]. */
VEC void tile_q8_0(uint8_t *tile, struct rows rows, int b, int blocks) {
    interleave16(tile + (size_t)blocks * 512 + 32 * (size_t)b, rows, 0);
    interleave(tile + (size_t)b * 512, rows, 2, 2, 128);
}

enum { STRIDE_Q8_0 = 512 };
VEC vb bytes_q8_0(const uint8_t *block, int g) { return vb_load(block + 64 * g); }

VEC void scales_q8_0(struct panel *p, const uint8_t *tile, int blocks, int first, int count) {
    const uint8_t *scales = tile + (size_t)blocks * STRIDE_Q8_0 + (size_t)first * 32;
    for (int b = 0; b < count; b++) vf_store(p->scale[b], scale16(scales + 32 * b));
}
