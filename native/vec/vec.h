/* The vector vocabulary of one instruction set. The build compiles each file of ops once per set with COLIBRI_VEC, its
 * header, and COLIBRI_ISA, its name; no intrinsic appears outside native/vec.
 *
 *   vf  16 floats        vi  16 int32        vb  64 bytes: 16 lanes (rows) of 4 bytes (values of k)
 *
 * portable.h says what each primitive does; the other headers give the same bits. */
#ifndef COLIBRI_VEC_H
#define COLIBRI_VEC_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define VEC static inline __attribute__((always_inline))
#define VEC_ROLL _Pragma("GCC unroll 1") /* of loops that would need more registers when they are unrolled */

/* Every header also says VEC_UNROLL: loops over vectors that are to stay in registers. VEC_ACCUMULATORS: sums that stay in
 * registers beside what they are made from. VEC_TILES: tiles that meet the columns of x side by side. */
#include COLIBRI_VEC

/* The first n (0..16) floats; the other lanes are zero and are not stored. */
VEC vf vf_load_first(const float *p, int n) {
    float lanes[16] = {0};
    memcpy(lanes, p, (size_t)n * sizeof(float));
    return vf_load(lanes);
}
VEC void vf_store_first(float *p, vf a, int n) {
    float lanes[16];
    vf_store(lanes, a);
    memcpy(p, lanes, (size_t)n * sizeof(float));
}
#endif
