/* Recurrent mixers: the short convolution, the states of heads and the gated norm. Part of bind.cpp. */
#ifndef COLIBRI_BIND_RECURRENT_H
#define COLIBRI_BIND_RECURRENT_H
#include "bind/attention.h"

namespace colibri {
namespace {

/* False: not finite. Raises where there is no memory. */
bool finite_status(int status) {
    if (status != REGION_NOT_FINITE) check_region(status);
    return !status;
}

/* The states have a place for every sequence of the batch. */
void check_slots(const Tensor &state, const Batch &batch) {
    if (batch.slot.empty() && !batch.position.empty()) wrong("batch", "no slots", "the slot of each sequence");
    if (batch.last_slot >= state.shape[0])
        wrong("batch", text("slot ", batch.last_slot), text("below ", state.shape[0], ", the slots of the state"));
}

/* No two of these share memory. */
void expect_all_apart(std::initializer_list<std::pair<const char *, const Tensor *>> all) {
    for (auto a = all.begin(); a != all.end(); ++a)
        for (auto b = all.begin(); b != a; ++b) expect_apart(*a->second, a->first, *b->second, b->first);
}

/* ---- the short convolution ---- */

struct Convolution {
    Tensor weight;
    std::optional<Tensor> bias;
    bool silu, gated;

    Convolution(const Tensor &weight, const Tensor *bias, bool silu, bool gated) : weight(weight), silu(silu), gated(gated) {
        f32_of(weight, "weight", -1, -1);
        const int64_t taps = weight.shape[0];
        if (taps < 2 || taps > SHORT_CONV_TAPS || !weight.shape[1] || weight.shape[1] > INT32_MAX / 4)
            wrong("weight", describe(weight), text("F32 (2 to ", int(SHORT_CONV_TAPS), " taps, channels)"));
        if (bias) f32_of(*bias, "bias", weight.shape[1]), this->bias = *bias;
    }
    struct convolution view() const {
        return {weight.f32(), bias ? bias->f32() : nullptr, int(weight.shape[0]), int(weight.shape[1]), silu, gated};
    }
};

bool short_conv(Tensor &out, Tensor &x, Tensor &state, const Batch &batch, const Convolution &rule) {
    const struct convolution view = rule.view();
    const int64_t n = int64_t(batch.position.size()), shape[] = {-1, view.taps - 1, view.channels};
    float *in = f32_of(x, "x", n, view.gated ? 3 * int64_t(view.channels) : view.channels);
    float *result = f32_of(out, "out", n, view.channels);
    expect(state, "state", T_F32, shape);
    check_slots(state, batch);
    expect_all_apart({{"out", &out}, {"x", &x}, {"state", &state}});
    const struct batch rows = batch.view();
    return finite_status(unlocked([&] { return region_short_conv(result, in, state.f32(), &view, &rows); }));
}

/* ---- the states of heads ---- */

/* What is the same in every step of a layer, of both kinds. */
struct Recurrence {
    struct recurrence rule = {};
    Tensor decay, dt_bias;
    std::optional<Tensor> skip;

