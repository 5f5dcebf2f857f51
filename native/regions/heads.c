/* Every head's own matrix times its rows of x: what latent attention does before and after. One token reads the matrices of
 * all heads from end to end. */
#include <string.h>

#include "operand.h"
#include "pool.h"
#include "regions.h"

enum { ITEM_BYTES = 128 * 1024, ITEMS_A_THREAD = 8 };

/* A work item is a range of tiles of one head and a range of tokens; all items of a range of tokens come first. */
struct work {
    const struct head_product *in;
    struct operand x; /* a row a token and head */
    float *out;
    int rows, tiles; /* of a head */
    int item_tiles, items_a_head, ranges;
};

static void copy_rest(const struct work *work, int token, int head) {
    const struct head_product *in = work->in;
    const size_t row = (size_t)token * (size_t)in->heads + (size_t)head;
    memcpy(work->out + row * (size_t)in->out_step + work->rows, in->x + row * (size_t)in->x_step + in->weight.k,
           (size_t)in->rest * sizeof(float));
}

static void run_item(const struct work *work, int range, int head, int part) {
    const struct head_product *in = work->in;
    const int first = (int)((int64_t)in->n * range / work->ranges), last = (int)((int64_t)in->n * (range + 1) / work->ranges);
    struct columns columns = {.n = last - first};
    for (int token = first; token < last; token++) {
        const int64_t row = (int64_t)token * in->heads + head;
        columns.x[token - first] = operand_row(&work->x, in->weight.type, in->exact, row);
        columns.y[token - first] = work->out + row * in->out_step;
        if (!part) copy_rest(work, token, head);
    }
    const struct matrix own = {tiles_from(&in->weight, head * work->rows), in->weight.type, work->rows, in->weight.k};
    const int begin = part * work->item_tiles, end = begin + work->item_tiles;
    multiply(&own, in->exact, begin, end < work->tiles ? end : work->tiles, &columns, false, NULL);
}

static void run_items(void *context, int thread, int threads) {
    const struct work *work = context;
    (void)threads;
    for (struct items items; pool_take(thread, 1, &items);) {
        const int head = items.first / work->items_a_head;
        run_item(work, head / work->in->heads, head % work->in->heads, items.first % work->items_a_head);
    }
}

/* Items large enough to stream, small enough that no thread waits long for the last one. */
static void split(struct work *work) {
    const size_t stride = tile_stride(work->in->weight.type, work->in->weight.k);
    const size_t all = stride * (size_t)work->tiles * (size_t)work->in->heads * (size_t)work->ranges;
    size_t bytes = all / (size_t)(pool_threads() * ITEMS_A_THREAD);
    if (bytes > ITEM_BYTES) bytes = ITEM_BYTES;
    const int pairs = (int)(bytes / stride / 2), parts = round_up_to(work->tiles, 2 * (pairs < 1 ? 1 : pairs));
    work->item_tiles = 2 * round_up_to(round_up_to(work->tiles, 2), parts); /* equal parts; kernels like two tiles */
    work->items_a_head = round_up_to(work->tiles, work->item_tiles);
}

int region_head_matmul(float *out, const struct head_product *in) {
    if (!in->n) return 0;
    struct work work = {.in = in, .out = out, .rows = in->weight.rows / in->heads,
                        .x = {.x = in->x, .n = in->n * in->heads, .k = in->weight.k, .step = (size_t)in->x_step},
                        .ranges = round_up_to(in->n, REGION_COLUMNS)};
    work.tiles = work.rows / TILE_ROWS;
    operand_need(&work.x, in->weight.type, in->exact);
    pool_lock();
    uint8_t *scratch = pool_scratch(operand_bytes(&work.x));
    if (!scratch) return pool_unlock(), REGION_NO_MEMORY;
    operand_make(&work.x, scratch, NULL);
    split(&work);
    pool_share(run_items, &work, work.ranges * in->heads * work.items_a_head, false);
    pool_unlock();
    return 0;
}
