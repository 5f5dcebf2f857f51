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
    FEW = 4096,                /* values that cost less than a region */
};

struct chunk { int expert, first, count; }; /* up to REGION_COLUMNS pairs of one expert: a range of moe.pairs */
struct stretch { int chunk, row, rows; };   /* rows of a chunk's expert, all in one block */

struct moe {
    const struct mixture *in;
    float *slots;
    struct operand x; /* a row a token; with weights of the input a row a pair */
    int pairs_a_row;
    uint8_t *x_in;
    float *weighted; /* (n * k, hidden), the rows of x with weights of the input */
    int32_t *pairs;  /* sorted by expert; position p of this order has row p of h */
    int pair_count;
    struct chunk *chunks;
    int chunk_count;
    float *h;      /* (pairs, intermediate) */
    uint8_t *h_in; /* the same in the activation format of the expert's down */
    float *up; /* of each thread: too large for the stacks that threads have on some systems */
    size_t h_stride, h_pitch, up_stride;
    atomic_int *left; /* (chunks, blocks of BLOCK_ROWS): items of region 1 to go until the block of h is whole */
    int items_a_chunk;
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

/* Pairs of each expert, as chunks of equal size. `first` becomes where an expert's pairs begin. */
static void make_chunks(struct moe *m, const int32_t *order, int found, const int32_t *counts, int32_t *first) {
    int start = 0;
    for (int i = 0; i < found; i++) {
        int e = order[i], parts = round_up_to(counts[e], REGION_COLUMNS);
        for (int p = 0; p < parts; p++) {
            int from = (int)((int64_t)counts[e] * p / parts), to = (int)((int64_t)counts[e] * (p + 1) / parts);
            m->chunks[m->chunk_count++] = (struct chunk){e, start + from, to - from};
        }
        first[e] = start;
        start += counts[e];
    }
}

struct plan { int32_t *counts, *order, *first; uint8_t *wanted, *needed; };

static void count_pairs(struct moe *m, const struct plan *plan) {
    const struct mixture *in = m->in;
    memset(plan->counts, 0, sizeof(int32_t) * (size_t)in->expert_count);
    memset(plan->wanted, !in->only, (size_t)in->expert_count);
    memset(plan->needed, 0, (size_t)m->x.n);
    for (int i = 0; i < in->only_count; i++) plan->wanted[in->only[i]] = 1;
    for (int pair = 0; pair < in->n * in->k; pair++) {
        const int e = in->ids[pair];
        if (!plan->wanted[e]) continue;
        plan->counts[e]++, m->pair_count++;
        plan->needed[pair / m->pairs_a_row] = 1;
    }
}

static void sort_pairs(struct moe *m, const struct plan *plan) {
    const struct mixture *in = m->in;
    int found = sort_experts(plan->order, plan->counts, in->expert_count);
    make_chunks(m, plan->order, found, plan->counts, plan->first);
    for (int pair = 0; pair < in->n * in->k; pair++)
        if (plan->wanted[in->ids[pair]]) m->pairs[plan->first[in->ids[pair]]++] = pair;
}

/* ---- x times the weights of the input ---- */

struct weighing { const struct moe *moe; const uint8_t *needed; };

static void weigh_some(void *context, int thread, int threads) {
    const struct weighing *w = context;
    const struct mixture *in = w->moe->in;
    (void)threads;
    for (struct items pairs; pool_take(thread, ITEM_ROWS, &pairs);)
        for (int64_t pair = pairs.first; pair < pairs.last; pair++) {
            const float *x = in->x + pair / in->k * in->hidden, weight = in->input_weights[pair];
            float *out = w->moe->weighted + pair * in->hidden;
            for (int i = 0; w->needed[pair] && i < in->hidden; i++) out[i] = weight * x[i];
        }
}

static void weigh(struct moe *m, const uint8_t *needed) {
    struct weighing w = {m, needed};
    pool_share(weigh_some, &w, m->x.n, (int64_t)m->x.n * m->in->hidden <= FEW);
}

/* ---- region 1: h = glu(gate x, up x); without a gate h = glu(up x, 1) ---- */

static void gate_or_up(const struct moe *m, const struct matrix *w, const float *bias, struct columns *columns,
                       struct stretch at, const void *then) {
    const int32_t *pairs = m->pairs + m->chunks[at.chunk].first;
    for (int c = 0; c < columns->n; c++)
        columns->x[c] = operand_row(&m->x, w->type, m->in->exact, pairs[c] / m->pairs_a_row);
    multiply(w, m->in->exact, at.row / TILE_ROWS, round_up_to(at.row + at.rows, TILE_ROWS), columns, false, then);
    add_bias(columns, bias, at.row, at.rows);
}

static void quantize_h(const struct moe *m, const struct chunk *chunk, int block) {
    int activation = activation_of(m->in->experts[chunk->expert].down.type, m->in->exact);
    int row = block * BLOCK_ROWS, most = m->in->intermediate - row, rows = most < BLOCK_ROWS ? most : BLOCK_ROWS;
    if (activation == A_F32) return;
    for (int c = chunk->first; c < chunk->first + chunk->count; c++)
        kernels->quantize[activation](m->h_in + (size_t)c * m->h_stride + activation_bytes(activation, row),
                                      m->h + (size_t)c * m->h_pitch + row, rows);
}

/* up: scratch for the columns of a chunk, UP_PITCH apart. */
static void first_stretch(struct moe *m, struct stretch at, float *up, const void *then) {
    const struct chunk *chunk = &m->chunks[at.chunk];
    const struct expert *e = &m->in->experts[chunk->expert];
    struct columns columns = {.n = chunk->count};
    const bool gated = e->gate.tiles;
    for (int c = 0; c < chunk->count; c++) columns.y[c] = up + c * UP_PITCH - at.row; /* from row 0 */
    if (gated) gate_or_up(m, &e->up, e->up_bias, &columns, at, tiles_from(&e->gate, at.row));
    for (int c = 0; c < chunk->count; c++) columns.y[c] = m->h + (size_t)(chunk->first + c) * m->h_pitch;
    gate_or_up(m, gated ? &e->gate : &e->up, gated ? e->gate_bias : e->up_bias, &columns, at, then);
    for (int c = 0; c < chunk->count; c++) {
        float *h = columns.y[c] + at.row;
        kernels->glu[m->in->activation.kind](h, h, gated ? up + c * UP_PITCH : NULL, at.rows, m->in->activation);
    }
    const int blocks = round_up_to(m->in->intermediate, BLOCK_ROWS), block = at.row / BLOCK_ROWS;
    const int items = round_up_to(at.rows, ITEM_ROWS);
    atomic_int *left = &m->left[at.chunk * blocks + block];
    if (atomic_fetch_sub_explicit(left, items, memory_order_acq_rel) == items) quantize_h(m, chunk, block);
}

/* ---- region 2: slots = down h ---- */

static void second_stretch(struct moe *m, struct stretch at, const void *then) {
    const struct chunk *chunk = &m->chunks[at.chunk];
    const struct expert *e = &m->in->experts[chunk->expert];
    struct columns columns = {.n = chunk->count};
    bool floats = activation_of(e->down.type, m->in->exact) == A_F32;
    for (int c = 0; c < chunk->count; c++) {
        size_t p = (size_t)(chunk->first + c);
        columns.x[c] = floats ? (const void *)(m->h + p * m->h_pitch) : m->h_in + p * m->h_stride;
        columns.y[c] = m->slots + (size_t)m->pairs[p] * (size_t)m->in->hidden;
    }
    multiply(&e->down, m->in->exact, at.row / TILE_ROWS, round_up_to(at.row + at.rows, TILE_ROWS), &columns, false, then);
    add_bias(&columns, e->down_bias, at.row, at.rows);
}

/* ---- the two regions ---- */

/* As many rows of items as are in one block of one chunk. */
static struct stretch stretch_of(const struct moe *m, struct items items, int all_rows) {
    const int chunk = items.first / m->items_a_chunk, row = items.first % m->items_a_chunk * ITEM_ROWS;
    int rows = (items.last - items.first) * ITEM_ROWS, most = BLOCK_ROWS - row % BLOCK_ROWS;
    if (all_rows - row < most) most = all_rows - row;
    return (struct stretch){chunk, row, rows < most ? rows : most};
}

static const void *begin_of(const struct moe *m, struct stretch at, bool down) {
    const struct expert *e = &m->in->experts[m->chunks[at.chunk].expert];
    return tiles_from(down ? &e->down : &e->up, at.row);
}

static inline void run_items(struct moe *m, int thread, bool down) {
    const int all_rows = down ? m->in->hidden : m->in->intermediate;
    for (struct items items; pool_take(thread, BLOCK_ROWS / ITEM_ROWS, &items);)
        while (items.first < items.last) {
            const struct stretch at = stretch_of(m, items, all_rows);
            items.first += round_up_to(at.rows, ITEM_ROWS);
            const int next = items.first < items.last ? items.first : pool_peek(thread);
            const void *then = next < 0 ? NULL : begin_of(m, stretch_of(m, (struct items){next, next + 1}, all_rows), down);
            if (down) second_stretch(m, at, then);
            else first_stretch(m, at, m->up + (size_t)thread * m->up_stride, then);
        }
}
static void first_items(void *context, int thread, int threads) { (void)threads; run_items(context, thread, false); }
static void second_items(void *context, int thread, int threads) { (void)threads; run_items(context, thread, true); }

static void run_region(struct moe *m, pool_function *items, int rows) {
    m->items_a_chunk = round_up_to(rows, ITEM_ROWS);
    pool_share(items, m, m->chunk_count * m->items_a_chunk, false);
}

static void count_items_of_blocks(struct moe *m) {
    const int blocks = round_up_to(m->in->intermediate, BLOCK_ROWS);
    for (int i = 0; i < m->chunk_count * blocks; i++) {
        int most = m->in->intermediate - i % blocks * BLOCK_ROWS, rows = most < BLOCK_ROWS ? most : BLOCK_ROWS;
        atomic_store_explicit(&m->left[i], round_up_to(rows, ITEM_ROWS), memory_order_relaxed);
    }
}

static void run(struct moe *m, const uint8_t *needed) {
    if (m->in->input_weights) weigh(m, needed);
    operand_make(&m->x, m->x_in, needed);
    count_items_of_blocks(m);
    run_region(m, first_items, m->in->intermediate);
    run_region(m, second_items, m->in->hidden);
}

/* ---- scratch ---- */

/* Places everything from `scratch` on, for as many pairs as there can be; returns the bytes it takes. */
static size_t place(struct moe *m, struct plan *plan, uint8_t *scratch) {
    uint8_t *begin = scratch;
    const struct mixture *in = m->in;
    size_t pairs = (size_t)in->n * (size_t)in->k, all = (size_t)in->expert_count;
    size_t chunks = (all < pairs ? all : pairs) + pairs / REGION_COLUMNS;
    plan->counts = take_scratch(&scratch, all * sizeof(int32_t));
    plan->order = take_scratch(&scratch, all * sizeof(int32_t));
    plan->first = take_scratch(&scratch, all * sizeof(int32_t));
    plan->wanted = take_scratch(&scratch, all);
    plan->needed = take_scratch(&scratch, (size_t)m->x.n);
    m->pairs = take_scratch(&scratch, pairs * sizeof(int32_t));
    m->chunks = take_scratch(&scratch, chunks * sizeof(struct chunk));
    m->left = take_scratch(&scratch, chunks * (size_t)round_up_to(in->intermediate, BLOCK_ROWS) * sizeof(atomic_int));
    m->h = take_scratch(&scratch, pairs * m->h_pitch * sizeof(float));
    m->h_in = take_scratch(&scratch, pairs * m->h_stride);
    m->up_stride = (pairs < REGION_COLUMNS ? pairs : REGION_COLUMNS) * UP_PITCH;
    m->up = take_scratch(&scratch, (size_t)pool_threads() * m->up_stride * sizeof(float));
    m->weighted = take_scratch(&scratch, in->input_weights ? pairs * (size_t)in->hidden * sizeof(float) : 0);
    m->x_in = take_scratch(&scratch, operand_bytes(&m->x));
    return (size_t)(scratch - begin);
}

static void need_formats(struct moe *m) {
    for (int i = 0; i < m->in->expert_count; i++) {
        const struct expert *e = &m->in->experts[i];
        if (!e->set) continue;
        if (e->gate.tiles) operand_need(&m->x, e->gate.type, m->in->exact);
        operand_need(&m->x, e->up.type, m->in->exact);
        int activation = activation_of(e->down.type, m->in->exact);
        size_t bytes = activation == A_F32 ? 0 : activation_bytes(activation, m->in->intermediate);
        if (bytes > m->h_stride) m->h_stride = bytes;
    }
}

int region_moe(float *slots, const struct mixture *in) {
    const bool weighted = in->input_weights;
    struct moe m = {.in = in, .slots = slots, .pairs_a_row = weighted ? 1 : in->k,
                    .x = {.x = in->x, .n = weighted ? in->n * in->k : in->n, .k = in->hidden}};
    struct plan plan;
    m.h_pitch = (size_t)(in->intermediate + 15) / 16 * 16 + 16;
    need_formats(&m);
    pool_lock();
    uint8_t *scratch = pool_scratch(place(&m, &plan, NULL));
    if (!scratch) return pool_unlock(), REGION_NO_MEMORY;
    place(&m, &plan, scratch);
    if (weighted) m.x.x = m.weighted;
    count_pairs(&m, &plan);
    sort_pairs(&m, &plan);
    if (m.pair_count) run(&m, plan.needed);
    pool_unlock();
    return 0;
}
