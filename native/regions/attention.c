/* A step's rows are turned (rope), their keys and values stored, and attention split. Query rows (token, head) that share a
 * sequence and a kv head form strips of up to STRIP rows; a strip against one kv head is a task. With many tasks a thread does
 * the blocks of a task one after the other; with few (decode) every block is a unit of its own and the thread that ends a
 * task's last unit merges them. Both ways do the same arithmetic: parts are always single blocks, merged from the first to the
 * last. Rows that see no others of their step are turned and stored by their own task, others before the first task. */
#include <stdatomic.h>

#include "kernels.h"
#include "pool.h"
#include "regions.h"

enum { STRIP = 64, TASKS_A_THREAD = 4, SMALL = 200000 /* products, about 5 us */, FEW = 1024 /* numbers to store */ };

/* Rows from..from+rows of the run that starts at `token`; row r is head r % group of token r / group. */
struct strip { int token, from, rows, first_block, blocks; };

struct job {
    const struct cache *cache;
    const struct batch *batch;
    const struct attention_input *in;
    float *out;
    int group, stride; /* query heads of a kv head; value_dim rounded up to 16 */
    bool store_first;  /* before the first task */
    atomic_int faults; /* of enum attention_fault */
    struct strip *strips;               /* NULL while they are only counted */
    int strip_count, most_rows, blocks; /* blocks of all strips */
    int64_t row_blocks;                 /* each row against its strip's blocks */
    int tasks, units;                   /* units: 0 when tasks are not split */
    size_t part_floats;                 /* rows * (stride + 2): values, maxima, sums */
    float *parts;                       /* (units, part_floats) */
    int *first_unit;                    /* (tasks + 1) */
    atomic_int *left;                   /* (tasks) units not yet done */
    float *thread_scratch;
    size_t thread_floats;
};

/* What one thread works in. */
struct workspace {
    float *packed, *acc, *max, *sum, *part, *part_max, *part_sum, *scores;
    int packed_task;
    uint8_t *values; /* of a block whose values are made from its keys */
};

static size_t scores_floats(const struct job *job) {
    const struct cache *c = job->cache;
    return ATTENTION_SCRATCH(c->key_dim > c->value_dim ? c->key_dim : c->value_dim);
}

static size_t workspace_floats(const struct job *job) {
    const struct cache *c = job->cache;
    const size_t rows = (size_t)c->key_dim + (size_t)job->stride + 2, scores = scores_floats(job);
    const size_t values = c->values ? 0 : kv_block_bytes(c->type, c->value_dim) / sizeof(float) + 16; /* read past the end */
    return (STRIP * rows + ATTENTION_ROWS * ((size_t)job->stride + 2) + scores + values + 15) / 16 * 16;
}

static struct workspace workspace_of(const struct job *job, int thread) {
    struct workspace w = {.packed = job->thread_scratch + (size_t)thread * job->thread_floats, .packed_task = -1};
    w.acc = w.packed + STRIP * job->cache->key_dim;
    w.part = w.acc + STRIP * job->stride;
    w.max = w.part + ATTENTION_ROWS * job->stride;
    w.sum = w.max + STRIP;
    w.part_max = w.sum + STRIP;
    w.part_sum = w.part_max + ATTENTION_ROWS;
    w.scores = w.part_sum + ATTENTION_ROWS;
    w.values = (uint8_t *)(w.scores + scores_floats(job));
    return w;
}

/* ---- strips ---- */

static int first_key(const struct job *job, int position) {
    const int window = job->in->window;
    return window > 0 && position >= window ? position - window + 1 : 0;
}

static void add_strip(struct job *job, int token, int from, int rows) {
    const int start = job->batch->position[token];
    const int first = first_key(job, start + from / job->group) / ATTENTION_SPLIT;
    const int last = (start + (from + rows - 1) / job->group) / ATTENTION_SPLIT;
    const struct strip strip = {token, from, rows, first, last - first + 1};
    if (job->strips) job->strips[job->strip_count] = strip;
    job->strip_count++;
    job->blocks += strip.blocks;
    job->row_blocks += (int64_t)rows * strip.blocks;
    if (rows > job->most_rows) job->most_rows = rows;
}

