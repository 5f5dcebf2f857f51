/* Tiles times columns of x. One lane is one output row. For many columns a panel of 256 values of k of VEC_TILES tiles is
 * unpacked once and then meets all columns, in blocks of PANEL_COLUMNS: each byte of a panel is used for a block of columns,
 * each byte of x for all the tiles. For few, bytes are unpacked on the way from the tile. A row of a column is summed in
 * the order of k, whatever the columns and tiles beside it. */
#include "quants/formats.h"

enum {
    FLOAT_COLUMNS = 6,                      /* four sums each: 24 of 32 registers */
    PANEL_COLUMNS = VEC_TILES == 2 ? 6 : 8, /* two sums for each tile: 24 of 32 registers */
    MAX_PACKED = VEC_TILES == 2 ? 8 : 2,    /* more columns than that are worth a panel */
    AHEAD = 6144,                           /* bytes; of 3 to 16 KiB the best */
    CHUNK = 128,                            /* columns whose sums are kept; they stay in the second cache between tiles */
};

#define EACH_COLUMN VEC_UNROLL for (int t = 0; t < T; t++)
#define EACH_TILE VEC_UNROLL for (int r = 0; r < R; r++)

/* Asks for some bytes that will be read soon: into the first cache and past the second. A processor's own guess comes later
 * and ends with the page. Not unrolled: a processor waits when it is asked for many lines at once. */
VEC void ask(const uint8_t *p, int bytes) {
    VEC_ROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 0);
}

/* sums[r * CHUNK + t] += tile r of weights * x[t], for blocks [first, first + count) of x; what the sums were does not
 * count when `first` is 0. R tiles and T columns are constants. The scales are in panels, one a tile; so are the bytes (many
 * columns), or they are unpacked on the way from the only tile (few): `packed` is where block `first` is, and `ahead` what
 * is asked for meanwhile (NULL: nothing). */
typedef void columns_function(float (*sums)[16], const void *panels, const uint8_t *packed, const void *const *x, int first,
                              int count, const uint8_t *ahead);
typedef vb bytes_function(const uint8_t *block, int g);
VEC vb bytes_panel(const uint8_t *block, int g) { return vb_load(block + 64 * g); }

/* dot[r][t] = the products of values [first, first + count) of block b of x. */
VEC void dot_q32(int R, int T, bool minima, bytes_function *bytes, vi (*dot)[MAX_COLUMNS], const uint8_t *packed,
                 const struct q32_block *const *in, int b, int first, int count) {
    EACH_TILE EACH_COLUMN {
        const struct q32_block *x = in[t] + b;
        const int32_t sum = count == 32 ? x->minus_128_sum : first ? x->minus_128_sum - x->minus_128_first : x->minus_128_first;
        dot[r][t] = minima ? vi_zero() : vi_start_biased(sum);
    }
    VEC_UNROLL for (int i = 0; i < count / 4; i++) {
        const int g = first / 4 + i;
        vb w[VEC_TILES];
        EACH_TILE w[r] = bytes(packed + r * sizeof(struct panel), g);
        EACH_COLUMN {
            const vb four = vb_repeat4(in[t][b].q + 4 * g);
            EACH_TILE dot[r][t] = (minima ? vi_dot : vi_dot_biased)(dot[r][t], w[r], four);
        }
    }
}

