/* Sums, the router and the choice of tokens. Part of bind.cpp. */
#ifndef COLIBRI_BIND_ROWS_H
#define COLIBRI_BIND_ROWS_H
#include "bind/norm.h"
#include "bind/weights.h"

namespace colibri {
namespace {

void add(Tensor &out, const Tensor &x) {
    if (x.type != T_F32 || x.tiled) wrong("x", describe(x), "plain F32");
    if (out.type != T_F32 || out.tiled || out.values() != x.values()) wrong("out", describe(out), describe(x));
    expect_same_or_apart(out, x);
    const int64_t n = x.values();
    for (int64_t done = 0; done < n; done += INT32_MAX / 2)
        kernels->add(out.f32() + done, x.f32() + done, int(std::min<int64_t>(n - done, INT32_MAX / 2)));
}

/* out *= sigmoid(gate), value by value. */
/* False: a gate is not finite, which the products with zero would hide. */
bool sigmoid_gate(Tensor &out, const Tensor &gate) {
    f32_of(out, "out", -1, -1);
    f32_of(gate, "gate", out.shape[0], out.shape[1]);
    expect_apart(out, "out", gate, "gate");
    return region_sigmoid_gate(out.f32(), gate.f32(), int(out.shape[0]), int(out.shape[1]));
}

/* x = cap * tanh(x / cap), value by value. */
void soft_cap(Tensor &x, float cap) {
    f32_of(x, "x", -1, -1);
    if (!(cap > 0 && std::isfinite(cap))) wrong("cap", text(cap), "a finite number above 0");
    region_soft_cap(x.f32(), cap, x.values());
}

void combine(Tensor &out, const Tensor &slots, const Tensor &weights) {
    f32_of(out, "out", -1, -1);
    f32_of(weights, "weights", out.shape[0], -1);
    f32_of(slots, "slots", out.shape[0] * weights.shape[1], out.shape[1]);
    expect_apart(out, "out", slots, "slots");
    expect_apart(out, "out", weights, "weights");
    region_combine(out.f32(), slots.f32(), weights.f32(), int(out.shape[0]), int(weights.shape[1]), int(out.shape[1]));
}

/* How experts are chosen and weighed, see struct routing. */
struct Routing {
    struct routing rule; /* all but what depends on the logits */
    std::optional<Tensor> bias, correction, expert_scale;

    Routing(const std::string &score, bool softmax_of_chosen, bool renormalize, float sum_added, float sum_least,
            float scale, int groups, int kept_groups, const std::string &group_score, const Tensor *bias,
            const Tensor *correction, const Tensor *expert_scale)
        : rule{} {
        rule.score = choice(score, "score", {"softmax", "sigmoid", "sqrt_softplus", "identity"});
        rule.group_of_two = choice(group_score, "group_score", {"max", "sum_of_two"});
        rule.softmax_of_chosen = softmax_of_chosen, rule.renormalize = renormalize;
        rule.groups = groups, rule.kept_groups = kept_groups;
        rule.sum_added = sum_added, rule.sum_least = sum_least, rule.scale = scale;
        expect_finite("scale", scale);
        if (!(sum_added >= 0 && std::isfinite(sum_added))) wrong("sum_added", text(sum_added), "a finite number from 0");
        if (!(sum_least >= 0 && std::isfinite(sum_least))) wrong("sum_least", text(sum_least), "a finite number from 0");
        if (groups < 1) wrong("groups", text(groups), "1 (none) or more");
        if (kept_groups < 1 || kept_groups > groups) wrong("kept_groups", text(kept_groups), text("1 to ", groups));
        if (renormalize && rule.score == SCORE_IDENTITY && !softmax_of_chosen)
            wrong("renormalize", "True with identity scores", "False, since logits may be negative");
        keep(bias, "bias", this->bias);
        keep(correction, "correction", this->correction);
        keep(expert_scale, "expert_scale", this->expert_scale);
    }

    /* The rule for logits of so many experts, k of them chosen; checked. */
    struct routing with(int64_t experts, int64_t k) const {
        struct routing r = rule;
        r.experts = int(experts), r.k = int(k);
        const int64_t size = experts / r.groups;
        if (experts % r.groups || size < (r.group_of_two && r.groups > 1 ? 2 : 1))
            wrong("groups", text(r.groups), text("a divisor of ", experts, " experts, groups of two with sum_of_two"));
        if (k > size * r.kept_groups)
            wrong("weights", text(k, " columns"), text("1 to ", size * r.kept_groups, ", the experts of the kept groups"));
        r.bias = of(bias, "bias", experts), r.correction = of(correction, "correction", experts);
        r.expert_scale = of(expert_scale, "expert_scale", experts);
        return r;
    }

