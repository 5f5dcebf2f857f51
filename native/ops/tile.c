/* Plain GGUF rows -> tiles, and rows of tiles -> floats. */
#include "quants/formats.h"

enum { MOST_BLOCK_BYTES = 210 };
typedef void tile_function(uint8_t *tile, struct rows rows, int b, int blocks);

/* Fewer than 16 rows, completed with zeros in `copy`. */
VEC struct rows padded(uint8_t *copy, struct rows rows, int count, size_t bytes) {
    memset(copy, 0, TILE_ROWS * bytes);
    for (int row = 0; row < count; row++) memcpy(copy + (size_t)row * bytes, rows.first + (size_t)row * rows.stride, bytes);
    return (struct rows){copy, bytes};
}

/* Values of k that fill no block of floats. */
VEC void tile_rest(uint8_t *out, struct rows rows, int count, size_t bytes, size_t value) {
    for (size_t i = 0; i < bytes; i += value)
        for (size_t row = 0; row < TILE_ROWS; row++) {
            if (row < (size_t)count) memcpy(out + TILE_ROWS * i + row * value, rows.first + row * rows.stride + i, value);
            else memset(out + TILE_ROWS * i + row * value, 0, value);
        }
}

VEC void tile_all(tile_function *tile_block, int type, uint8_t *tiles, const uint8_t *plain, int rows, int k) {
    const bool floats = type_info[type].values == 1;
    size_t bytes = (size_t)type_info[type].bytes, stride = (size_t)(k / type_info[type].values) * bytes, value = bytes;
    if (floats) bytes = 16;
    int blocks = (int)(stride / bytes);
    for (int row = 0; row < rows; row += TILE_ROWS, tiles += tile_stride(type, k)) {
        int count = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
        struct rows in = {plain + (size_t)row * stride, stride};
        for (int b = 0; b < blocks; b++, in.first += bytes) {
            uint8_t copy[TILE_ROWS * MOST_BLOCK_BYTES];
            tile_block(tiles, count == TILE_ROWS ? in : padded(copy, in, count, bytes), b, blocks);
        }
        if (floats) tile_rest(tiles + TILE_ROWS * bytes * (size_t)blocks, in, count, stride % bytes, value);
    }
    vb_streamed();
}

VEC void untile(floats_function *floats_of, int type, float *out, const uint8_t *tiles, int row, int k) {
    const uint8_t *tile = tiles + (size_t)(row / TILE_ROWS) * tile_stride(type, k);
    float buffer[PANEL * 16];
    for (int first = 0; first < k; first += PANEL) {
        int count = k - first < PANEL ? k - first : PANEL;
        const float *values = floats_of(buffer, tile, k, first, count);
        for (int i = 0; i < count; i++) out[first + i] = values[16 * i + row % TILE_ROWS];
    }
}

#define BOTH_WAYS(NAME, name)                                                           \
    void KERNEL(tile_##NAME)(void *tiles, const void *plain, int rows, int k) {         \
        tile_all(tile_##name, T_##NAME, tiles, plain, rows, k);                         \
    }                                                                                   \
    void KERNEL(untile_row_##NAME)(float *out, const void *tiles, int row, int k) {     \
        untile(floats_##name, T_##NAME, out, tiles, row, k);                            \
    }
#define FLOAT(NAME, name, ...) BOTH_WAYS(NAME, name)
#define SCALED(NAME, name, ...) BOTH_WAYS(NAME, name)
#define INTEGER(NAME, name, ...) BOTH_WAYS(NAME, name)
#include "quants/quants.def"
