/* Attention of a few query rows over one block of the cache, and the merging of blocks (online softmax, Milakov and
 * Gimelshein 2018). A lane is a key while scores are computed and a value dimension while values are summed, so nothing
 * is added across lanes but the sixteen partial sums of a softmax. Every row has its own sums, in key order: how many
 * rows share a pass over keys and values changes no bit. */
#include "kernels.h"
#include "vec/math.h"
#include "vec/vec.h"

enum { MOST = VEC_ACCUMULATORS, ROWS_AT_ONCE = MOST < ATTENTION_ROWS ? MOST : ATTENTION_ROWS };
#define WIDEST(rows) (MOST / (rows) >= 8 ? 8 : MOST / (rows) >= 4 ? 4 : MOST / (rows) >= 2 ? 2 : 1)
#define UNROLL _Pragma("GCC unroll 16")

static void kv_append(uint16_t *keys, uint16_t *values, const float *k, const float *v, int slot, int key_dim,
                      int value_dim) {
    uint16_t half[16];
    keys += (size_t)(slot / 16) * (size_t)key_dim * 16 + slot % 16;
    for (int d = 0; d < key_dim; d += 16) {
        const int n = key_dim - d < 16 ? key_dim - d : 16;
        vf_to_f16(half, vf_load_first(k + d, n));
        for (int i = 0; i < n; i++) keys[(d + i) * 16] = half[i];
    }
    values += (size_t)slot * (size_t)value_dim;
    for (int d = 0; d < value_dim; d += 16) {
        const int n = value_dim - d < 16 ? value_dim - d : 16;
        vf_to_f16(half, vf_load_first(v + d, n));
        memcpy(values + d, half, (size_t)n * 2);
    }
}

static void pack(float *packed, const float *const *q, int rows, int key_dim, float scale) {
    for (int r = 0; r < rows; r++) {
        const float *row = q[r];
        for (int d = 0; d < key_dim; d++) packed[d * ATTENTION_ROWS + r] = row[d] * scale;
    }
}

/* Memory that is wanted soon: one line of 64 bytes a step. With step 0 the line is one that is there already. */
struct ahead { const char *line; int step; };

VEC struct ahead fetch_ahead(const struct attention_part *part, const void *wanted, size_t offset) {
    if (!part->next_keys) return (struct ahead){(const char *)part->q, 0};
    return (struct ahead){(const char *)wanted + offset, 64};
}

/* As many lines as the `vectors` of 16-bit floats that a step reads. */
VEC void fetch(struct ahead *ahead, const int vectors) {
    UNROLL for (int i = 0; i < vectors; i += 2) {
        __builtin_prefetch(ahead->line, 0, 2);
        ahead->line += ahead->step;
    }
}

/* ---- scores: sum over d of q[row][d] * key[d]; the values are fetched meanwhile ---- */

