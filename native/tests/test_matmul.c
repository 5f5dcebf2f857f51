/* Tiles and products: a column has the bits it has alone, in both modes. */
#include "check.h"

enum { MOST = 17 };

struct problem {
    int type, rows, k, n;
    uint8_t *plain, *tiles;
    float *x;
};

static struct problem make_problem(int type, int rows, int k, int n) {
    struct problem p = {type, rows, k, n, random_plain(type, rows, k), NULL, allocate(4 * (size_t)n * (size_t)k)};
    p.tiles = allocate(tile_stride(type, k) * (size_t)((rows + 15) / 16));
    for (int i = 0; i < n * k; i++) p.x[i] = random_float() * (i % 97 ? 1 : 8);
    return p;
}

static void free_problem(struct problem *p) { free(p->plain), free(p->tiles), free(p->x); }

/* y (n, rows): columns [first, first + count) of one call, tiles in two ranges. */
static void multiply(const struct kernels *table, const struct problem *p, bool exact, float *y, int first, int count,
                     bool accumulate) {
    int activation = exact ? A_F32 : type_info[p->type].activation, tiles = (p->rows + 15) / 16;
    size_t bytes = activation_bytes(activation, p->k);
    uint8_t *in = allocate(bytes * (size_t)count);
    const void *x[MOST];
    float *out[MOST];
    for (int c = 0; c < count; c++) {
        x[c] = in + bytes * (size_t)c;
        table->quantize[activation](in + bytes * (size_t)c, p->x + (size_t)(first + c) * (size_t)p->k, p->k);
        out[c] = y + (size_t)(first + c) * (size_t)p->rows;
    }
    matmul_kernel *kernel = exact ? table->matmul_exact[p->type] : table->matmul[p->type];
    struct product product = {p->tiles, p->k, p->rows, 0, tiles / 2, x, out, count, accumulate, NULL};
    kernel(&product);
    product.first = tiles / 2, product.last = tiles;
    kernel(&product);
    free(in);
}

static void check_product(const struct kernels *table, int type, int rows, int k, int n) {
    struct problem p = make_problem(type, rows, k, n);
    size_t tiled = tile_stride(type, k) * (size_t)((rows + 15) / 16), size = 4 * (size_t)n * (size_t)rows;
    memset(p.tiles, 0xaa, tiled);
    table->tile[type](p.tiles, p.plain, rows, k);
    note(p.tiles, tiled);
    for (int exact = 0; exact < 2; exact++) {
        float *y = allocate(size), *want = allocate(size);
        memset(y, 0xff, size);
        multiply(table, &p, exact, y, 0, n, false);
        note(y, size);
        for (int c = 0; c < n; c++) multiply(table, &p, exact, want, c, 1, false);
        CHECK(!memcmp(y, want, size), "%s %s: a column depends on n = %d", table->isa, type_info[type].name, n);
        multiply(table, &p, exact, want, 0, n, true);
        for (int i = 0; i < n * rows; i++) CHECK(want[i] == y[i] + y[i], "%s: accumulate", type_info[type].name);
        free(y), free(want);
    }
    free_problem(&p);
}

static void check_quantize(const struct kernels *table) {
    float x[256];
    for (int trial = 0; trial < 64; trial++)
        for (int activation = A_Q32; activation <= A_Q256; activation++) {
            struct q256_block a[1];
            struct q32_block c[8];
            float magnitude = ldexpf(1, trial * 4 - 140);
            for (int i = 0; i < 256; i++) x[i] = random_float() * magnitude;
            if (trial % 8 == 1) memset(x, 0, sizeof x);
            bool q32 = activation == A_Q32;
            void *got = q32 ? (void *)c : a;
            table->quantize[activation](got, x, 256);
            note(got, q32 ? sizeof c : sizeof a);
            for (int i = 0; i < 256; i++) {
                float scale = q32 ? c[i / 32].scale : a->scale, q = q32 ? c[i / 32].q[i % 32] : a->q[i];
                CHECK(fabsf(q) <= 127 && fabsf(q * scale - x[i]) <= 0.5001f * scale + 1e-35f, "%s: %g became %g", table->isa, x[i], q * scale);
            }
            x[trial * 4] = trial % 2 ? INFINITY : NAN;
            table->quantize[activation](got, x, 256);
            CHECK(isnan(q32 ? c[trial * 4 / 32].scale : a->scale), "%s: a value that is not finite is lost", table->isa);
            for (int i = 0; q32 && i < 8; i++) c[i].scale = 0; /* NaN has many bits */
            if (!q32) a->scale = 0;
            note(got, q32 ? sizeof c : sizeof a);
        }
}

static void note_glu(const struct kernels *table) {
    float gate[101], up[101], got[101];
    for (int kind = 0; kind < GLU_COUNT; kind++)
        for (int trial = 0; trial < 50; trial++) {
            for (int i = 0; i < 101; i++) gate[i] = random_float() * (float)(1 + trial), up[i] = random_float() * 10;
            table->glu[kind](got, gate, trial % 5 ? up : NULL, 101, (struct glu_options){kind, 1.702f, (float)trial / 4});
            note(got, sizeof got);
        }
}

static void check_table(const struct kernels *table) {
    static const int columns[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 17};
    check_quantize(table);
    note_glu(table);
    for (int type = 0; type < TYPE_COUNT; type++) {
        int values = type_info[type].values, step = values == 1 ? 37 : values;
        for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
            check_product(table, type, (int[]){16, 37, 5}[c % 3], step * (int[]){1, 3, 11}[c / 2 % 3], columns[c]);
    }
}

int main(void) { return check_tables(check_table); }
