/* Attention of a few query rows over one block of the cache, and the merging of blocks (online softmax, Milakov and
 * Gimelshein 2018). A lane is a key while scores are computed and a value dimension while values are summed, so nothing
 * is added across lanes but the sixteen partial sums of a softmax. Every row has its own sums, in key order: how many
 * rows share a pass over keys and values changes no bit. */
#include "kernels.h"
#include "vec/int8.h"
#include "vec/math.h"
#include "vec/vec.h"

enum { MOST = VEC_ACCUMULATORS, ROWS_AT_ONCE = MOST < ATTENTION_ROWS ? MOST : ATTENTION_ROWS };
#define WIDEST(rows) (MOST / (rows) >= 8 ? 8 : MOST / (rows) >= 4 ? 4 : MOST / (rows) >= 2 ? 2 : 1)
#define UNROLL _Pragma("GCC unroll 16")

/* ---- storing ---- */

#define F16_LIMIT 65520.0f /* from here on a float becomes an infinity as a half float */

/* Whether no number is a NaN, or as large as that. */
VEC bool fits_f16(const float *x, int n) {
    const vf limit = vf_set1(F16_LIMIT), one = vf_set1(1.0f);
    vf bad = vf_zero();
    for (int i = 0; i < n; i += 16) {
        const vf value = n - i < 16 ? vf_load_first(x + i, n - i) : vf_load(x + i);
        bad = vf_add(bad, vf_select_less(vf_abs(value), limit, vf_zero(), one));
    }
    return vf_sum(bad) == 0.0f;
}

/* Dimensions [d, d + 16) of 16 keys: a transposition. */
static void key_tile_f16(uint16_t *keys, const float *k, size_t step) {
    uint16_t half[16][16];
    vb pairs[4]; /* of neighbouring dimensions, of 16 keys */
    for (int i = 0; i < 16; i++) vf_to_f16(half[i], vf_load(k + (size_t)i * step));
    for (int d = 0; d < 16; d += 8) {
        vb_load_rows(pairs, (const uint8_t *)&half[0][d], sizeof half[0]);
        VEC_UNROLL for (int i = 0; i < 4; i++) vb_store(keys + (d + 2 * i) * 16, vb_halves(pairs[i]));
    }
}

/* One vector, whose numbers lie `step` apart, a constant where it is inlined. */
VEC void vector_f16(uint16_t *out, const int step, const float *x, int dim) {
    uint16_t half[16];
    for (int d = 0; d < dim; d += 16) {
        const int n = dim - d < 16 ? dim - d : 16;
        vf_to_f16(half, vf_load_first(x + d, n));
        for (int i = 0; i < n; i++) out[(d + i) * step] = half[i];
    }
}

static int faults_f16(const struct kv_rows *rows, int key_dim, int value_dim) {
    int faults = 0;
    for (int i = 0; i < rows->n; i++) {
        if (!fits_f16(rows->k + (size_t)i * rows->k_step, key_dim)) faults |= FAULT_KEY;
        if (rows->v && !fits_f16(rows->v + (size_t)i * rows->v_step, value_dim)) faults |= FAULT_VALUE;
    }
    return faults;
}

int KERNEL(kv_append_f16)(void *keys, void *values, const struct kv_rows *rows, int key_dim, int value_dim) {
    uint16_t *key = (uint16_t *)keys + (size_t)(rows->slot / 16) * (size_t)key_dim * 16 + rows->slot % 16;
    if (rows->n == 16 && key_dim % 16 == 0)
        for (int d = 0; d < key_dim; d += 16) key_tile_f16(key + d * 16, rows->k + d, rows->k_step);
    else
        for (int i = 0; i < rows->n; i++) vector_f16(key + i, 16, rows->k + (size_t)i * rows->k_step, key_dim);
    for (int i = 0; rows->v && i < rows->n; i++)
        vector_f16((uint16_t *)values + (rows->slot + i) * value_dim, 1, rows->v + (size_t)i * rows->v_step, value_dim);
    return faults_f16(rows, key_dim, value_dim);
}