static void make_strips(struct job *job) {
    const struct batch *b = job->batch;
    job->strip_count = job->most_rows = job->blocks = 0;
    job->row_blocks = 0;
    for (int g = 0; g < b->groups; g++) {
        const int rows = (b->group_first[g + 1] - b->group_first[g]) * job->group;
        for (int from = 0; from < rows; from += STRIP)
            add_strip(job, b->group_first[g], from, rows - from < STRIP ? rows - from : STRIP);
    }
}

static const struct strip *strip_of(const struct job *job, int task) { return &job->strips[task % job->strip_count]; }

static int head_of(const struct job *job, int task) { return task / job->strip_count; }

/* Where row r of the strip lies among the (token, head) rows of q and out. */
static int64_t query_row(const struct job *job, const struct strip *s, int kv_head, int r) {
    const int row = s->from + r;
    return (int64_t)(s->token + row / job->group) * job->in->heads + kv_head * job->group + row % job->group;
}

/* ---- the cache: keys and values of a kv head in a block of the row's sequence ---- */

static size_t where(const struct job *job, int row, int kv_head, int block) {
    const int32_t *table = job->batch->table[job->batch->sequence[row]];
    return (size_t)table[block] * (size_t)job->cache->kv_heads + (size_t)kv_head;
}

static uint8_t *keys_of(const struct job *job, int row, int kv_head, int block) {
    return job->cache->keys + where(job, row, kv_head, block) * kv_block_bytes(job->cache->type, job->cache->key_dim);
}

/* NULL: they are the first dimensions of the keys. */
static uint8_t *values_of(const struct job *job, int row, int kv_head, int block) {
    if (!job->cache->values) return NULL;
    return job->cache->values + where(job, row, kv_head, block) * kv_block_bytes(job->cache->type, job->cache->value_dim);
}

/* ---- the rows of the step ---- */

static void note(struct job *job, int faults) {
    if (faults) atomic_fetch_or(&job->faults, faults);
}

/* Turns the heads of a row that belong to a kv head. */
static void turn(const struct job *job, int row, int kv_head) {
    const struct attention_input *in = job->in;
    const int dim = job->cache->key_dim, position = job->batch->position[row];
    const float *cosine = in->cosine + (int64_t)position * (in->rotary / 2);
    const float *sine = in->sine + (int64_t)position * (in->rotary / 2);
    const int64_t kv_row = (int64_t)row * job->cache->kv_heads + kv_head;
    for (int64_t head = kv_row * job->group; head < (kv_row + 1) * job->group; head++)
        kernels->rope(in->q + head * dim + in->rope_start, cosine, sine, in->rotary);
    kernels->rope(in->k + kv_row * dim + in->rope_start, cosine, sine, in->rotary);
}

/* Turns n rows of a sequence, which kernels store together, and puts their keys and values into the cache. */
static void store(struct job *job, int row, int n, int kv_head) {
    const struct attention_input *in = job->in;
    const struct cache *c = job->cache;
    const int position = job->batch->position[row], block = position / ATTENTION_SPLIT;
    const int64_t kv_row = (int64_t)row * c->kv_heads + kv_head;
    for (int i = 0; in->rotary && i < n; i++) turn(job, row + i, kv_head);
    const struct kv_rows rows = {in->k + kv_row * c->key_dim, in->v ? in->v + kv_row * c->value_dim : NULL,
                                 (size_t)c->kv_heads * (size_t)c->key_dim, (size_t)c->kv_heads * (size_t)c->value_dim,
                                 position % ATTENTION_SPLIT, n};
    note(job, kernels->kv_append[c->type](keys_of(job, row, kv_head, block), values_of(job, row, kv_head, block), &rows,
                                          c->key_dim, c->value_dim));
}

