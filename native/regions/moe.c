/* The chosen experts of every token. A pair is a token and one of its slots. Pairs are sorted by expert, so that the
 * weights of an expert are read once for all its tokens; two regions: gate, up, activation and requantisation; then down. */
#include <stdatomic.h>
#include <string.h>

#include "operand.h"
#include "pool.h"

enum {
    ITEM_ROWS = 2 * TILE_ROWS, /* as kernels like them; balances well */
    BLOCK_ROWS = 256,          /* of an activation block; the most rows that are computed at once: streams well */
    UP_PITCH = BLOCK_ROWS + 16,
};

struct share { int expert, first, count; }; /* up to REGION_COLUMNS pairs of one expert: a range of moe.pairs */
struct stretch { int share, row, rows; };   /* rows of a share's expert, all in one block */

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
    size_t h_stride, h_pitch;
    atomic_int *left; /* (shares, blocks of BLOCK_ROWS): items of region 1 to go until the block of h is whole */
    int items_a_share;
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
    int row = block * BLOCK_ROWS, rows = m->intermediate - row < BLOCK_ROWS ? m->intermediate - row : BLOCK_ROWS;
    if (activation == A_F32) return;
    for (int c = share->first; c < share->first + share->count; c++)
        kernels->quantize[activation](m->h_in + (size_t)c * m->h_stride + activation_bytes(activation, row),
                                      m->h + (size_t)c * m->h_pitch + row, rows);
}

static void first_stretch(struct moe *m, struct stretch at, const void *then) {
    const struct share *share = &m->shares[at.share];
    const struct expert *e = &m->experts[share->expert];
    _Alignas(64) float up[REGION_COLUMNS * UP_PITCH];
    struct columns columns;
    const bool gated = e->gate.tiles;
    for (int i = 0; !gated && i < share->count * UP_PITCH; i++) up[i] = 1.0f;
    for (int c = 0; c < share->count; c++) columns.y[c] = up + c * UP_PITCH - at.row; /* from row 0 */
    if (gated) gate_or_up(m, share, &e->up, e->up_bias, &columns, at.row, at.rows, tiles_from(&e->gate, at.row));
    for (int c = 0; c < share->count; c++) columns.y[c] = m->h + (size_t)(share->first + c) * m->h_pitch;
    gate_or_up(m, share, gated ? &e->gate : &e->up, gated ? e->gate_bias : e->up_bias, &columns, at.row, at.rows, then);
    for (int c = 0; c < share->count; c++) {
        float *h = columns.y[c] + at.row;
        kernels->glu[m->activation](h, h, up + c * UP_PITCH, at.rows);
    }
    const int blocks = round_up_to(m->intermediate, BLOCK_ROWS), block = at.row / BLOCK_ROWS;
    const int items = round_up_to(at.rows, ITEM_ROWS);
    atomic_int *left = &m->left[at.share * blocks + block];
    if (atomic_fetch_sub_explicit(left, items, memory_order_acq_rel) == items) quantize_h(m, share, block);
}

/* ---- region 2: slots = down h ---- */

static void second_stretch(struct moe *m, struct stretch at, const void *then) {
    const struct share *share = &m->shares[at.share];
    const struct expert *e = &m->experts[share->expert];
    struct columns columns;
    bool floats = activation_of(e->down.type, m->exact) == A_F32;
    for (int c = 0; c < share->count; c++) {
        size_t p = (size_t)(share->first + c);
        columns.x[c] = floats ? (const void *)(m->h + p * m->h_pitch) : m->h_in + p * m->h_stride;
        columns.y[c] = m->slots + (size_t)m->pairs[p] * (size_t)m->hidden;
    }
    multiply(&e->down, m->exact, at.row / TILE_ROWS, round_up_to(at.row + at.rows, TILE_ROWS), columns.x, columns.y,
             share->count, false, then);
    add_bias(columns.y, e->down_bias, at.row, at.rows, share->count);
}

