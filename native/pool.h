/* Persistent threads. pool.c is the only file that knows threads exist. */
#ifndef COLIBRI_POOL_H
#define COLIBRI_POOL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { POOL_MAX_THREADS = 256 };

typedef void pool_function(void *context, int thread, int threads);

int pool_threads(void);
void pool_set_threads(int threads, int cpus); /* 1 to POOL_MAX_THREADS; processors that they may use; 1 and 1 at first */

/* One region at a time: lock around scratch and regions that belong together. Nests. */
void pool_lock(void);
void pool_unlock(void);

/* Scratch of the region in progress: 64-byte aligned, grows and is kept, valid until pool_unlock or the next
 * pool_scratch. Call once a region with the sum of what it needs. NULL when there is no memory. */
void *pool_scratch(size_t bytes);
/* For tests: from now on scratch is handed out full of this byte, so that what reads it before it writes gives something
 * else; -1: as it is. */
void pool_poison(int byte);
/* The next `bytes` of it, in lines of their own; `scratch` moves on. */
static inline void *take_scratch(uint8_t **scratch, size_t bytes) {
    void *taken = *scratch;
    *scratch += (bytes + 63) / 64 * 64;
    return taken;
}

/* Calls function(context, thread, threads) once for every thread 0..threads-1; the caller is thread 0. */
void pool_run(pool_function *function, void *context);

/* As pool_run, but a thread that has not woken up when the others are through is left out: the work is items 0..count-1,
 * which threads take with pool_take. Each thread has a range of neighbours, since memory is read fastest from end to end, and
 * when it is through with its own it takes from the others'. `alone`: on the caller's thread, for work that costs less than
 * a region, some microseconds. Use it wherever work is, with the pool locked. */
void pool_share(pool_function *function, void *context, int count, bool alone);

/* Takes the next neighbours, up to `most` and half of what is left of the range. False: none is left anywhere. */
struct items { int first, last; };
bool pool_take(int thread, int most, struct items *items);
/* The item that pool_take begins with next, unless another thread takes it before; -1: the thread's own range is done. */
int pool_peek(int thread);

#ifdef __cplusplus
}
#endif
#endif
