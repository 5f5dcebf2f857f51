/* IQ4_NL. As Q4_0, but a nibble is the number of a level. */
#include "quants/levels.h"
enum { STRIDE_IQ4_NL = 256 };
VEC void tile_iq4_nl(uint8_t *tile, struct rows rows, int b, int blocks) {
    const struct place place = place_of(tile, b, blocks, 8, STRIDE_IQ4_NL, 32);
    interleave16(place.scales, rows, 0);
    interleave(place.bytes, rows, 2, 1, 0);
}

VEC vb bytes_iq4_nl(const uint8_t *block, int g) { return levels(block, g); }

VEC void scales_iq4_nl(struct panel *p, const uint8_t *part, int count) {
    const uint8_t *scales = part + count * STRIDE_IQ4_NL;
    for (int b = 0; b < count; b++) vf_store(p->scale[b], scale16(scales + 32 * b));
}
