/* The chosen experts of every token. A pair is a token and one of its slots. Pairs are sorted by expert, so that the
 * weights of an expert are read once for all its tokens; two regions: gate, up, activation and requantisation; then down. */
#include "regions.h"

#include <string.h>

#include "operand.h"
#include "pool.h"

enum {
    ITEM_BYTES = 96 * 1024, /* of weights: streams well, balances well */
    ITEM_ROWS = 256,        /* at most, and the rows of an activation block: items divide it */
};

struct share { int expert, first, count; }; /* up to REGION_COLUMNS pairs of one expert: a range of moe.pairs */
struct item { int share, row; };            /* rows from `row` on of a share's expert */

struct moe {
    float *slots;
    const struct expert *experts;
    int k, hidden, intermediate, activation;
    bool exact;
    struct operand x;
    uint8_t *x_in;
    const int32_t *ids;
    int32_t *pairs; /* sorted by expert; position p of this order has row p of h */
    int pair_count;
    struct share *shares;
    int share_count;
    float *h;      /* (pairs, intermediate) */
    uint8_t *h_in; /* the same in the activation format of the expert's down */
    size_t h_stride;
    atomic_int *left; /* (shares, blocks of ITEM_ROWS): items of region 1 to go until the block of h is whole */
    int item_rows, items_a_share;
};

/* ---- who computes what ---- */

/* Experts by number of pairs, most first: the long work starts early. `order` are those with pairs. */
static int sort_experts(int32_t *order, const int32_t *counts, int experts) {
    int found = 0;
    for (int e = 0; e < experts; e++) {
        if (!counts[e]) continue;
        int at = found++;
        for (; at && counts[order[at - 1]] < counts[e]; at--) order[at] = order[at - 1];
        order[at] = e;
    }
    return found;
}

/* Pairs of each expert, as shares of equal size. `first` becomes where an expert's pairs begin. */
static void make_shares(struct moe *m, const int32_t *order, int found, const int32_t *counts, int32_t *first) {
    int start = 0;
    for (int i = 0; i < found; i++) {
        int e = order[i], parts = round_up_to(counts[e], REGION_COLUMNS);
        for (int p = 0; p < parts; p++) {
            int from = (int)((int64_t)counts[e] * p / parts), to = (int)((int64_t)counts[e] * (p + 1) / parts);
            m->shares[m->share_count++] = (struct share){e, start + from, to - from};
        }
        first[e] = start;
        start += counts[e];
    }
}

struct plan { int32_t *counts, *order, *first; uint8_t *wanted, *needed; };

static void count_pairs(struct moe *m, const struct plan *plan, int n, int experts, const int32_t *only, int only_count) {
    memset(plan->counts, 0, sizeof(int32_t) * (size_t)experts);
    memset(plan->wanted, !only, (size_t)experts);
    for (int i = 0; i < only_count; i++) plan->wanted[only[i]] = 1;
    for (int t = 0; t < n; t++) {
        plan->needed[t] = 0;
        for (int s = 0; s < m->k; s++) {
            int e = m->ids[t * m->k + s];
            if (!plan->wanted[e]) continue;
            plan->counts[e]++, m->pair_count++;
            plan->needed[t] = 1;
        }
    }
}

static void sort_pairs(struct moe *m, const struct plan *plan, int n, int experts) {
    int found = sort_experts(plan->order, plan->counts, experts);
    make_shares(m, plan->order, found, plan->counts, plan->first);
    for (int pair = 0; pair < n * m->k; pair++)
        if (plan->wanted[m->ids[pair]]) m->pairs[plan->first[m->ids[pair]]++] = pair;
}

/* ---- region 1: h = glu(gate x, up x); without a gate h = glu(up x, 1) ---- */

struct columns { const void *x[REGION_COLUMNS]; float *y[REGION_COLUMNS]; };

static void add_bias(float *const *y, const float *bias, int row, int rows, int n) {
    for (int c = 0; bias && c < n; c++) kernels->add(y[c] + row, bias + row, rows);
}

static void gate_or_up(const struct moe *m, const struct share *share, const struct matrix *w, const float *bias,
                       struct columns *columns, int row, int rows, const void *then) {
    for (int c = 0; c < share->count; c++)
        columns->x[c] = operand_row(&m->x, w->type, m->exact, m->pairs[share->first + c] / m->k);
    multiply(w, m->exact, row / TILE_ROWS, round_up_to(row + rows, TILE_ROWS), columns->x, columns->y, share->count,
             false, then);
    add_bias(columns->y, bias, row, rows, share->count);
}