/* ---- the two regions ---- */

/* As many rows of items as are in one block of one share. */
static struct stretch stretch_of(const struct moe *m, struct items items, int all_rows) {
    const int share = items.first / m->items_a_share, row = items.first % m->items_a_share * ITEM_ROWS;
    int rows = (items.last - items.first) * ITEM_ROWS, most = BLOCK_ROWS - row % BLOCK_ROWS;
    if (all_rows - row < most) most = all_rows - row;
    return (struct stretch){share, row, rows < most ? rows : most};
}

static const void *begin_of(const struct moe *m, struct stretch at, bool down) {
    const struct expert *e = &m->experts[m->shares[at.share].expert];
    return tiles_from(down ? &e->down : &e->up, at.row);
}

static inline void run_items(struct moe *m, int thread, bool down) {
    const int all_rows = down ? m->hidden : m->intermediate;
    for (struct items items; pool_take(thread, BLOCK_ROWS / ITEM_ROWS, &items);)
        while (items.first < items.last) {
            const struct stretch at = stretch_of(m, items, all_rows);
            items.first += round_up_to(at.rows, ITEM_ROWS);
            const int next = items.first < items.last ? items.first : pool_peek(thread);
            const void *then = next < 0 ? NULL : begin_of(m, stretch_of(m, (struct items){next, next + 1}, all_rows), down);
            (down ? second_stretch : first_stretch)(m, at, then);
        }
}
static void first_items(void *context, int thread, int threads) { (void)threads; run_items(context, thread, false); }
static void second_items(void *context, int thread, int threads) { (void)threads; run_items(context, thread, true); }

static void share(struct moe *m, pool_function *items, int rows) {
    m->items_a_share = round_up_to(rows, ITEM_ROWS);
    pool_share(items, m, m->share_count * m->items_a_share, false);
}

static void count_items_of_blocks(struct moe *m) {
    int blocks = round_up_to(m->intermediate, BLOCK_ROWS);
    for (int i = 0; i < m->share_count * blocks; i++) {
        int row = i % blocks * BLOCK_ROWS, rows = m->intermediate - row < BLOCK_ROWS ? m->intermediate - row : BLOCK_ROWS;
        atomic_store_explicit(&m->left[i], round_up_to(rows, ITEM_ROWS), memory_order_relaxed);
    }
}

static void run(struct moe *m) {
    count_items_of_blocks(m);
    share(m, first_items, m->intermediate);
    share(m, second_items, m->hidden);
}

/* ---- scratch ---- */

/* Places everything from `scratch` on, for as many pairs as there can be; returns the bytes it takes. */
static size_t place(struct moe *m, struct plan *plan, int experts, uint8_t *scratch) {
    uint8_t *begin = scratch;
    size_t n = (size_t)m->x.n, pairs = n * (size_t)m->k, all = (size_t)experts;
    size_t shares = (all < pairs ? all : pairs) + pairs / REGION_COLUMNS;
    plan->counts = take_scratch(&scratch, all * sizeof(int32_t));
    plan->order = take_scratch(&scratch, all * sizeof(int32_t));
    plan->first = take_scratch(&scratch, all * sizeof(int32_t));
    plan->wanted = take_scratch(&scratch, all);
    plan->needed = take_scratch(&scratch, n);
    m->pairs = take_scratch(&scratch, pairs * sizeof(int32_t));
    m->shares = take_scratch(&scratch, shares * sizeof(struct share));
    m->left = take_scratch(&scratch, shares * (size_t)round_up_to(m->intermediate, BLOCK_ROWS) * sizeof(atomic_int));
    m->h = take_scratch(&scratch, pairs * m->h_pitch * sizeof(float));
    m->h_in = take_scratch(&scratch, pairs * m->h_stride);
    m->x_in = take_scratch(&scratch, operand_bytes(&m->x));
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
    m.h_pitch = (size_t)(intermediate + 15) / 16 * 16 + 16;
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
