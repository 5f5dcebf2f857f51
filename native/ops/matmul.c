/* Tiles times columns of x. One lane is one output row; a panel of 256 values of k is unpacked once and then meets all
 * columns, in blocks of up to MAX_COLUMNS. A row of a column is summed in the order of k, whatever the columns beside it. */
#include "quants/formats.h"

enum {
    FLOAT_COLUMNS = 6, /* four sums each: 24 of 32 registers */
    AHEAD = 6144,      /* bytes; of 2 to 16 KiB the best */
    CHUNK = 64,        /* columns whose sums are kept, and that stay in the second cache between tiles */
};

#define EACH_COLUMN VEC_UNROLL for (int t = 0; t < T; t++)

/* sums[t] += weights * x[t], for blocks [first, first + count) of x; T is a constant. The scales are in the panel; so are
 * the bytes (many columns), or they are unpacked on the way from the tile (few): `packed` is where block `first` is. */
typedef void columns_function(float (*sums)[16], const void *panel, const uint8_t *packed, const void *const *x, int first,
                              int count);
typedef vb bytes_function(const uint8_t *block, int g);
VEC vb bytes_panel(const uint8_t *block, int g) { return vb_load(block + 64 * g); }

VEC void columns_q32(int T, bytes_function *bytes, size_t stride, float (*sums)[16], const struct panel *p,
                     const uint8_t *packed, const void *const *x, int first, int count) {
    const struct q32_block *in[MAX_COLUMNS];
    vf sum[MAX_COLUMNS];
    EACH_COLUMN in[t] = (const struct q32_block *)x[t] + first, sum[t] = vf_load(sums[t]);
    for (int b = 0; b < count; b++) {
        vi dot[MAX_COLUMNS];
        EACH_COLUMN dot[t] = vi_start_biased(in[t][b].minus_128_sum);
        VEC_UNROLL for (int g = 0; g < 8; g++) {
            vb w = bytes(packed + (size_t)b * stride, g);
            EACH_COLUMN dot[t] = vi_dot_biased(dot[t], w, in[t][b].q + 4 * g);
        }
        vf scale = vf_load(p->scale[b]);
        EACH_COLUMN sum[t] = vf_fma(vf_from_vi(dot[t]), vf_mul(scale, vf_set1(in[t][b].scale)), sum[t]);
    }
    EACH_COLUMN vf_store(sums[t], sum[t]);
}

/* sum[t] += the values [32 j, 32 j + 32) of a block with one or two scales. */
VEC void group_of_32(int T, bytes_function *bytes, int values_a_scale, vf *sum, const struct panel *p, const uint8_t *block,
                     const struct q256_block *const *in, int j) {
    VEC_UNROLL for (int i = 0; i < 32 / values_a_scale; i++) {
        int s = 32 / values_a_scale * j + i;
        vi dot[MAX_COLUMNS];
        EACH_COLUMN dot[t] = values_a_scale == 16 ? vi_set1(in[t]->minus_32_sum[s]) : vi_zero();
        VEC_UNROLL for (int g = 0; g < values_a_scale / 4; g++) {
            vb w = bytes(block, s * (values_a_scale / 4) + g);
            EACH_COLUMN dot[t] = vi_dot(dot[t], w, in[t]->q + values_a_scale * s + 4 * g);
        }
        vf scale = vf_load(p->scale[s]);
        EACH_COLUMN sum[t] = vf_fma(vf_from_vi(dot[t]), scale, sum[t]);
    }
}

