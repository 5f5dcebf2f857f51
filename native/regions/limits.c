/* The machine's limits, measured with all threads of the pool. */
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "kernels.h"
#include "pool.h"
#include "regions.h"

enum { PART = 1 << 20, ROUNDS = 1 << 20, HANDOVERS = 1000 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct read_job { const uint8_t *data; int parts; atomic_int sum; };

static void read_parts(void *context, int thread, int threads) {
    (void)threads;
    struct read_job *job = context;
    for (struct items parts; pool_take(thread, 1, &parts);)
        atomic_fetch_add(&job->sum, kernels->read_all(job->data + (size_t)parts.first * PART, PART));
}

/* Every thread makes its pages, where first touch places them. */
static void fill_parts(void *context, int thread, int threads) {
    struct read_job *job = context;
    const size_t first = (size_t)job->parts * (size_t)thread / (size_t)threads;
    const size_t last = (size_t)job->parts * (size_t)(thread + 1) / (size_t)threads;
    memset((uint8_t *)job->data + first * PART, thread + 1, (last - first) * PART);
}

int region_measure_read(void *data, size_t bytes, double seconds, double *rates, int most) {
    struct read_job job = {.data = data, .parts = (int)(bytes / PART)};
    pool_lock();
    pool_run(fill_parts, &job);
    int count = 0;
    for (const double end = now() + seconds; count < most && (count == 0 || now() < end);) {
        const double start = now();
        pool_share(read_parts, &job, job.parts, false);
        rates[count++] = (double)job.parts * PART / (now() - start);
    }
    pool_unlock();
    return count;
}

struct dot_job { atomic_int sum; };

static void dot_all(void *context, int thread, int threads) {
    (void)thread, (void)threads;
    atomic_fetch_add(&((struct dot_job *)context)->sum, kernels->dot_rounds(ROUNDS));
}

int region_measure_dot(double seconds, double *rates, int most) {
    struct dot_job job = {0};
    pool_lock();
    int count = 0;
    for (const double end = now() + seconds; count < most && (count == 0 || now() < end);) {
        const double start = now();
        pool_run(dot_all, &job);
        rates[count++] = (double)pool_threads() * ROUNDS * kernels->dot_round_products / (now() - start);
    }
    pool_unlock();
    return count;
}

static void nothing(void *context, int thread, int threads) { (void)context, (void)thread, (void)threads; }

int region_measure_handover(double seconds, double *times, int most) {
    pool_lock();
    int count = 0;
    for (const double end = now() + seconds; count < most && (count == 0 || now() < end);) {
        const double start = now();
        for (int i = 0; i < HANDOVERS; i++) pool_run(nothing, NULL);
        times[count++] = (now() - start) / HANDOVERS;
    }
    pool_unlock();
    return count;
}
