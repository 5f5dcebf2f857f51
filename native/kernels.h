/* The whole native API on one page: the block types, the activation formats and one function pointer an op.
 * Every file of ops is compiled once per instruction set, which COLIBRI_ISA names; ops/kernels.def says which function
 * is which member, ops/table.c makes the constant table of a set, dispatch.c chooses one.
 * Rules: a kernel takes a range and scratch, never allocates, locks, spawns or does I/O, and gives the same
 * bits on every instruction set (see docs/design.md). */
#ifndef COLIBRI_KERNELS_H
#define COLIBRI_KERNELS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TILE_ROWS = 16, MAX_COLUMNS = 8, ATTENTION_SPLIT = 256, SAMPLING_PART = 512 };

/* Activation formats. A_F32 is plain floats. */
enum activation { A_F32, A_Q32, A_Q256, ACTIVATION_COUNT };
/* x ~ scale * q, -127 <= q <= 127; the scale is NaN when a value is not finite. The sums are what the kernels start
 * from: weights are stored with an offset, which they take off again. */
struct q32_block {
    float scale;
    int32_t minus_128_sum, minus_128_first; /* of all q, of the first 16 */
    int8_t q[32];
};
struct q256_block {
    float scale;
    int16_t sums[8];             /* of 32 q each, in the order 0 2 1 3 4 6 5 7 */
    int16_t sums_of_16[16];      /* in the order 0 2 1 3 4 6 5 7 ... */
    int32_t minus_32_sum[16];    /* of 16 q each */
    int8_t q[256];
};
static inline size_t activation_bytes(int activation, int64_t k) {
    if (activation == A_Q32) return (size_t)(k / 32) * sizeof(struct q32_block);
    if (activation == A_Q256) return (size_t)(k / 256) * sizeof(struct q256_block);
    return (size_t)k * sizeof(float);
}

/* The products of integer weights, X(name, activations, values a scale, offset, minima): a weight is
 * scale[k / values a scale] * (byte - offset) - (minima ? min[k / values a scale] : 0). */
#define PRODUCTS(X)                        \
    X(q32, A_Q32, 32, 128, false)          \
    X(q32_min, A_Q32, 32, 0, true)         \
    X(q32_16, A_Q32, 16, 128, false)       \
    X(q256_32_min, A_Q256, 32, 0, true)    \
    X(q256_16, A_Q256, 16, 32, false)      \
    X(q256_16_min, A_Q256, 16, 0, true)

enum block_type {
#define FLOAT(NAME, ...) T_##NAME,
#define SCALED(NAME, ...) T_##NAME,
#define INTEGER(NAME, ...) T_##NAME,
#include "quants/quants.def"
    TYPE_COUNT
};
struct type_info { const char *name; int code, values, bytes, activation, tile_bytes; };
extern const struct type_info type_info[TYPE_COUNT];
/* From one tile of 16 rows to the next; tiles begin at multiples of 64 bytes. */
static inline size_t tile_stride(int type, int64_t k) {
    return ((size_t)(k / type_info[type].values) * (size_t)type_info[type].tile_bytes + 63) / 64 * 64;
}

/* Activations of an expert, f(gate) * up; without a gate, up NULL, f(gate). Clamped are gate to at most `limit`, and up to
 * -limit..limit; swiglu_oai is gate * sigmoid(alpha * gate) * (up + 1) of those, and needs a gate. */
enum glu { GLU_SILU, GLU_GELU_TANH, GLU_GELU_ERF, GLU_RELU2, GLU_SILU_CLAMPED, GLU_SWIGLU_OAI, GLU_COUNT };
struct glu_options { int kind; float alpha, limit; };

/* y[c][row] (+)= sum_k w[row][k] * x[c][k] for tiles [first, last) of a tiled matrix and n columns (any n >= 1).
 * x[c] points to floats, q32 or q256 blocks as the type and mode ask. y[c] points to row 0 of column c.
 * Only rows below `rows` are written. `then` is what the caller reads next, so that asking for memory ahead does not stop
 * at the last tile; NULL: what lies behind it. */
struct product {
    const void *tiles;
    int k, rows, first, last;
    const void *const *x;
    float *const *y;
    int n;
    bool accumulate;
    const void *then;
};
typedef void matmul_kernel(const struct product *product);

/* How the router chooses: score of (logits + bias); the choice by score + correction among the experts of the kept groups,
 * which are those of the largest score or sum of two scores; the weight is the score, or the softmax of the chosen
 * logits, divided by max(sum + sum_added, sum_least) if renormalised, times scale and expert_scale. Vectors are of
 * `experts` values and may be NULL. Of equals the lowest index comes first. */
