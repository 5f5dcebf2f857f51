/* Recurrent mixers: runs of rows times heads (or parts of their values), channels, or groups of a norm over the pool. Every
 * item has its own part of the states, so that none waits for another. */
#include <stdatomic.h>
#include <string.h>

#include "kernels.h"
#include "pool.h"
#include "regions.h"

enum { SMALL = 32768 /* numbers that cost less than a region */, CHANNELS = 512, ITEMS_A_THREAD = 2 };

static int run_rows(const struct batch *b, int group) { return b->group_first[group + 1] - b->group_first[group]; }

static bool begins(const struct batch *b, int group) { return b->position[b->group_first[group]] == 0; }

static size_t slot_of(const struct batch *b, int group) { return (size_t)b->slot[b->sequence[b->group_first[group]]]; }

static int smaller(int a, int b) { return a < b ? a : b; }

/* ---- the state of heads ---- */

struct recurrent_job {
    float *out, *state, *scratch; /* scratch (threads, RECURRENT_SCRATCH) */
    const struct recurrent_input *in;
    const struct recurrence *rule;
    const struct batch *batch;
    int blocks, parts; /* of a head */
    atomic_bool bad;
};

static int key_head(const struct recurrence *r, int head) {
    return r->tiled ? head % r->key_heads : head / (r->heads / r->key_heads);
}

static struct recurrent_rows rows_of(const struct recurrent_job *job, int group, int head, int part) {
    const struct recurrence *r = job->rule;
    const struct recurrent_input *in = job->in;
    const size_t row = (size_t)job->batch->group_first[group], key = (size_t)key_head(r, head) * (size_t)r->key_size;
    const size_t width = (size_t)r->heads * (size_t)r->value_size, value = (size_t)head * (size_t)r->value_size;
    const size_t gate = row * (size_t)r->heads + (size_t)head;
    const size_t block = (slot_of(job->batch, group) * (size_t)r->heads + (size_t)head) * (size_t)job->blocks;
    const int pairs = (job->blocks + 1) / 2;
    return (struct recurrent_rows){
        .key_size = r->key_size, .value_size = r->value_size,
        .first = 2 * (pairs * part / job->parts), .last = smaller(2 * (pairs * (part + 1) / job->parts), job->blocks),
        .q = in->q + row * in->row_step + key, .k = in->k + row * in->row_step + key,
        .v = in->v + row * in->row_step + value, .dt = in->dt + gate, .beta = in->beta ? in->beta + gate : NULL,
        .row_step = in->row_step, .gate_step = (size_t)r->heads, .out_step = width,
        .a = r->decay[head], .dt_bias = r->dt_bias[head], .skip = r->skip ? r->skip[head] : 0.0f,
        .least = r->least, .most = r->most, .eps = r->eps,
        .state = job->state + block * 16 * (size_t)r->key_size, .out = job->out + row * width + value};
}

static void advance(struct recurrent_rows *rows, int tokens) {
    const size_t n = (size_t)tokens;
    rows->q += n * rows->row_step, rows->k += n * rows->row_step, rows->v += n * rows->row_step;
    rows->dt += n * rows->gate_step, rows->beta += rows->beta ? n * rows->gate_step : 0;
    rows->out += n * rows->out_step;
}

static bool one_head(const struct recurrent_job *job, int item, float *scratch) {
    const int heads = job->rule->heads, group = item / job->parts / heads;
    struct recurrent_rows rows = rows_of(job, group, item / job->parts % heads, item % job->parts);
    const size_t block = 16 * (size_t)rows.key_size;
    if (begins(job->batch, group))
        memset(rows.state + (size_t)rows.first * block, 0, (size_t)(rows.last - rows.first) * block * sizeof(float));
    for (int left = run_rows(job->batch, group); left > 0; left -= rows.tokens) {
        rows.tokens = smaller(left, RECURRENT_TOKENS);
        if (!kernels->recurrent[job->rule->kind](&rows, scratch)) return false;
        advance(&rows, rows.tokens);
    }
    return true;
}

static void some_heads(void *context, int thread, int threads) {
    struct recurrent_job *job = context;
    float *scratch = job->scratch + (size_t)thread * RECURRENT_SCRATCH(job->rule->key_size);
    (void)threads;
    for (struct items items; pool_take(thread, 1, &items);)
        for (int item = items.first; item < items.last; item++)
            if (!one_head(job, item, scratch)) atomic_store(&job->bad, true);
}

/* Values of a head are computed in parts where heads are too few for the threads. */
static int parts_of(const struct recurrent_job *job, int threads) {
    const int heads = job->batch->groups * job->rule->heads;
    return smaller((job->blocks + 1) / 2, heads >= threads ? 1 : (ITEMS_A_THREAD * threads + heads - 1) / heads);
}

static int64_t products(const struct recurrent_job *job) {
    return (int64_t)job->batch->n * job->rule->heads * job->rule->key_size * job->blocks * 16;
}

int region_recurrent(float *out, const struct recurrent_input *in, float *state, const struct recurrence *rule,
                     const struct batch *batch) {
    struct recurrent_job job = {.out = out, .state = state, .in = in, .rule = rule, .batch = batch};
    if (!batch->n) return 0;
    job.blocks = (rule->value_size + 15) / 16;
    pool_lock();
    const int threads = pool_threads();
    job.parts = parts_of(&job, threads);
    job.scratch = pool_scratch((size_t)threads * RECURRENT_SCRATCH(rule->key_size) * sizeof(float));
    if (job.scratch) pool_share(some_heads, &job, batch->groups * rule->heads * job.parts, products(&job) < SMALL);
    pool_unlock();
    return !job.scratch ? REGION_NO_MEMORY : job.bad ? REGION_NOT_FINITE : 0;
}

