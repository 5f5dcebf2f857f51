/* What the ternary formats share: values -1, 0 and 1 (TQ2_0 also has 2), d of 256. Tile, a block: values plus 1 as two bits
 * [16], of each half of 128 values, value 32 q + l at bit 2 q of byte l; d. What is taken off again is a minimum. */
#ifndef COLIBRI_QUANTS_TERNARY_H
#define COLIBRI_QUANTS_TERNARY_H
#include "quants/reblock.h"

VEC vb ternary_bytes(const uint8_t *block, int g) {
    const int j = g / 8, l = g % 8;
    return vb_and(vb_shr(vb_load(block + 64 * (j / 4 * 8 + l)), 2 * (j % 4)), vb_set1(3));
}

VEC void ternary_scales(struct panel *p, const uint8_t *part) {
    const vf d = tile_float(part, 16);
    for (int j = 0; j < 8; j++) vf_store(p->scale[j], d);
    for (int i = 0; i < 4; i++) vi_store(p->mins[i], vi_set1(0x00010001));
    vf_store(p->min_scale, d);
}
#endif
