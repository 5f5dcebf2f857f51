/* TQ2_0. Plain, 256 values: 64 bytes of two bits a value, as in the tile (ternary.h), f16 d. */
#include "quants/ternary.h"
enum { STRIDE_TQ2_0 = TILE_TQ2_0 };

VEC uint16_t reblock_tq2_0(uint32_t *out, const uint8_t *plain) {
    memcpy(out, plain, 64);
    return load16(plain + 64);
}
VEC void tile_tq2_0(uint8_t *tile, struct rows rows, int b, int blocks) {
    (void)blocks, tile_reblocked(tile + (size_t)b * TILE_TQ2_0, rows, 17, reblock_tq2_0);
}
VEC vb bytes_tq2_0(const uint8_t *block, int g) { return ternary_bytes(block, g); }
VEC void scales_tq2_0(struct panel *p, const uint8_t *part, int count) { (void)count, ternary_scales(p, part); }
