/* The library opened by dlopen, as other languages do: its symbols are no global ones. `opened LIBRARY MODEL` */
#include <dlfcn.h>
#include <stdio.h>

#include "colibri.h"

int main(int arguments, char **argument) {
    void *library = arguments == 3 ? dlopen(argument[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) return printf("%s\n", dlerror()), 2;
    int (*load)(const char *, const char *, colibri_model **);
    int (*close)(colibri_model *);
    const char *(*last_error)(void);
    *(void **)&load = dlsym(library, "colibri_load");
    *(void **)&close = dlsym(library, "colibri_close");
    *(void **)&last_error = dlsym(library, "colibri_last_error");
    colibri_model *model;
    int code = load(argument[2], NULL, &model);
    if (code == 0) code = close(model);
    return printf("%d %s\n", code, last_error()), code != 0;
}
