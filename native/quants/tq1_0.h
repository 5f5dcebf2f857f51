/* TQ1_0. Plain, 256 values: 48 bytes of five values each, four bytes of four, f16 d. A byte is a fraction of 256 in base 3: its
 * digits are the values, first of the first 32 bytes all first digits, all second ones and so on, then of 16 bytes, then of
 * four. Tile: see ternary.h. */
#include "quants/ternary.h"
enum { STRIDE_TQ1_0 = TILE_TQ1_0 };

/* Digit n of `count` bytes -> out */
VEC void tq1_0_digits(uint8_t *out, const uint8_t *in, int count, int n) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    for (int i = 0; i < count; i++) out[i] = (uint8_t)((uint8_t)(in[i] * power[n]) * 3 >> 8);
}

VEC uint16_t reblock_tq1_0(uint32_t *out, const uint8_t *plain) {
    uint8_t digits[256], packed[64];
    for (int n = 0; n < 5; n++) tq1_0_digits(digits + 32 * n, plain, 32, n), tq1_0_digits(digits + 160 + 16 * n, plain + 32, 16, n);
    for (int n = 0; n < 4; n++) tq1_0_digits(digits + 240 + 4 * n, plain + 48, 4, n);
    for (int i = 0; i < 64; i++) {
        const uint8_t *from = digits + i / 32 * 128 + i % 32;
        packed[i] = (uint8_t)(from[0] | from[32] << 2 | from[64] << 4 | from[96] << 6);
    }
    memcpy(out, packed, 64);
    return load16(plain + 52);
}
VEC void tile_tq1_0(uint8_t *tile, struct rows rows, int b, int blocks) {
    (void)blocks, tile_reblocked(tile + (size_t)b * TILE_TQ1_0, rows, 17, reblock_tq1_0);
}
VEC vb bytes_tq1_0(const uint8_t *block, int g) { return ternary_bytes(block, g); }
VEC void scales_tq1_0(struct panel *p, const uint8_t *part, int count) { (void)count, ternary_scales(p, part); }
