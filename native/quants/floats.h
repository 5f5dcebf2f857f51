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
