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
__attribute__((weak)) int region_attention(float *out, const float *q, const struct cache *cache, const struct batch *batch, int heads,
                                           float scale, int window, const float *sinks) { return PENDING; }
__attribute__((weak)) void region_kv_append(const struct cache *cache, const float *k, const float *v, const struct batch *batch) {}
__attribute__((weak)) bool region_router(int32_t *ids, float *weights, const float *logits, int n, const struct routing *routing) { return false; }
