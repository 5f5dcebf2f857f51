/* The steps of MXFP4 and NVFP4, doubled and plus 128. */
#ifndef COLIBRI_QUANTS_E2M1_H
#define COLIBRI_QUANTS_E2M1_H
#include "quants/panel.h"

VEC vb e2m1(const uint8_t *nibbles, int g) {
    static const uint8_t steps[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};
    return nibbles_through_table(nibbles, g, steps);
}
#endif