enum score { SCORE_SOFTMAX, SCORE_SIGMOID, SCORE_SQRT_SOFTPLUS, SCORE_IDENTITY, SCORE_COUNT };
struct routing {
    int experts, k, score;
    int groups, kept_groups; /* 1 and 1: none */
    bool group_of_two, softmax_of_chosen, renormalize;
    float sum_added, sum_least, scale;
    const float *bias, *correction, *expert_scale;
};
#define ROUTER_SCRATCH(experts) (4 * (((size_t)(experts) + 15) / 16 * 16))

/* What a cache holds: half floats, or int8 with a scale (a half float) for each 32 dimensions of a head. A block is
 * ATTENTION_SPLIT tokens of one kv head: keys (ATTENTION_SPLIT / 16, key_dim, 16), values (ATTENTION_SPLIT, value_dim).
 * Behind those of Q8_0 come their scales (ATTENTION_SPLIT / 16, kv_scales, 16) and (ATTENTION_SPLIT, kv_scales).
 * Where values are the first value_dim dimensions of the keys (latent attention), keys alone are stored. */
enum kv_type { KV_F16, KV_Q8_0, KV_COUNT };
static inline int kv_scales(int dim) { return (dim + 31) / 32; }
static inline size_t kv_block_bytes(int type, int dim) {
    return (size_t)ATTENTION_SPLIT * (size_t)(type == KV_F16 ? 2 * dim : dim + 2 * kv_scales(dim));
}

/* Keys and values (floats) of one kv head of neighbouring tokens, rows k_step and v_step apart, for slots slot..slot+n of a
 * block: at most 16, of which no two have a multiple of 16 between them. */
struct kv_rows { const float *k, *v; /* v NULL: keys alone */ size_t k_step, v_step; int slot, n; };

/* What attention meets that is not finite, causes before what follows from them. Keys and values also where they are too
 * large for the cache; a score where a product of a query and a key overflows; the sum of values where a sink is none. */
enum attention_fault { FAULT_QUERY = 1, FAULT_KEY = 2, FAULT_VALUE = 4, FAULT_SCORE = 8, FAULT_SUM = 16 };

/* Up to ATTENTION_ROWS query rows against the keys and values of one kv head in one block of the cache.
 * Row i sees keys first[i] <= key < last[i].
 * Writes, for each row, the largest score, the sum of exp(score - max) and that of exp(score - max) * value. A row that
 * sees no key has the sum 0, which no other has. */
enum { ATTENTION_ROWS = 8 };
#define ATTENTION_SCRATCH(dim) ((size_t)ATTENTION_SPLIT * (size_t)(ATTENTION_ROWS + kv_scales(dim))) /* dim: the larger */
struct attention_part {
    const void *keys, *values;
    int key_dim, value_dim, rows;
    const float *q;              /* packed (key_dim, ATTENTION_ROWS), scaled */
    const int *first, *last;     /* (rows) */
    const void *next_keys;       /* of the block that comes next, to be fetched ahead; NULL: all is in the cache already */
    float *out;                  /* (rows, out_stride), out_stride = value_dim rounded up to 16 */
    float *max, *sum;            /* (rows) */
};

/* Recurrent mixers. A head's state is a matrix (key_size, value_size) that decays, takes in and is read at every token; in
 * memory a block is 16 columns of values, two blocks lie side by side (key_size, 32), and a last odd one alone (key_size, 16).
 * DELTA_RULE: keys and queries of length 1 (queries then times key_size^-1/2), decay = exp(a * softplus(dt + dt_bias)),
 *   change = sigmoid(beta) * (v - decay * state^T k), state = decay * state + k change^T, out = state^T q.
 * STATE_SPACE: step = softplus(dt + dt_bias) within least..most, decay = exp(a * step),
 *   state = decay * state + k (step * v)^T, out = state^T q + skip * v. */
enum recurrence_kind { DELTA_RULE, STATE_SPACE, RECURRENCE_COUNT };
/* Tokens that a call takes at most. */
enum { RECURRENT_TOKENS = 64, SHORT_CONV_TAPS = 8 };
#define RECURRENT_SCRATCH(key_size) ((size_t)RECURRENT_TOKENS * (2 * (size_t)(key_size) + 4))
/* Neighbouring tokens of one head: q, k, v (tokens, row_step), dt and beta one number each `gate_step`, out (out_step). */
struct recurrent_rows {
    int tokens, key_size, value_size;
    int first, last;             /* blocks of the state that are computed */
    const float *q, *k, *v, *dt, *beta;
    size_t row_step, gate_step, out_step;
    float a, dt_bias, skip, least, most, eps;
    float *state, *out;
};