VEC void columns_q32(int R, int T, bool minima, int values_a_scale, bytes_function *bytes, size_t stride, size_t memory,
                     float (*sums)[16], const struct panel *p, const uint8_t *packed, const void *const *x, int first,
                     int count, const uint8_t *ahead) {
    const int scales = 32 / values_a_scale;
    const struct q32_block *in[MAX_COLUMNS];
    vf sum[VEC_TILES][MAX_COLUMNS];
    EACH_COLUMN in[t] = (const struct q32_block *)x[t] + first;
    EACH_TILE EACH_COLUMN sum[r][t] = first ? vf_load(sums[r * CHUNK + t]) : vf_zero();
    for (int b = 0; b < count; b++) {
        if (ahead) ask(ahead + (size_t)b * memory, (int)memory);
        VEC_UNROLL for (int s = 0; s < scales; s++) {
            vi dot[VEC_TILES][MAX_COLUMNS];
            dot_q32(R, T, minima, bytes, dot, packed + (size_t)b * stride, in, b, s * values_a_scale, values_a_scale);
            EACH_TILE {
                vf scale = vf_load(p[r].scale[b * scales + s]);
                EACH_COLUMN sum[r][t] = vf_fma(vf_from_vi(dot[r][t]), vf_mul(scale, vf_set1(in[t][b].scale)), sum[r][t]);
            }
        }
        if (minima) EACH_TILE {
            vf min = vf_load(p[r].scale[MINIMA + b]);
            EACH_COLUMN sum[r][t] = vf_fma(min, vf_set1(in[t][b].scale * ((float)in[t][b].minus_128_sum / 128)), sum[r][t]);
        }
    }
    EACH_TILE EACH_COLUMN vf_store(sums[r * CHUNK + t], sum[r][t]);
}

/* sum[r][t] += the values of scale s of a block. */
VEC void one_scale(int R, int T, bool minima, bytes_function *bytes, int values_a_scale, vf (*sum)[MAX_COLUMNS], const struct panel *p,
                   const uint8_t *block, const struct q256_block *const *in, int s) {
    vi dot[VEC_TILES][MAX_COLUMNS];
    EACH_TILE EACH_COLUMN dot[r][t] = minima ? vi_zero() : vi_set1(in[t]->minus_32_sum[s]);
    VEC_UNROLL for (int g = 0; g < values_a_scale / 4; g++) {
        vb w[VEC_TILES];
        EACH_TILE w[r] = bytes(block + r * sizeof *p, s * (values_a_scale / 4) + g);
        EACH_COLUMN {
            const vb four = vb_repeat4(in[t]->q + values_a_scale * s + 4 * g);
            EACH_TILE dot[r][t] = vi_dot(dot[r][t], w[r], four);
        }
    }
    EACH_TILE {
        vf scale = vf_load(p[r].scale[s]);
        EACH_COLUMN sum[r][t] = vf_fma(vf_from_vi(dot[r][t]), scale, sum[r][t]);
    }
}

VEC void take_minima(int R, int T, int values_a_scale, vf (*sum)[MAX_COLUMNS], const struct panel *p,
                     const struct q256_block *const *in) {
    EACH_TILE {
        vi mins[MAX_COLUMNS];
        EACH_COLUMN mins[t] = vi_zero();
        VEC_UNROLL for (int i = 0; i < 128 / values_a_scale; i++) {
            vi pair = vi_load(p[r].mins[i]);
            EACH_COLUMN {
                const int16_t *sums = values_a_scale == 32 ? in[t]->sums : in[t]->sums_of_16;
                mins[t] = vi_madd16(mins[t], pair, vi_from_vb(vb_repeat4(sums + 2 * i)));
            }
        }
        vf minus_min = vf_sub(vf_zero(), vf_load(p[r].min_scale));
        EACH_COLUMN sum[r][t] = vf_fma(vf_from_vi(mins[t]), minus_min, sum[r][t]);
    }
}

VEC void columns_q256(int R, int T, bool minima, bytes_function *bytes, size_t stride, int values_a_scale, float (*sums)[16],
                      const struct panel *p, const uint8_t *packed, const void *const *x, int first, const uint8_t *ahead) {
    const int scales = 256 / values_a_scale, lines = (int)(stride + 63) / 64;
    const struct q256_block *in[MAX_COLUMNS];
    vf sum[VEC_TILES][MAX_COLUMNS];
    EACH_COLUMN in[t] = (const struct q256_block *)x[t] + first;
    EACH_TILE EACH_COLUMN sum[r][t] = vf_zero();
    if (bytes == bytes_panel)
        VEC_ROLL for (int s = 0; s < scales; s++) one_scale(R, T, minima, bytes, values_a_scale, sum, p, packed, in, s);
    else /* where a group's bits are has to be a constant */
        VEC_UNROLL for (int s = 0; s < scales; s++) {
            const int line = s * lines / scales;
            if (ahead) ask(ahead + 64 * line, 64 * ((s + 1) * lines / scales - line));
            one_scale(R, T, minima, bytes, values_a_scale, sum, p, packed, in, s);
        }
    if (minima) take_minima(R, T, values_a_scale, sum, p, in);
    EACH_TILE EACH_COLUMN {
        const vf before = first ? vf_load(sums[r * CHUNK + t]) : vf_zero();
        vf_store(sums[r * CHUNK + t], vf_fma(sum[r][t], vf_set1(in[t]->scale), before));
    }
}

