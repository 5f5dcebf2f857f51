/* The experts of a layer, from the router's choice to their weighted sum, through the regions: against a plain loop in
 * double, the same bits for any threads, for a token alone, and when the experts come in two parts. */
#include "check.h"
#include "pool.h"
#include "regions/regions.h"

enum { TOKENS = 6, EXPERTS = 5, K = 2, HIDDEN = 256, MIDDLE = 512, MATRIX = HIDDEN * MIDDLE };

struct layer {
    struct expert experts[EXPERTS];
    float *w[EXPERTS][3]; /* gate, up (MIDDLE, HIDDEN), down (HIDDEN, MIDDLE), in floats */
    float *bias[3];       /* the same for all experts; of 0s when the layer has none */
};

static struct matrix make_matrix(const struct kernels *table, int type, int rows, int k, float **floats) {
    size_t stride = tile_stride(type, k);
    uint8_t *plain = random_plain(type, rows, k), *tiles = allocate(stride * (size_t)(rows / TILE_ROWS));
    table->tile[type](tiles, plain, rows, k);
    *floats = allocate(sizeof(float) * MATRIX);
    for (int row = 0; row < rows; row++) table->untile_row[type](*floats + (size_t)row * (size_t)k, tiles, row, k);
    free(plain);
    return (struct matrix){tiles, type, rows, k};
}

static float *make_bias(int n, bool any) {
    float *bias = allocate(sizeof(float) * (size_t)n);
    for (int i = 0; i < n; i++) bias[i] = any ? random_float() : 0;
    return bias;
}

static struct layer make_layer(const struct kernels *table, int type, int down, bool biased) {
    struct layer l = {.bias = {make_bias(MIDDLE, biased), make_bias(MIDDLE, biased), make_bias(HIDDEN, biased)}};
    for (int e = 0; e < EXPERTS; e++) {
        struct expert *x = &l.experts[e];
        x->gate = make_matrix(table, type, MIDDLE, HIDDEN, &l.w[e][0]);
        x->up = make_matrix(table, type, MIDDLE, HIDDEN, &l.w[e][1]);
        x->down = make_matrix(table, down, HIDDEN, MIDDLE, &l.w[e][2]);
        if (biased) x->gate_bias = l.bias[0], x->up_bias = l.bias[1], x->down_bias = l.bias[2];
        x->set = true;
    }
    return l;
}

static void free_layer(struct layer *l) {
    for (int e = 0; e < EXPERTS; e++) {
        free((void *)l->experts[e].gate.tiles), free((void *)l->experts[e].up.tiles), free((void *)l->experts[e].down.tiles);
        for (int i = 0; i < 3; i++) free(l->w[e][i]);
    }
    for (int i = 0; i < 3; i++) free(l->bias[i]);
}

static void plain_product(double *y, const float *w, const double *x, const float *bias, int rows, int k) {
    for (int row = 0; row < rows; row++) {
        y[row] = bias[row];
        for (int i = 0; i < k; i++) y[row] += (double)w[row * k + i] * x[i];
    }
}

/* out (HIDDEN) += weight * the expert of x */
static void plain_expert(double *out, const struct layer *l, int e, const float *x, double weight) {
    double in[HIDDEN], gate[MIDDLE], up[MIDDLE], down[HIDDEN];
    for (int i = 0; i < HIDDEN; i++) in[i] = x[i];
    plain_product(gate, l->w[e][0], in, l->bias[0], MIDDLE, HIDDEN);
    plain_product(up, l->w[e][1], in, l->bias[1], MIDDLE, HIDDEN);
    for (int i = 0; i < MIDDLE; i++) gate[i] *= up[i] / (1 + exp(-gate[i]));
    plain_product(down, l->w[e][2], gate, l->bias[2], HIDDEN, MIDDLE);
    for (int i = 0; i < HIDDEN; i++) out[i] += weight * down[i];
}

