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
#define SCALED(NAME, name, values, bytes, tile) {#NAME, -1, values, bytes, A_F32, tile},
#define INTEGER(NAME, name, code, values, bytes, tile, product) {#NAME, code, values, bytes, ACTIVATION_##product, tile},
#include "quants/quants.def"
};

/* isas.h is made by CMake: ISA(name) for each instruction set of the build, best first. */
#define ISA(name) extern const struct kernels kernels_##name;
#include "isas.h"
#undef ISA

static const struct kernels *const tables[] = {
#define ISA(name) &kernels_##name,
#include "isas.h"
#undef ISA
};
enum { TABLE_COUNT = sizeof tables / sizeof *tables };
const struct kernels *kernels;

__attribute__((constructor)) static void choose_table(void) { use_isa(NULL); }

int isa_count(void) { return TABLE_COUNT; }

const char *isa_name(int index) { return tables[index]->isa; }

const struct kernels *kernels_for(const char *isa) {
    for (int i = 0; i < TABLE_COUNT; i++)
        if (!strcmp(tables[i]->isa, isa)) return cpu_has(isa) ? tables[i] : NULL;
    return NULL;
}

bool use_isa(const char *isa) {
    const struct kernels *found = NULL;
    if (isa) found = kernels_for(isa);
    for (int i = 0; !isa && !found; i++) found = kernels_for(tables[i]->isa); /* portable is always there */
    if (found) kernels = found;
    return found != NULL;
}