/* Adds the sums of k % 4 to a column's. */
VEC void add_four(float *sums, const vf *sum, int first) {
    const vf total = vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3]));
    vf_store(sums, vf_add(first ? vf_load(sums) : vf_zero(), total));
}

/* Four sums a column, by k % 4, because one would wait for itself. `load` takes a value of k of 16 rows, `bytes` a row. */
typedef vf load_function(const uint8_t *p);
VEC void columns_f32(int T, load_function *load, size_t bytes, float (*sums)[16], const uint8_t *w, const void *const *x,
                     int first, int count, const uint8_t *ahead) {
    const float *in[FLOAT_COLUMNS];
    vf sum[FLOAT_COLUMNS][4];
    EACH_COLUMN {
        in[t] = (const float *)x[t] + first;
        VEC_UNROLL for (int i = 0; i < 4; i++) sum[t][i] = vf_zero();
    }
    int k = 0;
    for (; k + 4 <= count; k += 4) {
        if (ahead) ask(ahead + 16 * bytes * (size_t)k, (int)(64 * bytes));
        VEC_UNROLL for (int i = 0; i < 4; i++) {
            vf value = load(w + 16 * bytes * (size_t)(k + i));
            EACH_COLUMN sum[t][i] = vf_fma(value, vf_set1(in[t][k + i]), sum[t][i]);
        }
    }
    VEC_UNROLL for (int i = 0; i < 3; i++)
        if (k + i < count) {
            vf value = load(w + 16 * bytes * (size_t)(k + i));
            EACH_COLUMN sum[t][i] = vf_fma(value, vf_set1(in[t][k + i]), sum[t][i]);
        }
    EACH_COLUMN add_four(sums[t], sum[t], first);
}

/* The same of a format that has a scale for each block of `values`, whose tile takes `bytes`. */
typedef vf scale_function(const uint8_t *block);
typedef vf value_function(vb four, int i, vf scale);
VEC void columns_scaled(int T, value_function *value, scale_function *scale_of, int values, size_t bytes, float (*sums)[16],
                        const uint8_t *w, const void *const *x, int first, int count, const uint8_t *ahead) {
    const float *in[FLOAT_COLUMNS];
    vf sum[FLOAT_COLUMNS][4];
    EACH_COLUMN {
        in[t] = (const float *)x[t] + first;
        VEC_UNROLL for (int i = 0; i < 4; i++) sum[t][i] = vf_zero();
    }
    for (int k = 0; k < count; w += bytes) {
        const vf scale = scale_of(w);
        if (ahead) ask(ahead + (size_t)(k / values) * bytes, (int)bytes);
        VEC_ROLL for (int g = 0; g < values / 4; g++, k += 4) {
            const vb four = vb_load(w + 64 * g);
            VEC_UNROLL for (int i = 0; i < 4; i++) {
                const vf weight = value(four, i, scale);
                EACH_COLUMN sum[t][i] = vf_fma(weight, vf_set1(in[t][k + i]), sum[t][i]);
            }
        }
    }
    EACH_COLUMN add_four(sums[t], sum[t], first);
}

/* `stride` is from the bytes of one unit of values (formats.h) to the next, `memory` what a unit takes with its scales. */
#define OF_Q32(R, T, minima, values_a_scale, bytes, stride, memory) \
    columns_q32(R, T, minima, values_a_scale, bytes, stride, memory, sums, panels, packed, x, first, count, ahead)
#define OF_Q256(R, T, minima, values_a_scale, bytes, memory) \
    (void)count, columns_q256(R, T, minima, bytes, memory, values_a_scale, sums, panels, packed, x, first, ahead)
