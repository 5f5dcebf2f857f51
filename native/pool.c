/* Persistent threads that spin, then yield, then sleep.
 *
 * A region is published by changing `state`: the region's number, how many workers joined it, and whether it is open. A
 * worker that sees a new number joins, runs the function and reports back. pool_share closes the region as soon as the
 * caller has run out of work, so a worker that the system has not scheduled yet delays nobody: that keeps more threads
 * than processors, and two engines on one machine, from collapsing.
 *
 * What a worker does next follows from one look at `state`, stopping too: what is seen at two times may belong to two
 * regions. tests/helpers/pool_protocol.py states what follows step by step, and every order of the steps is tried. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Longer than the gaps inside a decode step, shorter than anyone notices. */
enum { SPIN_NS = 30000, YIELD_NS = 500000 };
enum { STACK_BYTES = 1 << 20 }; /* of a worker: the default of musl is 128 KiB, that of glibc follows the shell */
#define OPEN ((uint64_t)1)
#define STOP ((uint64_t)2)
#define JOIN ((uint64_t)4)
#define REGION ((uint64_t)1 << 32)

static struct {
    _Alignas(64) _Atomic uint64_t state; /* REGION * number + JOIN * workers that joined + STOP or OPEN */
    _Alignas(64) atomic_uint finished;   /* workers that reported back */
    _Alignas(64) atomic_int sleepers;
    atomic_bool caller_sleeps;
    unsigned first; /* the region before the first that the workers take part in */
    pool_function *function;
    void *context;
    int threads; /* asked for; workers are threads - 1 */
    int started; /* workers that run */
    int cpus;
    int caller_cpu; /* which the workers keep away from */
    bool oversubscribed;
    pthread_t worker[POOL_MAX_THREADS];
    pthread_mutex_t sleep_lock;
    pthread_cond_t wake, done;
    pthread_mutex_t lock; /* held for a region, with its scratch */
    uint8_t *scratch;
    size_t scratch_bytes;
    int poison; /* what scratch is filled with; -1: nothing */
} pool = {
    .poison = -1,
    .sleep_lock = PTHREAD_MUTEX_INITIALIZER,
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .wake = PTHREAD_COND_INITIALIZER,
    .done = PTHREAD_COND_INITIALIZER,
};
static _Thread_local int lock_depth;

/* ---- waiting -------------------------------------------------------------------------------------------------- */

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static unsigned region_number(void) { return (unsigned)(atomic_load(&pool.state) >> 32); }

static inline bool is_new_region(unsigned seen) { return region_number() != seen; }

static inline bool is_finished(unsigned joined) {
    return atomic_load_explicit(&pool.finished, memory_order_acquire) == joined;
}

/* Spins, then gives way to others, until ready(value). False: it lasts, so sleep. */
static inline bool wait_awake(bool (*ready)(unsigned), unsigned value) {
    int64_t start = now_ns();
    int64_t spin = pool.oversubscribed ? 0 : SPIN_NS, give_up = pool.oversubscribed ? SPIN_NS : YIELD_NS;
    for (;;) {
        for (int i = 0; i < 32; i++) {
            if (ready(value)) return true;
            relax();
        }
        int64_t waited = now_ns() - start;
        if (waited > give_up) return false;
        if (waited >= spin) sched_yield();
    }
}

static void sleep_until_new_region(unsigned seen) {
    pthread_mutex_lock(&pool.sleep_lock);
    atomic_fetch_add(&pool.sleepers, 1);
    while (region_number() == seen) pthread_cond_wait(&pool.wake, &pool.sleep_lock);
    atomic_fetch_sub(&pool.sleepers, 1);
    pthread_mutex_unlock(&pool.sleep_lock);
}

static void sleep_until_finished(unsigned joined) {
    pthread_mutex_lock(&pool.sleep_lock);
    atomic_exchange(&pool.caller_sleeps, true); /* not a store: emulators let what is loaded next pass one */
    while (atomic_load(&pool.finished) != joined) pthread_cond_wait(&pool.done, &pool.sleep_lock);
    atomic_store(&pool.caller_sleeps, false);
    pthread_mutex_unlock(&pool.sleep_lock);
}

/* ---- workers -------------------------------------------------------------------------------------------------- */

