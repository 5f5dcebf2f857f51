/* A panel: 16 rows x up to 256 values of k of any integer format, unpacked into the one form that the dot products read.
 * It stays in the first cache, so unpacking is paid once for all columns of x. A format NAME is its layout:
 *   tile_NAME    plain rows -> tile
 *   bytes_NAME   16 rows x 4 values of a block, unpacked, as the dot products want them
 *   scales_NAME  the scales and minima of blocks [first, first + count), into a panel */
#ifndef COLIBRI_QUANTS_PANEL_H
#define COLIBRI_QUANTS_PANEL_H
#include "kernels.h"
#include "vec/vec.h"

enum { PANEL = 256 };

/* A weight is scale[k / values a scale] * (byte - offset of the format) - min_scale * min[k / 32]. */
struct panel {
    _Alignas(64) uint8_t bytes[PANEL / 4][64]; /* [k / 4][row][k % 4] */
    float scale[PANEL / 16][16];               /* [k / values a scale][row] */
    int32_t mins[4][16];                       /* pairs of int16: those of k / 32 = (0, 2), (1, 3), (4, 6), (5, 7) */
    float min_scale[16];
};

/* 16 plain rows; those past the end of the matrix read as zero blocks. */
struct rows { const uint8_t *first; size_t stride; int count; };
VEC const uint8_t *row_block(const struct rows *rows, int row, size_t offset) {
    static const uint8_t zeros[256];
    return row < rows->count ? rows->first + (size_t)row * rows->stride + offset : zeros;
}

/* Bytes [offset, offset + 4 * count) of a block of every row -> [count][row][4] */
VEC void interleave(uint8_t *out, const struct rows *rows, size_t offset, int count) {
    for (int row = 0; row < 16; row++) {
        const uint8_t *in = row_block(rows, row, offset);
        for (int i = 0; i < count; i++) memcpy(out + 64 * i + 4 * row, in + 4 * i, 4);
    }
}

/* The same for single 16-bit values -> [row] */
VEC void interleave16(uint8_t *out, const struct rows *rows, size_t offset) {
    for (int row = 0; row < 16; row++) memcpy(out + 2 * row, row_block(rows, row, offset), 2);
}

VEC vf scale16(const uint8_t *p) { return vf_from_f16((const uint16_t *)(const void *)p); }

/* Steps 4 g .. 4 g + 3 of 32, looked up: k = 0..15 are in the low, 16..31 in the high nibbles of [4][row][4]. */
VEC vb nibbles_through_table(const uint8_t *in, int g, const uint8_t *table) {
    vb packed = vb_load(in + 64 * (g % 4));
    return vb_lookup16(vb_repeat16(table), vb_and(g < 4 ? packed : vb_shr(packed, 4), vb_set1(15)));
}

/* The minima of values [32 j, 32 j + 32) */
VEC vf panel_min(const struct panel *p, int j) {
    vi pair = vi_load(p->mins[j / 4 * 2 + (j & 1)]);
    return vf_mul(vf_load(p->min_scale), vf_from_vi(j & 2 ? vi_shr(pair, 16) : vi_and(pair, vi_set1(0xffff))));
}

/* Panel -> floats [k][row], as GGUF defines them: the product, then the minimum taken off. */
VEC void panel_floats(float *out, const struct panel *p, int values, int values_a_scale, int offset, bool has_mins) {
    for (int s = 0; s < values / values_a_scale; s++) {
        vf scale = vf_load(p->scale[s]), min = has_mins ? panel_min(p, s * values_a_scale / 32) : vf_zero();
        for (int g = s * values_a_scale / 4; g < (s + 1) * values_a_scale / 4; g++)
            VEC_UNROLL for (int i = 0; i < 4; i++) {
                vi byte = vi_and(vi_shr(vi_from_vb(vb_load(p->bytes[g])), 8 * i), vi_set1(255));
                vf value = vf_mul(scale, vf_from_vi(offset ? vi_sub(byte, vi_set1(offset)) : byte));
                vf_store(out + 64 * g + 16 * i, has_mins ? vf_sub(value, min) : value);
            }
    }
}
#endif
