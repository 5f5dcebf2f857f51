/* The router: every score, with and without ties, biases and groups; whatever is not finite is told. */
#include "check.h"

enum { MOST_EXPERTS = 128, MOST_K = 8 };

struct result { int32_t ids[MOST_K]; float weights[MOST_K]; };

static void check_routing(const struct kernels *table, const struct routing *r) {
    float logits[MOST_EXPERTS], scratch[ROUTER_SCRATCH(MOST_EXPERTS)];
    struct result result = {{0}, {0}};
    for (int e = 0; e < r->experts; e++) logits[e] = rintf(random_float() * 40) * 0.125f; /* ties */
    CHECK(table->router(result.ids, result.weights, logits, r, scratch), "refused");
    note(&result, sizeof result);
    for (int e = 0; e < r->experts; e++) logits[e] = random_float() * 30;
    CHECK(table->router(result.ids, result.weights, logits, r, scratch), "refused");
    note(&result, sizeof result);
    logits[random_bits() % (uint32_t)r->experts] = (float[]){NAN, INFINITY, -INFINITY}[random_bits() % 3];
    CHECK(!table->router(result.ids, result.weights, logits, r, scratch), "%s: not finite, but taken", table->isa);
}

static void check_table(const struct kernels *table) {
    static const int experts[] = {1, 8, 16, 67, 128}, k[] = {1, 2, 5, 6, 8};
    float bias[3][MOST_EXPERTS];
    for (int i = 0; i < 3 * MOST_EXPERTS; i++) bias[i % 3][i / 3] = random_float() * 0.2f;
    for (int round = 0; round < 240; round++)
        for (int score = 0; score < SCORE_COUNT; score++) {
            const bool grouped = experts[round % 5] % 8 == 0 && round % 9 < 4;
            const struct routing r = {.experts = experts[round % 5], .k = k[round % 5], .score = score,
                                      .groups = grouped ? 4 : 1, .kept_groups = grouped ? 3 : 1,
                                      .group_of_two = round % 7 > 2, .softmax_of_chosen = round % 3 == 1,
                                      .renormalize = round % 2 && score != SCORE_IDENTITY, .sum_least = 1e-20f, .scale = 1.5f,
                                      .bias = round % 16 > 7 ? bias[0] : NULL, .correction = round % 4 > 1 ? bias[1] : NULL,
                                      .expert_scale = round % 8 > 3 ? bias[2] : NULL};
            check_routing(table, &r);
        }
}

int main(void) { return check_tables(check_table); }
