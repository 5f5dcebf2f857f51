#include "dispatch.h"

#include <string.h>

#include "cpu.h"

enum {
#define X(product, activation, ...) ACTIVATION_##product = activation,
    PRODUCTS(X)
#undef X
};

const struct type_info type_info[TYPE_COUNT] = {
#define FLOAT(NAME, name, code, bytes) {#NAME, code, 1, bytes, A_F32, TILE_ROWS * bytes},
#define INTEGER(NAME, name, code, values, bytes, tile, product) {#NAME, code, values, bytes, ACTIVATION_##product, tile},
#include "quants/quants.def"
};

/* isa_tables.h is made by CMake from the files of native/ops and the instruction sets of the build. */
enum {
#define ISA(isa) TABLE_##isa,
#define OP(op, isa)
#include "isa_tables.h"
#undef ISA
#undef OP
    TABLE_COUNT
};

#define ISA(isa)
#define OP(op, isa) void fill_##op##_##isa(struct kernels *);
#include "isa_tables.h"
#undef ISA
#undef OP

static struct kernels tables[TABLE_COUNT] = {
#define ISA(name) [TABLE_##name] = {.isa = #name},
#define OP(op, name)
#include "isa_tables.h"
#undef ISA
#undef OP
};
const struct kernels *kernels;

__attribute__((constructor)) static void fill_tables(void) {
#define ISA(isa)
#define OP(op, isa) fill_##op##_##isa(&tables[TABLE_##isa]);
#include "isa_tables.h"
#undef ISA
#undef OP
    use_isa(NULL);
}

int isa_count(void) { return TABLE_COUNT; }

const char *isa_name(int index) { return tables[index].isa; }

const struct kernels *kernels_for(const char *isa) {
    for (int i = 0; i < TABLE_COUNT; i++)
        if (!strcmp(tables[i].isa, isa)) return cpu_has(isa) ? &tables[i] : NULL;
    return NULL;
}

bool use_isa(const char *isa) {
    const struct kernels *found = NULL;
    if (isa) found = kernels_for(isa);
    for (int i = 0; !isa && !found; i++) found = kernels_for(tables[i].isa); /* portable is always there */
    if (found) kernels = found;
    return found != NULL;
}
