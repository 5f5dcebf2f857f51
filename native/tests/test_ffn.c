/* The experts of a layer, from the router's choice to their weighted sum, through the regions: the same bits for any
 * threads, for a token alone, and when the experts come in two parts. */
#include "check.h"
#include "pool.h"
#include "regions/regions.h"

enum { TOKENS = 6, EXPERTS = 5, K = 2, HIDDEN = 256, MIDDLE = 512 };

struct layer {
    struct expert experts[EXPERTS];
    float *bias[3]; /* the same for all experts */
    bool weighted;  /* the input, too */
};

static struct matrix make_matrix(const struct kernels *table, int type, int rows, int k) {
    size_t stride = tile_stride(type, k);
    uint8_t *plain = random_plain(type, rows, k), *tiles = allocate(stride * (size_t)(rows / TILE_ROWS));
    table->tile[type](tiles, plain, rows, k);
    free(plain);
    return (struct matrix){tiles, type, rows, k};
}

static float *make_bias(int n) {
    float *bias = allocate(sizeof(float) * (size_t)n);
    for (int i = 0; i < n; i++) bias[i] = random_float();
    return bias;
}

static struct layer make_layer(const struct kernels *table, int type, int down, bool biased) {
    struct layer l = {.bias = {make_bias(MIDDLE), make_bias(MIDDLE), make_bias(HIDDEN)}};
    for (int e = 0; e < EXPERTS; e++) {
        struct expert *x = &l.experts[e];
        x->gate = make_matrix(table, type, MIDDLE, HIDDEN);
        x->up = make_matrix(table, type, MIDDLE, HIDDEN);
        x->down = make_matrix(table, down, HIDDEN, MIDDLE);
        if (biased) x->gate_bias = l.bias[0], x->up_bias = l.bias[1], x->down_bias = l.bias[2];
        x->set = true;
    }
    return l;
}

static void free_layer(struct layer *l) {
    for (int e = 0; e < EXPERTS; e++) {
        free((void *)l->experts[e].gate.tiles), free((void *)l->experts[e].up.tiles), free((void *)l->experts[e].down.tiles);
    }
    for (int i = 0; i < 3; i++) free(l->bias[i]);
}

struct tokens { float x[TOKENS * HIDDEN], weights[TOKENS * K]; int32_t ids[TOKENS * K]; };

static float slots[TOKENS * K * HIDDEN];

/* Tokens first.. of them, n together. */
static void run(float *out, const struct layer *l, const struct tokens *t, int first, int n, bool exact, const int32_t *only,
                int only_count) {
    const struct mixture in = {.x = t->x + first * HIDDEN, .ids = t->ids + first * K, .n = n, .k = K, .experts = l->experts,
                               .expert_count = EXPERTS, .hidden = HIDDEN, .intermediate = MIDDLE,
                               .input_weights = l->weighted ? t->weights + first * K : NULL,
                               .activation = {GLU_SILU, 0, 0}, .exact = exact, .only = only, .only_count = only_count};
    CHECK(!region_moe(slots, &in), "no memory");
    memset(out + first * HIDDEN, 0, sizeof(float) * (size_t)n * HIDDEN); /* what the sum is added to */
    region_combine(out + first * HIDDEN, slots, t->weights + first * K, n, K, HIDDEN);
}

static void check_layer(const struct layer *l, const struct tokens *t, bool exact) {
    static const int32_t parts[EXPERTS] = {3, 0, 4, 2, 1};
    static float out[TOKENS * HIDDEN], other[TOKENS * HIDDEN];
    const int type = l->experts[0].gate.type;
    pool_set_threads(1, 2);
    run(out, l, t, 0, TOKENS, exact, NULL, 0);
    note(out, sizeof out);
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
    float scratch[ROUTER_SCRATCH(EXPERTS)], logits[EXPERTS];
    const struct routing routing = {.experts = EXPERTS, .k = K, .groups = 1, .kept_groups = 1, .renormalize = true, .scale = 1};
    use_isa(table->isa);
    for (int i = 0; i < TOKENS * HIDDEN; i++) t.x[i] = random_float();
    for (int token = 0; token < TOKENS; token++) {
        for (int e = 0; e < EXPERTS; e++) logits[e] = random_float() * 2;
        CHECK(table->router(t.ids + token * K, t.weights + token * K, logits, &routing, scratch), "router");
    }
    for (int type = 0; type < TYPE_COUNT; type++) { /* down in another format, as in mixtures */
        struct layer l = make_layer(table, type, type == T_Q4_K ? T_Q6_K : type == T_Q5_K ? T_Q8_0 : type, type % 2);
        l.weighted = type % 3 == 2;
        check_layer(&l, &t, false);
        check_layer(&l, &t, true);
        free_layer(&l);
    }
}

int main(void) { return check_tables(check_table); }
