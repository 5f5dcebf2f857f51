/* The whole native API on one page: the block types, the activation formats and one function pointer an op.
 * Every file of ops is compiled once per instruction set and fills its part of `struct kernels`; see dispatch.c.
 * Rules: a kernel takes a range and scratch, never allocates, locks, spawns or does I/O, and gives the same
 * bits on every instruction set (vec/README in docs/design.md). */
#ifndef COLIBRI_KERNELS_H
#define COLIBRI_KERNELS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TILE_ROWS = 16, MAX_COLUMNS = 8, ATTENTION_SPLIT = 256 };

/* Activation formats. A_F32 is plain floats. */
enum activation { A_F32, A_Q32, A_Q256, ACTIVATION_COUNT };
struct q32_block  { float scale; int32_t sum; int8_t q[32]; };            /* x ~ scale * q; sum of q */
struct q256_block { float scale; int16_t sums[16]; int8_t q[256]; };      /* sums over each 16 of q */

enum block_type {
#define X(name, code, values, bytes, activation, tile) T_##name,
#include "quants/quants.def"
#undef X
    TYPE_COUNT
};
struct type_info { const char *name; int code, values, bytes, activation, tile_bytes; };
extern const struct type_info type_info[TYPE_COUNT];

/* Gated activations of an expert. */
enum glu { GLU_SILU, GLU_GELU_TANH, GLU_SWIGLU_OAI, GLU_COUNT };
/* Router scores. */
enum score { SCORE_SOFTMAX, SCORE_SIGMOID, SCORE_SOFTMAX_CHOSEN, SCORE_SQRT_SOFTPLUS, SCORE_COUNT };

/* y[c][row] (+)= sum_k w[row][k] * x[c][k] for tiles [first, last) of a tiled matrix and n columns (any n >= 1).
 * x[c] points to floats, q32 or q256 blocks as the type and mode ask. y[c] points to row 0 of column c.
 * Only rows below `rows` are written. */
typedef void matmul_kernel(const void *tiles, int k, int rows, int first, int last,
                           const void *const *x, float *const *y, int n, bool accumulate);

struct kernels {
    const char *isa;
    /* weights */
    void (*tile[TYPE_COUNT])(void *tiles, const void *plain, int rows, int k);   /* rows a multiple of 16 or the last */
    void (*untile_row[TYPE_COUNT])(float *out, const void *tiles, int row, int k); /* dequantise one row */
    matmul_kernel *matmul[TYPE_COUNT];        /* x in type_info.activation format */
    matmul_kernel *matmul_exact[TYPE_COUNT];  /* x in float32 */
    /* activations */
    void (*quantize[ACTIVATION_COUNT])(void *out, const float *x, int n);        /* n a multiple of the block */
    void (*glu[GLU_COUNT])(float *out, const float *gate, const float *up, int n);
    /* rows */
    bool (*rms_norm)(float *out, const float *x, const float *weight, int n, float eps);  /* false: x is not finite */
    void (*rope)(float *x, const float *cosine, const float *sine, int rotary);  /* one head, half-split pairs */
    void (*add)(float *out, const float *x, int n);
    void (*scale_add)(float *out, const float *x, float scale, int n);           /* out += scale * x */
    /* router: logits (experts) -> ids, weights (k); scratch of 2 * experts floats */
    bool (*router)(int32_t *ids, float *weights, const float *logits, const float *bias, float *scratch,
                   int experts, int k, int score, bool renormalize, float scale);
    /* attention: see ops/attention.c */
    void (*kv_append)(uint16_t *keys, uint16_t *values, const float *k, const float *v, int slot, int head_dim);
    void (*attention_part)(float *out, float *max, float *sum, const float *const *q, int n, const int *visible,
                           const uint16_t *const *key_blocks, const uint16_t *const *value_blocks,
                           int block_tokens, int first, int head_dim, float scale, float *scratch);
};
extern const struct kernels *kernels; /* the chosen table */
#endif
