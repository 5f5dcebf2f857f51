/* The router: a column's experts and weights against a plain loop, whatever is not finite is told. */
#include "check.h"

enum { MOST_EXPERTS = 128, MOST_K = 8 };

struct result { int32_t ids[MOST_K]; float weights[MOST_K]; };

static double score_of(const float *logits, int e, int experts, int score) {
    double sum = 0;
    for (int i = 0; i < experts; i++) sum += exp(logits[i]);
    switch (score) {
    case SCORE_SOFTMAX: return exp(logits[e]) / sum;
    case SCORE_SIGMOID: return 1 / (1 + exp(-(double)logits[e]));
    case SCORE_SQRT_SOFTPLUS: return sqrt(log1p(exp(logits[e])));
    default: return exp(logits[e]); /* of the chosen, which are divided by their sum below */
    }
}

/* Logits and biases are eighths, so that there are ties and the order of the choices is not a matter of rounding. */
static void check_choice(const struct result *got, const float *logits, const struct routing *r) {
    double want[MOST_K], sum = 0;
    for (int slot = 0; slot < r->k; slot++) {
        int id = got->ids[slot], before = 0;
        for (int e = 0; e < r->experts && !r->bias; e++)
            before += logits[e] > logits[id] || (logits[e] == logits[id] && e < id);
        CHECK(r->bias || before == slot, "expert %d in slot %d has %d before it", id, slot, before);
        sum += want[slot] = score_of(logits, id, r->experts, r->score);
    }
    double divisor = r->renormalize || r->score == SCORE_SOFTMAX_CHOSEN ? sum : 1;
    for (int slot = 0; slot < r->k; slot++) {
        double weight = want[slot] / divisor * (double)r->scale;
        CHECK(fabs(got->weights[slot] - weight) < 2e-6 * fabs(weight), "weight %g, not %g", got->weights[slot], weight);
    }
}

static void check_routing(const struct kernels *table, const struct routing *r) {
    float logits[MOST_EXPERTS], scratch[ROUTER_SCRATCH(MOST_EXPERTS)];
    struct result result = {{0}, {0}};
    for (int e = 0; e < r->experts; e++) logits[e] = rintf(random_float() * 40) * 0.125f;
    CHECK(table->router(result.ids, result.weights, logits, r, scratch), "refused");
    note(&result, sizeof result);
    check_choice(&result, logits, r);
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
            bool biased = score != SCORE_SOFTMAX_CHOSEN && round % 4 > 1;
            struct routing r = {experts[round % 5], k[round % 5], score, round % 2, 1.5f, biased ? bias : NULL};
            check_routing(table, &r);
        }
}

int main(void) { return check_tables(check_table); }
