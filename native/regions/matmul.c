/* Several weights times one x in one region. */
#include "regions.h"

#include "operand.h"
#include "pool.h"

enum { MOST_WEIGHTS = 8, ITEM_BYTES = 128 * 1024, ITEMS_A_THREAD = 8 };

/* A work item is a range of tiles of one weight and a range of columns; all items of a range of columns come first. */
struct work {
    const struct operand *x;
    float *const *outs;
    const struct matrix *weights;
    const float *const *biases;
    int count;
    bool exact, accumulate;
    int item_tiles[MOST_WEIGHTS], items[MOST_WEIGHTS]; /* of one range of columns */
    int column_ranges, items_a_range;
};

static void run_item(const struct work *work, int i, int first_tile, int range) {
    const struct matrix *w = &work->weights[i];
    int n = work->x->n;
    int first = (int)((int64_t)n * range / work->column_ranges), last = (int)((int64_t)n * (range + 1) / work->column_ranges);
    struct columns columns = {.n = last - first};
    for (int c = first; c < last; c++) {
        columns.x[c - first] = operand_row(work->x, w->type, work->exact, c);
        columns.y[c - first] = work->outs[i] + (size_t)c * (size_t)w->rows;
    }
    int tiles = round_up_to(w->rows, TILE_ROWS), end = first_tile + work->item_tiles[i];
    if (end > tiles) end = tiles;
    const void *then = end == tiles && i + 1 < work->count ? w[1].tiles : NULL;
    multiply(w, work->exact, first_tile, end, &columns, work->accumulate, then);
    int row = first_tile * TILE_ROWS, rows = end * TILE_ROWS < w->rows ? end * TILE_ROWS - row : w->rows - row;
    if (work->biases) add_bias(&columns, work->biases[i], row, rows);
}

static void run_items(void *context, int thread, int threads) {
    struct work *work = context;
    (void)threads;
    for (struct items items; pool_take(thread, 1, &items);) {
        int i = 0, within = items.first % work->items_a_range;
        while (within >= work->items[i]) within -= work->items[i++];
        run_item(work, i, within * work->item_tiles[i], items.first / work->items_a_range);
    }
}

/* Items large enough to stream, small enough that no thread waits long for the last one. */
static void split(struct work *work) {
    size_t bytes = 0;
    for (int i = 0; i < work->count; i++)
        bytes += (size_t)round_up_to(work->weights[i].rows, TILE_ROWS) * tile_stride(work->weights[i].type, work->weights[i].k);
    size_t item = bytes * (size_t)work->column_ranges / (size_t)(pool_threads() * ITEMS_A_THREAD);
    if (item > ITEM_BYTES) item = ITEM_BYTES;
    for (int i = 0; i < work->count; i++) {
        int pairs = (int)(item / tile_stride(work->weights[i].type, work->weights[i].k) / 2);
        work->item_tiles[i] = 2 * (pairs < 1 ? 1 : pairs); /* kernels like two tiles at a time */
        work->items[i] = round_up_to(round_up_to(work->weights[i].rows, TILE_ROWS), work->item_tiles[i]);
        work->items_a_range += work->items[i];
    }
}

int region_matmul(float *const *outs, const float *x, int n, int k, const struct matrix *weights,
                  const float *const *biases, int count, bool exact, bool accumulate) {
    if (!n) return 0;
    struct operand operand = {.x = x, .n = n, .k = k};
    for (int i = 0; i < count; i++) operand_need(&operand, weights[i].type, exact);
    struct work work = {.x = &operand, .outs = outs, .weights = weights, .biases = biases, .count = count, .exact = exact,
                        .accumulate = accumulate, .column_ranges = round_up_to(n, REGION_COLUMNS)};
    pool_lock();
    uint8_t *scratch = pool_scratch(operand_bytes(&operand));
    if (!scratch) return pool_unlock(), REGION_NO_MEMORY;
    operand_make(&operand, scratch, NULL);
    split(&work);
    pool_share(run_items, &work, work.items_a_range * work.column_ranges, false);
    pool_unlock();
    return 0;
}
