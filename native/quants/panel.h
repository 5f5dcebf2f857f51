/* A panel: 16 rows x up to 256 values of k of any integer format, unpacked into the one form that the dot products read.
 * It stays in the first cache, so unpacking is paid once for all columns of x. A format NAME is its layout:
 *   tile_NAME    block b of 16 plain rows -> its place in the tile
 *   bytes_NAME   16 rows x 4 values of a block, unpacked, as the dot products want them
 *   scales_NAME  the scales and minima of a part, into a panel
 * A part is what a panel is made from: PANEL values of k, or fewer at the end. Of the formats with smaller blocks, a
 * part is the bytes of its blocks and behind them their scales, so that memory is read from end to end. */
#ifndef COLIBRI_QUANTS_PANEL_H
#define COLIBRI_QUANTS_PANEL_H
#include "kernels.h"
#include "vec/vec.h"

enum { PANEL = 256 };

/* See PRODUCTS in kernels.h for what a weight is. Minima of Q32 are floats, those of Q256 min_scale * an integer. */
enum { MINIMA = PANEL / 32 };
struct panel {
    _Alignas(64) uint8_t bytes[PANEL / 4][64]; /* [k / 4][row][k % 4] */
    float scale[PANEL / 16][16];               /* [k / values a scale][row]; of Q32 from MINIMA on [k / 32][row] minima */
    int32_t mins[8][16];                       /* pairs of int16: those of k / values a scale = (0, 2), (1, 3), (4, 6), ... */
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

/* Block b of a format that has up to `most` blocks in a part, whose bytes of 16 rows are `bytes`: where these and its scales
 * go. */
struct place { uint8_t *bytes, *scales; };
VEC struct place place_of(uint8_t *tile, int b, int blocks, int most, size_t bytes, size_t scales) {
    const int in_part = b % most, first = b - in_part, count = blocks - first < most ? blocks - first : most;
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

/* The 32-bit values at `offset` of every row -> [row] */
VEC void interleave32(uint8_t *out, struct rows rows, size_t offset) {
    for (int row = 0; row < 16; row++) memcpy(out + 4 * row, rows.first + (size_t)row * rows.stride + offset, 4);
}

/* Bits of 32 values as the formats with a plane of single bits have them: bit 4 g + i -> bit g of byte i, where
 * four neighbours are the same bit of the bytes of a lane. By swapping the bits of a bit's number. */
VEC uint32_t bits_by_byte(uint32_t x) {
    static const struct { uint32_t mask; int shift; } swaps[4] = {
        {0x0a0a0a0a, 3}, {0x00cc00cc, 6}, {0x0000f0f0, 12}, {0x0000ff00, 8},
    };
    for (int i = 0; i < 4; i++) {
        const uint32_t differ = (x >> swaps[i].shift ^ x) & swaps[i].mask;
        x ^= differ ^ differ << swaps[i].shift;
    }
    return x;
}

/* The 32 bits at `offset` of every row -> [row][4] */
VEC void interleave_bits(uint8_t *out, struct rows rows, size_t offset) {
    uint32_t bits[16];
    for (int row = 0; row < 16; row++) {
        memcpy(bits + row, rows.first + (size_t)row * rows.stride + offset, 4);
        bits[row] = bits_by_byte(bits[row]);
    }
    vb_store(out, vb_load(bits));
}

VEC vf scale16(const uint8_t *p) { return vf_from_f16((const uint16_t *)(const void *)p); }

/* Of `count` blocks of 32 values f16 scales [row] and f16 minima [row], which are added. */
VEC void scales_and_minima(struct panel *p, const uint8_t *in, int count) {
    for (int b = 0; b < count; b++) {
        vf_store(p->scale[b], scale16(in + 64 * b));
        vf_store(p->scale[MINIMA + b], vf_sub(vf_set1(-0.0f), scale16(in + 64 * b + 32)));
    }
}

/* Scales [row] that are floats, times a power of 2. */
VEC void float_scales(struct panel *p, const uint8_t *in, int count, float factor) {
    for (int s = 0; s < count; s++) vf_store(p->scale[s], vf_mul(vf_load((const float *)(const void *)(in + 64 * s)), vf_set1(factor)));
}

/* Nibbles 4 g .. 4 g + 3 of 32: k = 0..15 are in the low, 16..31 in the high nibbles of [4][row][4]. */
VEC vb nibbles(const uint8_t *in, int g) {
    vb packed = vb_load(in + 64 * (g % 4));
    return vb_and(g < 4 ? packed : vb_shr(packed, 4), vb_set1(15));
}
VEC vb nibbles_through_table(const uint8_t *in, int g, const uint8_t *table) {
    return vb_lookup16(vb_repeat16(table), nibbles(in, g));
}

/* Bit `from` of every byte -> bit `to`; mask the result. */
VEC vb bit_at(vb bits, int from, int to) { return from < to ? vb_shl(bits, to - from) : vb_shr(bits, from - to); }

/* The minima of the values of scale j */
VEC vf panel_min(const struct panel *p, int unit, int j) {
    if (unit == 32) return vf_load(p->scale[MINIMA + j]);
    vi pair = vi_load(p->mins[j / 4 * 2 + (j & 1)]);
    return vf_mul(vf_load(p->min_scale), vf_from_vi(j & 2 ? vi_shr(pair, 16) : vi_and(pair, vi_set1(0xffff))));
}

/* Panel -> floats [k][row], as GGUF defines them: the product, then the minimum taken off. */
VEC void panel_floats(float *out, const struct panel *p, int values, int unit, int values_a_scale, int offset,
                      bool has_mins) {
    for (int s = 0; s < values / values_a_scale; s++) {
        vf scale = vf_load(p->scale[s]), min = has_mins ? panel_min(p, unit, s) : vf_zero();
        for (int g = s * values_a_scale / 4; g < (s + 1) * values_a_scale / 4; g++)
            VEC_UNROLL for (int i = 0; i < 4; i++) {
                vi byte = vi_and(vi_shr(vi_from_vb(vb_load(p->bytes[g])), 8 * i), vi_set1(255));
                vf value = vf_mul(scale, vf_from_vi(offset ? vi_sub(byte, vi_set1(offset)) : byte));
                vf_store(out + 64 * g + 16 * i, has_mins ? vf_sub(value, min) : value);
            }
    }
}
#endif