    Recurrence(int kind, const Tensor &decay, const Tensor &dt_bias, int key_heads, int key_size)
        : decay(decay), dt_bias(dt_bias) {
        f32_of(decay, "decay", -1);
        const int64_t heads = decay.shape[0];
        f32_of(dt_bias, "dt_bias", heads);
        if (key_heads < 1 || !heads || heads % key_heads)
            wrong("key_heads", text(key_heads), text("a divisor of ", heads, " heads"));
        if (key_size < 1 || key_size > 4096) wrong("key_size", text(key_size), "1 to 4096");
        rule.kind = kind, rule.heads = int(heads), rule.key_heads = key_heads, rule.key_size = key_size;
        rule.least = 0, rule.most = INFINITY;
    }
    int64_t keys() const { return int64_t(rule.key_heads) * rule.key_size; }
};

struct DeltaRule : Recurrence {
    DeltaRule(const Tensor &decay, const Tensor &dt_bias, int key_heads, int key_size, float eps, bool tiled)
        : Recurrence(DELTA_RULE, decay, dt_bias, key_heads, key_size) {
        if (!(eps > 0 && std::isfinite(eps))) wrong("eps", text(eps), "a finite number above 0");
        rule.eps = eps, rule.tiled = tiled;
    }
};

struct StateSpace : Recurrence {
    StateSpace(const Tensor &decay, const Tensor &dt_bias, int groups, int state_size, const Tensor *skip, float least,
               float most)
        : Recurrence(STATE_SPACE, decay, dt_bias, groups, state_size) {
        if (!(least >= 0 && least <= most)) wrong("least, most", text(least, ", ", most), "0 <= least <= most");
        if (skip) f32_of(*skip, "skip", rule.heads), this->skip = *skip;
        rule.least = least, rule.most = most;
    }
};

/* The rule with its tensors, for rows out (n, heads * value_size); checks the state. */
struct recurrence view_of(const Recurrence &r, const Tensor &out, const Tensor &state, const Batch &batch) {
    struct recurrence rule = r.rule;
    f32_of(out, "out", int64_t(batch.position.size()), -1);
    if (!out.shape[1] || out.shape[1] % rule.heads)
        wrong("out", describe(out), text("columns that are a multiple of ", rule.heads, " heads"));
    rule.value_size = int(out.shape[1] / rule.heads);
    const int64_t shape[] = {-1, rule.heads, (rule.value_size + 15) / 16 * 16 * int64_t(rule.key_size)};
    expect(state, "state", T_F32, shape);
    check_slots(state, batch);
    rule.decay = r.decay.f32(), rule.dt_bias = r.dt_bias.f32(), rule.skip = r.skip ? r.skip->f32() : nullptr;
    return rule;
}

bool recur(Tensor &out, const struct recurrent_input &in, Tensor &state, const struct recurrence &rule, const Batch &batch) {
    const struct batch rows = batch.view();
    return finite_status(unlocked([&] { return region_recurrent(out.f32(), &in, state.f32(), &rule, &rows); }));
}

bool delta_net(Tensor &out, const Tensor &qkv, const Tensor &beta, const Tensor &dt, Tensor &state, const Batch &batch,
               const DeltaRule &rule) {
    const struct recurrence view = view_of(rule, out, state, batch);
    const int64_t n = out.shape[0], keys = rule.keys(), width = 2 * keys + out.shape[1];
    const float *rows = f32_of(qkv, "qkv", n, width);
    const struct recurrent_input in = {rows, rows + keys, rows + 2 * keys, f32_of(dt, "dt", n, view.heads),
                                       f32_of(beta, "beta", n, view.heads), size_t(width)};
    for (const auto &[name, t] : {std::pair{"qkv", &qkv}, {"beta", &beta}, {"dt", &dt}})
        expect_apart(out, "out", *t, name), expect_apart(state, "state", *t, name);
    expect_apart(out, "out", state, "state");
    return recur(out, in, state, view, batch);
}

bool mamba2(Tensor &out, const Tensor &xbc, const Tensor &dt, Tensor &state, const Batch &batch, const StateSpace &rule) {
    const struct recurrence view = view_of(rule, out, state, batch);
    const int64_t n = out.shape[0], keys = rule.keys(), values = out.shape[1], width = values + 2 * keys;
    const float *rows = f32_of(xbc, "xbc", n, width);
    const struct recurrent_input in = {rows + values + keys, rows + values, rows, f32_of(dt, "dt", n, view.heads), nullptr,
                                       size_t(width)};
    for (const auto &[name, t] : {std::pair{"xbc", &xbc}, {"dt", &dt}})
        expect_apart(out, "out", *t, name), expect_apart(state, "state", *t, name);
    expect_apart(out, "out", state, "state");
    return recur(out, in, state, view, batch);
}

/* ---- the gated norm ---- */

bool gated_norm(Tensor &out, const Tensor &x, const Tensor &gate, const Norm &norm, int groups, bool gate_first) {
    f32_of(x, "x", -1, -1);
    const int64_t n = x.shape[0], width = x.shape[1];
    if (norm.bias) wrong("norm", "a bias", "a norm without");
    if (groups < 1 || width % groups) wrong("groups", text(groups), text("a divisor of ", width, " columns"));
    const int64_t size = width / groups;
    if (norm.dim() != size && norm.dim() != width)
        wrong("norm", text(norm.dim(), " values"), text(size, " (a group) or ", width, " (all)"));
    f32_of(gate, "gate", n, width);
    f32_of(out, "out", n, width);
    expect_same_or_apart(out, x);
    expect_apart(out, "out", gate, "gate");
    const struct gated_norm rule = {norm.weight.f32(), groups, int(size), norm.dim() == size ? 0 : int(size), norm.eps,
                                    gate_first};
    return unlocked([&] { return region_gated_norm(out.f32(), x.f32(), gate.f32(), int(n), &rule); });
}

void bind_recurrent(nb::module_ &m) {
    nb::class_<Convolution>(m, "Convolution")
        .def(nb::init<const Tensor &, const Tensor *, bool, bool>(), "weight"_a, optional("bias"), "silu"_a = false,
             "gated"_a = false);
    m.def("short_conv", &short_conv, "out"_a, "x"_a, "state"_a, "batch"_a, "rule"_a);
    nb::class_<DeltaRule>(m, "DeltaRule")
        .def(nb::init<const Tensor &, const Tensor &, int, int, float, bool>(), "decay"_a, "dt_bias"_a, "key_heads"_a,
             "key_size"_a, "eps"_a = 1e-6f, "tiled"_a = false);
    m.def("delta_net", &delta_net, "out"_a, "qkv"_a, "beta"_a, "dt"_a, "state"_a, "batch"_a, "rule"_a);
    nb::class_<StateSpace>(m, "StateSpace")
        .def(nb::init<const Tensor &, const Tensor &, int, int, const Tensor *, float, float>(), "decay"_a, "dt_bias"_a,
             "groups"_a, "state_size"_a, optional("skip"), "least"_a = 0.0f, "most"_a = INFINITY);
    m.def("mamba2", &mamba2, "out"_a, "xbc"_a, "dt"_a, "state"_a, "batch"_a, "rule"_a);
    m.def("gated_norm", &gated_norm, "out"_a, "x"_a, "gate"_a, "norm"_a, "groups"_a = 1, "gate_first"_a = false);
}

}  // namespace
}  // namespace colibri
#endif
