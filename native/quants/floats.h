/* F32, F16, BF16. Tile: [k][row]. Tiled by blocks of 16 bytes: four or eight values of k. */
VEC void tile_f32(uint8_t *tile, struct rows rows, int b, int blocks) {
    (void)blocks;
    interleave(tile + 256 * (size_t)b, rows, 0, 1, 0);
}
VEC void tile_f16(uint8_t *tile, struct rows rows, int b, int blocks) {
    vb pairs[4];
    (void)blocks;
    vb_load_rows(pairs, rows.first, rows.stride);
    VEC_UNROLL for (int i = 0; i < 4; i++) vb_stream(tile + 256 * (size_t)b + 64 * i, vb_halves(pairs[i]));
}
VEC void tile_bf16(uint8_t *tile, struct rows rows, int b, int blocks) { tile_f16(tile, rows, b, blocks); }

/* 16 rows of one value of k */
VEC vf load_f32(const uint8_t *p) { return vf_load((const float *)(const void *)p); }
VEC vf load_f16(const uint8_t *p) { return vf_from_f16((const uint16_t *)(const void *)p); }
VEC vf load_bf16(const uint8_t *p) { return vf_from_bf16((const uint16_t *)(const void *)p); }

/* Values [first, first + count) of k -> floats [count][row] */
#define X(name, bytes)                                                                               \
    VEC const float *floats_##name(float *out, const uint8_t *tile, int k, int first, int count) {   \
        (void)k;                                                                                     \
        for (int i = 0; i < count; i++)                                                              \
            vf_store(out + 16 * i, load_##name(tile + 16 * bytes * ((size_t)first + (size_t)i)));    \
        return out;                                                                                  \
    }
X(f32, 4)
X(f16, 2)
X(bf16, 2)
#undef X
