/* The table of one instruction set. It is constant: the linker fills it, so no code that was compiled for a set runs
 * before the processor was found to have it. */
#include "kernels.h"
#include "vec/vec.h"

#define TEXT(name) #name
#define TEXT_OF(macro) TEXT(macro)

const struct kernels KERNEL(kernels) = {
    .isa = TEXT_OF(COLIBRI_ISA),
    .dot_round_products = 64 * VEC_ACCUMULATORS,
#define OP(member, name) .member = KERNEL(name),
#include "ops/kernels.def"
#undef OP
};