/* How many rows from `row` on, up to `most`, kernels store together. */
static int stored_together(const struct batch *b, int row, int most) {
    int n = 1;
    const int position = b->position[row];
    while (n < most && b->sequence[row + n] == b->sequence[row] && b->position[row + n] == position + n && (position + n) % 16)
        n++;
    return n;
}

/* Items are the rows of the first kv head, then those of the second: neighbours share lines of the cache. */
static void store_some(void *context, int thread, int threads) {
    struct job *job = context;
    const int n = job->batch->n;
    (void)threads;
    for (struct items items; pool_take(thread, STRIP, &items);)
        for (int i = items.first, together; i < items.last; i += together) {
            const int row = i % n, left = items.last - i;
            together = stored_together(job->batch, row, left < n - row ? left : n - row);
            store(job, row, together, i / n);
        }
}

static void store_all(struct job *job) {
    const int items = job->batch->n * job->cache->kv_heads;
    pool_share(store_some, job, items, items * job->cache->key_dim < FEW);
}

/* ---- one block ---- */

static void pack_queries(struct job *job, int task, struct workspace *w) {
    if (w->packed_task == task) return;
    const struct strip *s = strip_of(job, task);
    const int dim = job->cache->key_dim;
    const float *rows[ATTENTION_ROWS];
    for (int r = 0; r < s->rows; r += ATTENTION_ROWS) {
        const int n = s->rows - r < ATTENTION_ROWS ? s->rows - r : ATTENTION_ROWS;
        for (int i = 0; i < n; i++) rows[i] = job->in->q + query_row(job, s, head_of(job, task), r + i) * dim;
        if (!kernels->attention_pack(w->packed + r * dim, rows, n, dim, job->in->scale)) note(job, FAULT_QUERY);
    }
    w->packed_task = task;
}

/* Keys of the block that is likely to come next: the task's, or the first of the task `then`, which may be the same. */
static const uint8_t *keys_after(const struct job *job, int task, int block, int then) {
    const struct strip *s = strip_of(job, task), *next = strip_of(job, then);
    if (block + 1 < s->first_block + s->blocks) return keys_of(job, s->token, head_of(job, task), block + 1);
    return keys_of(job, next->token, head_of(job, then), next->first_block);
}

/* Values that the task's strip sees in a block, from the keys: once for all its rows. */
static uint8_t *values_from_keys(const struct job *job, int task, int block, const struct workspace *w) {
    const struct strip *s = strip_of(job, task);
    const int start = job->batch->position[s->token], base = block * ATTENTION_SPLIT;
    int first = first_key(job, start + s->from / job->group) - base;
    int last = start + (s->from + s->rows - 1) / job->group + 1 - base;
    if (first < 0) first = 0;
    if (last > ATTENTION_SPLIT) last = ATTENTION_SPLIT;
    kernels->kv_values[job->cache->type](w->values, keys_of(job, s->token, head_of(job, task), block), job->cache->key_dim,
                                         job->cache->value_dim, first / 16, (last + 15) / 16);
    return w->values;
}

/* Rows r.. (at most ATTENTION_ROWS) of the task's strip against one block; the first rows come first. */
static void one_part(struct job *job, int task, int block, int r, int then, float *out, float *max, float *sum,
                     struct workspace *w) {
    const struct strip *s = strip_of(job, task);
    const struct cache *c = job->cache;
    const int start = job->batch->position[s->token], base = block * ATTENTION_SPLIT;
    int first[ATTENTION_ROWS], last[ATTENTION_ROWS];
    const int rows = s->rows - r < ATTENTION_ROWS ? s->rows - r : ATTENTION_ROWS;
    for (int i = 0; i < rows; i++) {
        const int position = start + (s->from + r + i) / job->group;
        first[i] = first_key(job, position) - base;
        last[i] = position + 1 - base;
        if (first[i] < 0) first[i] = 0;
        if (last[i] > ATTENTION_SPLIT) last[i] = ATTENTION_SPLIT;
        if (first[i] >= last[i]) first[i] = last[i] = 0;
    }
    const uint8_t *next = r ? NULL : keys_after(job, task, block, then); /* the first rows of a strip fetch for all */
    uint8_t *values = values_of(job, s->token, head_of(job, task), block);
    if (!values) values = r ? w->values : values_from_keys(job, task, block, w);
    const struct attention_part part = {keys_of(job, s->token, head_of(job, task), block),
                                        values,
                                        c->key_dim,
                                        c->value_dim,
                                        rows,
                                        w->packed + r * c->key_dim,
                                        first,
                                        last,
                                        next,
                                        out,
                                        max,
                                        sum};
    if (!kernels->attention_part[c->type](&part, w->scores)) note(job, FAULT_SCORE);
}

