/* What the IQ2 formats share: magnitudes 8, 25 and 43, signs, and scales d / 8 * (2 s + 1). */
#ifndef COLIBRI_QUANTS_IQ2_H
#define COLIBRI_QUANTS_IQ2_H
#include "quants/grids_2.h"
#include "quants/reblock.h"

#define IQ2_STEPS(zero) {zero + 8, zero + 25, zero + 43, zero, zero - 8, zero - 25, zero - 43, zero}

/* The steps of IQ2_XS and IQ2_S, 64 added, which is taken off again as a minimum. Tile, a block: [8]: codes [3]; scales [2],
 * d. */
VEC vb iq2_bytes(const uint8_t *block, int g) {
    static const uint8_t steps[16] = IQ2_STEPS(64);
    return vb_lookup16(vb_repeat16(steps), three_bits(block + 192 * (g / 8), g % 8));
}

VEC void iq2_scales(struct panel *p, const uint8_t *part) {
    const vf d = tile_float(part, 26), eighth = vf_mul(d, vf_set1(0.125f));
    for (int q = 0; q < 4; q++) {
        vi four[4];
        for (int j = 0; j < 4; j++) {
            four[j] = odd_scale(tile_word(part, 24 + q / 2), q % 2 * 4 + j, 4);
            vf_store(p->scale[4 * q + j], vf_mul(eighth, vf_from_vi(four[j])));
        }
        for (int j = 0; j < 2; j++) vi_store(p->mins[2 * q + j], vi_or(four[j], vi_shl(four[j + 2], 16)));
    }
    vf_store(p->min_scale, vf_mul(d, vf_set1(8)));
}
#endif
