/* Routers of every instruction set agree bit for bit with each other and with a plain loop. */
#include <math.h>
#include <string.h>

#include "require.h"
#include "dispatch.h"

enum { EXPERTS = 67, K = 6 };

struct result { int32_t ids[K]; float weights[K]; };

static struct result route(const struct kernels *table, const float *logits, int score, bool renormalize) {
    float scratch[ROUTER_SCRATCH(EXPERTS)];
    struct result result;
    const struct routing routing = {EXPERTS, K, score, renormalize, 1.5f, NULL};
    REQUIRE(table->router(result.ids, result.weights, logits, &routing, scratch));
    return result;
}

static void check_softmax(const struct result *result, const float *logits) {
    double sum = 0;
    for (int e = 0; e < EXPERTS; e++) sum += exp(logits[e]);
    for (int slot = 0; slot < K; slot++) {
        const int id = result->ids[slot];
        REQUIRE(fabs(result->weights[slot] - 1.5 * exp(logits[id]) / sum) < 1e-6);
        int larger = 0;
        for (int e = 0; e < EXPERTS; e++) larger += logits[e] > logits[id] || (logits[e] == logits[id] && e < id);
        REQUIRE(larger == slot);
    }
}

int main(void) {
    uint32_t state = 1;
    for (int round = 0; round < 100; round++) {
        float logits[EXPERTS];
        for (int e = 0; e < EXPERTS; e++) logits[e] = rintf(next_random(&state) * 40) * 0.125f; /* with ties */
        for (int score = 0; score < SCORE_COUNT; score++) {
            const struct result best = route(kernels, logits, score, round % 2);
            if (score == SCORE_SOFTMAX && round % 2 == 0) check_softmax(&best, logits);
            for (int i = 0; i < isa_count(); i++) {
                const struct kernels *table = kernels_for(isa_name(i));
                if (!table) continue;
                const struct result other = route(table, logits, score, round % 2);
                REQUIRE(!memcmp(&best, &other, sizeof best));
            }
        }
    }
    float scratch[ROUTER_SCRATCH(EXPERTS)], logits[EXPERTS] = {0};
    struct result result;
    const struct routing routing = {EXPERTS, K, SCORE_SIGMOID, true, 1.0f, NULL};
    logits[EXPERTS - 1] = NAN;
    REQUIRE(!kernels->router(result.ids, result.weights, logits, &routing, scratch));
    return 0;
}
