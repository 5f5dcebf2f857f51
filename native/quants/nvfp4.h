/* NVFP4. Plain, 64 values: four scales e4m3 without a sign, of 16 values each, then for each 16 values 8 bytes of e2m1
 * nibbles: k = 0..7 are in the low, 8..15 in the high ones. Part: [block]: [2]: nibbles [4][row][4] of 32 values as in Q4_0;
 * scales [block][4][row]. */
#include "quants/e2m1.h"
#include "quants/reblock.h"
enum { STRIDE_NVFP4 = 256 };

VEC void tile_nvfp4(uint8_t *tile, struct rows rows, int b, int blocks) {
    const struct place place = place_of(tile, b, blocks, 4, 512, 64);
    uint64_t copy[16][4];
    for (int row = 0; row < 16; row++) {
        const uint8_t *plain = rows.first + (size_t)row * rows.stride;
        for (int s = 0; s < 4; s++) place.scales[16 * s + row] = plain[s] == 127 ? 0 : plain[s]; /* 127 stands for NaN */
        for (int i = 0; i < 2; i++) {
            const uint64_t low = UINT64_C(0x0f0f0f0f0f0f0f0f);
            const uint64_t first = load64(plain + 4 + 16 * i), second = load64(plain + 12 + 16 * i);
            copy[row][2 * i] = (first & low) | (second & low) << 4;
            copy[row][2 * i + 1] = (first >> 4 & low) | (second & ~low);
        }
    }
    interleave(place.bytes, (struct rows){(const uint8_t *)copy, sizeof copy[0]}, 0, 2, 0);
}

VEC vb bytes_nvfp4(const uint8_t *nibbles, int g) { return e2m1(nibbles, g); }

/* The exponent and the mantissa of e4m3 are those of a float with 120 less in the exponent, also where they are subnormal;
 * half of it because the steps are doubled. */
VEC void scales_nvfp4(struct panel *p, const uint8_t *part, int count) {
    const uint8_t *scales = part + count * 2 * STRIDE_NVFP4;
    for (int s = 0; s < 4 * count; s++) {
        const vi bits = vi_shl(vi_and(vi_from_u8(scales + 16 * s), vi_set1(127)), 20);
        vf_store(p->scale[s], vf_mul(vf_bits(bits), vf_set1(0x1p119f)));
    }
}
