/* Recurrent mixers: the same bits for any split of the tokens and of the blocks, and softplus over its range. */
#include "check.h"

enum { KEYS = 96, VALUES = 80, BLOCKS = 5, MOST = RECURRENT_TOKENS };

struct inputs { float q[MOST][KEYS], k[MOST][KEYS], v[MOST][KEYS], dt[MOST], beta[MOST]; };
struct results { float state[BLOCKS * KEYS * 16], out[MOST][VALUES]; };

static struct inputs in;
static struct results whole, parts;

static void fill(float *x, size_t n, float size) {
    for (size_t i = 0; i < n; i++) x[i] = random_float() * size;
}

static bool advance(const struct kernels *table, struct results *r, int kind, int key_size, int value_size, int token,
                    int tokens, int first, int last) {
    static float scratch[RECURRENT_SCRATCH(KEYS)];
    const struct recurrent_rows rows = {
        .tokens = tokens, .key_size = key_size, .value_size = value_size, .first = first, .last = last,
        .q = in.q[token], .k = in.k[token], .v = in.v[token], .dt = in.dt + token, .beta = in.beta + token,
        .row_step = KEYS, .gate_step = 1, .out_step = VALUES, .a = -0.7f, .dt_bias = 0.3f, .skip = 0.5f, .least = 0.01f,
        .most = 4, .eps = 1e-6f, .state = r->state, .out = r->out[token]};
    return table->recurrent[kind](&rows, scratch);
}

static void check_heads(const struct kernels *table, int kind, int key_size, int value_size) {
    const int blocks = (value_size + 15) / 16;
    fill(in.q[0], MOST * KEYS, 2), fill(in.k[0], MOST * KEYS, 2), fill(in.v[0], MOST * KEYS, 2);
    fill(in.dt, MOST, 4), fill(in.beta, MOST, 4);
    memset(&whole, 0, sizeof whole), memset(&parts, 0, sizeof parts);
    CHECK(advance(table, &whole, kind, key_size, value_size, 0, MOST, 0, blocks), "%s: refused", table->isa);
    note(&whole, sizeof whole);
    for (int block = 0; block < blocks; block++)
        for (int token = 0, n = 1; token < MOST; token += n, n = n % 19 + 1) {
            const int tokens = token + n < MOST ? n : MOST - token;
            CHECK(advance(table, &parts, kind, key_size, value_size, token, tokens, block, block + 1), "refused in parts");
        }
    CHECK(!memcmp(&whole, &parts, sizeof whole), "%s: %d, keys of %d: other bits in parts", table->isa, kind, key_size);
    in.v[3][value_size - 1] = NAN;
    CHECK(!advance(table, &parts, kind, key_size, value_size, 0, MOST, 0, blocks), "%s: NaN is taken", table->isa);
}

/* Without keys to add, what comes out is skip * v: the step is seen in the decay of a state of ones. */
static void check_steps(const struct kernels *table) {
    static const float points[] = {-100, -87, -20, -3, -0.5f, -1e-6f, 0, 1e-3f, 0.9f, 3, 15, 30, 100};
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        memset(&in, 0, sizeof in), memset(&whole, 0, sizeof whole);
        in.dt[0] = points[i], in.q[0][0] = 1, whole.state[0] = 1;
        CHECK(advance(table, &whole, STATE_SPACE, 1, 1, 0, 1, 0, 1), "refused");
        note(whole.out, sizeof whole.out);
        const double softplus = log1p(exp(-fabs((double)points[i] + 0.3))) + fmax((double)points[i] + 0.3, 0);
        const double want = exp(-0.7 * fmin(fmax(softplus, 0.01), 4));
        CHECK(fabs(whole.out[0][0] - want) < 1e-6 * want, "decay at %g: %.9g, not %.9g", points[i], whole.out[0][0], want);
    }
}

static void check_conv(const struct kernels *table, int taps, int n, bool silu) {
    static float out[KEYS];
    const float *rows[SHORT_CONV_TAPS];
    fill(in.q[0], MOST * KEYS, 2), fill(in.k[0], MOST * KEYS, 1), fill(in.v[0], KEYS, 1);
    memset(out, 0, sizeof out);
    for (int tap = 0; tap < taps; tap++) rows[tap] = in.q[tap];
    CHECK(table->short_conv(out, rows, in.k[0], KEYS, in.v[0], taps, n, silu), "%s: refused", table->isa);
    note(out, sizeof out);
    for (int i = 0; i < n; i++) {
        double want = in.v[0][i];
        for (int tap = 0; tap < taps; tap++) want += (double)in.k[tap][i] * in.q[tap][i];
        if (silu) want /= 1 + exp(-want);
        CHECK(fabs(out[i] - want) < 1e-5, "convolution: %g, not %g", out[i], want);
    }
    CHECK(out[n < KEYS ? n : 0] == 0 || n == KEYS, "convolution: past the end");
    in.q[1][n - 1] = -INFINITY;
    CHECK(!table->short_conv(out, rows, in.k[0], KEYS, NULL, taps, n, silu), "%s: infinity is taken", table->isa);
}

static void check_table(const struct kernels *table) {
    static const int keys[] = {1, 5, 16, 33, 64, KEYS}, values[] = {1, 16, 31, 48, 70, VALUES};
    for (int i = 0; i < 6; i++)
        for (int kind = 0; kind < RECURRENCE_COUNT; kind++) check_heads(table, kind, keys[i], values[i]);
    check_steps(table);
    for (int taps = 2; taps <= SHORT_CONV_TAPS; taps++) check_conv(table, taps, taps == 5 ? KEYS : 9 * taps, taps % 2);
}

int main(void) { return check_tables(check_table); }