/* One vector; its numbers, and its scales, lie `step` apart. Whether each scale is finite as a half float. */
static bool append_int8(int8_t *out, uint16_t *scales, int step, const float *x, int dim) {
    bool fits = true;
    for (int d = 0; d < dim; d += 32, scales += step) {
        const int n = dim - d < 32 ? dim - d : 32;
        float block[32] = {0};
        int8_t q[32];
        uint16_t half[16];
        vf inverse;
        memcpy(block, x + d, (size_t)n * sizeof *x);
        const float scale = block_scale(block, 32, &inverse);
        vf_to_f16(half, vf_set1(scale));
        *scales = half[0];
        fits &= scale < F16_LIMIT;
        quantize_16(q, block, inverse);
        quantize_16(q + 16, block + 16, inverse);
        for (int i = 0; i < n; i++) out[(d + i) * step] = q[i];
    }
    return fits;
}

int KERNEL(kv_append_q8_0)(void *keys, void *values, const struct kv_rows *rows, int key_dim, int value_dim) {
    int8_t *key = keys, *value = values;
    uint16_t *key_scales = (uint16_t *)(void *)(key + ATTENTION_SPLIT * key_dim);
    uint16_t *value_scales = value ? (uint16_t *)(void *)(value + ATTENTION_SPLIT * value_dim) : NULL;
    int faults = 0;
    for (int i = 0, slot = rows->slot; i < rows->n; i++, slot++) {
        if (!append_int8(key + slot / 16 * key_dim * 16 + slot % 16,
                         key_scales + slot / 16 * kv_scales(key_dim) * 16 + slot % 16, 16,
                         rows->k + (size_t)i * rows->k_step, key_dim))
            faults |= FAULT_KEY;
        if (rows->v && !append_int8(value + slot * value_dim, value_scales + slot * kv_scales(value_dim), 1,
                         rows->v + (size_t)i * rows->v_step, value_dim))
            faults |= FAULT_VALUE;
    }
    return faults;
}

/* ---- values that are the first dimensions of keys ---- */

/* 16 dimensions of 16 keys: a transposition. */
static void value_tile_f16(uint16_t *values, const uint16_t *keys, size_t step) {
    uint16_t two[2][16];
    vb pairs[4]; /* of neighbouring keys, of 16 dimensions */
    for (int key = 0; key < 16; key += 8) {
        vb_load_rows(pairs, (const uint8_t *)(keys + key), 16 * sizeof *keys);
        VEC_UNROLL for (int i = 0; i < 4; i++) {
            vb_store(two, vb_halves(pairs[i]));
            memcpy(values + (size_t)(key + 2 * i) * step, two[0], sizeof two[0]);
            memcpy(values + (size_t)(key + 2 * i + 1) * step, two[1], sizeof two[1]);
        }
    }
}

void KERNEL(kv_values_f16)(void *values, const void *keys, int key_dim, int value_dim, int first, int last) {
    for (int g = first; g < last; g++)
        for (int d = 0; d < value_dim; d += 16)
            value_tile_f16((uint16_t *)values + 16 * g * value_dim + d, (const uint16_t *)keys + (g * key_dim + d) * 16,
                           (size_t)value_dim);
}

static void value_tile_int8(int8_t *values, const int8_t *keys, size_t step) {
    int32_t wide[16][16];
    vb four[4]; /* a key each, of 16 dimensions */
    for (int d = 0; d < 16; d++) vi_store(wide[d], vi_from_i8(keys + 16 * d));
    for (int key = 0; key < 16; key += 4) {
        vb_load_rows(four, (const uint8_t *)&wide[0][key], sizeof wide[0]);
        VEC_UNROLL for (int i = 0; i < 4; i++) vi_to_i8(values + (size_t)(key + i) * step, vi_from_vb(four[i]));
    }
}

void KERNEL(kv_values_q8_0)(void *values, const void *keys, int key_dim, int value_dim, int first, int last) {
    const uint16_t *from = (const void *)((const int8_t *)keys + ATTENTION_SPLIT * key_dim);
    uint16_t *to = (void *)((int8_t *)values + ATTENTION_SPLIT * value_dim);
    const int parts = kv_scales(value_dim), key_parts = kv_scales(key_dim);
    for (int g = first; g < last; g++) {
        for (int d = 0; d < value_dim; d += 16)
            value_tile_int8((int8_t *)values + 16 * g * value_dim + d, (const int8_t *)keys + (g * key_dim + d) * 16,
                            (size_t)value_dim);
        for (int key = 0; key < 16; key++)
            for (int p = 0; p < parts; p++) to[(16 * g + key) * parts + p] = from[(g * key_parts + p) * 16 + key];
    }
}