enum call { PASSED, JOINED, STOPPED };

/* What the latest region asks of a worker: nothing any more, to join, as it then has, or to end. */
static enum call answer(unsigned *seen) {
    uint64_t state = atomic_load(&pool.state);
    do {
        *seen = (unsigned)(state >> 32);
        if (state & STOP) return STOPPED;
        if (!(state & OPEN)) return PASSED;
    } while (!atomic_compare_exchange_weak(&pool.state, &state, state + JOIN));
    return JOINED;
}

static void report_back(void) {
    atomic_fetch_add(&pool.finished, 1);
    if (!atomic_load(&pool.caller_sleeps)) return;
    pthread_mutex_lock(&pool.sleep_lock);
    pthread_cond_signal(&pool.done);
    pthread_mutex_unlock(&pool.sleep_lock);
}

static void *work(void *argument) {
    int thread = (int)(intptr_t)argument;
    unsigned seen = pool.first;
    for (;;) {
        if (!wait_awake(is_new_region, seen)) sleep_until_new_region(seen);
        const enum call call = answer(&seen);
        if (call == STOPPED) return NULL;
        if (call == PASSED) continue;
        pool.function(pool.context, thread, pool.threads);
        report_back();
    }
}

/* The next region: OPEN, or STOP, which stays until the one after it. The number wraps after 2^32. */
static void publish(uint64_t what) {
    const uint64_t number = (uint64_t)(region_number() + 1) << 32;
    atomic_exchange(&pool.state, number | what); /* as above: before `sleepers` is looked at */
}

static void wake_sleepers(int wanted) {
    int sleepers = atomic_load(&pool.sleepers);
    if (!sleepers) return;
    pthread_mutex_lock(&pool.sleep_lock);
    if (wanted >= sleepers) pthread_cond_broadcast(&pool.wake);
    else
        for (int i = 0; i < wanted; i++) pthread_cond_signal(&pool.wake);
    pthread_mutex_unlock(&pool.sleep_lock);
}

/* A worker that has slept wakes up where it was or where the caller is, and the system may leave both on one processor for
 * many milliseconds while another idles. So the workers may run anywhere but where the caller does, if that leaves one
 * for each: a caller may be bound to a few, and processors taken from the process while it runs. */
static void keep_away(void) {
    const int cpu = sched_getcpu();
    if (cpu == pool.caller_cpu || pool.oversubscribed) return;
    pool.caller_cpu = cpu;
    cpu_set_t allowed;
    if (cpu < 0 || sched_getaffinity(0, sizeof allowed, &allowed)) return;
    CPU_CLR((size_t)cpu, &allowed);
    if (CPU_COUNT(&allowed) < pool.started) return;
    for (int i = 0; i < pool.started; i++) pthread_setaffinity_np(pool.worker[i], sizeof allowed, &allowed);
}

static void stop_workers(void) {
    publish(STOP);
    wake_sleepers(POOL_MAX_THREADS);
    for (int i = 0; i < pool.started; i++) pthread_join(pool.worker[i], NULL);
    pool.started = 0;
}

/* Those that do not run yet, before the work is divided: the system may refuse some. Signals stay with the threads that
 * Python knows. */
static void start_workers(void) {
    if (pool.started == pool.threads - 1) return;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pool.first = region_number();
    pool.caller_cpu = -1;
    while (pool.started < pool.threads - 1 &&
           !pthread_create(&pool.worker[pool.started], &attributes, work, (void *)(intptr_t)(pool.started + 1)))
        pool.started++;
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pool.threads = pool.started + 1;
}

/* ---- the life of the pool ------------------------------------------------------------------------------------- */

/* The child of a fork has no workers and whatever locks others held. */
static void after_fork(void) {
    pthread_mutex_init(&pool.lock, NULL);
    pthread_mutex_init(&pool.sleep_lock, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pthread_cond_init(&pool.done, NULL);
    atomic_store(&pool.state, 0);
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.caller_sleeps, false);
    pool.started = 0;
    lock_depth = 0;
}

__attribute__((constructor)) static void prepare(void) {
    pthread_atfork(NULL, NULL, after_fork);
    pool.threads = pool.cpus = 1;
}