static void quantize_h(const struct moe *m, const struct share *share, int block) {
    int activation = activation_of(m->experts[share->expert].down.type, m->exact);
    int row = block * ITEM_ROWS, rows = m->intermediate - row < ITEM_ROWS ? m->intermediate - row : ITEM_ROWS;
    if (activation == A_F32) return;
    for (int c = share->first; c < share->first + share->count; c++)
        kernels->quantize[activation](m->h_in + (size_t)c * m->h_stride + activation_bytes(activation, row),
                                      m->h + (size_t)c * (size_t)m->intermediate + row, rows);
}

static void first_item(struct moe *m, struct item item, const void *then) {
    const struct share *share = &m->shares[item.share];
    const struct expert *e = &m->experts[share->expert];
    const int row = item.row, rows = m->intermediate - row < m->item_rows ? m->intermediate - row : m->item_rows;
    _Alignas(64) float up[REGION_COLUMNS * ITEM_ROWS];
    struct columns columns;
    const bool gated = e->gate.tiles;
    for (int i = 0; !gated && i < share->count * m->item_rows; i++) up[i] = 1.0f;
    for (int c = 0; c < share->count; c++) columns.y[c] = up + c * m->item_rows - row; /* from row 0 */
    if (gated) gate_or_up(m, share, &e->up, e->up_bias, &columns, row, rows, tiles_from(&e->gate, row));
    for (int c = 0; c < share->count; c++) columns.y[c] = m->h + (size_t)(share->first + c) * (size_t)m->intermediate;
    gate_or_up(m, share, gated ? &e->gate : &e->up, gated ? e->gate_bias : e->up_bias, &columns, row, rows, then);
    for (int c = 0; c < share->count; c++) {
        float *h = columns.y[c] + row;
        kernels->glu[m->activation](h, h, up + c * m->item_rows, rows);
    }
    const int blocks = round_up_to(m->intermediate, ITEM_ROWS), block = row / ITEM_ROWS;
    if (atomic_fetch_sub_explicit(&m->left[item.share * blocks + block], 1, memory_order_acq_rel) == 1)
        quantize_h(m, share, block);
}

/* ---- region 2: slots = down h ---- */

static void second_item(struct moe *m, struct item item, const void *then) {
    const struct share *share = &m->shares[item.share];
    const struct expert *e = &m->experts[share->expert];
    const int row = item.row, rows = m->hidden - row < m->item_rows ? m->hidden - row : m->item_rows;
    struct columns columns;
    bool floats = activation_of(e->down.type, m->exact) == A_F32;
    for (int c = 0; c < share->count; c++) {
        size_t p = (size_t)(share->first + c);
        columns.x[c] = floats ? (const void *)(m->h + p * (size_t)m->intermediate) : m->h_in + p * m->h_stride;
        columns.y[c] = m->slots + (size_t)m->pairs[p] * (size_t)m->hidden;
    }
    multiply(&e->down, m->exact, row / TILE_ROWS, round_up_to(row + rows, TILE_ROWS), columns.x, columns.y, share->count,
             false, then);
    add_bias(columns.y, e->down_bias, row, rows, share->count);
}

/* ---- the two regions ---- */

static struct item item_of(const struct moe *m, int number) {
    return (struct item){number / m->items_a_share, number % m->items_a_share * m->item_rows};
}

/* The tiles with which the thread's next item begins, in `up` or `down` of its expert; NULL: not known. */
static const void *next_tiles(const struct moe *m, int thread, bool down) {
    const int number = pool_peek(thread);
    if (number < 0) return NULL;
    const struct item item = item_of(m, number);
    const struct expert *e = &m->experts[m->shares[item.share].expert];
    return tiles_from(down ? &e->down : &e->up, item.row);
}

static void first_items(void *context, int thread, int threads) {
    (void)threads;
    for (int number; (number = pool_item(thread)) >= 0;)
        first_item(context, item_of(context, number), next_tiles(context, thread, false));
}

static void second_items(void *context, int thread, int threads) {
    (void)threads;
    for (int number; (number = pool_item(thread)) >= 0;)
        second_item(context, item_of(context, number), next_tiles(context, thread, true));
}

/* Rows an item: a power of two from 32 (kernels like two tiles) to ITEM_ROWS, so that blocks of activations are made of
 * whole items. */
