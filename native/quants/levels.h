/* The 16 levels of IQ4_NL and IQ4_XS, plus 128. */
#ifndef COLIBRI_QUANTS_LEVELS_H
#define COLIBRI_QUANTS_LEVELS_H
#include "quants/panel.h"

VEC vb levels(const uint8_t *nibbles, int g) {
    static const uint8_t steps[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
    return nibbles_through_table(nibbles, g, steps);
}
#endif