struct kernels {
    const char *isa;
    /* weights */
    void (*tile[TYPE_COUNT])(void *tiles, const void *plain, int rows, int k);   /* rows a multiple of 16 or the last */
    void (*untile_row[TYPE_COUNT])(float *out, const void *tiles, int row, int k); /* dequantise one row */
    bool (*quantizes)(int type);                                                 /* whether quantize_rows takes it */
    /* float rows (n, k) to plain GGUF blocks; importance (k) weighs the squared errors of the columns, NULL: all alike;
     * false: a value is not finite or too large for the type */
    bool (*quantize_rows)(int type, void *plain, const float *x, const float *importance, int64_t n, int k);
    matmul_kernel *matmul[TYPE_COUNT];        /* x in type_info.activation format */
    matmul_kernel *matmul_exact[TYPE_COUNT];  /* x in float32 */
    /* activations */
    void (*quantize[ACTIVATION_COUNT])(void *out, const float *x, int n);        /* n a multiple of the block */
    void (*glu[GLU_COUNT])(float *out, const float *gate, const float *up, int n, struct glu_options options);
    void (*sigmoid_gate)(float *out, const float *gate, int n);                  /* out *= sigmoid(gate) */
    void (*soft_cap)(float *x, float cap, int n);       /* x = cap * tanh(x / cap); NaN where x is not finite */
    /* rows */
    /* false: the squares of x, or what comes out, are not finite */
    bool (*rms_norm)(float *out, const float *x, const float *weight, int n, float eps);
    bool (*layer_norm)(float *out, const float *x, const float *weight, const float *bias, int n, float eps);
    void (*rope)(float *x, const float *cosine, const float *sine, int rotary);  /* one head, half-split pairs */
    void (*add)(float *out, const float *x, int n);
    void (*scale_add)(float *out, const float *x, float scale, int n);           /* out += scale * x */
    bool (*finite)(const float *x, int64_t n);
    int (*argmax)(const float *x, int n);                                        /* the first of the largest */
    /* out (n, may be NULL) = exp((x - high) / temperature); parts: the sums of every SAMPLING_PART of them */
    void (*exponentials)(float *out, double *parts, const float *x, float high, float temperature, int64_t n);
    /* one token's experts and weights (k) from logits (experts); scratch: ROUTER_SCRATCH(experts) floats;
     * false: a logit, a corrected score or a weight is not finite */
    bool (*router)(int32_t *ids, float *weights, const float *logits, const struct routing *, float *scratch);
    /* attention: see ops/attention.c */
    int (*kv_append[KV_COUNT])(void *keys, void *values, const struct kv_rows *rows, int key_dim, int value_dim); /* faults */
    /* values (ATTENTION_SPLIT, value_dim) and their scales from the keys of groups [first, last) of 16 in a block; value_dim a
     * multiple of 32 */
    void (*kv_values[KV_COUNT])(void *values, const void *keys, int key_dim, int value_dim, int first, int last);
    bool (*attention_pack)(float *packed, const float *const *q, int rows, int key_dim, float scale); /* false: not finite */
    /* false: a score is not finite; scratch: ATTENTION_SCRATCH floats */
    bool (*attention_part[KV_COUNT])(const struct attention_part *part, float *scratch);
    void (*attention_merge)(float *out, float *max, float *sum, const float *part_out, float part_max, float part_sum,
                            int dim);
    bool (*attention_finish)(float *out, const float *acc, float max, float sum, const float *sink, int dim);
    /* recurrent mixers; false: a value is not finite */
    bool (*recurrent[RECURRENCE_COUNT])(const struct recurrent_rows *rows, float *scratch); /* RECURRENT_SCRATCH floats */
    /* out[i] = bias[i] + the sum over taps of weight[tap * step + i] * rows[tap][i], then SiLU; bias may be NULL */
    bool (*short_conv)(float *out, const float *const *rows, const float *weight, size_t step, const float *bias, int taps,
                       int n, bool silu);
    void (*multiply)(float *out, const float *x, const float *y, int n);
    /* the processor's limits, for measuring: see ops/limits.c */
    int32_t (*read_all)(const void *data, size_t bytes);                         /* bytes a multiple of 512 */
    int32_t (*dot_rounds)(int rounds);
    int dot_round_products;                                                      /* multiplications in a round */
};
extern const struct kernels *kernels; /* the chosen table */

#ifdef COLIBRI_ISA /* in a file of ops */
#define JOINED(name, isa) name##_##isa
#define NAME_FOR(name, isa) JOINED(name, isa)
#define KERNEL(name) NAME_FOR(name, COLIBRI_ISA)
extern const struct kernels KERNEL(kernels);
#define OP(member, name) extern __typeof__(*((struct kernels *)0)->member) KERNEL(name);
#include "ops/kernels.def"
#undef OP
#endif
#endif
