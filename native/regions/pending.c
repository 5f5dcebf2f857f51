/* Regions that are not there yet; weak, so that the real ones take over. */
#include "kernels.h"
#include "regions.h"
#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { PENDING = -99 };
__attribute__((weak)) int region_matmul(float *const *outs, const float *x, int n, int k, const struct matrix *weights,
                                        const float *const *biases, int count, bool exact, bool accumulate) { return PENDING; }
__attribute__((weak)) int region_moe(float *slots, const float *x, int n, int k, const int32_t *ids, const struct expert *experts,
                                     int expert_count, int hidden, int intermediate, int activation, bool exact,
                                     const int32_t *only, int only_count) { return PENDING; }