/* ---- the short convolution ---- */

struct conv_job {
    float *out, *x, *state;
    const struct convolution *rule;
    const struct batch *batch;
    int parts; /* of the channels */
    atomic_bool bad;
};

/* Channels first..first+n of a run's inputs: those before it, then its own. */
struct channels { float *before, *rows; size_t before_step, row_step; int n; bool begins; };

static const float *input(const struct channels *c, int taps, int index) {
    static const float zeros[CHANNELS];
    if (index >= taps - 1) return c->rows + (size_t)(index - taps + 1) * c->row_step;
    return c->begins ? zeros : c->before + (size_t)index * c->before_step;
}

/* The last inputs; each comes from behind the place that it goes to. */
static void keep_inputs(const struct channels *c, int taps, int tokens) {
    for (int i = 0; i + 1 < taps; i++)
        memcpy(c->before + (size_t)i * c->before_step, input(c, taps, tokens + i), (size_t)c->n * sizeof(float));
}

static bool one_row(const struct conv_job *job, const struct channels *c, int first, int row, int token) {
    const struct convolution *r = job->rule;
    const float *rows[SHORT_CONV_TAPS];
    float *out = job->out + (size_t)row * (size_t)r->channels + first;
    for (int tap = 0; tap < r->taps; tap++) rows[tap] = input(c, r->taps, token + tap);
    const bool good = kernels->short_conv(out, rows, r->weight + first, (size_t)r->channels,
                                          r->bias ? r->bias + first : NULL, r->taps, c->n, r->silu);
    if (!r->gated) return good;
    kernels->multiply(out, out, rows[r->taps - 1] - r->channels, c->n);
    return good && kernels->finite(out, c->n);
}

static bool one_part(const struct conv_job *job, int item) {
    const struct convolution *r = job->rule;
    const int group = item / job->parts, first = item % job->parts * CHANNELS, start = job->batch->group_first[group];
    const int tokens = run_rows(job->batch, group);
    const size_t wide = (size_t)r->channels, width = r->gated ? 3 * wide : wide;
    const struct channels c = {
        .before = job->state + slot_of(job->batch, group) * (size_t)(r->taps - 1) * wide + first,
        .rows = job->x + (size_t)start * width + (r->gated ? 2 * wide : 0) + first,
        .before_step = wide, .row_step = width, .n = smaller(CHANNELS, r->channels - first),
        .begins = begins(job->batch, group)};
    bool good = true;
    for (int t = 0; t < tokens; t++) {
        float *x = c.rows + (size_t)t * width;
        if (r->gated) kernels->multiply(x, x, x - 2 * wide, c.n);
        good &= one_row(job, &c, first, start + t, t);
    }
    keep_inputs(&c, r->taps, tokens);
    return good;
}

static void some_channels(void *context, int thread, int threads) {
    struct conv_job *job = context;
    (void)threads;
    for (struct items items; pool_take(thread, 1, &items);)
        for (int item = items.first; item < items.last; item++)
            if (!one_part(job, item)) atomic_store(&job->bad, true);
}

int region_short_conv(float *out, float *x, float *state, const struct convolution *rule, const struct batch *batch) {
    struct conv_job job = {.out = out, .x = x, .state = state, .rule = rule, .batch = batch};
    job.parts = (rule->channels + CHANNELS - 1) / CHANNELS;
    pool_lock();
    pool_share(some_channels, &job, batch->groups * job.parts, (int64_t)batch->n * rule->channels * rule->taps < SMALL / 4);
    pool_unlock();
    return job.bad ? REGION_NOT_FINITE : 0;
}

/* ---- the norm behind ---- */

struct norm_job {
    float *out;
    const float *x, *gate;
    const struct gated_norm *rule;
    atomic_bool bad;
};

static bool one_norm(const struct norm_job *job, int item) {
    const struct gated_norm *r = job->rule;
    const size_t at = (size_t)item * (size_t)r->size;
    const float *weight = r->weight + (size_t)(item % r->groups) * (size_t)r->weight_step;
    float *out = job->out + at;
    if (r->gate_first) {
        kernels->glu[GLU_SILU](out, job->gate + at, job->x + at, r->size, (struct glu_options){0});
        return kernels->rms_norm(out, out, weight, r->size, r->eps);
    }
    const bool good = kernels->rms_norm(out, job->x + at, weight, r->size, r->eps);
    kernels->glu[GLU_SILU](out, job->gate + at, out, r->size, (struct glu_options){0});
    return good && kernels->finite(out, r->size);
}

static void some_norms(void *context, int thread, int threads) {
    struct norm_job *job = context;
    (void)threads;
    for (struct items items; pool_take(thread, 8, &items);)
        for (int item = items.first; item < items.last; item++)
            if (!one_norm(job, item)) atomic_store(&job->bad, true);
}

bool region_gated_norm(float *out, const float *x, const float *gate, int n, const struct gated_norm *rule) {
    struct norm_job job = {.out = out, .x = x, .gate = gate, .rule = rule};
    pool_lock();
    pool_share(some_norms, &job, n * rule->groups, (int64_t)n * rule->groups * rule->size < SMALL / 4);
    pool_unlock();
    return !job.bad;
}
