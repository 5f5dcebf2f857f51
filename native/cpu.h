/* What this processor and its operating system can run. */
#ifndef COLIBRI_CPU_H
#define COLIBRI_CPU_H
#include <stdbool.h>

bool cpu_has(const char *isa); /* "portable", or a set of CMakeLists.txt */
#endif