#define DOT_q32(R, T, bytes, stride, memory) OF_Q32(R, T, false, 32, bytes, stride, memory)
#define DOT_q32_min(R, T, bytes, stride, memory) OF_Q32(R, T, true, 32, bytes, stride, memory)
#define DOT_q32_16(R, T, bytes, stride, memory) OF_Q32(R, T, false, 16, bytes, stride, memory)
#define DOT_q256_32_min(R, T, bytes, stride, memory) OF_Q256(R, T, true, 32, bytes, memory)
#define DOT_q256_16(R, T, bytes, stride, memory) OF_Q256(R, T, false, 16, bytes, memory)
#define DOT_q256_16_min(R, T, bytes, stride, memory) OF_Q256(R, T, true, 16, bytes, memory)
#define DOT_f32(R, T, load, bytes, memory) (void)panels, columns_f32(T, load, bytes, sums, packed, x, first, count, ahead)
#define DOT_scaled(R, T, name, values, memory) \
    (void)panels, columns_scaled(T, value_##name, scale_##name, values, memory, sums, packed, x, first, count, ahead)

#define COLUMNS(dot, R, T, bytes, stride, memory)                                                                  \
    static void dot##_##bytes##_##T(float (*sums)[16], const void *panels, const uint8_t *packed,                  \
                                    const void *const *x, int first, int count, const uint8_t *ahead) {            \
        DOT_##dot(R, T, bytes, stride, memory);                                                                            \
    }
#define COLUMNS_2(dot, R, ...) COLUMNS(dot, R, 1, __VA_ARGS__) COLUMNS(dot, R, 2, __VA_ARGS__)
#define COLUMNS_6(dot, R, ...)                                                                                     \
    COLUMNS_2(dot, R, __VA_ARGS__) COLUMNS(dot, R, 3, __VA_ARGS__) COLUMNS(dot, R, 4, __VA_ARGS__)                 \
    COLUMNS(dot, R, 5, __VA_ARGS__) COLUMNS(dot, R, 6, __VA_ARGS__)
#define COLUMNS_8(dot, R, ...)                                                                                     \
    COLUMNS_6(dot, R, __VA_ARGS__) COLUMNS(dot, R, 7, __VA_ARGS__) COLUMNS(dot, R, 8, __VA_ARGS__)
#define NAMES_2(f) NULL, f##_1, f##_2
#define NAMES_6(f) NAMES_2(f), f##_3, f##_4, f##_5, f##_6
#define NAMES_8(f) NAMES_6(f), f##_7, f##_8
/* The functions of up to N columns, and a table of them. */
#define TABLE(N, dot, R, bytes, ...)                                                                               \
    COLUMNS_##N(dot, R, bytes, __VA_ARGS__) static columns_function *const dot##_##bytes[] = {NAMES_##N(dot##_##bytes)};

