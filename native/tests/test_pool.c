/* Every thread runs every region once, workers can be stopped at any time, regions of several callers take turns, a forked child has a pool of its own, and
 * no item is lost when the system refuses threads; workers keep away from the caller's processor. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "require.h"
#include "pool.h"

struct count { int calls[POOL_MAX_THREADS], threads; atomic_int seen[100]; };

static void count_calls(void *context, int thread, int threads) {
    struct count *count = context;
    count->calls[thread]++;
    if (!thread) count->threads = threads;
}

static void take_ranges(void *context, int thread, int threads) {
    (void)threads;
    struct count *count = context;
    for (struct items items; pool_take(thread, 1 + thread % 5, &items);)
        for (int item = items.first; item < items.last; item++) atomic_fetch_add(&count->seen[item], 1);
}

static void check_regions(int threads, int rounds) {
    struct count count = {.threads = 0};
    pool_set_threads(threads, 2);
    REQUIRE(pool_threads() == threads);
    for (int i = 0; i < rounds; i++) pool_run(count_calls, &count);
    REQUIRE(count.threads == threads);
    for (int t = 0; t < threads; t++) REQUIRE(count.calls[t] == rounds);
    for (int i = 0; i < rounds; i++) {
        pool_share(take_ranges, &count, i % 101, i % 7 == 0);
        for (int item = 0; item < 100; item++) REQUIRE(atomic_exchange(&count.seen[item], 0) == (item < i % 101));
    }
}

static void *call_often(void *argument) {
    struct count count = {.threads = 0};
    (void)argument;
    for (int i = 0; i < 200; i++) pool_run(count_calls, &count);
    for (int t = 0; t < count.threads; t++) REQUIRE(count.calls[t] == 200);
    return NULL;
}

static void check_callers(void) {
    pthread_t callers[3];
    for (int i = 0; i < 3; i++) REQUIRE(!pthread_create(&callers[i], NULL, call_often, NULL));
    for (int i = 0; i < 3; i++) pthread_join(callers[i], NULL);
}

static void check_in_child(void (*check)(void)) {
    const pid_t child = fork();
    if (!child) {
        check();
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
}

static void check_two_threads(void) { check_regions(2, 10); }

static void check_fork(void) {
    check_in_child(check_two_threads);
    check_two_threads(); /* the parent's pool goes on */
}

/* Leaves no room for the stack of another thread. */
static void refuse_threads(void) {
    unsigned long pages = 0;
    FILE *sizes = fopen("/proc/self/statm", "r");
    REQUIRE(sizes && fscanf(sizes, "%lu", &pages) == 1);
    fclose(sizes);
    const rlim_t bytes = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + 1000000;
    REQUIRE(!setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes}));
}

static void check_refused(void) {
    struct count count = {.threads = 0};
    refuse_threads();
    pool_set_threads(7, 7);
    pool_share(take_ranges, &count, 100, false);
    for (int item = 0; item < 100; item++) REQUIRE(count.seen[item] == 1);
    pool_run(count_calls, &count);
    REQUIRE(count.threads == 1 && pool_threads() == 1);
}

static void check_scratch(void) {
    pool_lock();
    char *scratch = pool_scratch(1000);
    REQUIRE(scratch && (size_t)scratch % 64 == 0);
    memset(scratch, 1, 1000);
    REQUIRE(pool_scratch(500) == scratch);
    scratch = pool_scratch(10000000);
    memset(scratch, 1, 10000000);
    pool_unlock();
}

/* Sleeping threads are woken: regions far apart. */
static void check_after_sleep(void) {
    struct count count = {.threads = 0};
    const struct timespec pause = {0, 3000000};
    pool_set_threads(3, 2);
    for (int i = 0; i < 20; i++) {
        pool_run(count_calls, &count);
        nanosleep(&pause, NULL);
    }
    for (int t = 0; t < 3; t++) REQUIRE(count.calls[t] == 20);
}

/* A stop right after a short region meets workers that have not looked at it yet, are in it or wait for the next one. */
static void check_stops(int threads, int cpus, int rounds) {
    struct count count = {.threads = 0};
    for (int i = 0; i < rounds; i++) {
        pool_set_threads(threads, cpus);
        pool_share(take_ranges, &count, i % 3, false);
        for (int spin = i % 64 * 16; spin; spin--) atomic_load(&count.seen[99]);
        if (i % 4 == 0) pool_run(count_calls, &count);
    }
    for (int t = 0; t < threads; t++) REQUIRE(count.calls[t] == (rounds + 3) / 4);
}

/* Callers that run regions meet one that changes the number of threads. */
static void *stop_often(void *argument) {
    (void)argument;
    for (int i = 0; i < 300; i++) pool_set_threads(2 + i % 2, 2);
    return NULL;
}

static void *take_often(void *argument) {
    struct count count = {.threads = 0};
    (void)argument;
    for (int i = 0; i < 300; i++) {
        pool_lock();
        pool_share(take_ranges, &count, 100, false);
        pool_unlock();
    }
    for (int item = 0; item < 100; item++) REQUIRE(count.seen[item] == 300);
    return NULL;
}

static void check_stops_between_callers(void) {
    pthread_t callers[3];
    for (int i = 0; i < 3; i++) REQUIRE(!pthread_create(&callers[i], NULL, i ? take_often : stop_often, NULL));
    for (int i = 0; i < 3; i++) pthread_join(callers[i], NULL);
}

struct places { cpu_set_t allowed[POOL_MAX_THREADS]; };

static void where(void *context, int thread, int threads) {
    (void)threads;
    struct places *places = context;
    REQUIRE(!sched_getaffinity(0, sizeof(cpu_set_t), &places->allowed[thread]));
}

/* Also after the caller has moved. Where it may not move, or moves while it looks, there is nothing to see. */
static void check_places(void) {
    static struct places places;
    cpu_set_t all, one;
    REQUIRE(!sched_getaffinity(0, sizeof all, &all));
    pool_set_threads(2, 2);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all)) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        REQUIRE(!sched_setaffinity(0, sizeof one, &one) && !sched_setaffinity(0, sizeof all, &all));
        const int before = sched_getcpu();
        pool_run(where, &places);
        if (before != sched_getcpu()) continue;
        REQUIRE(CPU_EQUAL(&places.allowed[0], &all)); /* the caller is left alone */
        REQUIRE(CPU_COUNT(&all) == 1 || !CPU_ISSET((size_t)before, &places.allowed[1]));
        REQUIRE(CPU_COUNT(&all) == 1 || CPU_COUNT(&places.allowed[1]) == CPU_COUNT(&all) - 1);
    }
}

/* Fewer processors than threads that believe to have one each: nobody is squeezed together. */
static void check_no_room(void) {
    static struct places places;
    cpu_set_t all;
    REQUIRE(!sched_getaffinity(0, sizeof all, &all));
    const int threads = CPU_COUNT(&all) + 1;
    if (threads > POOL_MAX_THREADS) return;
    pool_set_threads(threads, threads);
    pool_run(where, &places);
    for (int t = 0; t < threads; t++) REQUIRE(CPU_EQUAL(&places.allowed[t], &all));
}

int main(void) {
    check_in_child(check_refused); /* the first: the stacks of threads that ended are used again */
    check_regions(1, 100);
    check_regions(2, 500);
    check_regions(3, 200);
    check_regions(7, 100);
    check_callers();
    check_stops(2, 2, 20000);
    check_stops(3, 2, 2000); /* more threads than processors give way at once */
    check_stops_between_callers();
    check_after_sleep();
    check_places();
    check_no_room();
    check_scratch();
    check_fork();
    return 0;
}
