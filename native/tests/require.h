/* For tests that stop at the first fault. */
#ifndef COLIBRI_TESTS_REQUIRE_H
#define COLIBRI_TESTS_REQUIRE_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(condition) \
    do { \
        if (condition) break; \
        fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
        exit(1); \
    } while (0)

/* The same numbers on every machine: xorshift, uniform in -1..1. */
static inline float next_random(uint32_t *state) {
    *state ^= *state << 13, *state ^= *state >> 17, *state ^= *state << 5;
    return (float)(*state >> 8) * 0x1p-23f - 1.0f;
}
#endif
