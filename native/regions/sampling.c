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
    int n, vocabulary;
    atomic_int next;
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

/* ---- filters: tokens by falling logit, the lower id first among equals ---- */

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

/* Four buckets for each power of two. */
static int bucket_of(float weight) {
    uint32_t bits;
    memcpy(&bits, &weight, sizeof bits);
    return (int)(bits >> 21);
}

/* A weight below which the filters let nothing in: the likeliest buckets that are enough, and one more, since rounding may
 * put a token into its neighbour's. */
static float least_weight(const struct scratch *s, int n, const struct sampling *how, double whole) {
    if (!how->top_k && how->top_p >= 1) return (float)how->min_p;
    int counts[BUCKETS] = {0}, bucket = BUCKETS - 1;
    double sums[BUCKETS] = {0}, sum = 0, count = 0;
    for (int i = 0; i < n; i++) {
        const int b = bucket_of(s->weights[i]) & (BUCKETS - 1); /* beyond 1 there are only NaNs */
        counts[b]++;
        sums[b] += (double)s->weights[i];
    }
    for (; bucket > 1; bucket--) {
        count += counts[bucket], sum += sums[bucket];
        if (how->top_k ? count >= how->top_k : sum >= how->top_p * whole) break;
    }
    const uint32_t bits = (uint32_t)(bucket - 1) << 21;
    float least;
    memcpy(&least, &bits, sizeof least);
    least = fminf(least, 1); /* the weight of the likeliest */
    return how->top_k ? least : fmaxf(least, (float)how->min_p);
}

/* A heap of the tokens that the filters may let in. */
static int candidates(const struct scratch *s, const float *x, int n, float least) {
    int count = 0;
    for (int i = 0; i < n; i++)
        if (s->weights[i] > 0 && s->weights[i] >= least) s->heap[count++] = i;
    for (int at = count / 2 - 1; at >= 0; at--) sift(s->heap, count, at, x);
    return count;
}

/* top_k, then top_p of what that leaves, then min_p; the likeliest token always stays. */
static int draw_filtered(const struct scratch *s, const float *x, int n, const struct sampling *how) {
    double whole = sum_of(s->parts, part_count(n)), sum = 0;
    const int count = candidates(s, x, n, least_weight(s, n, how, whole));
    const int most = how->top_k && how->top_k < count ? (int)how->top_k : count;
    int kept = 0, left = count;
    while (kept < most && (how->top_k || !kept || sum < how->top_p * whole)) {
        const int32_t token = s->heap[0];
        s->heap[0] = s->heap[--left];
        sift(s->heap, left, 0, x);
        s->heap[count - ++kept] = token; /* from the end: the likeliest, the second, ... */
        sum += (double)s->weights[token];
    }
    if (how->top_k) whole = sum;
    sum = 0;
    int stays = 0;
    for (; stays < kept && (!stays || sum < how->top_p * whole); stays++) {
        const double weight = (double)s->weights[s->heap[count - 1 - stays]];
        if (stays && weight < how->min_p) break;
        sum += weight;
    }
    const double goal = how->uniform * sum;
    double before = 0;
    int place = 0;
    for (; place < stays - 1; place++)
        if ((before += (double)s->weights[s->heap[count - 1 - place]]) > goal) break;
    return s->heap[count - 1 - place];
}

/* ---- rows ---- */

static int choose(const struct scratch *s, const float *x, int n, const struct sampling *how, int likeliest) {
    if (how->temperature <= 0 || !isfinite(x[likeliest])) return likeliest;
    const float temperature = (float)fmin(fmax(how->temperature, LEAST_TEMPERATURE), FLT_MAX);
    kernels->exponentials(s->weights, s->parts, x, x[likeliest], temperature, n);
    if (how->top_k || how->top_p < 1 || how->min_p > 0) return draw_filtered(s, x, n, how);
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
    for (int row; (row = pool_next(&job->next)) < job->n;) {
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
    struct sample_job job = {tokens, norms, logits, settings, NULL, (bytes + 63) / 64 * 64, n, vocabulary, 0};
    pool_lock();
    job.scratch = pool_scratch((size_t)pool_threads() * job.scratch_bytes);
    if (job.scratch && n > 1 && (int64_t)n * vocabulary > SMALL) pool_share(sample_rows, &job);
    else if (job.scratch) sample_rows(&job, 0, 1);
    pool_unlock();
    return job.scratch ? 0 : REGION_NO_MEMORY;
}