/* ---- queries ---- */

/* x * 0 is 0 for a finite x and NaN for the others, and a sum keeps a NaN. */
VEC bool finite_row(const float *x, int n) {
    vf check = vf_zero();
    for (int i = 0; i < n; i += 16)
        check = vf_fma(n - i < 16 ? vf_load_first(x + i, n - i) : vf_load(x + i), vf_zero(), check);
    return vf_sum(check) == 0.0f;
}

bool KERNEL(attention_pack)(float *packed, const float *const *q, int rows, int key_dim, float scale) {
    bool finite = true;
    for (int r = 0; r < rows; r++) {
        const float *row = q[r];
        finite &= finite_row(row, key_dim);
        for (int d = 0; d < key_dim; d++) packed[d * ATTENTION_ROWS + r] = row[d] * scale;
    }
    return finite;
}

/* ---- 16 numbers of a cache, whose type is a constant wherever these are inlined ---- */

VEC int number_bytes(const int type) { return type == KV_F16 ? 2 : 1; }

VEC const void *number_at(const int type, const void *p, size_t i) { return (const char *)p + i * (size_t)number_bytes(type); }

VEC vf numbers(const int type, const void *p, int i) {
    const void *at = number_at(type, p, (size_t)i);
    return type == KV_F16 ? vf_from_f16(at) : vf_from_vi(vi_from_i8(at));
}

/* The scales of a block of Q8_0 as floats. */
static void widen_scales(float *out, const void *block, int dim) {
    const uint16_t *in = number_at(KV_Q8_0, block, (size_t)ATTENTION_SPLIT * (size_t)dim);
    for (int i = 0; i < ATTENTION_SPLIT * kv_scales(dim); i += 16) vf_store(out + i, vf_from_f16(in + i));
}

/* Memory that is wanted soon, as much a step as is read. With step 0 it is memory that is there already. */
struct ahead { const char *line; int step; };

VEC struct ahead fetch_ahead(const struct attention_part *part, const void *wanted, const int bytes) {
    if (!part->next_keys) return (struct ahead){(const char *)part->q, 0};
    return (struct ahead){wanted, bytes < 64 ? bytes : 64};
}

VEC void fetch(struct ahead *ahead, const int bytes) {
    UNROLL for (int i = 0; i < bytes; i += 64) {
        __builtin_prefetch(ahead->line, 0, 2);
        ahead->line += ahead->step;
    }
}

/* ---- scores: sum over d of q[row][d] * key[d]; the values are fetched meanwhile ---- */

/* `rows` rows against `groups` groups of 16 keys; both are constants where it is inlined, at most MOST sums in all. */
VEC void score_tile(float *scores, const struct attention_part *part, const float *q, const float *scales, int group,
                    const int type, const int rows, const int groups) {
    const int dim = part->key_dim, parts = kv_scales(dim), bytes = groups * 16 * number_bytes(type);
    const size_t at = (size_t)group * (size_t)dim * 16;
    const void *keys = number_at(type, part->keys, at);
    struct ahead ahead = fetch_ahead(part, number_at(type, part->values, at), bytes);
    vf sum[MOST], k[MOST];
    UNROLL for (int i = 0; i < rows * groups; i++) sum[i] = vf_zero();
    for (int d = 0; d < dim; d++) {
        fetch(&ahead, bytes);
        UNROLL for (int g = 0; g < groups; g++) {
            k[g] = numbers(type, keys, (g * dim + d) * 16);
            if (type == KV_Q8_0) k[g] = vf_mul(k[g], vf_load(scales + ((group + g) * parts + d / 32) * 16));
        }
        UNROLL for (int r = 0; r < rows; r++) {
            const vf x = vf_set1(q[d * ATTENTION_ROWS + r]);
            UNROLL for (int g = 0; g < groups; g++) sum[r * groups + g] = vf_fma(x, k[g], sum[r * groups + g]);
        }
    }
    scores += 16 * group;
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int g = 0; g < groups; g++) vf_store(scores + r * ATTENTION_SPLIT + 16 * g, sum[r * groups + g]);
}

