/* The scales and minima of Q4_K and Q5_K: eight of 6 bits each in 12 bytes, and their factors d and dmin. */
#ifndef COLIBRI_QUANTS_K_SCALES_H
#define COLIBRI_QUANTS_K_SCALES_H
#include "quants/panel.h"

/* Packed scales [3][row][4], d [row], dmin [row]. */
VEC void tile_k_scales(uint8_t *out, struct rows rows) {
    vb words[4]; /* d and dmin, then the packed scales */
    vb_load_rows(words, rows.first, rows.stride);
    for (int w = 1; w < 4; w++) vb_stream(out + 64 * (w - 1), words[w]);
    vb_stream(out + 192, vb_halves(words[0]));
}

/* `high_unit`: what the bytes of odd groups of 32 are multiplied by in the panel, a power of two. */
VEC void k_scales(struct panel *p, const uint8_t *in, int high_unit) {
    const vi six = vi_set1(0x3f3f3f3f), four = vi_set1(0x0f0f0f0f), two = vi_set1(0x30303030);
    vi a = vi_from_vb(vb_load(in)), b = vi_from_vb(vb_load(in + 64)), c = vi_from_vb(vb_load(in + 128));
    vi scales[2] = {vi_and(a, six), vi_or(vi_and(c, four), vi_and(vi_shr(a, 2), two))};
    vi mins[2] = {vi_and(b, six), vi_or(vi_and(vi_shr(c, 4), four), vi_and(vi_shr(b, 2), two))};
    vf d = scale16(in + 192), d_high = vf_mul(d, vf_set1(1.0f / (float)high_unit));
    for (int j = 0; j < 8; j++) {
        vi scale = vi_and(vi_shr(scales[j / 4], 8 * (j % 4)), vi_set1(255));
        vf_store(p->scale[j], vf_mul(vf_from_vi(scale), j & 1 ? d_high : d));
    }
    for (int i = 0; i < 4; i++) vi_store(p->mins[i], vi_and(vi_shr(mins[i / 2], 8 * (i % 2)), vi_set1(0x00ff00ff)));
    vf_store(p->min_scale, scale16(in + 224));
}
#endif
