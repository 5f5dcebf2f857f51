/* What the tests of the kernels share: a count of failures, deterministic random weights and activations, and the digest
 * of all results, which is the same for every table, also of another machine. What the results have to be is checked from
 * Python, with each table against tests/helpers/reference.py. */
#ifndef COLIBRI_TESTS_CHECK_H
#define COLIBRI_TESTS_CHECK_H
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch.h"
#include "require.h"

static int failures;
#define CHECK(condition, ...)                                                    \
    do {                                                                         \
        if (!(condition)) {                                                      \
            if (failures++ < 20) printf("%s:%d: ", __FILE__, __LINE__), printf(__VA_ARGS__), printf("\n"); \
        }                                                                        \
    } while (0)

static uint32_t random_state = 1;
static inline uint32_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    return random_state ^= random_state << 5;
}
static inline float random_float(void) { return (float)(int32_t)random_bits() * 0x1p-31f; }

static inline void *allocate(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!p) abort();
    return p;
}

static inline void put_f16(uint8_t *p, float x) { /* positive, normal in f16 */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint16_t half = (uint16_t)((bits - 0x38000000u) >> 13);
    memcpy(p, &half, 2);
}
static inline void random_scale(uint8_t *p) { put_f16(p, 0.001f + 0.01f * (random_float() + 1)); }

/* Plain rows with any bits in the integers and scales of about 0.01. */
static inline uint8_t *random_plain(int type, int rows, int k) {
    const struct type_info *t = &type_info[type];
    size_t blocks = (size_t)rows * (size_t)(k / t->values);
    uint8_t *plain = allocate(blocks * (size_t)t->bytes);
    for (size_t i = 0; i < blocks; i++) {
        uint8_t *block = plain + i * (size_t)t->bytes;
        float x = random_float();
        uint32_t bits;
        memcpy(&bits, &x, 4);
        uint16_t high = (uint16_t)(bits >> 16);
        for (int j = 0; j < t->bytes; j++) block[j] = (uint8_t)(random_bits() >> 11);
        switch (type) {
        case T_F32: memcpy(block, &x, 4); break;
        case T_BF16: memcpy(block, &high, 2); break;
        case T_F16: put_f16(block, fabsf(x) + 0.001f), block[1] |= (uint8_t)(bits >> 24 & 0x80); break;
        case T_F8_E4M3: for (int j = 0; j < 64; j++) if ((block[j] & 127) == 127) block[j]--;
            memcpy(block + 64, &x, 4); break;
        case T_INT4: case T_INT5: case T_INT8: x = fabsf(x) + 0.001f, memcpy(block, &x, 4); break;
        case T_FP4: x = fabsf(x) + 0.001f, memcpy(block, &x, 4), memcpy(block + 4, &x, 4); break;
        case T_MXFP4: block[0] = (uint8_t)(118 + random_bits() % 6); break;
        case T_Q6_K: random_scale(block + 208); break;
        case T_NVFP4: for (int j = 0; j < 4; j++) block[j] = (uint8_t)(40 + block[j] % 16); break;
        case T_IQ1_M: for (int j = 49; j < 56; j += 2) block[j] = (uint8_t)((block[j] & 15) | (j == 55) << 5); break;
        case T_TQ1_0: random_scale(block + 52); break;
        case T_TQ2_0: random_scale(block + 64); break;
        case T_Q2_K: random_scale(block + 80), random_scale(block + 82); break;
        case T_Q3_K: random_scale(block + 108); break;
        case T_Q4_1: case T_Q5_1: case T_Q4_K: case T_Q5_K: random_scale(block), random_scale(block + 2); break;
        default: random_scale(block);
        }
    }
    return plain;
}

/* All results in one number (FNV-1a). */
static uint64_t digest;
static inline void note(const void *results, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        digest = (digest ^ ((const uint8_t *)results)[i]) * 0x100000001b3;
}

/* Runs the check with every table that this processor can run and the same random numbers: what it notes has to be the
 * same. Prints the digest, for comparison with other machines; returns the exit status. */
static inline int check_tables(void (*check)(const struct kernels *table)) {
    uint64_t portable = 0;
    for (int i = isa_count() - 1; i >= 0; i--) { /* portable is the last */
        const struct kernels *table = kernels_for(isa_name(i));
        if (!table) continue;
        random_state = 1, digest = 0xcbf29ce484222325;
        check(table);
        if (i == isa_count() - 1) portable = digest;
        CHECK(digest == portable, "%s: other bits than portable", table->isa);
    }
    printf("%016llx\n", (unsigned long long)portable);
    if (failures) printf("%d failures\n", failures);
    return failures != 0;
}
#endif
