/* F32, F16, BF16. Tile: [k][row]. */
VEC void tile_floats(uint8_t *tile, const struct rows *rows, int k, size_t bytes) {
    for (int row = 0; row < 16; row++) {
        const uint8_t *in = row < rows->count ? row_block(rows, row, 0) : NULL;
        for (int i = 0; i < k; i++) {
            uint8_t *out = tile + (16 * (size_t)i + (size_t)row) * bytes;
            if (in) memcpy(out, in + (size_t)i * bytes, bytes);
            else memset(out, 0, bytes);
        }
    }
}
VEC void tile_f32(uint8_t *tile, const struct rows *rows, int k) { tile_floats(tile, rows, k, 4); }
VEC void tile_f16(uint8_t *tile, const struct rows *rows, int k) { tile_floats(tile, rows, k, 2); }
VEC void tile_bf16(uint8_t *tile, const struct rows *rows, int k) { tile_floats(tile, rows, k, 2); }

/* Values [first, first + count) of k -> floats [count][row]; F32 needs no copy. */
VEC const float *floats_f32(float *out, const uint8_t *tile, int k, int first, int count) {
    (void)out, (void)k, (void)count;
    return (const float *)(const void *)tile + 16 * (size_t)first;
}
VEC const float *floats_f16(float *out, const uint8_t *tile, int k, int first, int count) {
    (void)k;
    for (int i = 0; i < count; i++) vf_store(out + 16 * i, scale16(tile + 32 * ((size_t)first + (size_t)i)));
    return out;
}
VEC const float *floats_bf16(float *out, const uint8_t *tile, int k, int first, int count) {
    (void)k;
    const uint16_t *in = (const uint16_t *)(const void *)tile + 16 * (size_t)first;
    for (int i = 0; i < count; i++) vf_store(out + 16 * i, vf_from_bf16(in + 16 * i));
    return out;
}
