/* What a processor can do at most, for `colibri bench`: bytes read, and integer dot products on registers. */
#include "kernels.h"
#include "vec/vec.h"

enum { STEP = 512 };

/* Reads all of it; bytes is a multiple of STEP. The result keeps the loads from being left out. */
int32_t KERNEL(read_all)(const void *data, size_t bytes) {
    const uint8_t *p = data, *end = p + bytes;
    vb a = vb_load(p), b = a;
    for (; p < end; p += STEP)
        VEC_UNROLL for (int i = 0; i < STEP; i += 128) {
            __builtin_prefetch(p + i + 4096, 0, 0); /* past the caches, or what they give up for it would be written */
            __builtin_prefetch(p + i + 4160, 0, 0);
            a = vb_or(a, vb_load(p + i));
            b = vb_or(b, vb_load(p + i + 64));
        }
    return vi_sum(vi_from_vb(vb_or(a, b)));
}

/* `rounds` times VEC_ACCUMULATORS dot products of 64 pairs of bytes on registers. */
int32_t KERNEL(dot_rounds)(int rounds) {
    static const uint8_t lines[64 + 4] = {1, 2, 3};
    const uint8_t *bytes = lines;
    vi sums[VEC_ACCUMULATORS]; /* that differ, or one would do for all */
    VEC_UNROLL for (int i = 0; i < VEC_ACCUMULATORS; i++) sums[i] = vi_set1(i);
    for (int round = 0; round < rounds; round++) {
        __asm__ volatile("" : "+r"(bytes)); /* hides what the bytes are, and that every round adds the same */
        const vb w = vb_load(bytes), x = vb_repeat4(bytes + 64);
        VEC_UNROLL for (int i = 0; i < VEC_ACCUMULATORS; i++) sums[i] = vi_dot(sums[i], w, x);
    }
    VEC_UNROLL for (int i = 1; i < VEC_ACCUMULATORS; i++) sums[0] = vi_add(sums[0], sums[i]);
    return vi_sum(sums[0]);
}
