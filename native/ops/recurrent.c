/* Recurrent mixers: the gated delta rule (Yang and others 2024) and the state space of Mamba2 (Dao and Gu 2024), token after
 * token, and the short convolution before both. A lane is a column of values, so nothing is added across lanes but where keys
 * are brought to length 1. A block of the state stays in the first cache while the tokens go by; the sums over its rows run from
 * the first to the last, and a column does not know which others are computed beside it. */
#include "kernels.h"
#include "vec/math.h"
#include "vec/vec.h"

/* What a kernel makes of the tokens before it goes through the state. */
struct prepared { float *k, *q, *step, *decay, *rate, *overlap; };

static struct prepared places(float *scratch, int key_size) {
    struct prepared p = {.step = scratch};
    p.decay = p.step + RECURRENT_TOKENS;
    p.rate = p.decay + RECURRENT_TOKENS;
    p.overlap = p.rate + RECURRENT_TOKENS;
    p.k = p.overlap + RECURRENT_TOKENS;
    p.q = p.k + (size_t)RECURRENT_TOKENS * (size_t)key_size;
    return p;
}

/* ---- gates ---- */

/* The numbers of up to 16 tokens. */
VEC vf gather(const float *x, size_t step, int n) {
    float lanes[16] = {0};
    for (int i = 0; i < n && i < 16; i++) lanes[i] = x[(size_t)i * step];
    return vf_load(lanes);
}

/* x * 0 is 0 for a finite x and NaN for the others. */
VEC vf spoilt(vf check, vf x) { return vf_fma(x, vf_zero(), check); }
VEC bool intact(vf check) { return vf_sum(check) == 0.0f; }

static bool steps_and_decays(const struct recurrent_rows *r, const struct prepared *p) {
    const vf bias = vf_set1(r->dt_bias), a = vf_set1(r->a), least = vf_set1(r->least), most = vf_set1(r->most);
    vf check = vf_zero();
    for (int t = 0; t < r->tokens; t += 16) {
        const vf dt = gather(r->dt + (size_t)t * r->gate_step, r->gate_step, r->tokens - t);
        const vf step = vf_min(most, vf_max(least, vf_softplus(vf_add(dt, bias))));
        check = spoilt(check, dt);
        vf_store(p->step + t, step);
        vf_store(p->decay + t, vf_exp(vf_mul(a, step)));
    }
    return intact(check);
}

static bool rates(const struct recurrent_rows *r, const struct prepared *p) {
    vf check = vf_zero();
    for (int t = 0; t < r->tokens; t += 16) {
        const vf beta = gather(r->beta + (size_t)t * r->gate_step, r->gate_step, r->tokens - t);
        check = spoilt(check, beta);
        vf_store(p->rate + t, vf_sigmoid(beta));
    }
    return intact(check);
}

/* ---- keys and queries ---- */

VEC vf some(const float *x, int n) { return n >= 16 ? vf_load(x) : vf_load_first(x, n); }
VEC void store_some(float *out, vf x, int n) {
    if (n >= 16) vf_store(out, x);
    else vf_store_first(out, x, n);
}

static float dot(const float *x, const float *y, int n) {
    vf sum = vf_zero();
    for (int i = 0; i < n; i += 16) sum = vf_fma(some(x + i, n - i), some(y + i, n - i), sum);
    return vf_sum(sum);
}

/* out = x / its length, times scale. */
static bool normalize(float *out, const float *x, int n, float eps, float scale) {
    const float total = dot(x, x, n);
    const vf factor = vf_set1(scale / sqrtf(total + eps));
    for (int i = 0; i < n; i += 16) store_some(out + i, vf_mul(some(x + i, n - i), factor), n - i);
    return total - total == 0.0f;
}

static bool normalize_all(const struct recurrent_rows *r, const struct prepared *p) {
    const int n = r->key_size;
    const float scale = 1.0f / sqrtf((float)n);
    bool good = true;
    for (int t = 0; t < r->tokens; t++) {
        float *k = p->k + (size_t)t * (size_t)n, *q = p->q + (size_t)t * (size_t)n;
        good &= normalize(k, r->k + (size_t)t * r->row_step, n, r->eps, 1.0f);
        good &= normalize(q, r->q + (size_t)t * r->row_step, n, r->eps, scale);
        p->overlap[t] = dot(k, q, n);
    }
    return good;
}

