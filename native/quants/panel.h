/* A panel: 16 rows x up to 256 values of k of any integer format, unpacked into the one form that the dot products read.
 * It stays in the first cache, so unpacking is paid once for all columns of x. A format NAME is its layout:
 *   tile_NAME    block b of 16 plain rows -> its place in the tile
 *   bytes_NAME   16 rows x 4 values of a block, unpacked, as the dot products want them
 *   scales_NAME  the scales and minima of a part, into a panel
 * A part is what a panel is made from: PANEL values of k, or fewer at the end. Of the formats with blocks of 32 values, a
 * part is the bytes of its blocks and behind them their scales, so that memory is read from end to end. */
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

/* Bytes of 16 rows of one block in a tile. */
enum {
#define INTEGER(NAME, name, code, values, bytes, tile, product) TILE_##NAME = tile,
#include "quants/quants.def"
};

/* What kernels.h says of the products; a unit are the values of a block of activations. */
enum {
#define X(product, activation, values, offset, minima)                      \
    UNIT_##product = activation == A_Q32 ? 32 : 256, SCALED_##product = values, \
    OFFSET_##product = offset, MINIMA_##product = minima,
    PRODUCTS(X)
#undef X
};

/* Block b of a format with blocks of 32 values, whose bytes of 16 rows are `bytes`: where these and its scales go. */
struct place { uint8_t *bytes, *scales; };
VEC struct place place_of(uint8_t *tile, int b, int blocks, size_t bytes, size_t scales) {
    const int in_part = b % (PANEL / 32), first = b - in_part;
    const int count = blocks - first < PANEL / 32 ? blocks - first : PANEL / 32;
    uint8_t *part = tile + (size_t)first * (bytes + scales);
    return (struct place){part + (size_t)in_part * bytes, part + (size_t)count * bytes + (size_t)in_part * scales};
}

/* One block of each of 16 plain rows, `stride` bytes apart. */
struct rows { const uint8_t *first; size_t stride; };

/* Bytes [offset, offset + 16 * count) of every row, plus `add` each -> [4 * count][row][4] */
VEC void interleave(uint8_t *out, struct rows rows, size_t offset, int count, uint8_t add) {
    for (int i = 0; i < count; i++) {
        vb words[4];
        vb_load_rows(words, rows.first + offset + 16 * i, rows.stride);
        for (int w = 0; w < 4; w++) vb_stream(out + 256 * i + 64 * w, vb_add(words[w], vb_set1(add)));
    }
}

/* The 16-bit values at `offset` of every row -> [row] */
VEC void interleave16(uint8_t *out, struct rows rows, size_t offset) {
    for (int row = 0; row < 16; row++) memcpy(out + 2 * row, rows.first + (size_t)row * rows.stride + offset, 2);
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
