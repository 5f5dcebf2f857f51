/* What the IQ3 formats share: eight magnitudes and a sign are a nibble. Tile, a block: nibbles [8][4] as in Q4_0, scales, d. */
#ifndef COLIBRI_QUANTS_IQ3_H
#define COLIBRI_QUANTS_IQ3_H
#include "quants/grids_3.h"
#include "quants/reblock.h"

/* 32 values: points[i] are the magnitudes of values 4 i on, a byte each. */
VEC void put_iq3(uint32_t *out, const uint32_t points[8], const uint32_t signs[4]) {
    uint32_t codes[8];
    for (int i = 0; i < 4; i++) {
        const uint64_t eight = bits_to_bytes(signs[i]) << 3;
        codes[2 * i] = points[2 * i] | (uint32_t)eight, codes[2 * i + 1] = points[2 * i + 1] | (uint32_t)(eight >> 32);
    }
    for (int i = 0; i < 4; i++) out[i] = codes[i] | codes[i + 4] << 4;
}

VEC void iq3_scales(struct panel *p, const uint8_t *part, float unit) {
    const vf d = vf_mul(tile_float(part, 33), vf_set1(unit));
    for (int j = 0; j < 8; j++) vf_store(p->scale[j], vf_mul(d, vf_from_vi(odd_scale(tile_word(part, 32), j, 4))));
}
#endif
