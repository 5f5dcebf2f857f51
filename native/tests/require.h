/* For tests that stop at the first fault. */
#ifndef COLIBRI_TESTS_REQUIRE_H
#define COLIBRI_TESTS_REQUIRE_H
#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(condition) \
    do { \
        if (condition) break; \
        fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
        exit(1); \
    } while (0)
#endif