/* `rows` rows against `groups` groups of 16 keys; both are constants where it is inlined, at most MOST sums in all. */
VEC void score_tile(float *scores, const float *q, const uint16_t *keys, int key_dim, struct ahead ahead,
                    const int rows, const int groups) {
    vf sum[MOST], k[MOST];
    UNROLL for (int i = 0; i < rows * groups; i++) sum[i] = vf_zero();
    for (int d = 0; d < key_dim; d++) {
        fetch(&ahead, groups);
        UNROLL for (int g = 0; g < groups; g++) k[g] = vf_from_f16(keys + (g * key_dim + d) * 16);
        UNROLL for (int r = 0; r < rows; r++) {
            const vf x = vf_set1(q[d * ATTENTION_ROWS + r]);
            UNROLL for (int g = 0; g < groups; g++) sum[r * groups + g] = vf_fma(x, k[g], sum[r * groups + g]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int g = 0; g < groups; g++) vf_store(scores + r * ATTENTION_SPLIT + 16 * g, sum[r * groups + g]);
}

VEC void score_groups(float *scores, const struct attention_part *part, const float *q, int group, const int rows,
                      const int groups) {
    const size_t at = (size_t)group * (size_t)part->key_dim * 16;
    score_tile(scores + 16 * group, q, part->keys + at, part->key_dim, fetch_ahead(part, part->values, 2 * at), rows,
               groups);
}

VEC void score_rows(float *scores, const struct attention_part *part, const float *q, int first, int last,
                    const int rows) {
    const int wide = WIDEST(rows);
    int g = first;
    for (; g + wide <= last; g += wide) score_groups(scores, part, q, g, rows, wide);
    for (; g < last; g++) score_groups(scores, part, q, g, rows, 1);
}

/* Groups first..last of all rows. */
static void score(float *scores, const struct attention_part *part, int first, int last) {
    for (int r = 0; r < part->rows; r += ROWS_AT_ONCE) {
        float *s = scores + r * ATTENTION_SPLIT;
        const float *q = part->q + r;
        switch (part->rows - r) {
#define CASE(n) case n: score_rows(s, part, q, first, last, n < ROWS_AT_ONCE ? n : ROWS_AT_ONCE); break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
        }
    }
}

/* ---- softmax of one row, not yet divided ---- */

static const float lane_number[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* Scores of keys outside first..last become minus infinity. */
VEC vf masked(const float *scores, int key, int first, int last) {
    const vf s = vf_load(scores + key);
    if (key >= first && key + 16 <= last) return s;
    const vf at = vf_add(vf_load(lane_number), vf_set1((float)key)), none = vf_set1(-INFINITY);
    return vf_select_less(at, vf_set1((float)first), none, vf_select_less(at, vf_set1((float)last), s, none));
}

/* Scores of keys from..to (multiples of 16) become exp(score - max). */
static void exponentials(float *scores, int from, int to, int first, int last, float *max, float *sum) {
    vf most = vf_set1(-INFINITY), total = vf_zero();
    for (int key = first / 16 * 16; key < last; key += 16) most = vf_max(masked(scores, key, first, last), most);
    *max = vf_reduce_max(most);
    const vf peak = vf_set1(*max);
    for (int key = from; key < to; key += 16) {
        const bool seen = key < last && key + 16 > first;
        const vf e = seen ? vf_exp(vf_sub(masked(scores, key, first, last), peak)) : vf_zero();
        total = vf_add(total, e);
        vf_store(scores + key, e);
    }
    *sum = vf_sum(total);
}

/* ---- values: sum over keys of weight[row][key] * value[key]; the next keys are fetched meanwhile ---- */

VEC void value_tile(float *out, int stride, const float *weights, const uint16_t *values, int dim, int first, int last,
                    struct ahead ahead, const int rows, const int groups) {
    vf sum[MOST], v[MOST];
    UNROLL for (int i = 0; i < rows * groups; i++) sum[i] = vf_zero();
    for (int key = first; key < last; key++) {
        fetch(&ahead, groups);
        UNROLL for (int g = 0; g < groups; g++) v[g] = vf_from_f16(values + key * dim + 16 * g);
        UNROLL for (int r = 0; r < rows; r++) {
            const vf w = vf_set1(weights[r * ATTENTION_SPLIT + key]);
            UNROLL for (int g = 0; g < groups; g++) sum[r * groups + g] = vf_fma(w, v[g], sum[r * groups + g]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int g = 0; g < groups; g++) vf_store(out + r * stride + 16 * g, sum[r * groups + g]);
}

VEC void value_groups(const struct attention_part *part, const float *weights, float *out, int d, int first, int last,
                      const int rows, const int groups) {
    const struct ahead ahead = fetch_ahead(part, part->next_keys, (size_t)d * ATTENTION_SPLIT * 2);
    value_tile(out + d, (part->value_dim + 15) / 16 * 16, weights, part->values + d, part->value_dim, first, last,
               ahead, rows, groups);
}

/* A row of values that does not end at a multiple of 16 is read up to 30 bytes into what follows; those lanes are not
 * used. */
VEC void value_rows(const struct attention_part *part, const float *weights, float *out, int first, int last,
                    const int rows) {
    const int wide = WIDEST(rows), dim = (part->value_dim + 15) / 16 * 16;
    int d = 0;
    for (; d + 16 * wide <= dim; d += 16 * wide) value_groups(part, weights, out, d, first, last, rows, wide);
    for (; d < dim; d += 16) value_groups(part, weights, out, d, first, last, rows, 1);
}

static void weigh(const struct attention_part *part, const float *weights, int first, int last) {
    const int stride = (part->value_dim + 15) / 16 * 16;
    for (int r = 0; r < part->rows; r += ROWS_AT_ONCE) {
        float *out = part->out + r * stride;
        const float *w = weights + r * ATTENTION_SPLIT;
        switch (part->rows - r) {
#define CASE(n) case n: value_rows(part, w, out, first, last, n < ROWS_AT_ONCE ? n : ROWS_AT_ONCE); break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
        }
    }
}

/* scratch: ATTENTION_ROWS * ATTENTION_SPLIT floats */
static void attention_part(const struct attention_part *part, float *scratch) {
    int first = ATTENTION_SPLIT, last = 0;
    for (int r = 0; r < part->rows; r++) {
        if (part->first[r] >= part->last[r]) continue;
        if (part->first[r] < first) first = part->first[r];
        if (part->last[r] > last) last = part->last[r];
    }
    const int from = first / 16, to = (last + 15) / 16;
    score(scratch, part, from, to);
    for (int r = 0; r < part->rows; r++)
        exponentials(scratch + r * ATTENTION_SPLIT, 16 * from, 16 * to, part->first[r], part->last[r], part->max + r,
                     part->sum + r);
    weigh(part, scratch, first, last);
}

/* ---- blocks together ---- */

static float exp1(float x) {
    float lanes[16];
    vf_store(lanes, vf_exp(vf_set1(x)));
    return lanes[0];
}

/* (out, max, sum) of the blocks so far becomes that with one block more; max of minus infinity: no key was seen. */
static void merge(float *out, float *max, float *sum, const float *part_out, float part_max, float part_sum, int dim) {
    if (part_max == -INFINITY) return;
    const bool none = *max == -INFINITY;
    const float most = !none && *max > part_max ? *max : part_max;
    const float keep = none ? 0.0f : exp1(*max - most), take = exp1(part_max - most);
    const vf a = vf_set1(keep), b = vf_set1(take);
    for (int d = 0; d < dim; d += 16) {
        const vf add = vf_mul(vf_load(part_out + d), b);
        vf_store(out + d, none ? add : vf_fma(vf_load(out + d), a, add));
    }
    *sum = none ? part_sum * take : fmaf(*sum, keep, part_sum * take);
    *max = most;
}

/* A sink is one more logit in the denominator. */
static void finish(float *out, const float *acc, float max, float sum, const float *sink, int dim) {
    float factor = 1.0f;
    if (sink) {
        const float most = *sink > max ? *sink : max;
        factor = exp1(max - most);
        sum = sum * factor + exp1(*sink - most);
    }
    const vf inverse = vf_set1(factor / sum);
    int d = 0;
    for (; d + 16 <= dim; d += 16) vf_store(out + d, vf_mul(vf_load(acc + d), inverse));
    if (d < dim) vf_store_first(out + d, vf_mul(vf_load(acc + d), inverse), dim - d);
}

void COLIBRI_FN(fill_attention)(struct kernels *k) {
    k->kv_append = kv_append;
    k->attention_pack = pack;
    k->attention_part = attention_part;
    k->attention_merge = merge;
    k->attention_finish = finish;
}
