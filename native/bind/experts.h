/* Tables of experts and the mixture. Part of bind.cpp. */
#ifndef COLIBRI_BIND_EXPERTS_H
#define COLIBRI_BIND_EXPERTS_H
#include "bind/common.h"

namespace colibri {
namespace {

struct ExpertTable {
    int hidden, intermediate;
    std::vector<struct expert> experts;
    std::vector<std::array<std::shared_ptr<Mapping>, 6>> owners;
    std::vector<uint8_t> wanted; /* scratch of check_resident */

    ExpertTable(int experts, int hidden, int intermediate) : hidden(hidden), intermediate(intermediate) {
        if (experts < 1 || hidden < 1 || intermediate < 1)
            wrong("experts, hidden, intermediate", "less than 1", "sizes from 1");
        this->experts.resize(size_t(experts));
        owners.resize(size_t(experts));
        wanted.resize(size_t(experts));
    }
    size_t index(int64_t e) const { return index_within("expert", e, int64_t(experts.size())); }
};

void set_expert(ExpertTable &table, int64_t e, const Tensor *gate, const Tensor &up, const Tensor &down,
                const Tensor *gate_bias, const Tensor *up_bias, const Tensor *down_bias) {
    const size_t i = table.index(e);
    if (gate) expect_tiled(*gate, "gate", table.intermediate, table.hidden);
    expect_tiled(up, "up", table.intermediate, table.hidden);
    expect_tiled(down, "down", table.hidden, table.intermediate);
    const struct matrix none = {};
    struct expert expert = {gate ? matrix_of(*gate) : none, matrix_of(up), matrix_of(down), nullptr, nullptr, nullptr, true};
    if (gate && gate_bias) expert.gate_bias = f32_of(*gate_bias, "gate_bias", table.intermediate);
    if (up_bias) expert.up_bias = f32_of(*up_bias, "up_bias", table.intermediate);
    if (down_bias) expert.down_bias = f32_of(*down_bias, "down_bias", table.hidden);
    table.experts[i] = expert;
    const Tensor *parts[] = {gate, &up, &down, gate_bias, up_bias, down_bias};
    for (size_t p = 0; p < 6; p++) table.owners[i][p] = parts[p] ? parts[p]->owner : nullptr;
}

void clear_expert(ExpertTable &table, int64_t e) {
    const size_t i = table.index(e);
    table.experts[i] = {};
    table.owners[i] = {};
}

/* What an expert does between its matrices, see enum glu. */
struct Activation {
    struct glu_options options;

    explicit Activation(const std::string &name, float alpha = 1.702f, float limit = 7.0f)
        : options{choice(name, "activation", {"silu", "gelu_tanh", "gelu_erf", "relu2", "silu_clamped", "swiglu_oai"}), alpha,
                  limit} {
        expect_finite("alpha", alpha);
        if (!(limit >= 0)) wrong("limit", text(limit), "a number from 0");
    }
};

/* Every id is an expert, and every expert that this call computes is set. */
void check_resident(ExpertTable &table, const Tensor &ids, const Tensor *only, bool needs_gate) {
    std::fill(table.wanted.begin(), table.wanted.end(), uint8_t(!only));
    for (int64_t i = 0; only && i < only->values(); i++) table.wanted[table.index(only->i32()[i])] = 1;
    for (int64_t i = 0; i < ids.values(); i++) {
        const size_t e = table.index(ids.i32()[i]);
        if (table.wanted[e] && !table.experts[e].set)
            wrong("ids", text("expert ", e, ", which is not set"), "experts that are set");
        if (table.wanted[e] && needs_gate && !table.experts[e].gate.tiles)
            wrong("activation", text("swiglu_oai and expert ", e, " without a gate"), "experts with a gate");
    }
}

void moe(Tensor &slots, const Tensor &x, ExpertTable &table, const Tensor &ids, const Activation &activation, bool exact,
         const Tensor *only, const Tensor *input_weights) {
    f32_of(x, "x", -1, table.hidden);
    const int64_t n = x.shape[0], pairs[] = {n, -1}, any[] = {-1};
    expect(ids, "ids", T_I32, pairs);
    f32_of(slots, "slots", n * ids.shape[1], table.hidden);
    expect_apart(slots, "slots", x, "x");
    expect_apart(slots, "slots", ids, "ids");
    struct mixture in = {};
    in.x = x.f32(), in.ids = ids.i32(), in.n = int(n), in.k = int(ids.shape[1]);
    if (input_weights) {
        in.input_weights = f32_of(*input_weights, "input_weights", n, ids.shape[1]);
        expect_apart(slots, "slots", *input_weights, "input_weights");
    }
    in.experts = table.experts.data(), in.expert_count = int(table.experts.size());
    in.hidden = table.hidden, in.intermediate = table.intermediate;
    in.activation = activation.options, in.exact = exact;
    if (only) expect(*only, "only", T_I32, any), in.only = only->i32(), in.only_count = int(only->shape[0]);
    check_resident(table, ids, only, in.activation.kind == GLU_SWIGLU_OAI);
    check_region(unlocked([&] { return region_moe(slots.f32(), &in); }));
}

void bind_experts(nb::module_ &m) {
    nb::class_<ExpertTable>(m, "ExpertTable")
        .def(nb::init<int, int, int>(), "experts"_a, "hidden"_a, "intermediate"_a)
        .def("set", &set_expert, "e"_a, "gate"_a.none(), "up"_a, "down"_a, optional("gate_bias"), optional("up_bias"),
             optional("down_bias"))
        .def("clear", &clear_expert, "e"_a)
        .def("resident", [](const ExpertTable &table, int64_t e) { return table.experts[table.index(e)].set; }, "e"_a);
    nb::class_<Activation>(m, "Activation")
        .def(nb::init<const std::string &, float, float>(), "name"_a, "alpha"_a = 1.702f, "limit"_a = 7.0f);
    nb::implicitly_convertible<nb::str, Activation>();
    m.def("moe", &moe, "slots"_a, "x"_a, "table"_a, "ids"_a, "activation"_a = Activation("silu"), "exact"_a = false,
          optional("only"), optional("input_weights"));
}

}  // namespace
}  // namespace colibri
#endif
