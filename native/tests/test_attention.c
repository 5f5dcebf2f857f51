/* Attention: one block of the cache, the same bits for any number of rows that share the pass, and blocks merged. */
#include "check.h"

enum { MOST_DIM = 64, STRIDE = 64 };

struct block { uint16_t keys[ATTENTION_SPLIT * MOST_DIM + 16], values[ATTENTION_SPLIT * MOST_DIM + 16]; };

struct result { float out[ATTENTION_ROWS][STRIDE], max[ATTENTION_ROWS], sum[ATTENTION_ROWS]; };

static float k[ATTENTION_SPLIT][MOST_DIM], v[ATTENTION_SPLIT][MOST_DIM], q[ATTENTION_ROWS][MOST_DIM];

static void fill(float *x, int n) {
    for (int i = 0; i < n; i++) x[i] = random_float();
}

static void append(const struct kernels *table, struct block *block, int dim, int type, int slot, int n) {
    const struct kv_rows rows = {k[slot], v[slot], MOST_DIM, MOST_DIM, slot, n};
    table->kv_append[type](block->keys, block->values, &rows, dim, dim);
}

/* Rows together, and one by one: the same. */
static void store(const struct kernels *table, struct block *block, int dim, int type) {
    static struct block alone;
    memset(block, 0xff, sizeof *block); /* NaN wherever nothing is stored */
    memset(&alone, 0xff, sizeof alone);
    for (int slot = 0; slot < ATTENTION_SPLIT; slot++) append(table, &alone, dim, type, slot, 1);
    for (int slot = 0; slot < ATTENTION_SPLIT; slot += 16) {
        const int first = slot % 3 ? 16 : 5;
        append(table, block, dim, type, slot, first);
        if (first < 16) append(table, block, dim, type, slot + first, 16 - first);
    }
    CHECK(!memcmp(block, &alone, sizeof alone), "%s: what is stored depends on the rows beside it", table->isa);
    note(block, sizeof *block);
}

/* Rows row..row+n; the results lie close together, so they are copied out by stride. */
static void attend(const struct kernels *table, const struct block *block, int dim, int type, int row, int n,
                   const int *first, const int *last, struct result *result) {
    float packed[MOST_DIM * ATTENTION_ROWS], scratch[ATTENTION_SCRATCH(MOST_DIM)], out[ATTENTION_ROWS * STRIDE];
    const float *rows[ATTENTION_ROWS];
    for (int i = 0; i < n; i++) rows[i] = q[row + i];
    table->attention_pack(packed, rows, n, dim, 0.25f);
    const struct attention_part part = {block->keys, block->values, dim, dim, n, packed, first + row, last + row,
                                        NULL, out, result->max + row, result->sum + row};
    table->attention_part[type](&part, scratch);
    const int stride = (dim + 15) / 16 * 16;
    for (int i = 0; i < n; i++) memcpy(result->out[row + i], out + i * stride, (size_t)dim * sizeof(float));
}

static void check_block(const struct kernels *table, int dim, int type) {
    static struct block block;
    static struct result together, apart;
    const int first[ATTENTION_ROWS] = {0, 0, 0, 3, 17, 0, 100, 255},
              last[ATTENTION_ROWS] = {1, 16, 256, 40, 250, 0, 131, 256};
    fill(k[0], ATTENTION_SPLIT * MOST_DIM);
    fill(v[0], ATTENTION_SPLIT * MOST_DIM);
    fill(q[0], ATTENTION_ROWS * MOST_DIM);
    store(table, &block, dim, type);
    memset(&together, 0, sizeof together);
    attend(table, &block, dim, type, 0, ATTENTION_ROWS, first, last, &together);
    note(&together, sizeof together);
    CHECK(together.max[5] == -INFINITY && together.sum[5] == 0.0f, "a row without keys");
    for (int n = 1; n <= ATTENTION_ROWS; n++) {
        memset(&apart, 0, sizeof apart);
        for (int row = 0; row < ATTENTION_ROWS; row += n)
            attend(table, &block, dim, type, row, row + n < ATTENTION_ROWS ? n : ATTENTION_ROWS - row, first, last, &apart);
        CHECK(!memcmp(&together, &apart, sizeof together), "%s: a row depends on those beside it, %d rows", table->isa, n);
    }
}

/* Values made from keys: what is stored where the first dimensions of a key are its value. */
static void check_values_of_keys(const struct kernels *table, int type) {
    enum { KEY_DIM = MOST_DIM - 8, VALUE_DIM = 32 };
    static struct block block, made;
    fill(k[0], ATTENTION_SPLIT * MOST_DIM);
    memset(&made, 0, sizeof made);
    for (int slot = 0; slot < ATTENTION_SPLIT; slot++) {
        const struct kv_rows rows = {k[slot], k[slot], MOST_DIM, MOST_DIM, slot, 1};
        table->kv_append[type](block.keys, block.values, &rows, KEY_DIM, VALUE_DIM);
    }
    table->kv_values[type](made.values, block.keys, KEY_DIM, VALUE_DIM, 0, 5);
    table->kv_values[type](made.values, block.keys, KEY_DIM, VALUE_DIM, 5, ATTENTION_SPLIT / 16);
    CHECK(!memcmp(made.values, block.values, kv_block_bytes(type, VALUE_DIM)), "%s: values of keys", table->isa);
    note(made.values, kv_block_bytes(type, VALUE_DIM));
}

/* Parts in any order of their maxima. */
static void check_merging(const struct kernels *table, int dim, const float *sink) {
    enum { PARTS = 6 };
    float part[STRIDE], acc[STRIDE], out[STRIDE] = {0}, most = -INFINITY, total = 0;
    for (int p = 0; p < PARTS; p++) {
        const float max = p == 1 ? -INFINITY : random_float() * 5, sum = p == 1 ? 0 : 1 + fabsf(random_float());
        fill(part, STRIDE);
        table->attention_merge(acc, &most, &total, part, max, sum, (dim + 15) / 16 * 16);
    }
    CHECK(table->attention_finish(out, acc, most, total, sink, dim), "merged: not finite");
    note(out, sizeof out);
    for (int d = 0; d < STRIDE; d++) CHECK(d < dim ? isfinite(out[d]) : out[d] == 0, "merged: %g", out[d]);
}

static void check_table(const struct kernels *table) {
    const float sink = 2.5f;
    for (int type = 0; type < KV_COUNT; type++) check_values_of_keys(table, type);
    for (int dim = 8; dim <= MOST_DIM; dim += 8) {
        for (int type = 0; type < KV_COUNT; type++) check_block(table, dim, type);
        check_merging(table, dim, NULL);
        check_merging(table, dim, &sink);
    }
}

int main(void) { return check_tables(check_table); }
