/* The rows of one step, the cache and attention. Part of bind.cpp. */
#ifndef COLIBRI_BIND_ATTENTION_H
#define COLIBRI_BIND_ATTENTION_H
#include "bind/norm.h"

namespace colibri {
namespace {

using Integers = Array<const int32_t, 1>;

struct Batch {
    std::vector<int32_t> position, sequence, group_first;
    std::vector<std::vector<int32_t>> tables;
    std::vector<const int32_t *> table;
    std::vector<int32_t> slot; /* empty: none */
    int32_t last_position = -1, last_block = -1, last_slot = -1;

    struct batch view() const {
        return {int(position.size()), int(group_first.size()) - 1, position.data(), sequence.data(),
                table.data(),         group_first.data(),          slot.empty() ? nullptr : slot.data()};
    }
};

std::vector<int32_t> copy_of(const Integers &array) { return {array.data(), array.data() + array.size()}; }

void add_table(Batch &batch, const Integers &blocks) {
    for (size_t i = 0; i < blocks.size(); i++) {
        if (blocks.data()[i] < 0) wrong("tables", text(blocks.data()[i]), "block numbers from 0");
        batch.last_block = std::max(batch.last_block, blocks.data()[i]);
    }
    batch.tables.push_back(copy_of(blocks));
}

void add_row(Batch &batch, size_t row) {
    const int32_t sequence = batch.sequence[row], position = batch.position[row];
    if (sequence < 0 || size_t(sequence) >= batch.tables.size())
        wrong("sequence", text(sequence), text("0 to ", batch.tables.size(), " exclusive"));
    const size_t capacity = batch.tables[size_t(sequence)].size() * KV_BLOCK;
    if (position < 0 || size_t(position) >= capacity)
        wrong("positions", text(position), text("0 to ", capacity, " exclusive, the blocks of its table"));
    batch.last_position = std::max(batch.last_position, position);
    const bool follows = row && batch.sequence[row - 1] == sequence && batch.position[row - 1] + 1 == position;
    if (!follows) batch.group_first.push_back(int32_t(row));
}

/* Recurrent layers go through a sequence's rows once, in order, and change its slot. */
void check_slots(const Batch &batch) {
    std::vector<int32_t> sequences, slots;
    for (size_t group = 0; group + 1 < batch.group_first.size(); group++) {
        sequences.push_back(batch.sequence[size_t(batch.group_first[group])]);
        slots.push_back(batch.slot[size_t(sequences.back())]);
    }
    const auto repeats = [](std::vector<int32_t> &all) {
        std::sort(all.begin(), all.end());
        return std::adjacent_find(all.begin(), all.end()) != all.end();
    };
    if (repeats(sequences)) wrong("positions", "rows of a sequence that are apart", "neighbours, one position after the other");
    if (repeats(slots)) wrong("slots", "one slot for two sequences", "one for each");
}

void set_slots(Batch &batch, const Integers &slots) {
    if (slots.size() != batch.tables.size()) wrong("slots", text(slots.size(), " values"), text(batch.tables.size()));
    batch.slot = copy_of(slots);
    for (const int32_t slot : batch.slot) {
        if (slot < 0) wrong("slots", text(slot), "numbers from 0");
        batch.last_slot = std::max(batch.last_slot, slot);
    }
    check_slots(batch);
}

void make_batch(Batch *self, const Integers &positions, const Integers &sequence, const nb::list &tables,
                const std::optional<Integers> &slots) {
    if (positions.size() != sequence.size())
        wrong("sequence", text(sequence.size(), " rows"), text(positions.size()));
    Batch *batch = new (self) Batch{};
    batch->position = copy_of(positions);
    batch->sequence = copy_of(sequence);
    for (nb::handle blocks : tables) add_table(*batch, nb::cast<Integers>(blocks, false));
    for (size_t row = 0; row < positions.size(); row++) add_row(*batch, row);
    batch->group_first.push_back(int32_t(positions.size()));
    for (const auto &blocks : batch->tables) batch->table.push_back(blocks.data());
    if (slots) set_slots(*batch, *slots);
}

int64_t rows_of(const Tensor &t, const char *name, const Batch &batch) {
    f32_of(t, name, int64_t(batch.position.size()), -1);
    return t.shape[1];
}

/* The rows of a table that belong to the rows' positions. */
void embed_positions(Tensor &out, const Tensor &table, const Batch &batch) {
    expect_tiled(table, "table", -1, -1);
    float *rows = f32_of(out, "out", int64_t(batch.position.size()), table.shape[1]);
    if (batch.last_position >= 0) index_within("position", batch.last_position, table.shape[0]);
    const struct matrix weights = matrix_of(table);
    region_embed(rows, &weights, batch.position.data(), int(batch.position.size()));
}

/* What is the same in every step of a layer. Norms are of a row or of each head of it, k's also of the part that is the values;
 * after them all is clipped; then rope's tables of cosines and sines (positions, rotary / 2), for the numbers of a head from
 * rope_start on. */
struct AttentionRule {
    std::optional<Tensor> cosine, sine, sinks;
    std::optional<Norm> q_norm, k_norm, v_norm;
    std::optional<float> clip;
    float scale;
    int window, rope_start;

