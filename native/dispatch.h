/* The kernel tables of this build. */
#ifndef COLIBRI_DISPATCH_H
#define COLIBRI_DISPATCH_H
#include "kernels.h"

int isa_count(void);                               /* instruction sets of this build, best first */
const char *isa_name(int index);
const struct kernels *kernels_for(const char *isa); /* NULL: not in this build, or this processor lacks it */
bool use_isa(const char *isa);                     /* makes it the chosen table; NULL chooses the best */
#endif