static void start_merging(const struct strip *s, struct workspace *w) {
    for (int r = 0; r < s->rows; r++) w->max[r] = -__builtin_inff(), w->sum[r] = 0.0f;
}

static void merge_row(const struct job *job, struct workspace *w, int r, const float *out, float max, float sum) {
    kernels->attention_merge(w->acc + r * job->stride, w->max + r, w->sum + r, out, max, sum, job->stride);
}

static void write_rows(struct job *job, int task, const struct workspace *w) {
    const struct strip *s = strip_of(job, task);
    for (int r = 0; r < s->rows; r++) {
        const int64_t row = query_row(job, s, head_of(job, task), r);
        const float *sink = job->in->sinks ? job->in->sinks + row % job->in->heads : NULL;
        if (!kernels->attention_finish(job->out + row * job->cache->value_dim, w->acc + r * job->stride, w->max[r],
                                       w->sum[r], sink, job->cache->value_dim))
            note(job, FAULT_SUM);
    }
}

/* ---- whole tasks ---- */

static void do_task(struct job *job, int task, int then, struct workspace *w) {
    const struct strip *s = strip_of(job, task);
    if (!job->store_first) store(job, s->token, 1, head_of(job, task));
    pack_queries(job, task, w);
    start_merging(s, w);
    for (int b = 0; b < s->blocks; b++)
        for (int r = 0; r < s->rows; r += ATTENTION_ROWS) {
            one_part(job, task, s->first_block + b, r, then, w->part, w->part_max, w->part_sum, w);
            for (int i = 0; i < ATTENTION_ROWS && r + i < s->rows; i++)
                merge_row(job, w, r + i, w->part + i * job->stride, w->part_max[i], w->part_sum[i]);
        }
    write_rows(job, task, w);
}

static void do_tasks(void *context, int thread, int threads) {
    (void)threads;
    struct job *job = context;
    struct workspace w = workspace_of(job, thread);
    for (struct items t; pool_take(thread, 1, &t);) { /* the longest first */
        const int next = pool_peek(thread);
        do_task(job, job->tasks - 1 - t.first, job->tasks - 1 - (next < 0 ? t.first : next), &w);
    }
}

/* ---- tasks split into blocks ---- */

static float *part_of(const struct job *job, int unit) { return job->parts + (size_t)unit * job->part_floats; }

static void merge_units(struct job *job, int task, struct workspace *w) {
    const struct strip *s = strip_of(job, task);
    start_merging(s, w);
    for (int unit = job->first_unit[task]; unit < job->first_unit[task + 1]; unit++) {
        const float *out = part_of(job, unit), *max = out + s->rows * job->stride, *sum = max + s->rows;
        for (int r = 0; r < s->rows; r++) merge_row(job, w, r, out + r * job->stride, max[r], sum[r]);
    }
    write_rows(job, task, w);
}

static void do_unit(struct job *job, int task, int unit, struct workspace *w) {
    const struct strip *s = strip_of(job, task);
    float *out = part_of(job, unit), *max = out + s->rows * job->stride, *sum = max + s->rows;
    pack_queries(job, task, w);
    for (int r = 0; r < s->rows; r += ATTENTION_ROWS)
        one_part(job, task, s->first_block + unit - job->first_unit[task], r, task + 1 < job->tasks ? task + 1 : task,
                 out + r * job->stride, max + r, sum + r, w);
}

