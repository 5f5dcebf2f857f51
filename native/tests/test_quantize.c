/* Quantisers: with and without importance, a block of zeros, and what is not finite is refused. */
#include "check.h"

enum { ROWS = 6, K = 768 };

static void check_type(const struct kernels *table, int type, float *x, const float *importance) {
    const size_t bytes = (size_t)ROWS * K / (size_t)type_info[type].values * (size_t)type_info[type].bytes;
    uint8_t *plain = allocate(bytes);
    CHECK(table->quantize_rows(type, plain, x, importance, ROWS, K), "refused");
    note(plain, bytes);
    const float was = x[77];
    x[77] = NAN;
    CHECK(!table->quantize_rows(type, plain, x, importance, ROWS, K), "%s: NaN is taken", type_info[type].name);
    x[77] = was;
    free(plain);
}

static void check_table(const struct kernels *table) {
    float *x = allocate(sizeof(float) * ROWS * K), importance[K];
    for (int i = 0; i < ROWS * K; i++) x[i] = random_float() * 0.1f;
    for (int i = 0; i < K; i++) importance[i] = 0.5f + fabsf(random_float());
    memset(x + K, 0, sizeof(float) * 256); /* a block of zeros */
    for (int type = 0; type < TYPE_COUNT; type++) {
        if (!table->quantizes(type)) continue;
        check_type(table, type, x, NULL);
        check_type(table, type, x, importance);
    }
    free(x);
}

int main(void) { return check_tables(check_table); }
