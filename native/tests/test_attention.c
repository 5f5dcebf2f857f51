/* One block of attention: against a plain loop in double, the same bits on every instruction set and for any number of
 * rows that share the pass. */
#include <math.h>
#include <string.h>

#include "require.h"
#include "dispatch.h"

enum { MOST_DIM = 64, STRIDE = 64 };

struct block { uint16_t keys[ATTENTION_SPLIT * MOST_DIM], values[ATTENTION_SPLIT * MOST_DIM + 32]; };

struct result { float out[ATTENTION_ROWS][STRIDE], max[ATTENTION_ROWS], sum[ATTENTION_ROWS]; };

static float k[ATTENTION_SPLIT][MOST_DIM], v[ATTENTION_SPLIT][MOST_DIM], q[ATTENTION_ROWS][MOST_DIM];

/* Eighths between -1 and 1 are exact in 16 bits. */
static void fill(float *x, int n, uint32_t *state) {
    for (int i = 0; i < n; i++) x[i] = rintf(next_random(state) * 8) * 0.125f;
}

static void store(const struct kernels *table, struct block *block, int dim) {
    memset(block, 0xff, sizeof *block); /* NaN wherever nothing is stored */
    for (int slot = 0; slot < ATTENTION_SPLIT; slot++)
        table->kv_append(block->keys, block->values, k[slot], v[slot], slot, dim, dim);
}

/* Rows row..row+n; the results lie close together, so they are copied out by stride. */
static void attend(const struct kernels *table, const struct block *block, int dim, int row, int n, const int *first,
                   const int *last, struct result *result) {
    float packed[MOST_DIM * ATTENTION_ROWS], scratch[ATTENTION_ROWS * ATTENTION_SPLIT], out[ATTENTION_ROWS * STRIDE];
    const float *rows[ATTENTION_ROWS];
    for (int i = 0; i < n; i++) rows[i] = q[row + i];
    table->attention_pack(packed, rows, n, dim, 0.25f);
    const struct attention_part part = {block->keys, block->values, dim, dim, n, packed, first + row, last + row,
                                        NULL, out, result->max + row, result->sum + row};
    table->attention_part(&part, scratch);
    const int stride = (dim + 15) / 16 * 16;
    for (int i = 0; i < n; i++) memcpy(result->out[row + i], out + i * stride, (size_t)dim * sizeof(float));
}

static void check_row(const struct result *result, int row, int dim, int first, int last) {
    double total = 0, out[MOST_DIM] = {0};
    for (int key = first; key < last; key++) {
        double score = 0;
        for (int d = 0; d < dim; d++) score += (double)q[row][d] * k[key][d] * 0.25;
        const double weight = exp(score - (double)result->max[row]);
        total += weight;
        for (int d = 0; d < dim; d++) out[d] += weight * v[key][d];
    }
    REQUIRE(fabs(total - result->sum[row]) < 1e-4 * total);
    for (int d = 0; d < dim; d++) REQUIRE(fabs(out[d] - result->out[row][d]) < 1e-4 * total);
}

static void check_dim(int dim, uint32_t *state) {
    static struct block block, other;
    static struct result together, alone;
    const int first[ATTENTION_ROWS] = {0, 0, 0, 3, 17, 0, 100, 255},
              last[ATTENTION_ROWS] = {1, 16, 256, 40, 250, 0, 131, 256};
    fill(k[0], ATTENTION_SPLIT * MOST_DIM, state);
    fill(v[0], ATTENTION_SPLIT * MOST_DIM, state);
    fill(q[0], ATTENTION_ROWS * MOST_DIM, state);
    store(kernels, &block, dim);
    memset(&together, 0, sizeof together);
    attend(kernels, &block, dim, 0, ATTENTION_ROWS, first, last, &together);
    for (int row = 0; row < ATTENTION_ROWS; row++)
        if (first[row] < last[row]) check_row(&together, row, dim, first[row], last[row]);
    REQUIRE(together.max[5] == -INFINITY && together.sum[5] == 0.0f);
    for (int i = 0; i < isa_count(); i++) {
        const struct kernels *table = kernels_for(isa_name(i));
        if (!table) continue;
        store(table, &other, dim);
        REQUIRE(!memcmp(&block, &other, sizeof block));
        for (int n = 1; n <= ATTENTION_ROWS; n++) {
            memset(&alone, 0, sizeof alone);
            for (int row = 0; row < ATTENTION_ROWS; row += n)
                attend(table, &block, dim, row, row + n < ATTENTION_ROWS ? n : ATTENTION_ROWS - row, first, last,
                       &alone);
            REQUIRE(!memcmp(&together, &alone, sizeof together));
        }
    }
}

int main(void) {
    uint32_t state = 7;
    for (int dim = 8; dim <= MOST_DIM; dim += 8) check_dim(dim, &state);
    return 0;
}
