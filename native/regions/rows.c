/* Ops on rows. Short ones stay on the caller's thread: a region costs about as much as 10,000 values. */
#include <stdatomic.h>

#include "kernels.h"
#include "pool.h"
#include "regions.h"

enum { SMALL = 16384, MOST_EXPERTS_HERE = 1024, CAP_PART = 4096 };

typedef bool rows_function(const void *job, int first, int last, int thread); /* false: a row is not finite */
struct rows {
    rows_function *body;
    const void *job;
    int step;
    atomic_bool bad;
};

static void run_rows(void *context, int thread, int threads) {
    (void)threads;
    struct rows *r = context;
    for (struct items rows; pool_take(thread, r->step, &rows);)
        if (!r->body(r->job, rows.first, rows.last, thread)) atomic_store(&r->bad, true);
}

/* body(job, first, last, thread) over rows 0..n, each of about `values` values; whether all are finite. */
static bool over_rows(rows_function *body, const void *job, int n, int64_t values) {
    if (n < 2 || n * values <= SMALL) return body(job, 0, n, 0);
    pool_lock();
    struct rows rows = {.body = body, .job = job, .step = n / (4 * pool_threads()) + 1};
    pool_share(run_rows, &rows, n, false);
    pool_unlock();
    return !rows.bad;
}

struct norm_job { float *out; const float *x, *weight, *bias; int dim; float eps; };

static bool norm_rows(const void *context, int first, int last, int thread) {
    (void)thread;
    const struct norm_job *job = context;
    bool good = true;
    for (int64_t i = first; i < last; i++) {
        float *out = job->out + i * job->dim;
        const float *x = job->x + i * job->dim;
        good &= job->bias ? kernels->layer_norm(out, x, job->weight, job->bias, job->dim, job->eps)
                          : kernels->rms_norm(out, x, job->weight, job->dim, job->eps);
    }
    return good;
}

bool region_norm(float *out, const float *x, const float *weight, const float *bias, int n, int dim, float eps) {
    const struct norm_job job = {out, x, weight, bias, dim, eps};
    return over_rows(norm_rows, &job, n, dim);
}

struct clip_job { float *x; int dim; float limit; };

static bool clip_rows(const void *context, int first, int last, int thread) {
    (void)thread;
    const struct clip_job *job = context;
    const int64_t from = (int64_t)first * job->dim, to = (int64_t)last * job->dim;
    const bool good = kernels->finite(job->x + from, to - from);
    for (int64_t i = from; i < to; i++)
        job->x[i] = job->x[i] < -job->limit ? -job->limit : job->x[i] > job->limit ? job->limit : job->x[i];
    return good;
}

bool region_clip(float *x, int n, int dim, float limit) {
    const struct clip_job job = {x, dim, limit};
    return over_rows(clip_rows, &job, n, dim);
}

struct gate_job { float *out; const float *gate; int dim; };

static bool gate_rows(const void *context, int first, int last, int thread) {
    (void)thread;
    const struct gate_job *job = context;
    const int64_t from = (int64_t)first * job->dim, to = (int64_t)last * job->dim;
    for (int64_t i = first; i < last; i++)
        kernels->sigmoid_gate(job->out + i * job->dim, job->gate + i * job->dim, job->dim);
    return kernels->finite(job->gate + from, to - from);
}

bool region_sigmoid_gate(float *out, const float *gate, int n, int dim) {
    const struct gate_job job = {out, gate, dim};
    return over_rows(gate_rows, &job, n, 2 * (int64_t)dim);
}

struct cap_job { float *x; float cap; int64_t values; };

static bool cap_parts(const void *context, int first, int last, int thread) {
    (void)thread;
    const struct cap_job *job = context;
    for (int64_t i = first; i < last; i++) {
        const int64_t left = job->values - i * CAP_PART;
        kernels->soft_cap(job->x + i * CAP_PART, job->cap, left < CAP_PART ? (int)left : CAP_PART);
    }
    return true;
}

void region_soft_cap(float *x, float cap, int64_t values) {
    const struct cap_job job = {x, cap, values};
    over_rows(cap_parts, &job, (int)((values + CAP_PART - 1) / CAP_PART), CAP_PART);
}

struct embed_job { float *out; const struct matrix *table; const int32_t *ids; };

static bool embed_rows(const void *context, int first, int last, int thread) {
    (void)thread;
    const struct embed_job *job = context;
    for (int64_t i = first; i < last; i++)
        kernels->untile_row[job->table->type](job->out + i * job->table->k, job->table->tiles, job->ids[i],
                                              job->table->k);
    return true;
}

void region_embed(float *out, const struct matrix *table, const int32_t *ids, int n) {
    struct embed_job job = {out, table, ids};
    over_rows(embed_rows, &job, n, table->k);
}

struct combine_job { float *out; const float *slots, *weights; int k, hidden; };

static bool combine_rows(const void *context, int first, int last, int thread) {
    (void)thread;
    const struct combine_job *job = context;
    for (int64_t i = first; i < last; i++)
        for (int64_t slot = i * job->k; slot < (i + 1) * job->k; slot++)
            kernels->scale_add(job->out + i * job->hidden, job->slots + slot * job->hidden, job->weights[slot],
                               job->hidden);
    return true;
}

void region_combine(float *out, const float *slots, const float *weights, int n, int k, int hidden) {
    struct combine_job job = {out, slots, weights, k, hidden};
    over_rows(combine_rows, &job, n, (int64_t)k * hidden);
}

struct router_job { int32_t *ids; float *weights; const float *logits; const struct routing *routing; float *scratch; };

static bool router_rows(const void *context, int first, int last, int thread) {
    const struct router_job *job = context;
    const int k = job->routing->k, experts = job->routing->experts;
    float *scratch = job->scratch + (size_t)thread * ROUTER_SCRATCH(experts);
    bool good = true;
    for (int64_t i = first; i < last; i++)
        good &=
            kernels->router(job->ids + i * k, job->weights + i * k, job->logits + i * experts, job->routing, scratch);
    return good;
}

/* A few tokens are routed without the pool, so that they do not wait for a region of another caller. */
static int router_here(struct router_job *job, int n) {
    float scratch[ROUTER_SCRATCH(MOST_EXPERTS_HERE)];
    job->scratch = scratch;
    return router_rows(job, 0, n, 0) ? 0 : REGION_NOT_FINITE;
}

int region_router(int32_t *ids, float *weights, const float *logits, int n, const struct routing *routing) {
    const int64_t values = (int64_t)routing->experts * (1 + routing->k / 4);
    struct router_job job = {ids, weights, logits, routing, NULL};
    if (n * values <= SMALL && routing->experts <= MOST_EXPERTS_HERE) return router_here(&job, n);
    pool_lock();
    job.scratch = pool_scratch((size_t)pool_threads() * ROUTER_SCRATCH(routing->experts) * sizeof(float));
    const bool good = job.scratch && over_rows(router_rows, &job, n, values);
    pool_unlock();
    return good ? 0 : job.scratch ? REGION_NOT_FINITE : REGION_NO_MEMORY;
}
