/* Instruction sets, threads and the machine's limits. Part of bind.cpp. */
#ifndef COLIBRI_BIND_MACHINE_H
#define COLIBRI_BIND_MACHINE_H
#include "bind/tensors.h"

namespace colibri {
namespace {

nb::tuple isas(bool of_build) {
    nb::list names;
    for (int i = 0; i < isa_count(); i++)
        if (of_build || kernels_for(isa_name(i))) names.append(isa_name(i));
    return nb::tuple(names);
}

void choose_isa(const std::string &name) {
    if (::use_isa(name.c_str())) return;
    std::string known;
    for (int i = 0; i < isa_count(); i++)
        if (kernels_for(isa_name(i))) known += (known.empty() ? "" : ", ") + std::string(isa_name(i));
    wrong("instruction set", "'" + name + "'", "one that this build and this processor have: " + known);
}

void set_threads(int threads, int cpus) {
    if (threads < 1 || threads > POOL_MAX_THREADS)
        wrong("threads", text(threads), text("1 to ", int(POOL_MAX_THREADS)));
    unlocked([&] { pool_set_threads(threads, cpus); }); /* waits for the region that runs and for workers to end */
}

void poison_scratch(std::optional<int> byte) {
    if (byte && (*byte < 0 || *byte > 255)) wrong("byte", text(*byte), "0 to 255, or None");
    pool_poison(byte.value_or(-1));
}

nb::list block_types() {
    static const char *const activations[] = {"f32", "q32", "q256"};
    nb::list types;
    for (const struct type_info &t : type_info)
        types.append(nb::make_tuple(t.name, t.code, t.values, t.bytes, t.tile_bytes, activations[t.activation]));
    return types;
}

/* What measure(rates, how many they may be) found, pass by pass. */
template <typename F> nb::tuple rates_of(const F &measure) {
    std::vector<double> rates(4096);
    const int count = unlocked([&] { return measure(rates.data(), int(rates.size())); });
    nb::list list;
    for (int i = 0; i < count; i++) list.append(rates[size_t(i)]);
    return nb::tuple(list);
}

nb::tuple measure_read(Memory &memory, double seconds) {
    const Mapping &m = *memory.mapping;
    if (m.size < 1 << 20) wrong("memory", text(m.size, " bytes"), "1 MiB or more");
    return rates_of([&](double *rates, int most) {
        return region_measure_read(m.data, m.size >> 20 << 20, seconds, rates, most);
    });
}

nb::tuple measure_dot(double seconds) {
    return rates_of([&](double *rates, int most) { return region_measure_dot(seconds, rates, most); });
}

nb::tuple measure_handover(double seconds) {
    return rates_of([&](double *times, int most) { return region_measure_handover(seconds, times, most); });
}

void bind_machine(nb::module_ &m) {
    m.def("isa", [] { return kernels->isa; });
    m.def("isas", [] { return isas(false); });
    m.def("isas_of_build", [] { return isas(true); });
    m.def("use_isa", &choose_isa, "name"_a);
    m.def("threads", &pool_threads);
    m.def("set_threads", &set_threads, "threads"_a, "cpus"_a);
    m.def("poison_scratch", &poison_scratch, "byte"_a.none());
    m.def("block_types", &block_types);
    m.def("measure_read", &measure_read, "memory"_a, "seconds"_a);
    m.def("measure_dot", &measure_dot, "seconds"_a);
    m.def("measure_handover", &measure_handover, "seconds"_a);
}

}  // namespace
}  // namespace colibri
#endif
