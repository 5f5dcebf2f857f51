/* Every block format: what the kernels know about it beside its own header. */
#ifndef COLIBRI_QUANTS_FORMATS_H
#define COLIBRI_QUANTS_FORMATS_H
#include "quants/panel.h"
#include "quants/floats.h"
#include "quants/f8_e4m3.h"
#include "block_formats.h" /* made by CMake: the header of each INTEGER format of quants.def */

/* A part of `count` blocks -> panel. */
#define INTEGER(NAME, name, code, values, block_bytes, tile_bytes, product)                                     \
    VEC void expand_##name(struct panel *p, const uint8_t *part, int count) {                                   \
        for (int u = 0; u < (values == PANEL ? 1 : count) * (values / UNIT_##product); u++)                     \
            VEC_UNROLL for (int i = 0; i < UNIT_##product / 32; i++)                                            \
                VEC_UNROLL for (int g = 8 * i; g < 8 * i + 8; g++)                                              \
                    vb_store(p->bytes[u * (UNIT_##product / 4) + g], bytes_##name(part + u * STRIDE_##NAME, g));\
        scales_##name(p, part, count);                                                                          \
    }
#include "quants/quants.def"

/* Values [first, first + count) of k as floats [count][row]; count at most PANEL, first a multiple of it. */
typedef const float *floats_function(float *out, const uint8_t *tile, int k, int first, int count);
#define INTEGER(NAME, name, code, values, bytes, tile_bytes, product)                                           \
    VEC const float *floats_##name(float *out, const uint8_t *tile, int k, int first, int count) {              \
        struct panel panel;                                                                                     \
        (void)k;                                                                                                \
        expand_##name(&panel, tile + (size_t)(first / values) * TILE_##NAME, count / values);                   \
        panel_floats(out, &panel, count, UNIT_##product, SCALED_##product, OFFSET_##product, MINIMA_##product);                 \
        return out;                                                                                             \
    }
#include "quants/quants.def"
#endif
