/* The next tokens of several sequences, each row of logits by one thread. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "pool.h"
#include "regions.h"

enum { SMALL = 8192, BUCKETS = 512 };
#define LEAST_TEMPERATURE 1e-30

struct scratch { double *parts; float *weights; int32_t *heap; }; /* (parts), (vocabulary), (vocabulary) */

struct sample_job {
    int32_t *tokens;
    double *norms;
    const float *logits;
    const struct sampling *settings;
    uint8_t *scratch;
    size_t scratch_bytes; /* of one thread */
    int vocabulary;
};

static int part_count(int vocabulary) { return (vocabulary + SAMPLING_PART - 1) / SAMPLING_PART; }

static double sum_of(const double *parts, int count) {
    double sum = 0;
    for (int p = 0; p < count; p++) sum += parts[p];
    return sum;
}

/* Where the running sum of all weights passes `goal`, by the sums of their parts; rounding may lead past the end, and
 * then it is the last token that weighs anything. */
static int passes(const float *weights, int n, const double *parts, double goal) {
    double before = 0, start = 0;
    int part = 0, place = 0;
    for (int p = 0; p < part_count(n) && before <= goal; p++) {
        if (parts[p] <= 0) continue;
        part = p, start = before;
        before += parts[p];
    }
    before = start;
    for (int i = part * SAMPLING_PART; i < n && i < (part + 1) * SAMPLING_PART && before <= goal; i++) {
        if (weights[i] <= 0) continue;
        place = i;
        before += (double)weights[i];
    }
    return place;
}

/* ---- filters: they make the weights of the tokens zero that they leave out ---- */

/* The order of tokens: by falling logit, the lower id first among equals. */
static bool likelier(const float *x, int32_t a, int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); }

/* Puts the token at `at` where it belongs below; what lies below is a heap with the likeliest on top. */
static void sift(int32_t *heap, int count, int at, const float *x) {
    const int32_t token = heap[at];
    for (int child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && likelier(x, heap[child + 1], heap[child])) child++;
        if (!likelier(x, heap[child], token)) break;
        heap[at] = heap[child];
    }
    heap[at] = token;
}

/* Four buckets for each power of two up to 1; beyond that there are only NaNs. */
static int bucket_of(float weight) {
    uint32_t bits;
    memcpy(&bits, &weight, sizeof bits);
    return (int)(bits >> 21) & (BUCKETS - 1);
}

/* Leaves out what comes after the likeliest tokens that are `most_count`, or weigh `most_sum`. Only those of one bucket,
 * in which the limit is, have to be put in order. */
static void cut(const struct scratch *s, const float *x, int n, double most_count, double most_sum) {
    int counts[BUCKETS] = {0}, last = BUCKETS - 1, left = 0;
    double sums[BUCKETS] = {0}, count = 0, sum = 0;
    for (int i = 0; i < n; i++) {
        const int bucket = bucket_of(s->weights[i]);
        counts[bucket]++;
        sums[bucket] += (double)s->weights[i];
    }
    while (last && count + counts[last] < most_count && sum + sums[last] < most_sum) {
        count += counts[last];
        sum += sums[last--];
    }
    for (int i = 0; i < n; i++) {
        const int bucket = bucket_of(s->weights[i]);
        if (bucket == last) s->heap[left++] = i;
        s->weights[i] = bucket < last ? 0 : s->weights[i];
    }
    for (int at = left / 2 - 1; at >= 0; at--) sift(s->heap, left, at, x);
    while (left && count < most_count && sum < most_sum) {
        count++;
        sum += (double)s->weights[s->heap[0]];
        s->heap[0] = s->heap[--left];
        sift(s->heap, left, 0, x);
    }
    for (int i = 0; i < left; i++) s->weights[s->heap[i]] = 0;
}

static double sum_parts(const struct scratch *s, int n) {
    for (int p = 0; p < part_count(n); p++) {
        s->parts[p] = 0;
        for (int i = p * SAMPLING_PART; i < n && i < (p + 1) * SAMPLING_PART; i++) s->parts[p] += (double)s->weights[i];
    }
    return sum_of(s->parts, part_count(n));
}

/* top_k, then top_p of what that leaves, then min_p; the likeliest token always stays. */
static void filter(const struct scratch *s, const float *x, int n, const struct sampling *how) {
    if (how->top_k) cut(s, x, n, how->top_k, INFINITY);
    if (how->top_p < 1) cut(s, x, n, INFINITY, how->top_p * sum_parts(s, n));
    for (int i = 0; i < n; i++) s->weights[i] = (double)s->weights[i] < how->min_p ? 0 : s->weights[i];
    sum_parts(s, n);
}

/* ---- rows ---- */

static int choose(const struct scratch *s, const float *x, int n, const struct sampling *how, int likeliest) {
    if (how->temperature <= 0 || !isfinite(x[likeliest])) return likeliest;
    const float temperature = (float)fmin(fmax(how->temperature, LEAST_TEMPERATURE), FLT_MAX);
    kernels->exponentials(s->weights, s->parts, x, x[likeliest], temperature, n);
    if (how->top_k || how->top_p < 1 || how->min_p > 0) filter(s, x, n, how);
    return passes(s->weights, n, s->parts, how->uniform * sum_of(s->parts, part_count(n)));
}

static struct scratch scratch_of(uint8_t *memory, int vocabulary) {
    double *parts = (double *)memory;
    float *weights = (float *)(parts + part_count(vocabulary));
    return (struct scratch){parts, weights, (int32_t *)(weights + vocabulary)};
}

static void sample_rows(void *context, int thread, int threads) {
    (void)threads;
    struct sample_job *job = context;
    const int n = job->vocabulary;
    const struct scratch s = scratch_of(job->scratch + (size_t)thread * job->scratch_bytes, n);
    for (struct items rows; pool_take(thread, 1, &rows);) {
        const int row = rows.first;
        const float *x = job->logits + (size_t)row * (size_t)n;
        const int likeliest = kernels->argmax(x, n);
        kernels->exponentials(NULL, s.parts, x, x[likeliest], 1.0f, n);
        job->norms[row] = kernels->finite(x, n) ? (double)x[likeliest] + log(sum_of(s.parts, part_count(n))) : NAN;
        job->tokens[row] = choose(&s, x, n, &job->settings[row], likeliest);
    }
}

int region_sample(int32_t *tokens, double *norms, const float *logits, int n, int vocabulary,
                  const struct sampling *settings) {
    const size_t bytes = (size_t)part_count(vocabulary) * sizeof(double) + (size_t)vocabulary * (sizeof(float) + sizeof(int32_t));
    struct sample_job job = {tokens, norms, logits, settings, NULL, (bytes + 63) / 64 * 64, vocabulary};
    pool_lock();
    job.scratch = pool_scratch((size_t)pool_threads() * job.scratch_bytes);
    if (job.scratch) pool_share(sample_rows, &job, n, n == 1 || (int64_t)n * vocabulary <= SMALL);
    pool_unlock();
    return job.scratch ? 0 : REGION_NO_MEMORY;
}
