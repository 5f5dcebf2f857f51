/* Ops on rows: norm, rope, sums, exponentials, the largest, and 16-bit floats both ways. */
#include "check.h"

enum { MOST = 200 };

static const int sizes[] = {1, 7, 16, 24, 63, 64, 100, 144, 200};
#define EACH_SIZE(n) for (int i_##n = 0, n; i_##n < (int)(sizeof sizes / sizeof *sizes) && (n = sizes[i_##n]); i_##n++)

static void fill(float *x, float size) {
    for (int i = 0; i < MOST; i++) x[i] = random_float() * size;
}

static void check_norm(const struct kernels *table, int n) {
    float x[MOST], weight[MOST], out[MOST] = {0};
    fill(x, 3), fill(weight, 1);
    CHECK(table->rms_norm(out, x, weight, n, 1e-5f), "norm: refused");
    note(out, sizeof out);
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * x[i];
    for (int i = 0; i < n; i++) {
        double want = x[i] / sqrt(sum / n + 1e-5) * weight[i];
        CHECK(fabs(out[i] - want) <= 1e-6 * fabs(want), "norm of %d: %g, not %g", n, out[i], want);
    }
    x[n - 1] = INFINITY;
    CHECK(!table->rms_norm(out, x, weight, n, 1e-5f), "%s: norm takes infinity", table->isa);
}

static void check_rope(const struct kernels *table, int half) {
    float x[2 * MOST], was[2 * MOST], cosine[MOST], sine[MOST];
    fill(x, 3), fill(x + MOST, 3), fill(cosine, 1), fill(sine, 1);
    memcpy(was, x, sizeof x);
    table->rope(x, cosine, sine, 2 * half);
    note(x, sizeof x);
    for (int i = 0; i < half; i++) {
        double a = was[i], b = was[half + i], c = cosine[i], s = sine[i];
        CHECK(fabs(x[i] - (a * c - b * s)) < 1e-6 && fabs(x[half + i] - (b * c + a * s)) < 1e-6, "rope: pair %d", i);
    }
    CHECK(!memcmp(x + 2 * half, was + 2 * half, sizeof x - sizeof(float) * 2 * (size_t)half), "rope: past the end");
}

static void check_sums(const struct kernels *table, int n) {
    float x[MOST], y[MOST], out[MOST];
    fill(x, 3), fill(y, 3);
    memcpy(out, y, sizeof y);
    table->add(out, x, n);
    note(out, sizeof out);
    for (int i = 0; i < MOST; i++) CHECK(out[i] == (i < n ? y[i] + x[i] : y[i]), "add");
    memcpy(out, y, sizeof y);
    table->scale_add(out, x, 0.3f, n);
    note(out, sizeof out);
    for (int i = 0; i < MOST; i++) CHECK(out[i] == (i < n ? fmaf(0.3f, x[i], y[i]) : y[i]), "scale_add");
    CHECK(table->finite(x, n), "finite");
    x[random_bits() % (uint32_t)n] = n % 2 ? NAN : -INFINITY;
    CHECK(!table->finite(x, n), "%s: not finite, but taken", table->isa);
}

static void check_argmax(const struct kernels *table, int n) {
    float x[MOST];
    for (int i = 0; i < MOST; i++) x[i] = rintf(random_float() * 20); /* with ties */
    int best = 0, found = table->argmax(x, n);
    for (int i = 1; i < n; i++) best = x[i] > x[best] ? i : best;
    CHECK(found == best, "%s: argmax %d, not %d", table->isa, found, best);
}

static void check_exponentials(const struct kernels *table, int64_t n) {
    float x[2 * SAMPLING_PART], out[2 * SAMPLING_PART] = {0};
    double parts[2] = {0}, sums[2] = {0};
    for (int i = 0; i < n; i++) x[i] = random_float() * 60 - 60;
    table->exponentials(out, parts, x, 0.5f, 0.7f, n);
    note(out, sizeof out), note(parts, sizeof parts);
    for (int i = 0; i < n; i++) {
        double want = exp((x[i] - 0.5f) / 0.7f);
        sums[i / SAMPLING_PART] += out[i];
        CHECK(fabs(out[i] - want) < 1e-5 * want + 1e-37, "exp: %g, not %g", out[i], want);
    }
    for (int p = 0; p < 2; p++) CHECK(fabs(parts[p] - sums[p]) <= 1e-6 * sums[p], "sum of exponentials");
}

/* Every pattern of 16 bits. */
static void check_widening(const struct kernels *table, int type) {
    enum { ROWS = 16, K = 4096 };
    uint16_t *plain = allocate(2 * ROWS * K);
    uint8_t *tiles = allocate(tile_stride(type, K));
    float out[K];
    for (int i = 0; i < ROWS * K; i++) plain[i] = (uint16_t)i;
    table->tile[type](tiles, plain, ROWS, K);
    for (int row = 0; row < ROWS; row++) {
        table->untile_row[type](out, tiles, row, K);
        note(out, sizeof out);
        for (int i = 0; i < K && type == T_F16; i++) {
            int bits = row * K + i, exponent = bits >> 10 & 31, mantissa = bits & 1023;
            float want = exponent ? ldexpf(1024 + (float)mantissa, exponent - 25) : ldexpf((float)mantissa, -24);
            CHECK(exponent == 31 || out[i] == (bits >> 15 ? -want : want), "half float %04x is %g", bits, out[i]);
        }
    }
    free(plain), free(tiles);
}

/* Any floats, ties between two halves, and what is too large or too small for one. */
static void check_narrowing(const struct kernels *table) {
    float key[16] = {0}, value[16];
    uint16_t keys[16 * 16] = {0}, got[16], back[16];
    for (int i = 0; i < 4096; i++) {
        for (int l = 0; l < 16; l++) {
            uint32_t bits = random_bits() & 0x8fffffff, near = 0x30000000 + (uint32_t)(i % 25 << 23);
            bits = (bits & 0x807fffff) | near | (bits >> 28 << 23);
            if (l % 4 == 0) bits = (bits & 0xffffe000) | 0x1000; /* a tie of normal halves */
            if (i % 256 == 255) bits |= 0x7f800000;              /* infinity and NaN */
            memcpy(value + l, &bits, 4);
        }
        table->kv_append[KV_F16](keys, got, &(struct kv_rows){key, value, 16, 16, 0, 1}, 16, 16);
        note(got, sizeof got);
        _Alignas(64) uint8_t tile[16 * 2 * 16];
        float widened[16];
        table->tile[T_F16](tile, got, 1, 16);
        table->untile_row[T_F16](widened, tile, 0, 16);
        for (int l = 0; l < 16; l++)
            CHECK(!(fabsf(value[l]) < 65520) || fabsf(widened[l] - value[l]) <= fmaxf(0x1p-11f * fabsf(value[l]), 0x1p-25f),
                  "%a became %a", value[l], widened[l]);
        table->kv_append[KV_F16](keys, back, &(struct kv_rows){key, widened, 16, 16, 0, 1}, 16, 16);
        CHECK(!memcmp(got, back, sizeof got), "%s: a half float does not stay", table->isa);
    }
}

static void check_table(const struct kernels *table) {
    EACH_SIZE(n) {
        check_norm(table, n);
        check_rope(table, n);
        check_sums(table, n);
        for (int i = 0; i < 20; i++) check_argmax(table, n);
    }
    check_exponentials(table, SAMPLING_PART + 37);
    check_widening(table, T_F16);
    check_widening(table, T_BF16);
    check_narrowing(table);
}

int main(void) { return check_tables(check_table); }