    AttentionRule(const Tensor *cosine, const Tensor *sine, float scale, int window, const Tensor *sinks,
                  const Norm *q_norm, const Norm *k_norm, std::optional<float> clip, const Norm *v_norm, int rope_start)
        : clip(clip), scale(scale), window(window), rope_start(rope_start) {
        if (rope_start < 0) wrong("rope_start", text(rope_start), "0 or more");
        if (window < 0) wrong("window", text(window), "0 (no window) or more");
        expect_finite("scale", scale);
        if (clip && !(*clip >= 0)) wrong("clip", text(*clip), "a number from 0");
        if (!cosine != !sine) wrong("cosine, sine", cosine ? "cosine only" : "sine only", "both or none");
        if (cosine) {
            f32_of(*cosine, "cosine", -1, -1);
            f32_of(*sine, "sine", cosine->shape[0], cosine->shape[1]);
            this->cosine = *cosine, this->sine = *sine;
        }
        if (sinks) f32_of(*sinks, "sinks", -1), this->sinks = *sinks;
        if (q_norm) this->q_norm = *q_norm;
        if (k_norm) this->k_norm = *k_norm;
        if (v_norm) this->v_norm = *v_norm;
    }
};

void set_rope(struct attention_input &in, const AttentionRule &rule, int key_dim, const Batch &batch) {
    if (!rule.cosine) return;
    const Tensor &cosine = *rule.cosine;
    if (rule.rope_start > key_dim || 2 * cosine.shape[1] > key_dim - rule.rope_start)
        wrong("cosine", describe(cosine), text("at most ", (key_dim - rule.rope_start) / 2, " columns from rope_start on"));
    if (batch.last_position >= cosine.shape[0])
        wrong("batch", text("position ", batch.last_position), text("below ", cosine.shape[0], ", the rows of cosine"));
    in.cosine = cosine.f32(), in.sine = rule.sine->f32(), in.rotary = int(2 * cosine.shape[1]);
    in.rope_start = rule.rope_start;
}

/* The dimensions of a head whose numbers and scales take so many bytes a token, in Q8_0. */
int64_t dimensions_in(int64_t width) { return width - 2 * ((width + 33) / 34); }

/* Checks a pair of caches against each other and the batch; without values the caller knows value_dim. */
struct cache cache_of(const Tensor &keys, const Tensor *values, const Batch &batch) {
    const int type = keys.type == T_U8 ? KV_Q8_0 : KV_F16, number = type == KV_Q8_0 ? int(T_U8) : int(T_F16);
    const int64_t key_shape[] = {-1, -1, -1, KV_BLOCK};
    expect(keys, "keys", number, key_shape);
    const int64_t value_shape[] = {keys.shape[0], keys.shape[1], KV_BLOCK, -1};
    if (values) expect(*values, "values", number, value_shape);
    const int64_t key_dim = type == KV_Q8_0 ? dimensions_in(keys.shape[2]) : keys.shape[2];
    int64_t value_dim = values ? values->shape[3] : key_dim;
    if (values && type == KV_Q8_0) value_dim = dimensions_in(value_dim);
    if (key_dim % 8 || value_dim % 8 || key_dim <= 0 || value_dim <= 0 || !keys.shape[1])
        wrong("keys, values", describe(keys) + (values ? ", " + describe(*values) : ""), "head dimensions that are multiples of 8");
    if (batch.last_block >= keys.shape[0])
        wrong("batch", text("block ", batch.last_block), text("below ", keys.shape[0], ", the blocks of the cache"));
    return {keys.data, values ? values->data : nullptr, type, int(keys.shape[1]), int(key_dim), int(value_dim)};
}

/* Values are the first dimensions of a key: as many as `out` says. */
int latent_values(const Tensor &out, int64_t heads, int key_dim) {
    const int64_t dim = out.dimensions == 2 ? out.shape[1] / heads : 0;
    if (dim < 32 || dim % 32 || dim > key_dim || out.shape[1] % heads)
        wrong("out", describe(out), text("rows of ", heads, " heads of a multiple of 32 up to ", key_dim, ", without values"));
    return int(dim);
}

/* k's norm, of a row, of each head of it, or of the first values of each head. */
bool norm_keys(const Norm &norm, Tensor &k, const struct cache &cache) {
    if (cache.values || norm.dim() == k.shape[1] || norm.dim() == cache.key_dim) return norm.apply(k, k);
    bool finite = true;
    for (int64_t row = 0; row < k.values() / cache.key_dim; row++) {
        float *x = k.f32() + row * cache.key_dim;
        finite &= region_norm(x, x, norm.weight.f32(), norm.bias ? norm.bias->f32() : nullptr, 1, int(norm.dim()), norm.eps);
    }
    return finite;
}

void check_norm(const std::optional<Norm> &norm, const char *name, int64_t width, int head_dim) {
    if (norm && norm->dim() != width && norm->dim() != head_dim)
        wrong(name, text(norm->dim(), " values"), text(width, " (all heads) or ", head_dim, " (one)"));
}

const char *first_fault(int faults, bool sinks) {
    const struct { int fault; const char *name; } known[] = {{FAULT_QUERY, "q"}, {FAULT_KEY, "k"}, {FAULT_VALUE, "v"},
                                                             {FAULT_SCORE, "scores"}, {FAULT_SUM, sinks ? "sinks" : "v"}};
    for (const auto &k : known)
        if (faults & k.fault) return k.name;
    return "";
}

/* What is not finite: q_norm, k_norm, q, k, v, scores or sinks, the first of them; or nothing. Nothing is stored where a
 * norm, or clipping, finds it. */
std::string attention(Tensor &out, Tensor &q, Tensor &k, Tensor *v, Tensor &keys, Tensor *values, const Batch &batch,
                      const AttentionRule &rule) {
    if (!v != !values) wrong("v, values", v ? "v only" : "values only", "both or none");
    struct cache cache = cache_of(keys, values, batch);
    const int64_t n = int64_t(batch.position.size()), width = rows_of(q, "q", batch), heads = width / cache.key_dim;
    if (width % cache.key_dim || heads % cache.kv_heads || !heads)
        wrong("q", describe(q), text("rows of ", cache.key_dim, " times a multiple of ", cache.kv_heads, " heads"));
    struct attention_input in = {};
    in.q = q.f32(), in.heads = int(heads), in.scale = rule.scale, in.window = rule.window;
    in.k = f32_of(k, "k", n, int64_t(cache.kv_heads) * cache.key_dim);
    if (v) in.v = f32_of(*v, "v", n, int64_t(cache.kv_heads) * cache.value_dim);
    else cache.value_dim = latent_values(out, heads, cache.key_dim);
    in.sinks = rule.sinks ? f32_of(*rule.sinks, "sinks", heads) : nullptr;
    set_rope(in, rule, cache.key_dim, batch);
    f32_of(out, "out", n, heads * cache.value_dim);
    check_norm(rule.q_norm, "q_norm", width, cache.key_dim);
    if (v || !rule.k_norm || rule.k_norm->dim() != cache.value_dim)
        check_norm(rule.k_norm, "k_norm", k.shape[1], cache.key_dim);
    if (v) check_norm(rule.v_norm, "v_norm", v->shape[1], cache.value_dim);
    else if (rule.v_norm) wrong("v_norm", "a norm", "none without values");
    Tensor *const rows[] = {&q, &k, &out, v};
    const char *names[] = {"q", "k", "out", "v"};
    for (int i = 1; i < (v ? 4 : 3); i++)
        for (int j = 0; j < i; j++) expect_apart(*rows[i], names[i], *rows[j], names[j]);
    if (rule.q_norm && !rule.q_norm->apply(q, q)) return "q_norm";
    if (rule.k_norm && !norm_keys(*rule.k_norm, k, cache)) return "k_norm";
    if (rule.v_norm && !rule.v_norm->apply(*v, *v)) return "v_norm";
    for (int i : {0, 1, 3})
        if (rule.clip && rows[i] && !region_clip(rows[i]->f32(), int(n), int(rows[i]->shape[1]), *rule.clip)) return names[i];
    const struct batch view = batch.view();
    const int faults = unlocked([&] { return region_attention(out.f32(), &in, &cache, &view); });
    if (faults < 0) check_region(faults);
    return first_fault(faults, in.sinks);
}

void bind_attention(nb::module_ &m) {
    nb::class_<Batch>(m, "Batch")
        .def("__init__", &make_batch, "positions"_a.noconvert(), "sequence"_a.noconvert(), "tables"_a,
             "slots"_a.noconvert() = nb::none())
        .def("__len__", [](const Batch &batch) { return batch.position.size(); });
    m.def("embed_positions", &embed_positions, "out"_a, "table"_a, "batch"_a);
    nb::class_<AttentionRule>(m, "AttentionRule")
        .def(nb::init<const Tensor *, const Tensor *, float, int, const Tensor *, const Norm *, const Norm *,
                      std::optional<float>, const Norm *, int>(),
             optional("cosine"), optional("sine"), "scale"_a = 1.0f, "window"_a = 0, optional("sinks"), optional("q_norm"),
             optional("k_norm"), optional("clip"), nb::kw_only(), optional("v_norm"), "rope_start"_a = 0);
    m.def("attention", &attention, "out"_a, "q"_a, "k"_a, "v"_a.none(), "keys"_a, "values"_a.none(), "batch"_a,
          "rule"_a);
    m.attr("KV_BLOCK") = KV_BLOCK;
}

}  // namespace
}  // namespace colibri
#endif