static void split(struct moe *m, int rows, size_t tile_bytes) {
    m->item_rows = 2 * TILE_ROWS;
    while (m->item_rows < ITEM_ROWS && (size_t)(m->item_rows / TILE_ROWS) * tile_bytes < ITEM_BYTES) m->item_rows *= 2;
    m->items_a_share = round_up_to(rows, m->item_rows);
    pool_divide(m->share_count * m->items_a_share);
}

static void count_items_of_blocks(struct moe *m) {
    int blocks = round_up_to(m->intermediate, ITEM_ROWS);
    for (int i = 0; i < m->share_count * blocks; i++) {
        int row = i % blocks * ITEM_ROWS, rows = m->intermediate - row < ITEM_ROWS ? m->intermediate - row : ITEM_ROWS;
        atomic_store_explicit(&m->left[i], round_up_to(rows, m->item_rows), memory_order_relaxed);
    }
}

static void run(struct moe *m) {
    const struct expert *e = &m->experts[m->shares[0].expert];
    const size_t gate_bytes = e->gate.tiles ? tile_stride(e->gate.type, m->hidden) : 0;
    split(m, m->intermediate, gate_bytes + tile_stride(e->up.type, m->hidden));
    count_items_of_blocks(m);
    pool_share(first_items, m);
    split(m, m->hidden, tile_stride(e->down.type, m->intermediate));
    pool_share(second_items, m);
}

/* ---- scratch ---- */

/* The next `bytes` of scratch. */
static void *take(uint8_t **scratch, size_t bytes) {
    uint8_t *taken = *scratch;
    *scratch += (bytes + 63) / 64 * 64;
    return taken;
}

/* Places everything from `scratch` on, for as many pairs as there can be; returns the bytes it takes. */
static size_t place(struct moe *m, struct plan *plan, int experts, uint8_t *scratch) {
    uint8_t *begin = scratch;
    size_t n = (size_t)m->x.n, pairs = n * (size_t)m->k, all = (size_t)experts;
    size_t shares = (all < pairs ? all : pairs) + pairs / REGION_COLUMNS;
    plan->counts = take(&scratch, all * sizeof(int32_t));
    plan->order = take(&scratch, all * sizeof(int32_t));
    plan->first = take(&scratch, all * sizeof(int32_t));
    plan->wanted = take(&scratch, all);
    plan->needed = take(&scratch, n);
    m->pairs = take(&scratch, pairs * sizeof(int32_t));
    m->shares = take(&scratch, shares * sizeof(struct share));
    m->left = take(&scratch, shares * (size_t)round_up_to(m->intermediate, ITEM_ROWS) * sizeof(atomic_int));
    m->h = take(&scratch, pairs * (size_t)m->intermediate * sizeof(float));
    m->h_in = take(&scratch, pairs * m->h_stride);
    m->x_in = take(&scratch, operand_bytes(&m->x));
    return (size_t)(scratch - begin);
}

static void need_formats(struct moe *m, int experts) {
    for (int i = 0; i < experts; i++) {
        const struct expert *e = &m->experts[i];
        if (!e->set) continue;
        if (e->gate.tiles) operand_need(&m->x, e->gate.type, m->exact);
        operand_need(&m->x, e->up.type, m->exact);
        int activation = activation_of(e->down.type, m->exact);
        size_t bytes = activation == A_F32 ? 0 : activation_bytes(activation, m->intermediate);
        if (bytes > m->h_stride) m->h_stride = bytes;
    }
}

int region_moe(float *slots, const float *x, int n, int k, const int32_t *ids, const struct expert *experts,
               int expert_count, int hidden, int intermediate, int activation, bool exact, const int32_t *only,
               int only_count) {
    struct moe m = {.slots = slots, .experts = experts, .k = k, .hidden = hidden, .intermediate = intermediate,
                    .activation = activation, .exact = exact, .x = {.x = x, .n = n, .k = hidden}, .ids = ids};
    struct plan plan;
    need_formats(&m, expert_count);
    pool_lock();
    uint8_t *scratch = pool_scratch(place(&m, &plan, expert_count, NULL));
    if (!scratch) return pool_unlock(), REGION_NO_MEMORY;
    place(&m, &plan, expert_count, scratch);
    count_pairs(&m, &plan, n, expert_count, only, only_count);
    sort_pairs(&m, &plan, n, expert_count);
    if (m.pair_count) {
        operand_make(&m.x, m.x_in, plan.needed);
        run(&m);
    }
    pool_unlock();
    return 0;
}
