/* What src/colibri/embedded.py defines and library.c calls; read by the compiler and, as it is, by cffi.
 * Each gives 1, or the negative code of an error after writing its text; 0, cffi's answer when nothing was called. */

typedef struct {
    char text[2048];
} failure;

typedef int (*on_token)(void *context, int32_t id, const char *text, float logprob);

int colibri_engine_infer(failure *error, const char *path, const int32_t *ids, float *logits, int32_t n);
int colibri_engine_load(failure *error, const char *path, const char *options, uintptr_t *model);
int colibri_engine_vocabulary(failure *error, uintptr_t model, int32_t *size);
int colibri_engine_logits(failure *error, uintptr_t model, const int32_t *ids, float *logits, int32_t n);
int colibri_engine_generate(failure *error, uintptr_t model, const char *prompt, const int32_t *ids, int32_t n,
                            const char *params, on_token see, void *context);
int colibri_engine_close(failure *error, uintptr_t model);