static void do_units(void *context, int thread, int threads) {
    struct job *job = context;
    struct workspace w = workspace_of(job, thread);
    const int run = 1 + job->units / (8 * threads); /* neighbours, so that what was fetched ahead is used */
    int task = 0;
    for (struct items units; pool_take(thread, run, &units);)
        for (int unit = units.first; unit < units.last; unit++) {
            while (unit < job->first_unit[task]) task--;
            while (unit >= job->first_unit[task + 1]) task++;
            do_unit(job, task, unit, &w);
            if (atomic_fetch_sub(&job->left[task], 1) == 1) merge_units(job, task, &w);
        }
}

/* ---- the region ---- */

/* Units of all tasks, 0 when there are tasks enough without. */
static int count_units(const struct job *job, int threads) {
    const int units = job->blocks * job->cache->kv_heads;
    return threads > 1 && job->tasks < TASKS_A_THREAD * threads && units > job->tasks ? units : 0;
}

static void number_units(struct job *job) {
    job->first_unit[0] = 0;
    for (int t = 0; t < job->tasks; t++) {
        job->first_unit[t + 1] = job->first_unit[t] + strip_of(job, t)->blocks;
        atomic_init(&job->left[t], strip_of(job, t)->blocks);
    }
}

static int64_t products(const struct job *job) {
    return job->row_blocks * job->cache->kv_heads * ATTENTION_SPLIT * (job->cache->key_dim + job->cache->value_dim);
}

/* Places everything from `scratch` on; returns the bytes it takes. */
static size_t place(struct job *job, int threads, uint8_t *scratch) {
    uint8_t *begin = scratch;
    job->strips = take_scratch(&scratch, (size_t)job->strip_count * sizeof(struct strip));
    job->first_unit = take_scratch(&scratch, ((size_t)job->tasks + 1) * sizeof(int));
    job->left = take_scratch(&scratch, (size_t)job->tasks * sizeof(int));
    job->parts = take_scratch(&scratch, (size_t)job->units * job->part_floats * sizeof(float));
    job->thread_scratch = take_scratch(&scratch, (size_t)threads * job->thread_floats * sizeof(float));
    return (size_t)(scratch - begin);
}

static bool lay_out(struct job *job, int threads) {
    make_strips(job);
    job->tasks = job->strip_count * job->cache->kv_heads;
    job->units = count_units(job, threads);
    job->part_floats = ((size_t)job->most_rows * (size_t)(job->stride + 2) + 15) / 16 * 16;
    job->thread_floats = workspace_floats(job);
    uint8_t *scratch = pool_scratch(place(job, threads, NULL));
    if (!scratch) return false;
    place(job, threads, scratch);
    make_strips(job);
    if (job->units) number_units(job);
    return true;
}

/* Whether no row sees another, and each is one strip. */
static bool all_alone(const struct job *job) {
    const struct batch *b = job->batch;
    bool alone = b->groups == b->n && job->group <= STRIP;
    for (int row = 1; alone && row < b->n; row++) alone = b->sequence[row] > b->sequence[row - 1];
    return alone;
}

static void run(struct job *job) {
    job->store_first = job->units || !all_alone(job);
    if (job->store_first) store_all(job);
    const bool alone = products(job) < SMALL;
    if (job->units && !alone) pool_share(do_units, job, job->units, false);
    else pool_share(do_tasks, job, job->tasks, alone);
}

int region_attention(float *out, const struct attention_input *in, const struct cache *cache, const struct batch *batch) {
    if (!batch->n) return 0;
    struct job job = {.cache = cache,
                      .batch = batch,
                      .in = in,
                      .out = out,
                      .group = in->heads / cache->kv_heads,
                      .stride = (cache->value_dim + 15) / 16 * 16};
    pool_lock();
    const bool fits = lay_out(&job, pool_threads());
    if (fits) run(&job);
    pool_unlock();
    return fits ? atomic_load(&job.faults) : REGION_NO_MEMORY;
}