VEC void score_rows(float *scores, const struct attention_part *part, const float *q, const float *scales, int first,
                    int last, const int type, const int rows) {
    int g = first;
#define EACH(wide)                                             \
    for (; wide <= WIDEST(rows) && g + wide <= last; g += wide) \
        score_tile(scores, part, q, scales, g, type, rows, wide);
    EACH(8) EACH(4) EACH(2) EACH(1)
#undef EACH
}

/* Groups first..last of all rows. */
VEC void score(float *scores, const struct attention_part *part, const float *scales, int first, int last, const int type) {
    for (int r = 0; r < part->rows; r += ROWS_AT_ONCE) {
        float *s = scores + r * ATTENTION_SPLIT;
        const float *q = part->q + r;
        switch (part->rows - r) {
#define CASE(n) case n: score_rows(s, part, q, scales, first, last, type, n < ROWS_AT_ONCE ? n : ROWS_AT_ONCE); break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
        }
    }
}

/* ---- softmax of one row, not yet divided ---- */

static const float lane_number[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* Scores of keys outside first..last become `none`. */
VEC vf masked(const float *scores, int key, int first, int last, float none) {
    const vf s = vf_load(scores + key);
    if (key >= first && key + 16 <= last) return s;
    const vf at = vf_add(vf_load(lane_number), vf_set1((float)key)), n = vf_set1(none);
    return vf_select_less(at, vf_set1((float)first), n, vf_select_less(at, vf_set1((float)last), s, n));
}

/* Scores of keys from..to (multiples of 16) become exp(score - max). False: a score is not finite. */
static bool exponentials(float *scores, int from, int to, int first, int last, float *max, float *sum) {
    vf most = vf_set1(-INFINITY), check = vf_zero(), total = vf_zero();
    for (int key = first / 16 * 16; key < last; key += 16) {
        most = vf_max(masked(scores, key, first, last, -INFINITY), most);
        check = vf_fma(masked(scores, key, first, last, 0.0f), vf_zero(), check);
    }
    *max = vf_reduce_max(most);
    const vf peak = vf_set1(*max);
    for (int key = from; key < to; key += 16) {
        const bool seen = key < last && key + 16 > first;
        const vf e = seen ? vf_exp(vf_sub(masked(scores, key, first, last, -INFINITY), peak)) : vf_zero();
        total = vf_add(total, e);
        vf_store(scores + key, e);
    }
    *sum = vf_sum(total);
    return vf_sum(check) == 0.0f;
}

/* ---- values: sum over keys of weight[row][key] * value[key]; the next keys are fetched meanwhile ---- */

VEC void value_tile(const struct attention_part *part, const float *weights, const float *scales, float *out, int d,
                    int first, int last, const int type, const int rows, const int groups) {
    const int dim = part->value_dim, stride = (dim + 15) / 16 * 16, parts = kv_scales(dim);
    const int bytes = groups * 16 * number_bytes(type);
    struct ahead ahead = fetch_ahead(part, number_at(type, part->next_keys, (size_t)d * ATTENTION_SPLIT), bytes);
    vf sum[MOST], v[MOST];
    UNROLL for (int i = 0; i < rows * groups; i++) sum[i] = vf_zero();
    for (int key = first; key < last; key++) {
        fetch(&ahead, bytes);
        UNROLL for (int g = 0; g < groups; g++) {
            v[g] = numbers(type, part->values, key * dim + d + 16 * g);
            if (type == KV_Q8_0) v[g] = vf_mul(v[g], vf_set1(scales[key * parts + (d + 16 * g) / 32]));
        }
        UNROLL for (int r = 0; r < rows; r++) {
            const vf w = vf_set1(weights[r * ATTENTION_SPLIT + key]);
            UNROLL for (int g = 0; g < groups; g++) sum[r * groups + g] = vf_fma(w, v[g], sum[r * groups + g]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int g = 0; g < groups; g++) vf_store(out + r * stride + d + 16 * g, sum[r * groups + g]);
}

/* A row of values that does not end at a multiple of 16 is read up to 30 bytes into what follows; those lanes are not
 * used. */
VEC void value_rows(const struct attention_part *part, const float *weights, const float *scales, float *out, int first,
                    int last, const int type, const int rows) {
    const int dim = (part->value_dim + 15) / 16 * 16;
    int d = 0;
#define EACH(wide)                                                       \
    for (; wide <= WIDEST(rows) && d + 16 * wide <= dim; d += 16 * wide) \
        value_tile(part, weights, scales, out, d, first, last, type, rows, wide);
    EACH(8) EACH(4) EACH(2) EACH(1)
#undef EACH
}

VEC void weigh(const struct attention_part *part, const float *weights, const float *scales, int first, int last,
               const int type) {
    const int stride = (part->value_dim + 15) / 16 * 16;
    for (int r = 0; r < part->rows; r += ROWS_AT_ONCE) {
        float *out = part->out + r * stride;
        const float *w = weights + r * ATTENTION_SPLIT;
        switch (part->rows - r) {
#define CASE(n) case n: value_rows(part, w, scales, out, first, last, type, n < ROWS_AT_ONCE ? n : ROWS_AT_ONCE); break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
        }
    }
}

VEC bool attend(const struct attention_part *part, float *scratch, const int type) {
    float *scales = scratch + ATTENTION_ROWS * ATTENTION_SPLIT;
    int first = ATTENTION_SPLIT, last = 0;
    for (int r = 0; r < part->rows; r++) {
        if (part->first[r] >= part->last[r]) continue;
        if (part->first[r] < first) first = part->first[r];
        if (part->last[r] > last) last = part->last[r];
    }
    const int from = first / 16, to = (last + 15) / 16;
    if (type == KV_Q8_0) widen_scales(scales, part->keys, part->key_dim);
    score(scratch, part, scales, from, to, type);
    bool finite = true;
    for (int r = 0; r < part->rows; r++)
        finite &= exponentials(scratch + r * ATTENTION_SPLIT, 16 * from, 16 * to, part->first[r], part->last[r],
                               part->max + r, part->sum + r);
    if (type == KV_Q8_0) widen_scales(scales, part->values, part->value_dim);
    weigh(part, scratch, scales, first, last, type);
    return finite;
}
bool KERNEL(attention_part_f16)(const struct attention_part *part, float *scratch) { return attend(part, scratch, KV_F16); }
bool KERNEL(attention_part_q8_0)(const struct attention_part *part, float *scratch) { return attend(part, scratch, KV_Q8_0); }

/* ---- blocks together ---- */

static float exp1(float x) {
    float lanes[16];
    vf_store(lanes, vf_exp(vf_set1(x)));
    return lanes[0];
}

/* (out, max, sum) of the blocks so far becomes that with one block more. The sum tells that no key was seen yet, and `out`
 * not written: a maximum of minus infinity may also come from scores that are no numbers. */
void KERNEL(attention_merge)(float *out, float *max, float *sum, const float *part_out, float part_max, float part_sum, int dim) {
    if (part_sum == 0.0f) return;
    const bool none = *sum == 0.0f;
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

/* A sink is one more logit in the denominator. Without a key that was seen, all is zero. False: not finite. */
bool KERNEL(attention_finish)(float *out, const float *acc, float max, float sum, const float *sink, int dim) {
    float factor = 1.0f;
    if (sum == 0.0f) {
        for (int i = 0; i < dim; i++) out[i] = 0.0f;
        return true;
    }
    if (sink) {
        const float most = *sink > max ? *sink : max;
        factor = exp1(max - most);
        sum = sum * factor + exp1(*sink - most);
    }
    const vf inverse = vf_set1(factor / sum);
    vf check = vf_zero();
    int d = 0;
    for (; d + 16 <= dim; d += 16) {
        const vf x = vf_mul(vf_load(acc + d), inverse);
        vf_store(out + d, x);
        check = vf_fma(x, vf_zero(), check);
    }
    if (d < dim) {
        const vf x = vf_mul(vf_load_first(acc + d, dim - d), inverse);
        vf_store_first(out + d, x, dim - d);
        check = vf_fma(x, vf_zero(), check);
    }
    return vf_sum(check) == 0.0f;
}