  private:
    static void keep(const Tensor *vector, const char *name, std::optional<Tensor> &kept) {
        if (vector) f32_of(*vector, name, -1), kept = *vector;
    }
    static const float *of(const std::optional<Tensor> &vector, const char *name, int64_t n) {
        return vector ? f32_of(*vector, name, n) : nullptr;
    }
};

bool router(Tensor &ids, Tensor &weights, const Tensor &logits, const Routing &rule) {
    f32_of(logits, "logits", -1, -1);
    const int64_t n = logits.shape[0], experts = logits.shape[1];
    f32_of(weights, "weights", n, -1);
    const int64_t k = weights.shape[1], shape[] = {n, k};
    if (k < 1 || k > experts) wrong("weights", describe(weights), text("1 to ", experts, " columns"));
    expect(ids, "ids", T_I32, shape);
    expect_apart(ids, "ids", logits, "logits");
    expect_apart(weights, "weights", logits, "logits");
    expect_apart(ids, "ids", weights, "weights");
    const struct routing routing = rule.with(experts, k);
    const int status = region_router(ids.i32(), weights.f32(), logits.f32(), int(n), &routing);
    if (status != REGION_NOT_FINITE) check_region(status);
    return !status;
}

/* The norm of x, the gate's product and the choice. False: x, a logit or a weight is not finite. */
bool route(Tensor &ids, Tensor &weights, Tensor &logits, Tensor &normed, const Tensor &x, const Norm &before,
           const Tensor &gate, const Routing &rule) {
    Products products(normed);
    products.add(logits, gate, nullptr);
    if (!norm(normed, x, before)) return false;
    products.compute(true, false);  /* a choice between experts is worth float32 */
    return router(ids, weights, logits, rule);
}

constexpr size_t SAMPLING_FIELDS = sizeof(struct sampling) / sizeof(double);

/* Arrays and not handles: the sampler works on them. */
void sample(const Array<int32_t, 1> &tokens, const Array<double, 1> &norms, const Array<const float, 2> &logits,
            const Array<const double, 2> &settings) {
    const size_t n = logits.shape(0), vocabulary = logits.shape(1);
    if (!vocabulary || vocabulary > INT32_MAX) wrong("logits", text(vocabulary, " columns"), "1 to 2^31 - 1");
    if (tokens.size() != n) wrong("tokens", text(tokens.size(), " values"), text(n));
    if (norms.size() != n) wrong("norms", text(norms.size(), " values"), text(n));
    if (settings.shape(0) != n || settings.shape(1) != SAMPLING_FIELDS)
        wrong("settings", text(settings.shape(0), " x ", settings.shape(1)), text(n, " x ", SAMPLING_FIELDS));
    check_region(region_sample(tokens.data(), norms.data(), logits.data(), int(n), int(vocabulary),
                               reinterpret_cast<const struct sampling *>(settings.data())));
}

void bind_rows(nb::module_ &m) {
    nb::class_<Routing>(m, "Routing")
        .def(nb::init<const std::string &, bool, bool, float, float, float, int, int, const std::string &, const Tensor *,
                      const Tensor *, const Tensor *>(),
             "score"_a, nb::kw_only(), "softmax_of_chosen"_a = false, "renormalize"_a = false, "sum_added"_a = 0.0f,
             "sum_least"_a = 1e-20f, "scale"_a = 1.0f, "groups"_a = 1, "kept_groups"_a = 1, "group_score"_a = "max",
             optional("bias"), optional("correction"), optional("expert_scale"));
    m.def("add", &add, "out"_a, "x"_a);
    m.def("sigmoid_gate", &sigmoid_gate, "out"_a, "gate"_a);
    m.def("soft_cap", &soft_cap, "x"_a, "cap"_a);
    m.def("combine", &combine, "out"_a, "slots"_a, "weights"_a);
    m.def("router", &router, "ids"_a, "weights"_a, "logits"_a, "routing"_a);
    m.def("route", &route, "ids"_a, "weights"_a, "logits"_a, "normed"_a, "x"_a, "norm"_a, "gate"_a, "routing"_a);
    m.def("sample", &sample, "tokens"_a.noconvert(), "norms"_a.noconvert(), "logits"_a.noconvert(),
          "settings"_a.noconvert());
}

}  // namespace
}  // namespace colibri
#endif