/* ---- the state ---- */

enum { SIDE_BY_SIDE = VEC_TILES }; /* blocks (1 or 2), for sums that do not wait for each other */
enum { WRITE = 1, ASK = 2, READ = 4 };

struct update { const float *key; float decay; vf change[SIDE_BY_SIDE]; };
struct sums { vf key[SIDE_BY_SIDE], query[SIDE_BY_SIDE]; };

/* Blocks in memory: neighbours lie in one row, since a processor takes a load for one of what was just stored 8 KiB before. */
struct place { float *state; size_t step; };

static struct place place_of(const struct recurrent_rows *r, int block) {
    const bool alone = block % 2 == 0 && 16 * (block + 1) >= r->value_size;
    float *pair = r->state + (size_t)(block / 2) * 32 * (size_t)r->key_size;
    return (struct place){pair + 16 * (block % 2), alone ? 16 : 32};
}

/* Once through `blocks` blocks: WRITE a token's change, then the sums over rows with a key (ASK) and a query (READ). What to do
 * and `blocks` are constants where it is inlined. */
VEC void pass(struct place at, const int size, const int what, const int blocks, const struct update *u, const float *key,
              const float *query, struct sums *sums) {
    const vf decay = what & WRITE ? vf_set1(u->decay) : vf_zero();
    vf asked[SIDE_BY_SIDE], read[SIDE_BY_SIDE], change[SIDE_BY_SIDE];
    VEC_UNROLL for (int b = 0; b < blocks; b++) {
        asked[b] = read[b] = vf_zero();
        if (what & WRITE) change[b] = u->change[b];
    }
    VEC_ROLL for (int i = 0; i < size; i++, at.state += at.step) {
        const vf written = what & WRITE ? vf_set1(u->key[i]) : vf_zero();
        VEC_UNROLL for (int b = 0; b < blocks; b++) {
            vf row = vf_load(at.state + 16 * b);
            if (what & WRITE) {
                row = vf_fma(written, change[b], vf_mul(row, decay));
                vf_store(at.state + 16 * b, row);
            } else {
                __builtin_prefetch(at.state + (size_t)size * at.step + 16 * b, 1, 3); /* the blocks that come next */
            }
            if (what & ASK) asked[b] = vf_fma(vf_set1(key[i]), row, asked[b]);
            if (what & READ) read[b] = vf_fma(vf_set1(query[i]), row, read[b]);
        }
    }
    VEC_UNROLL for (int b = 0; b < blocks; b++) {
        if (what & ASK) sums->key[b] = asked[b];
        if (what & READ) sums->query[b] = read[b];
    }
}

/* The change of a token and what is read after it, before the state has it: q^T (decay S + k change^T). */
VEC vf correct(const struct recurrent_rows *r, const struct prepared *p, int t, int block, const int blocks,
               struct update *u, const struct sums *sums) {
    const vf decay = vf_set1(p->decay[t]), rate = vf_set1(p->rate[t]), overlap = vf_set1(p->overlap[t]);
    vf check = vf_zero();
    u->decay = p->decay[t], u->key = p->k + (size_t)t * (size_t)r->key_size;
    VEC_UNROLL for (int b = 0; b < blocks; b++) {
        const int column = 16 * (block + b), n = r->value_size - column;
        const vf v = some(r->v + (size_t)t * r->row_step + column, n);
        u->change[b] = vf_mul(rate, vf_sub(v, vf_mul(decay, sums->key[b])));
        const vf out = vf_fma(overlap, u->change[b], vf_mul(decay, sums->query[b]));
        store_some(r->out + (size_t)t * r->out_step + column, out, n);
        check = spoilt(check, out);
    }
    return check;
}