VEC void columns_q256(int T, bytes_function *bytes, int values_a_scale, float (*sums)[16], const struct panel *p,
                      const uint8_t *packed, const void *const *x, int first) {
    const struct q256_block *in[MAX_COLUMNS];
    vf sum[MAX_COLUMNS];
    EACH_COLUMN in[t] = (const struct q256_block *)x[t] + first, sum[t] = vf_zero();
    if (bytes == bytes_panel)
        VEC_ROLL for (int j = 0; j < 8; j++) group_of_32(T, bytes, values_a_scale, sum, p, packed, in, j);
    else /* where a group's bits are has to be a constant */
        VEC_UNROLL for (int j = 0; j < 8; j++) group_of_32(T, bytes, values_a_scale, sum, p, packed, in, j);
    if (values_a_scale == 32) { /* the formats with minima */
        vi mins[MAX_COLUMNS];
        EACH_COLUMN mins[t] = vi_zero();
        VEC_UNROLL for (int i = 0; i < 4; i++) {
            vi pair = vi_load(p->mins[i]);
            EACH_COLUMN mins[t] = vi_madd16(mins[t], pair, vi_from_vb(vb_repeat4(in[t]->sums + 2 * i)));
        }
        vf minus_min = vf_sub(vf_zero(), vf_load(p->min_scale));
        EACH_COLUMN sum[t] = vf_fma(vf_from_vi(mins[t]), minus_min, sum[t]);
    }
    EACH_COLUMN vf_store(sums[t], vf_fma(sum[t], vf_set1(in[t]->scale), vf_load(sums[t])));
}

/* Four sums a column, by k % 4, because one would wait for itself. `load` takes a value of k of 16 rows, `bytes` a row. */
typedef vf load_function(const uint8_t *p);
VEC void columns_f32(int T, load_function *load, size_t bytes, float (*sums)[16], const uint8_t *w, const void *const *x,
                     int first, int count) {
    const float *in[FLOAT_COLUMNS];
    vf sum[FLOAT_COLUMNS][4];
    EACH_COLUMN {
        in[t] = (const float *)x[t] + first;
        VEC_UNROLL for (int i = 0; i < 4; i++) sum[t][i] = vf_zero();
    }
    int k = 0;
    for (; k + 4 <= count; k += 4)
        VEC_UNROLL for (int i = 0; i < 4; i++) {
            vf value = load(w + 16 * bytes * (size_t)(k + i));
            EACH_COLUMN sum[t][i] = vf_fma(value, vf_set1(in[t][k + i]), sum[t][i]);
        }
    VEC_UNROLL for (int i = 0; i < 3; i++)
        if (k + i < count) {
            vf value = load(w + 16 * bytes * (size_t)(k + i));
            EACH_COLUMN sum[t][i] = vf_fma(value, vf_set1(in[t][k + i]), sum[t][i]);
        }
    EACH_COLUMN {
        vf total = vf_add(vf_add(sum[t][0], sum[t][1]), vf_add(sum[t][2], sum[t][3]));
        vf_store(sums[t], vf_add(vf_load(sums[t]), total));
    }
}

#define DOT_q32(T, bytes, stride) columns_q32(T, bytes, stride, sums, panel, packed, x, first, count)
#define DOT_q256_32(T, bytes, stride) (void)count, columns_q256(T, bytes, 32, sums, panel, packed, x, first)
#define DOT_q256_16(T, bytes, stride) (void)count, columns_q256(T, bytes, 16, sums, panel, packed, x, first)
#define DOT_f32(T, load, bytes) (void)panel, columns_f32(T, load, bytes, sums, packed, x, first, count)

#define COLUMNS(dot, T, bytes, stride)                                                                             \
    static void dot##_##bytes##_##T(float (*sums)[16], const void *panel, const uint8_t *packed,                   \
                                    const void *const *x, int first, int count) {                                  \
        DOT_##dot(T, bytes, stride);                                                                               \
    }
#define COLUMNS_6(dot, bytes, stride)                                                                              \
    COLUMNS(dot, 1, bytes, stride) COLUMNS(dot, 2, bytes, stride) COLUMNS(dot, 3, bytes, stride)                   \
    COLUMNS(dot, 4, bytes, stride) COLUMNS(dot, 5, bytes, stride) COLUMNS(dot, 6, bytes, stride)
