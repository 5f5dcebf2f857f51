/* Linked into a wheel's module (-DMANYLINUX=ON), which so runs with glibc 2.28 wherever it was compiled: what newer ones have
 * in newer versions is taken in the versions that 2.28 has too. Hidden, so that only this module's calls come here. */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#if defined(__x86_64__)
#define FIRST "GLIBC_2.2.5"
#define FIRST_AFFINITY "GLIBC_2.3.4"
#elif defined(__aarch64__)
#define FIRST "GLIBC_2.17"
#define FIRST_AFFINITY "GLIBC_2.17"
#else
#error "which versions the symbols of glibc had first on this architecture is not known"
#endif

#define OLD(version, result, name, parameters, arguments)                                                                          \
    __asm__(".symver old_" #name ", " #name "@" version);                                                                          \
    extern result old_##name parameters;                                                                                           \
    __attribute__((visibility("hidden"))) result name parameters {                                                                 \
        return old_##name arguments;                                                                                               \
    }

OLD(FIRST, double, log, (double x), (x))
OLD(FIRST, int, pthread_attr_setstacksize, (pthread_attr_t * attributes, size_t size), (attributes, size))
OLD(FIRST, int, pthread_create,
    (pthread_t *restrict thread, const pthread_attr_t *restrict attributes, void *(*start)(void *), void *restrict argument),
    (thread, attributes, start, argument))
OLD(FIRST, int, pthread_join, (pthread_t thread, void **result), (thread, result))
OLD(FIRST, int, pthread_mutex_trylock, (pthread_mutex_t * mutex), (mutex))
OLD(FIRST, int, pthread_once, (pthread_once_t * once, void (*start)(void)), (once, start))
OLD(FIRST, int, pthread_sigmask, (int how, const sigset_t *restrict set, sigset_t *restrict old), (how, set, old))
OLD(FIRST_AFFINITY, int, pthread_setaffinity_np, (pthread_t thread, size_t size, const cpu_set_t *set), (thread, size, set))

/* What glibc has since 2.32 and libstdc++ reads: whether there is one thread only. 0: it counts references atomically. */
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
