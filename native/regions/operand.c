#include "regions.h"

#include "operand.h"
#include "pool.h"

enum { ALONE = 4096 /* values that cost less than a region */, ROWS = 8 /* taken at a time */ };

void operand_need(struct operand *o, int type, bool exact) {
    int activation = activation_of(type, exact);
    o->stride[activation] = activation_bytes(activation, o->k);
}

static size_t format_bytes(const struct operand *o, int activation) {
    return activation == A_F32 ? 0 : ((size_t)o->n * o->stride[activation] + 63) / 64 * 64;
}

size_t operand_bytes(const struct operand *o) {
    size_t bytes = 64; /* there is always some, so that NULL means that there is no memory */
    for (int a = 0; a < ACTIVATION_COUNT; a++) bytes += format_bytes(o, a);
    return bytes;
}

struct quantization { const struct operand *operand; const uint8_t *needed; };

static void quantize_row(const struct operand *o, int64_t row) {
    for (int a = A_F32 + 1; a < ACTIVATION_COUNT; a++)
        if (o->stride[a]) kernels->quantize[a](o->rows[a] + (size_t)row * o->stride[a], o->x + (size_t)row * o->step, o->k);
}

static void quantize_some(void *context, int thread, int threads) {
    const struct quantization *q = context;
    (void)threads;
    for (struct items rows; pool_take(thread, ROWS, &rows);)
        for (int row = rows.first; row < rows.last; row++)
            if (!q->needed || q->needed[row]) quantize_row(q->operand, row);
}

void operand_make(struct operand *o, uint8_t *scratch, const uint8_t *rows_needed) {
    for (int a = 0; a < ACTIVATION_COUNT; a++) {
        o->rows[a] = scratch;
        scratch += format_bytes(o, a);
    }
    o->rows[A_F32] = (uint8_t *)o->x;
    if (!o->step) o->step = (size_t)o->k;
    o->stride[A_F32] = o->step * sizeof(float);
    struct quantization q = {o, rows_needed};
    if (!o->stride[A_Q32] && !o->stride[A_Q256]) return;
    pool_share(quantize_some, &q, o->n, o->n == 1 || (int64_t)o->n * o->k <= ALONE);
}
