/* MXFP4 (OCP microscaling). Plain: e8m0 exponent, 16 bytes of e2m1 nibbles ordered as in Q4_0.
 * Part: nibbles [block][4][row][4], exponents [block][row]. */
#include "quants/e2m1.h"
enum { STRIDE_MXFP4 = 256 };
VEC void tile_mxfp4(uint8_t *tile, struct rows rows, int b, int blocks) {
    const struct place place = place_of(tile, b, blocks, 8, STRIDE_MXFP4, 16);
    for (int row = 0; row < 16; row++) place.scales[row] = rows.first[(size_t)row * rows.stride];
    interleave(place.bytes, rows, 1, 1, 0);
}

/* 2^(e - 128), half the scale because the steps are doubled; in two factors, since e = 0 and 1 give subnormals. */
VEC vf mxfp4_scale(const uint8_t *exponents) {
    vi e = vi_from_u8(exponents), half = vi_shr(e, 1);
    vf a = vf_bits(vi_shl(vi_add(half, vi_set1(63)), 23));
    vf b = vf_bits(vi_shl(vi_add(vi_sub(e, half), vi_set1(63)), 23));
    return vf_mul(a, b);
}

VEC vb bytes_mxfp4(const uint8_t *block, int g) { return e2m1(block, g); }

VEC void scales_mxfp4(struct panel *p, const uint8_t *part, int count) {
    const uint8_t *exponents = part + count * STRIDE_MXFP4;
    for (int b = 0; b < count; b++) vf_store(p->scale[b], mxfp4_scale(exponents + 16 * b));
}