/* Each pass writes a token and asks for the next one. */
VEC bool delta_blocks(const struct recurrent_rows *r, const struct prepared *p, int block, const int blocks) {
    const int size = r->key_size;
    const struct place state = place_of(r, block);
    struct update u;
    struct sums sums;
    pass(state, size, ASK | READ, blocks, &u, p->k, p->q, &sums);
    vf check = correct(r, p, 0, block, blocks, &u, &sums);
    for (int t = 1; t < r->tokens; t++) {
        const size_t row = (size_t)t * (size_t)size;
        pass(state, size, WRITE | ASK | READ, blocks, &u, p->k + row, p->q + row, &sums);
        check = vf_add(check, correct(r, p, t, block, blocks, &u, &sums));
    }
    pass(state, size, WRITE, blocks, &u, NULL, NULL, &sums);
    return intact(check);
}

VEC bool space_blocks(const struct recurrent_rows *r, const struct prepared *p, int block, const int blocks) {
    const struct place state = place_of(r, block);
    vf check = vf_zero(), x[SIDE_BY_SIDE];
    struct sums sums;
    for (int t = 0; t < r->tokens; t++) {
        const size_t row = (size_t)t * r->row_step;
        struct update u = {.key = r->k + row, .decay = p->decay[t]};
        VEC_UNROLL for (int b = 0; b < blocks; b++) {
            x[b] = some(r->v + row + 16 * (block + b), r->value_size - 16 * (block + b));
            u.change[b] = vf_mul(vf_set1(p->step[t]), x[b]);
        }
        pass(state, r->key_size, WRITE | READ, blocks, &u, NULL, r->q + row, &sums);
        VEC_UNROLL for (int b = 0; b < blocks; b++) {
            const int column = 16 * (block + b);
            const vf out = vf_fma(vf_set1(r->skip), x[b], sums.query[b]);
            store_some(r->out + (size_t)t * r->out_step + column, out, r->value_size - column);
            check = spoilt(check, out);
        }
    }
    return intact(check);
}

#define ALL_BLOCKS(name)                                                                       \
    static bool name##_all(const struct recurrent_rows *r, const struct prepared *p) {          \
        bool good = true;                                                                       \
        int block = r->first;                                                                   \
        while (block < r->last) {                                                               \
            const bool pair = SIDE_BY_SIDE == 2 && block % 2 == 0 && block + 1 < r->last;       \
            good &= pair ? name(r, p, block, SIDE_BY_SIDE) : name(r, p, block, 1);              \
            block += pair ? 2 : 1;                                                              \
        }                                                                                       \
        return good;                                                                            \
    }
ALL_BLOCKS(delta_blocks)
ALL_BLOCKS(space_blocks)

bool KERNEL(delta_rule)(const struct recurrent_rows *r, float *scratch) {
    const struct prepared p = places(scratch, r->key_size);
    return steps_and_decays(r, &p) && rates(r, &p) && normalize_all(r, &p) && delta_blocks_all(r, &p);
}

bool KERNEL(state_space)(const struct recurrent_rows *r, float *scratch) {
    const struct prepared p = places(scratch, r->key_size);
    return steps_and_decays(r, &p) && space_blocks_all(r, &p);
}

/* ---- the short convolution ---- */

VEC bool convolve(float *out, const float *const *rows, const float *weight, size_t step, const float *bias, const int taps,
                  int n, bool silu) {
    vf check = vf_zero();
    for (int i = 0; i < n; i += 16) {
        vf sum = bias ? some(bias + i, n - i) : vf_zero();
        for (int tap = 0; tap < taps; tap++)
            sum = vf_fma(some(weight + (size_t)tap * step + i, n - i), some(rows[tap] + i, n - i), sum);
        if (silu) sum = vf_silu(sum);
        store_some(out + i, sum, n - i);
        check = spoilt(check, sum);
    }
    return intact(check);
}

bool KERNEL(short_conv)(float *out, const float *const *rows, const float *weight, size_t step, const float *bias, int taps,
                       int n, bool silu) {
    switch (taps) {
    case 3: return convolve(out, rows, weight, step, bias, 3, n, silu);
    case 4: return convolve(out, rows, weight, step, bias, 4, n, silu);
    default: return convolve(out, rows, weight, step, bias, taps, n, silu);
    }
}

void KERNEL(multiply)(float *out, const float *x, const float *y, int n) {
    for (int i = 0; i < n; i += 16) store_some(out + i, vf_mul(some(x + i, n - i), some(y + i, n - i)), n - i);
}
