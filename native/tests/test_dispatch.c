/* Every table of the build is complete, whatever this processor can run, and only what it can run is chosen. Prints what
 * it can run. */
#include <string.h>

#include "cpu.h"
#include "dispatch.h"
#include "require.h"

/* The table is a name and function pointers, so every word of it must be set. */
static void check_complete(const struct kernels *table) {
    void *words[sizeof *table / sizeof(void *)];
    memcpy(words, table, sizeof *table);
    for (size_t i = 0; i < sizeof *table / sizeof(void *); i++) REQUIRE(words[i]);
}

int main(void) {
    REQUIRE(kernels);
    for (int i = 0; i < isa_count(); i++) {
        const struct kernels *table = kernels_for(isa_name(i));
        REQUIRE(!table == !cpu_has(isa_name(i)));
        if (table) check_complete(table);
        if (table) REQUIRE(use_isa(isa_name(i)) && kernels == table);
        if (table) printf("%s\n", table->isa);
    }
    REQUIRE(!strcmp(isa_name(isa_count() - 1), "portable") && kernels_for("portable"));
    REQUIRE(!kernels_for("altivec") && !use_isa("altivec"));
    REQUIRE(use_isa(NULL));
    return 0;
}
