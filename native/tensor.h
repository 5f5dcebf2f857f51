/* The handles that Python holds: Memory, a mapping, and Tensor, a typed view of one. C++, for bind.cpp. */
#ifndef COLIBRI_TENSOR_H
#define COLIBRI_TENSOR_H
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>

extern "C" {
#include "kernels.h"
}

namespace colibri {

constexpr size_t HUGE_PAGE = size_t(2) << 20;
constexpr size_t SLACK = 64; /* kernels may read one vector past the end of a tensor */
constexpr int MAX_DIMENSIONS = 4;

/* Plain types that are no weight formats follow the block types. */
enum plain_type { T_I32 = TYPE_COUNT, T_U8, ALL_TYPES };

inline const char *type_name(int type) { return type == T_I32 ? "I32" : type == T_U8 ? "U8" : type_info[type].name; }

inline int type_of(const std::string &name) {
    for (int type = 0; type < ALL_TYPES; type++)
        if (name == type_name(type)) return type;
    return -1;
}

inline bool is_plain(int type) { return type == T_F32 || type == T_F16 || type == T_I32 || type == T_U8; }

inline size_t value_bytes(int type) { return type == T_U8 ? 1 : type == T_F16 ? 2 : 4; }

inline size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

inline size_t tiled_size(int type, int64_t rows, int64_t k) {
    return round_up(size_t((rows + TILE_ROWS - 1) / TILE_ROWS) * tile_stride(type, k), 64);
}

/* Anonymous zeroed pages, 2 MiB-aligned and advised huge when they are that many; not populated. */
struct Mapping {
    void *base = nullptr;
    size_t mapped = 0, size = 0;
    uint8_t *data = nullptr;

    explicit Mapping(size_t bytes) : size(bytes) {
        const size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : 4096;
        if (bytes > (size_t(1) << 46)) throw std::bad_alloc();
        mapped = round_up(bytes + SLACK, 4096) + alignment;
        base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) throw std::bad_alloc();
        data = reinterpret_cast<uint8_t *>(round_up(reinterpret_cast<size_t>(base), alignment));
#ifdef MADV_HUGEPAGE
        if (alignment == HUGE_PAGE) madvise(data, bytes, MADV_HUGEPAGE);
#endif
    }
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;
    ~Mapping() { munmap(base, mapped); }
};

struct Tensor {
    uint8_t *data;
    int type, dimensions;
    bool tiled;
    int64_t shape[MAX_DIMENSIONS];
    std::shared_ptr<Mapping> owner;

    int64_t values() const {
        int64_t product = 1;
        for (int i = 0; i < dimensions; i++) product *= shape[i];
        return product;
    }
    size_t bytes() const { return tiled ? tiled_size(type, shape[0], shape[1]) : size_t(values()) * value_bytes(type); }
    size_t row_bytes() const { return dimensions && shape[0] ? bytes() / size_t(shape[0]) : 0; }
    float *f32() const { return reinterpret_cast<float *>(data); }
    int32_t *i32() const { return reinterpret_cast<int32_t *>(data); }
    uint16_t *f16() const { return reinterpret_cast<uint16_t *>(data); }
};

/* For messages; kept out of the way of what goes well. */
template <typename... T> [[gnu::noinline, gnu::cold]] std::string text(const T &...parts) {
    std::ostringstream out;
    (out << ... << parts);
    return out.str();
}

inline std::string shape_text(const int64_t *shape, int dimensions) {
    std::string sizes;
    for (int i = 0; i < dimensions; i++) sizes += (i ? ", " : "") + (shape[i] < 0 ? "any" : std::to_string(shape[i]));
    return "(" + sizes + (dimensions == 1 ? ",)" : ")");
}

inline std::string describe(const Tensor &tensor) {
    return text(tensor.tiled ? "tiled " : "", type_name(tensor.type), " ", shape_text(tensor.shape, tensor.dimensions));
}

[[noreturn]] inline void wrong(const std::string &name, const std::string &found, const std::string &expected) {
    throw std::invalid_argument(name + ": found " + found + ", expected " + expected);
}

/* The tensor is plain, of this type and shape; -1 stands for any size. */
template <int N> inline void expect(const Tensor &t, const char *name, int type, const int64_t (&shape)[N]) {
    bool fits = t.type == type && !t.tiled && t.dimensions == N;
    for (int i = 0; fits && i < N; i++) fits = shape[i] < 0 || shape[i] == t.shape[i];
    if (!fits) wrong(name, describe(t), text(type_name(type), " ", shape_text(shape, N)));
}

inline float *f32_of(const Tensor &t, const char *name, int64_t n) {
    const int64_t shape[] = {n};
    return expect(t, name, T_F32, shape), t.f32();
}

inline float *f32_of(const Tensor &t, const char *name, int64_t n, int64_t m) {
    const int64_t shape[] = {n, m};
    return expect(t, name, T_F32, shape), t.f32();
}

/* They share no byte: one is written while the other is read. */
inline void expect_apart(const Tensor &a, const char *name, const Tensor &b, const char *other) {
    const size_t size = a.bytes(), other_size = b.bytes();
    if (size && other_size && a.data < b.data + other_size && b.data < a.data + size)
        wrong(name, text("memory that ", other, " is in"), "memory of its own");
}

/* Values are read before they are written at the same place, and at no other. */
inline void expect_same_or_apart(const Tensor &out, const Tensor &x) {
    if (out.data != x.data) expect_apart(out, "out", x, "x");
}

inline void expect_tiled(const Tensor &t, const std::string &name, int64_t rows, int64_t k) {
    if (t.tiled && (rows < 0 || t.shape[0] == rows) && (k < 0 || t.shape[1] == k)) return;
    const int64_t shape[] = {rows, k};
    wrong(name, describe(t), "a tiled weight " + shape_text(shape, 2));
}

}  // namespace colibri
#endif
