/* How ops are split over the pool. Regions take the pool lock, own no memory and are compiled once.
 * Arguments were checked by the caller (bind.cpp). They return 0, or REGION_NO_MEMORY. */
#ifndef COLIBRI_REGIONS_H
#define COLIBRI_REGIONS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { REGION_NO_MEMORY = -2, REGION_NOT_FINITE = -3 };

struct matrix { const void *tiles; int type, rows, k; }; /* a tiled weight; type is an enum block_type */

/* outs[i] (n, weights[i].rows) = or += x (n, k) weights[i]^T (+ biases[i], may be NULL as a whole or one by one). */
int region_matmul(float *const *outs, const float *x, int n, int k, const struct matrix *weights,
                  const float *const *biases, int count, bool exact, bool accumulate);

/* Heads of x, x_step values apart, each times its own rows of a weight (heads * rows, k): the first k values of a head of x give
 * the first `rows` of a head of out. rest: how many values behind those are copied. */
struct head_product {
    const float *x;         /* (n, heads, x_step) */
    struct matrix weight;   /* of all heads; rows of a head are a multiple of 16 */
    int n, heads, x_step, out_step, rest;
    bool exact;
};
int region_head_matmul(float *out, const struct head_product *product); /* out (n, heads, out_step) */

/* An expert without a gate has no tiles there: down(activation(up x)). */
struct expert { struct matrix gate, up, down; const float *gate_bias, *up_bias, *down_bias; bool set; };

/* Tokens and the experts that each goes to. With `only` just those experts. Every expert that is asked for is set. */
struct mixture {
    const float *x;             /* (n, hidden) */
    const int32_t *ids;         /* (n, k) */
    const float *input_weights; /* (n, k): what an expert's x is multiplied by; may be NULL */
    int n, k;
    const struct expert *experts;
    int expert_count, hidden, intermediate;
    struct glu_options activation;
    bool exact;
    const int32_t *only; /* NULL: all */
    int only_count;
};
/* slots (n * k, hidden): row t * k + s = expert ids[t * k + s] of x[t]. */
int region_moe(float *slots, const struct mixture *mixture);

/* The rows of one step: positions, sequences and each sequence's block numbers. `group_first` has the first row of every
 * run of rows of one sequence with consecutive positions, and n at the end. `slot` has each sequence's place in the states of
 * recurrent layers, NULL without; no two sequences share one, and each is one run. */
struct batch {
    int n, groups;
    const int32_t *position, *sequence;
    const int32_t *const *table;
    const int32_t *group_first;
    const int32_t *slot;
};

/* Caches: keys and values (blocks, kv_heads, kv_block_bytes) of a kv_type, see kernels.h. */
struct cache { uint8_t *keys, *values; /* values NULL: the first dimensions of the keys */ int type, kv_heads, key_dim, value_dim; };

/* q (n, heads * key_dim), k and v of the step's rows; `rotary` numbers of a head of q and k from `rope_start` on are turned in place by
 * cosine and sine (positions, rotary / 2). window 0: none; sinks (heads) may be NULL. */
struct attention_input {
    float *q, *k;
    const float *v, *cosine, *sine, *sinks;
    int heads, rotary, rope_start, window;
    float scale;
};

/* Puts k and v into the cache and writes out (n, heads * value_dim). Returns REGION_NO_MEMORY, or of enum attention_fault
 * (kernels.h) what was met, whichever thread met it; 0: all is finite. */
int region_attention(float *out, const struct attention_input *in, const struct cache *cache, const struct batch *batch);

/* Recurrent layers. A sequence whose run begins at position 0 begins with zeros, others with what their slot of the state has.
 * They return REGION_NOT_FINITE where a value is not; the states of the step's sequences are worth nothing then. */
/* weight (taps, channels), bias (channels) or NULL; state (slots, taps - 1, channels): the inputs before the step. x (n, channels);
 * `gated`: x (n, 3, channels) is a gate before, a gate after and what is convolved, which is multiplied in place. */
struct convolution { const float *weight, *bias; int taps, channels; bool silu, gated; };
int region_short_conv(float *out, float *x, float *state, const struct convolution *rule, const struct batch *batch);
/* decay (heads): the factor of the step, below 0; skip may be NULL. Heads share keys and queries as neighbours do (head /
 * group), or with `tiled` as every key_heads-th does. State (slots, heads, key_size * width), width = value_size
 * rounded up to 16, see kernels.h. */
struct recurrence {
    int kind, heads, key_heads, key_size, value_size;
    bool tiled;
    const float *decay, *dt_bias, *skip;
    float least, most, eps;
};
/* q, k, v: where row 0 has its first, rows are `row_step` apart; dt, beta (n, heads). */
struct recurrent_input { const float *q, *k, *v, *dt, *beta; size_t row_step; };
int region_recurrent(float *out, const struct recurrent_input *in, float *state, const struct recurrence *rule,
                     const struct batch *batch);
/* RMSNorm of each of `groups` parts of a row, times SiLU of the gate, before or after it. weight (size), or (groups, size) if
 * weight_step is size and not 0. */
struct gated_norm { const float *weight; int groups, size, weight_step; float eps; bool gate_first; };
bool region_gated_norm(float *out, const float *x, const float *gate, int n, const struct gated_norm *rule);
/* ids, weights (n, k) from logits (n, experts); REGION_NOT_FINITE: a logit is not. */
int region_router(int32_t *ids, float *weights, const float *logits, int n, const struct routing *routing);
/* LayerNorm with a bias, RMSNorm without; false: not finite. */
bool region_norm(float *out, const float *x, const float *weight, const float *bias, int n, int dim, float eps);
/* out *= sigmoid(gate); false: a gate is not finite. */
bool region_sigmoid_gate(float *out, const float *gate, int n, int dim);
void region_soft_cap(float *x, float cap, int64_t values);
bool region_clip(float *x, int n, int dim, float limit); /* to -limit..limit; false: a number was not finite */
void region_embed(float *out, const struct matrix *table, const int32_t *ids, int n);
/* Bytes a second read from `data` (a multiple of 1 MiB, filled first), and multiplications of bytes a second on
 * registers, pass by pass with all threads for about `seconds`. Return the number of rates, 1 to `most`. */
int region_measure_read(void *data, size_t bytes, double seconds, double *rates, int most);
int region_measure_dot(double seconds, double *rates, int most);
/* Seconds in which all threads learn of a region that holds no work, and the caller that they are through. */
int region_measure_handover(double seconds, double *times, int most);
void region_combine(float *out, const float *slots, const float *weights, int n, int k, int hidden);

/* How a token is chosen: temperature 0 takes the likeliest; top_k 0, top_p 1 and min_p 0 let all in; uniform (0..1) is the
 * draw. As doubles, because Python keeps them in one array. */
struct sampling { double temperature, top_k, top_p, min_p, uniform; };
/* tokens (n) from logits (n, vocabulary), and norms (n): ln of the sums of exp(logits), NaN where a logit is not finite.
 * Logits of -infinity are never chosen. */
int region_sample(int32_t *tokens, double *norms, const float *logits, int n, int vocabulary,
                  const struct sampling *settings);

#ifdef __cplusplus
}
#endif
#endif