#define COLUMNS_8(dot, bytes, stride)                                                                              \
    COLUMNS_6(dot, bytes, stride) COLUMNS(dot, 7, bytes, stride) COLUMNS(dot, 8, bytes, stride)                    \
    static columns_function *const dot##_##bytes[] = {                                                             \
        NULL, dot##_##bytes##_1, dot##_##bytes##_2, dot##_##bytes##_3, dot##_##bytes##_4, dot##_##bytes##_5,       \
        dot##_##bytes##_6, dot##_##bytes##_7, dot##_##bytes##_8};
#define COLUMNS_2(dot, bytes, stride)                                                                              \
    COLUMNS(dot, 1, bytes, stride) COLUMNS(dot, 2, bytes, stride)                                                  \
    static columns_function *const dot##_##bytes[] = {NULL, dot##_##bytes##_1, dot##_##bytes##_2};
COLUMNS_8(q32, bytes_panel, 512)
COLUMNS_8(q256_32, bytes_panel, 0)
COLUMNS_8(q256_16, bytes_panel, 0)
#if VEC_ACCUMULATORS >= 16
enum { MAX_PACKED = 8 }; /* more columns than that are worth a panel */
#define PACKED COLUMNS_8
#else
enum { MAX_PACKED = 2 };
#define PACKED COLUMNS_2
#endif
#define X(NAME, name, dot, ...) PACKED(dot, bytes_##name, STRIDE_##NAME)
INTEGER_FORMATS(X)
#undef X
#define X(NAME, name, bytes)                                                                                       \
    COLUMNS_6(f32, load_##name, bytes)                                                                             \
    static columns_function *const f32_load_##name[] = {                                                           \
        NULL, f32_load_##name##_1, f32_load_##name##_2, f32_load_##name##_3, f32_load_##name##_4,                  \
        f32_load_##name##_5, f32_load_##name##_6};
FLOAT_FORMATS(X)
#undef X

/* Asks for the bytes AHEAD of these, into the first cache; a processor's own guess comes later and ends with the page.
 * Not unrolled: a processor waits when it is asked for many lines at once. */
VEC void prefetch(const uint8_t *p, int bytes) {
    VEC_ROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + AHEAD + i, 0, 3);
}

/* All columns of a panel, in blocks of equal size up to `widest`. The panel was made from `bytes` of the tile; each block
 * asks for its part of those to come, since a processor waits when it is asked for many lines at once. */
VEC void all_columns(columns_function *const *columns, int widest, float (*sums)[16], const void *panel,
                     const uint8_t *packed, const void *const *x, int n, int first, int count, const uint8_t *tile, int bytes) {
    int blocks = (n + widest - 1) / widest, part = (bytes / blocks + 63) / 64 * 64;
    for (int left = blocks, c = 0; left; left--, tile += part) {
        int size = (n - c + left - 1) / left;
        prefetch(tile, part);
        columns[size](sums + c, panel, packed, x + c, first, count);
        c += size;
    }
}

VEC void store_rows(float *const *y, float (*sums)[16], int n, int row, int rows, bool accumulate) {
    int count = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
    for (int c = 0; c < n; c++) {
        float *out = y[c] + row;
        vf value = vf_load(sums[c]);
        if (count == TILE_ROWS) vf_store(out, accumulate ? vf_add(vf_load(out), value) : value);
        else vf_store_first(out, accumulate ? vf_add(vf_load_first(out, count), value) : value, count);
    }
}

/* One tile and up to CHUNK columns. */
typedef void tile_kernel(float (*sums)[16], const uint8_t *tile, int k, const void *const *x, int n);