struct tokens { float x[TOKENS * HIDDEN], weights[TOKENS * K]; int32_t ids[TOKENS * K]; };

static float slots[TOKENS * K * HIDDEN];

/* Tokens first.. of them, n together. */
static void run(float *out, const struct layer *l, const struct tokens *t, int first, int n, bool exact, const int32_t *only,
                int only_count) {
    CHECK(!region_moe(slots, t->x + first * HIDDEN, n, K, t->ids + first * K, l->experts, EXPERTS, HIDDEN, MIDDLE, GLU_SILU,
                      exact, only, only_count), "no memory");
    memset(out + first * HIDDEN, 0, sizeof(float) * (size_t)n * HIDDEN); /* what the sum is added to */
    region_combine(out + first * HIDDEN, slots, t->weights + first * K, n, K, HIDDEN);
}

static void plain_tokens(double *out, const struct layer *l, const struct tokens *t) {
    memset(out, 0, sizeof(double) * TOKENS * HIDDEN);
    for (int pair = 0; pair < TOKENS * K; pair++)
        plain_expert(out + pair / K * HIDDEN, l, t->ids[pair], t->x + pair / K * HIDDEN, t->weights[pair]);
}

static void check_close(const float *out, const double *want, const char *type, double most) {
    double error = 0, size = 0;
    for (int i = 0; i < TOKENS * HIDDEN; i++) error += (out[i] - want[i]) * (out[i] - want[i]), size += want[i] * want[i];
    CHECK(sqrt(error / size) < most, "%s: error %g", type, sqrt(error / size));
}

static void check_layer(const struct layer *l, const struct tokens *t, const double *want, bool exact) {
    static const int32_t parts[EXPERTS] = {3, 0, 4, 2, 1};
    static float out[TOKENS * HIDDEN], other[TOKENS * HIDDEN];
    const int type = l->experts[0].gate.type;
    pool_set_threads(1, 2);
    run(out, l, t, 0, TOKENS, exact, NULL, 0);
    note(out, sizeof out);
    check_close(out, want, type_info[type].name, exact || type_info[type].activation == A_F32 ? 1e-5 : 0.03);
    pool_set_threads(3, 2);
    memset(slots, 0xff, sizeof slots); /* NaN until both parts are there */
    run(other, l, t, 0, TOKENS, exact, parts, 2);
    run(other, l, t, 0, TOKENS, exact, parts + 2, EXPERTS - 2);
    CHECK(!memcmp(out, other, sizeof out), "%s: two parts, three threads", type_info[type].name);
    for (int token = 0; token < TOKENS; token++) run(other, l, t, token, 1, exact, NULL, 0);
    CHECK(!memcmp(out, other, sizeof out), "%s: a token alone", type_info[type].name);
}

static void check_table(const struct kernels *table) {
    static struct tokens t;
    static double want[TOKENS * HIDDEN];
    float scratch[ROUTER_SCRATCH(EXPERTS)], logits[EXPERTS];
    const struct routing routing = {EXPERTS, K, SCORE_SOFTMAX, true, 1.0f, NULL};
    use_isa(table->isa);
    for (int i = 0; i < TOKENS * HIDDEN; i++) t.x[i] = random_float();
    for (int token = 0; token < TOKENS; token++) {
        for (int e = 0; e < EXPERTS; e++) logits[e] = random_float() * 2;
        CHECK(table->router(t.ids + token * K, t.weights + token * K, logits, &routing, scratch), "router");
    }
    for (int type = 0; type < TYPE_COUNT; type++) { /* down in another format, as in mixtures */
        struct layer l = make_layer(table, type, type == T_Q4_K ? T_Q6_K : type == T_Q5_K ? T_Q8_0 : type, type % 2);
        plain_tokens(want, &l, &t);
        check_layer(&l, &t, want, false);
        check_layer(&l, &t, want, true);
        free_layer(&l);
    }
}

int main(void) { return check_tables(check_table); }
