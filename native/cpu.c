#include "cpu.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdint.h>

/* The register state that the operating system saves; XCR0 bits are in Intel SDM volume 1, chapter 13. */
static uint64_t saved_state(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool has_avx2(void) {
    unsigned a, b, c, d;
    if ((saved_state() & 0x6) != 0x6) return false;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
    if (!(c & bit_AVX) || !(c & bit_FMA) || !(c & bit_F16C)) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2);
}

static bool has_avx_vnni(void) {
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

static bool has_avx512(void) {
    unsigned a, b, c, d;
    if (!has_avx2() || (saved_state() & 0xe6) != 0xe6) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    const unsigned wanted = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    return (b & wanted) == wanted;
}

static bool has_avx512_vnni(void) {
    unsigned a, b, c, d;
    return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & bit_AVX512VNNI);
}
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

static bool has_neon_dotprod(void) { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
static bool has_neon_i8mm(void) { return has_neon_dotprod() && (getauxval(AT_HWCAP2) & 1ul << 13); } /* HWCAP2_I8MM */
#endif

bool cpu_has(const char *isa) {
#if defined(__x86_64__)
    if (!strcmp(isa, "avx2")) return has_avx2();
    if (!strcmp(isa, "avx_vnni")) return has_avx_vnni();
    if (!strcmp(isa, "avx_vnni_evex")) return has_avx512_vnni();
    if (!strcmp(isa, "avx512")) return has_avx512();
    if (!strcmp(isa, "avx512_vnni")) return has_avx512_vnni();
#elif defined(__aarch64__)
    if (!strcmp(isa, "neon_dotprod")) return has_neon_dotprod();
    if (!strcmp(isa, "neon_i8mm")) return has_neon_i8mm();
#endif
    return !strcmp(isa, "portable");
}
