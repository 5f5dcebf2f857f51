/* The rows of x in every activation format that the weights of a region read, each made once. */
#ifndef COLIBRI_OPERAND_H
#define COLIBRI_OPERAND_H
#include "kernels.h"
#include "regions.h"

enum { REGION_COLUMNS = 128 }; /* columns of a work item: their rows of x stay in the second cache */

struct operand {
    const float *x; /* (n, k) */
    int n, k;
    size_t stride[ACTIVATION_COUNT]; /* bytes a row; 0: not needed */
    uint8_t *rows[ACTIVATION_COUNT];
};

static inline int activation_of(int type, bool exact) { return exact ? A_F32 : type_info[type].activation; }

void operand_need(struct operand *o, int type, bool exact); /* this weight will be multiplied */
size_t operand_bytes(const struct operand *o);              /* scratch it takes */
void operand_make(struct operand *o, uint8_t *scratch, const uint8_t *rows_needed); /* NULL: all rows */

static inline const void *operand_row(const struct operand *o, int type, bool exact, int64_t row) {
    int activation = activation_of(type, exact);
    return o->rows[activation] + (size_t)row * o->stride[activation];
}

static inline void multiply(const struct matrix *w, bool exact, int first_tile, int last_tile, const void *const *x,
                            float *const *y, int n, bool accumulate, const void *then) {
    matmul_kernel *kernel = exact ? kernels->matmul_exact[w->type] : kernels->matmul[w->type];
    kernel(w->tiles, w->k, w->rows, first_tile, last_tile, x, y, n, accumulate, then);
}

static inline const void *tiles_from(const struct matrix *w, int row) {
    return (const uint8_t *)w->tiles + (size_t)(row / TILE_ROWS) * tile_stride(w->type, w->k);
}

static inline int round_up_to(int value, int step) { return (value + step - 1) / step; }
#endif
