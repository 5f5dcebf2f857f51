/* Ops on rows. Short ones stay on the caller's thread: a region costs about as much as 10,000 values. */
#include "kernels.h"
#include "pool.h"
#include "regions.h"

enum { SMALL = 16384, ROUTER_SCRATCH = 8192 };

struct rows {
    void (*body)(const void *job, int first, int last);
    const void *job;
    int n;
};

static void run_rows(void *context, int thread, int threads) {
    const struct rows *r = context;
    const int first = (int)((int64_t)r->n * thread / threads), last = (int)((int64_t)r->n * (thread + 1) / threads);
    if (first < last) r->body(r->job, first, last);
}

/* body(job, first, last) over rows 0..n, each of about `values` values. */
static void over_rows(void (*body)(const void *, int, int), const void *job, int n, int64_t values) {
    struct rows rows = {body, job, n};
    if (n > 1 && n * values > SMALL) pool_run(run_rows, &rows);
    else body(job, 0, n);
}

struct norm_job { float *out; const float *x, *weight; int dim; float eps; bool *bad; };

static void norm_rows(const void *context, int first, int last) {
    const struct norm_job *job = context;
    bool good = true;
    for (int64_t i = first; i < last; i++)
        good &= kernels->rms_norm(job->out + i * job->dim, job->x + i * job->dim, job->weight, job->dim, job->eps);
    if (!good) __atomic_store_n(job->bad, true, __ATOMIC_RELAXED);
}

bool region_norm(float *out, const float *x, const float *weight, int n, int dim, float eps) {
    bool bad = false;
    struct norm_job job = {out, x, weight, dim, eps, &bad};
    over_rows(norm_rows, &job, n, dim);
    return !bad;
}

struct rope_job { float *x; const float *cosine, *sine; int heads, head_dim, rotary; const struct batch *batch; };

static void rope_rows(const void *context, int first, int last) {
    const struct rope_job *job = context;
    for (int64_t i = first; i < last; i++) {
        const int64_t at = (int64_t)job->batch->position[i] * (job->rotary / 2);
        for (int h = 0; h < job->heads; h++)
            kernels->rope(job->x + (i * job->heads + h) * job->head_dim, job->cosine + at, job->sine + at, job->rotary);
    }
}

void region_rope(float *x, int heads, int head_dim, const float *cosine, const float *sine, int rotary,
                 const struct batch *batch) {
    struct rope_job job = {x, cosine, sine, heads, head_dim, rotary, batch};
    over_rows(rope_rows, &job, batch->n, (int64_t)heads * head_dim);
}

struct embed_job { float *out; const struct matrix *table; const int32_t *ids; };

static void embed_rows(const void *context, int first, int last) {
    const struct embed_job *job = context;
    for (int64_t i = first; i < last; i++)
        kernels->untile_row[job->table->type](job->out + i * job->table->k, job->table->tiles, job->ids[i], job->table->k);
}

void region_embed(float *out, const struct matrix *table, const int32_t *ids, int n) {
    struct embed_job job = {out, table, ids};
    over_rows(embed_rows, &job, n, table->k);
}

struct combine_job { float *out; const float *slots, *weights; int k, hidden; };

static void combine_rows(const void *context, int first, int last) {
    const struct combine_job *job = context;
    for (int64_t i = first; i < last; i++)
        for (int64_t slot = i * job->k; slot < (i + 1) * job->k; slot++)
            kernels->scale_add(job->out + i * job->hidden, job->slots + slot * job->hidden, job->weights[slot], job->hidden);
}

void region_combine(float *out, const float *slots, const float *weights, int n, int k, int hidden) {
    struct combine_job job = {out, slots, weights, k, hidden};
    over_rows(combine_rows, &job, n, (int64_t)k * hidden);
}