#if VEC_TILES == 2
#define PANELS(dot, ...) TABLE(6, dot, 2, bytes_panel, sizeof(uint8_t[8][64]), 0)
#define PACKED(dot, ...) TABLE(8, dot, 1, __VA_ARGS__)
#else
#define PANELS(dot, ...) TABLE(8, dot, 1, bytes_panel, sizeof(uint8_t[8][64]), 0)
#define PACKED(dot, ...) TABLE(2, dot, 1, __VA_ARGS__)
#endif
PRODUCTS(PANELS)
#define FLOAT(NAME, name, code, bytes) TABLE(6, f32, 1, load_##name, bytes, 0)
#define SCALED(NAME, name, values, bytes, tile) TABLE(6, scaled, 1, name, values, tile)
#define INTEGER(NAME, name, code, values, block_bytes, tile_bytes, product) \
    PACKED(product, bytes_##name, STRIDE_##NAME, tile_bytes / (values / UNIT_##product))
#include "quants/quants.def"

/* What lies around the work on a tile: reading goes on after `end`, at `end + jump`; sums go to row `row` of y. */
struct around { const uint8_t *end; ptrdiff_t jump; float *const *y; int row; };

/* What is AHEAD of these bytes (rounded up to steps of `bytes`, so that none is missed at a jump). */
VEC const uint8_t *ahead_of(const uint8_t *p, int bytes, const struct around *around) {
    p += (AHEAD + bytes - 1) / bytes * bytes;
    return p < around->end ? p : p + around->jump;
}

/* Many columns, which would push them out of the first cache: asks for these bytes, into the second. */
VEC void ask_for(const uint8_t *p, int bytes) {
    VEC_ROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

/* What is wanted after some panels: `bytes` of each of `tiles` tiles, `next` apart, that the next panels are made from, or
 * none; and after the last panels the places of the sums, where no processor sees a pattern. y NULL: not the last. */
struct wanted { const uint8_t *coming; size_t next; int tiles, bytes; float *const *y; int row; };

/* All columns of panels, in blocks of equal size up to `widest`. Each block asks for its part of what is wanted. */
VEC void all_columns(columns_function *const *columns, int widest, float (*sums)[16], const void *panels,
                     const uint8_t *packed, const void *const *x, int n, int first, int count, const struct wanted *wanted) {
    const int blocks = (n + widest - 1) / widest, part = (wanted->bytes / blocks + 63) / 64 * 64;
    const uint8_t *coming = wanted->coming;
    for (int left = blocks, c = 0; left; left--, coming += part) {
        const int size = (n - c + left - 1) / left;
        for (int r = 0; r < wanted->tiles; r++) ask_for(coming + r * wanted->next, part);
        for (int i = c; wanted->y && i < c + size; i++)
            for (int r = 0; r < wanted->tiles; r++) __builtin_prefetch(wanted->y[i] + wanted->row + r * TILE_ROWS, 1);
        columns[size](sums + c, panels, packed, x + c, first, count, NULL);
        c += size;
    }
}

/* Sums of a column's tiles are neighbours in memory and written together. */
VEC void store_rows(float *const *y, float (*sums)[16], int n, int row, int rows, int tiles, bool accumulate) {
    for (int c = 0; c < n; c++)
        for (int r = 0; r < tiles; r++) {
            const int at = row + r * TILE_ROWS, count = rows - at < TILE_ROWS ? rows - at : TILE_ROWS;
            float *out = y[c] + at;
            const vf value = vf_load(sums[r * CHUNK + c]);
            if (count == TILE_ROWS) vf_store(out, accumulate ? vf_add(vf_load(out), value) : value);
            else vf_store_first(out, accumulate ? vf_add(vf_load_first(out, count), value) : value, count);
        }
}

/* `tiles` tiles, 1 or VEC_TILES, and up to CHUNK columns. */
typedef void tile_kernel(float (*sums)[16], const uint8_t *tile, int tiles, int k, const void *const *x, int n,
                         const struct around *around);

#define INTEGER(NAME, name, code, values, block_bytes, tile_bytes, product)                                        \
    static void fast_##name(float (*sums)[16], const uint8_t *tile, int tiles, int k, const void *const *x, int n, \
                            const struct around *around) {                                                         \
        struct panel panels[VEC_TILES];                                                                            \
        const size_t next = tile_stride(T_##NAME, k);                                                              \
        const int blocks = k / values, step = PANEL / values, bytes = step * TILE_##NAME;                          \
        const int units = values / UNIT_##product; /* of a block */                                                \
        for (int b = 0; b < blocks; b += step) {                                                                   \
            const bool last = b + step >= blocks;                                                                  \
            const int count = last ? blocks - b : step;                                                            \
            const uint8_t *part = tile + (size_t)b * TILE_##NAME;                                                  \
            const uint8_t *coming = last ? tile + (size_t)tiles * next : part + bytes;                             \
            const struct wanted wanted = {coming, next, tiles, bytes, last ? around->y : NULL, around->row};       \
            if (n <= MAX_PACKED) {                                                                                 \
                const uint8_t *const ahead = ahead_of(part, bytes, around);                                        \
                scales_##name(panels, part, count);                                                                \
                product##_bytes_##name[n](sums, panels, part, x, b * units, count * units, ahead);                 \
            } else if (tiles == VEC_TILES) {                                                                       \
                for (int r = 0; r < tiles; r++) expand_##name(&panels[r], part + r * next, count);                 \
                all_columns(product##_bytes_panel, PANEL_COLUMNS, sums, panels, panels->bytes[0], x, n, b * units, \
                            count * units, &wanted);                                                               \
            } else {                                                                                               \
                scales_##name(panels, part, count);                                                                \
                all_columns(product##_bytes_##name, MAX_PACKED, sums, panels, part, x, n, b * units,               \
                            count * units, &wanted);                                                               \
            }                                                                                                      \
        }                                                                                                          \
    }
#include "quants/quants.def"

/* Panels of floats; `direct`, if any, reads a float format from the tile, whose panels are `panel_bytes` apart. */
VEC void exact(floats_function *floats, columns_function *const *direct, size_t panel_bytes, float (*sums)[16],
               const uint8_t *tile, int k, const void *const *x, int n, const struct around *around) {
    float buffer[PANEL * 16];
    for (int first = 0; first < k; first += PANEL) {
        const bool last = first + PANEL >= k;
        const int count = last ? k - first : PANEL;
        const uint8_t *panel = tile + (size_t)(first / PANEL) * panel_bytes;
        if (direct && n <= FLOAT_COLUMNS) {
            direct[n](sums, NULL, panel, x, first, count, ahead_of(panel, (int)panel_bytes, around));
        } else {
            const struct wanted wanted = {panel + panel_bytes, 0, 1, (int)panel_bytes, last ? around->y : NULL, around->row};
            floats(buffer, tile, k, first, count);
            all_columns(f32_load_f32, FLOAT_COLUMNS, sums, NULL, (const uint8_t *)buffer, x, n, first, count, &wanted);
        }
    }
}

#define EXACT(NAME, name, direct)                                                                                  \
    static void exact_##name(float (*sums)[16], const uint8_t *tile, int tiles, int k, const void *const *x, int n, \
                             const struct around *around) {                                                        \
        (void)tiles;                                                                                               \
        exact(floats_##name, direct, tile_stride(T_##NAME, PANEL), sums, tile, k, x, n, around);                   \
    }
#define INTEGER(NAME, name, ...) EXACT(NAME, name, NULL)
#define FLOAT(NAME, name, ...) EXACT(NAME, name, f32_load_##name)
#define SCALED(NAME, name, ...) EXACT(NAME, name, scaled_##name)
#include "quants/quants.def"

VEC void matmul(tile_kernel *kernel, int most_tiles, int type, const struct product *p) {
    const size_t stride = tile_stride(type, p->k);
    const uint8_t *all = p->tiles, *end = all + (size_t)p->last * stride, *then = p->then;
    for (int left = (p->n + CHUNK - 1) / CHUNK, c = 0; left; left--) {
        int size = (p->n - c + left - 1) / left;
        for (int tile = p->first, tiles; tile < p->last; tile += tiles) {
            _Alignas(64) float sums[VEC_TILES * CHUNK][16];
            tiles = size > MAX_PACKED && p->last - tile >= most_tiles ? most_tiles : 1;
            const struct around around = {end, then ? then - end : 0, p->y + c, tile * TILE_ROWS};
            kernel(sums, all + (size_t)tile * stride, tiles, p->k, p->x + c, size, &around);
            store_rows(p->y + c, sums, size, tile * TILE_ROWS, p->rows, tiles, p->accumulate);
        }
        c += size;
    }
}

#define MATMUL(kernel, tiles, NAME, name)                    \
    void KERNEL(kernel##_##NAME)(const struct product *p) {  \
        matmul(name, tiles, T_##NAME, p);                    \
    }
#define INTEGER(NAME, name, ...) MATMUL(matmul, VEC_TILES, NAME, fast_##name) MATMUL(matmul_exact, 1, NAME, exact_##name)
#define FLOAT(NAME, name, ...) MATMUL(matmul_exact, 1, NAME, exact_##name)
#define SCALED(NAME, name, ...) MATMUL(matmul_exact, 1, NAME, exact_##name)
#include "quants/quants.def"