#define X(NAME, name, dot, values, ...)                                                                            \
    static void fast_##name(float (*sums)[16], const uint8_t *tile, int k, const void *const *x, int n) {          \
        struct panel panel;                                                                                        \
        int blocks = k / values, step = PANEL / values;                                                            \
        for (int b = 0; b < blocks; b += step) {                                                                   \
            int count = blocks - b < step ? blocks - b : step;                                                     \
            const uint8_t *block = tile + (size_t)b * STRIDE_##NAME;                                               \
            if (n <= MAX_PACKED) {                                                                                 \
                prefetch(block, step * STRIDE_##NAME);                                                             \
                scales_##name(&panel, tile, blocks, b, count);                                                     \
                dot##_bytes_##name[n](sums, &panel, block, x, b, count);                                           \
            } else {                                                                                               \
                expand_##name(&panel, tile, blocks, b, count);                                                     \
                all_columns(dot##_bytes_panel, MAX_COLUMNS, sums, &panel, panel.bytes[0], x, n, b, count,          \
                            block, step * STRIDE_##NAME);                                                          \
            }                                                                                                      \
        }                                                                                                          \
    }
INTEGER_FORMATS(X)
#undef X

/* Panels of floats; `direct`, if any, reads a float format from the tile, whose panels are `panel_bytes` apart. */
VEC void exact(floats_function *floats, columns_function *const *direct, size_t panel_bytes, float (*sums)[16],
               const uint8_t *tile, int k, const void *const *x, int n) {
    float buffer[PANEL * 16];
    for (int first = 0; first < k; first += PANEL) {
        int count = k - first < PANEL ? k - first : PANEL;
        const uint8_t *panel = tile + (size_t)(first / PANEL) * panel_bytes;
        if (direct && n <= FLOAT_COLUMNS) {
            prefetch(panel, (int)panel_bytes);
            direct[n](sums, NULL, panel, x, first, count);
        } else {
            floats(buffer, tile, k, first, count);
            all_columns(f32_load_f32, FLOAT_COLUMNS, sums, NULL, (const uint8_t *)buffer, x, n, first, count, panel,
                        (int)panel_bytes);
        }
    }
}

#define EXACT(NAME, name, direct)                                                                                  \
    static void exact_##name(float (*sums)[16], const uint8_t *tile, int k, const void *const *x, int n) {         \
        exact(floats_##name, direct, tile_stride(T_##NAME, PANEL), sums, tile, k, x, n);                           \
    }
#define X(NAME, name, ...) EXACT(NAME, name, NULL)
INTEGER_FORMATS(X)
#undef X
#define X(NAME, name, ...) EXACT(NAME, name, f32_load_##name)
FLOAT_FORMATS(X)
#undef X

VEC void matmul(tile_kernel *kernel, int type, const void *tiles, int k, int rows, int first, int last,
                const void *const *x, float *const *y, int n, bool accumulate) {
    size_t stride = tile_stride(type, k);
    for (int left = (n + CHUNK - 1) / CHUNK, c = 0; left; left--) {
        int size = (n - c + left - 1) / left;
        for (int tile = first; tile < last; tile++) {
            _Alignas(64) float sums[CHUNK][16];
            memset(sums, 0, (size_t)size * sizeof sums[0]);
            kernel(sums, (const uint8_t *)tiles + (size_t)tile * stride, k, x + c, size);
            store_rows(y + c, sums, size, tile * TILE_ROWS, rows, accumulate);
        }
        c += size;
    }
}

#define MATMUL(prefix, NAME, name)                                                                                 \
    static void matmul_##prefix##_##name(const void *tiles, int k, int rows, int first, int last,                  \
                                         const void *const *x, float *const *y, int n, bool accumulate) {          \
        matmul(prefix##_##name, T_##NAME, tiles, k, rows, first, last, x, y, n, accumulate);                       \
    }
#define X(NAME, name, ...) MATMUL(fast, NAME, name)
INTEGER_FORMATS(X)
#undef X
#define X(NAME, name, ...) MATMUL(exact, NAME, name)
INTEGER_FORMATS(X)
FLOAT_FORMATS(X)
#undef X

void COLIBRI_FN(fill_matmul)(struct kernels *);
void COLIBRI_FN(fill_matmul)(struct kernels *table) {
#define X(NAME, name, ...) table->matmul[T_##NAME] = matmul_fast_##name, table->matmul_exact[T_##NAME] = matmul_exact_##name;
    INTEGER_FORMATS(X)
#undef X
#define X(NAME, name, ...) table->matmul[T_##NAME] = table->matmul_exact[T_##NAME] = matmul_exact_##name;
    FLOAT_FORMATS(X)
#undef X
}