/* A region that a daemon thread still runs at exit is left alone. */
__attribute__((destructor)) static void finish(void) {
    if (pthread_mutex_trylock(&pool.lock)) return;
    if (pool.started) stop_workers();
    pthread_mutex_unlock(&pool.lock);
}

void pool_lock(void) {
    if (!lock_depth++) pthread_mutex_lock(&pool.lock);
}

void pool_unlock(void) {
    if (!--lock_depth) pthread_mutex_unlock(&pool.lock);
}

int pool_threads(void) { return pool.threads; }

void pool_set_threads(int threads, int cpus) {
    pool_lock();
    if (pool.started) stop_workers();
    pool.threads = threads < 1 ? 1 : threads > POOL_MAX_THREADS ? POOL_MAX_THREADS : threads;
    pool.cpus = cpus;
    pool.oversubscribed = pool.threads > pool.cpus;
    pool_unlock();
}

static void *poisoned(void) {
    if (pool.poison >= 0) memset(pool.scratch, pool.poison, pool.scratch_bytes);
    return pool.scratch;
}

void pool_poison(int byte) { pool.poison = byte; }

void *pool_scratch(size_t bytes) {
    if (bytes <= pool.scratch_bytes) return poisoned();
    size_t wanted = (bytes + bytes / 4 + 4095) & ~(size_t)4095;
    uint8_t *fresh = aligned_alloc(64, wanted);
    if (!fresh) return NULL;
    uint8_t *old = pool.scratch;
    pool.scratch = fresh; /* first, so that a fork by another thread never sees what is freed */
    pool.scratch_bytes = wanted;
    free(old);
    return poisoned();
}

/* ---- regions -------------------------------------------------------------------------------------------------- */

static void wait_for_all(unsigned joined) {
    if (!wait_awake(is_finished, joined)) sleep_until_finished(joined);
}

static void run_region(pool_function *function, void *context, bool everyone) {
    keep_away();
    pool.function = function;
    pool.context = context;
    atomic_store_explicit(&pool.finished, 0, memory_order_relaxed);
    publish(OPEN);
    wake_sleepers(everyone || pool.threads <= pool.cpus ? pool.threads - 1 : pool.cpus - 1);
    function(context, 0, pool.threads);
    if (everyone) wait_for_all((unsigned)pool.threads - 1);
    uint64_t last = atomic_fetch_and(&pool.state, ~OPEN);
    if (!everyone) wait_for_all((unsigned)((last & (REGION - 1)) / JOIN));
}

void pool_run(pool_function *function, void *context) {
    pool_lock();
    start_workers();
    if (pool.threads == 1) function(context, 0, 1);
    else run_region(function, context, true);
    pool_unlock();
}

/* ---- items ---------------------------------------------------------------------------------------------------- */

/* A line each, and nothing else in it: what one thread changes for every item, others do not read. */
static struct { _Alignas(64) atomic_int next; int end; } ranges[POOL_MAX_THREADS];

void pool_share(pool_function *function, void *context, int count, bool alone) {
    start_workers();
    for (int t = 0, first = 0; t < pool.threads; first = ranges[t++].end) {
        atomic_store_explicit(&ranges[t].next, first, memory_order_relaxed);
        ranges[t].end = (int)((int64_t)count * (t + 1) / pool.threads);
    }
    if (alone || pool.threads == 1) function(context, 0, 1);
    else run_region(function, context, false);
}

bool pool_take(int thread, int most, struct items *items) {
    for (int i = 0, t = thread; i < pool.threads; i++, t = t + 1 < pool.threads ? t + 1 : 0) {
        const int end = ranges[t].end, left = end - atomic_load_explicit(&ranges[t].next, memory_order_relaxed);
        if (left <= 0) continue;
        const int count = left / 2 < 1 ? 1 : left / 2 < most ? left / 2 : most;
        const int first = atomic_fetch_add_explicit(&ranges[t].next, count, memory_order_relaxed);
        *items = (struct items){first, first + count < end ? first + count : end};
        if (first < end) return true;
    }
    return false;
}

int pool_peek(int thread) {
    const int next = atomic_load_explicit(&ranges[thread].next, memory_order_relaxed);
    return next < ranges[thread].end ? next : -1;
}
