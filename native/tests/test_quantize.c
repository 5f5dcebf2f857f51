/* Quantisers: plain blocks that read back as nearly what they were made from. */
#include "check.h"

enum { ROWS = 6, K = 768 };

/* The largest error allowed, as a part of the root mean square of the values, which are spread evenly. */
static const double most[TYPE_COUNT] = {[T_F16] = 4e-4, [T_BF16] = 3e-3, [T_Q4_0] = 0.1, [T_Q8_0] = 6e-3, [T_MXFP4] = 0.2,
                                        [T_Q4_K] = 0.08, [T_Q5_K] = 0.04, [T_Q6_K] = 0.025};

static void check_type(const struct kernels *table, int type, const float *x, const float *importance) {
    size_t bytes = (size_t)ROWS * K / (size_t)type_info[type].values * (size_t)type_info[type].bytes;
    uint8_t *plain = allocate(bytes), *tiles = allocate(tile_stride(type, K));
    float row[K];
    double error = 0, size = 0;
    CHECK(table->quantize_rows(type, plain, x, importance, ROWS, K), "refused");
    note(plain, bytes);
    table->tile[type](tiles, plain, ROWS, K);
    for (int r = 0; r < ROWS; r++) {
        table->untile_row[type](row, tiles, r, K);
        for (int i = 0; i < K; i++) {
            double want = x[r * K + i];
            error += (row[i] - want) * (row[i] - want), size += want * want;
        }
    }
    CHECK(sqrt(error / size) <= most[type], "%s: error %g", type_info[type].name, sqrt(error / size));
    free(plain), free(tiles);
}

static void check_table(const struct kernels *table) {
    float *x = allocate(sizeof(float) * ROWS * K), importance[K];
    for (int i = 0; i < ROWS * K; i++) x[i] = random_float() * 0.1f;
    for (int i = 0; i < K; i++) importance[i] = 0.5f + fabsf(random_float());
    memset(x + K, 0, sizeof(float) * 256); /* a block of zeros */
    for (int type = 0; type < TYPE_COUNT; type++) {
        check_type(table, type, x, NULL);
        check_type(table, type, x, importance);
        float was = x[77];
        x[77] = NAN;
        uint8_t *plain = allocate(sizeof(float) * ROWS * K);
        CHECK(!table->quantize_rows(type, plain, x, NULL, ROWS, K), "%s: NaN is taken", type_info[type].name);
        free(plain);
        x[77] = was;
    }
    free(x);
}

int main(void) { return check_tables(check_table); }
