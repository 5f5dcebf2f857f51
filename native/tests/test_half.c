/* Every half float, and what lies halfway between two neighbours, just below and just above it. */
#include "vec/half.h"
#include <float.h>

#include "check.h"

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static uint16_t rounded(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return f32_bits_to_f16(bits);
}

int main(void) {
    for (uint32_t half = 0; half < 0x7c00; half++) {
        const float x = float_of(f16_to_f32_bits(half));
        const float next = half == 0x7bff ? 65536.0f : float_of(f16_to_f32_bits(half + 1)); /* what infinity stands for */
        const float middle = x + (next - x) / 2;
        CHECK(x == (half < 0x400 ? ldexpf((float)half, -24) : ldexpf((float)(half % 1024 + 1024), (int)(half / 1024) - 25)),
              "%x is not %g", half, (double)x);
        CHECK(rounded(x) == half && rounded(-x) == (half | 0x8000), "%x itself", half);
        CHECK(rounded(middle) == half + half % 2 && rounded(-middle) == ((half + half % 2) | 0x8000), "%x: ties to even", half);
        CHECK(rounded(nextafterf(middle, 0)) == half, "%x: below the middle", half);
        CHECK(rounded(nextafterf(middle, INFINITY)) == half + 1, "%x: above the middle", half);
    }
    for (uint32_t half = 0x7c00; half < 0x8000; half++) { /* infinity; NaN keeps its digits and becomes quiet */
        CHECK(rounded(float_of(f16_to_f32_bits(half))) == (half == 0x7c00 ? half : (half | 0x200)), "%x", half);
    }
    CHECK(rounded(INFINITY) == 0x7c00 && rounded(-FLT_MAX) == 0xfc00, "too large");
    printf("%d failures\n", failures);
    return failures != 0;
}
