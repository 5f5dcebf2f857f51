/* The router: with and without ties and biases; whatever is not finite is told. */
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
    float bias[MOST_EXPERTS];
    for (int e = 0; e < MOST_EXPERTS; e++) bias[e] = random_float() * 0.2f;
    for (int round = 0; round < 80; round++)
        for (int score = 0; score < SCORE_COUNT; score++) {
            bool biased = round % 4 > 1;
            struct routing r = {experts[round % 5], k[round % 5], score, round % 2, 1.5f, biased ? bias : NULL};
            check_routing(table, &r);
        }
}

int main(void) { return check_tables(check_table); }
