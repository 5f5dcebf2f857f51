/* Plain GGUF rows -> tiles, and rows of tiles -> floats. */
#include "quants/formats.h"

typedef void tile_function(uint8_t *tile, const struct rows *rows, int blocks);

VEC void tile_all(tile_function *tile_one, int type, uint8_t *tiles, const uint8_t *plain, int rows, int k) {
    int blocks = k / type_info[type].values;
    size_t stride = (size_t)blocks * (size_t)type_info[type].bytes;
    for (int row = 0; row < rows; row += TILE_ROWS) {
        int left = rows - row;
        struct rows sixteen = {plain + (size_t)row * stride, stride, left < TILE_ROWS ? left : TILE_ROWS};
        tile_one(tiles + (size_t)(row / TILE_ROWS) * tile_stride(type, k), &sixteen, blocks);
    }
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

#define X(NAME, name, ...)                                                              \
    static void all_##name(void *tiles, const void *plain, int rows, int k) {           \
        tile_all(tile_##name, T_##NAME, tiles, plain, rows, k);                         \
    }                                                                                   \
    static void untile_##name(float *out, const void *tiles, int row, int k) {          \
        untile(floats_##name, T_##NAME, out, tiles, row, k);                            \
    }
INTEGER_FORMATS(X)
FLOAT_FORMATS(X)
#undef X

void COLIBRI_FN(fill_tile)(struct kernels *);
void COLIBRI_FN(fill_tile)(struct kernels *table) {
#define X(NAME, name, ...) table->tile[T_##NAME] = all_##name, table->untile_row[T_##NAME] = untile_##name;
    INTEGER_FORMATS(X)
    FLOAT_FORMATS(X)
#undef X
}
