/* The code of avx_vnni.h in the encoding of AVX-512 VL, for the tests: processors have one or the other. */
#define VEC_VNNI(name) _mm256_##name##_epi32
#include "vec/avx_vnni.h"
