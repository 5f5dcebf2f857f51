/* The rows of x in every activation format that the weights of a region read, each made once. */
#ifndef COLIBRI_OPERAND_H
#define COLIBRI_OPERAND_H
#include "kernels.h"
#include "regions.h"

enum { REGION_COLUMNS = 128 }; /* columns of a work item: their rows of x stay in the second cache */

struct operand {
    const float *x; /* n rows of k values */
    int n, k;
    size_t step;                     /* from one row to the next; 0: k */
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

/* Tiles [first, last) of w times n columns, see struct product. */
struct columns { const void *x[REGION_COLUMNS]; float *y[REGION_COLUMNS]; int n; };

static inline void multiply(const struct matrix *w, bool exact, int first, int last, const struct columns *columns,
                            bool accumulate, const void *then) {
    const struct product product = {w->tiles, w->k, w->rows, first, last, columns->x, columns->y, columns->n, accumulate, then};
    (exact ? kernels->matmul_exact : kernels->matmul)[w->type](&product);
}

/* Adds `rows` of bias (may be NULL) from `row` on to the columns. */
static inline void add_bias(const struct columns *columns, const float *bias, int row, int rows) {
    for (int c = 0; bias && c < columns->n; c++) kernels->add(columns->y[c] + row, bias + row, rows);
}

static inline const void *tiles_from(const struct matrix *w, int row) {
    return (const uint8_t *)w->tiles + (size_t)(row / TILE_ROWS) * tile_stride(w->type, w->k);
}

static inline int round_up_to(int value, int step) { return (value + step - 1) / step; }
#endif
