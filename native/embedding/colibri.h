/* Colibri for programs in C and in what calls C: Mixture-of-Experts language models on CPUs. docs/embedding.md
 *
 * Functions that return int give 0, or the negative code of an error; colibri_last_error() says what was found, what
 * was expected and what to do. All may be called by any thread, at once too. Texts are UTF-8 and end with a zero byte;
 * NULL and models that are closed are errors, not faults. */
#ifndef COLIBRI_H
#define COLIBRI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    COLIBRI_OK = 0,
    COLIBRI_FILE = -1,         /* a file is missing, unreadable or changed while in use */
    COLIBRI_MEMORY = -2,       /* the memory is not there, or the budget is below what the model needs */
    COLIBRI_FORMAT = -3,       /* a file contradicts its format, or a NaN came out of the arithmetic */
    COLIBRI_UNSUPPORTED = -4,  /* well formed, but not what this engine runs */
    COLIBRI_ARGUMENT = -5,     /* an argument is out of its range or of the wrong kind */
    COLIBRI_CONTEXT_FULL = -6, /* the prompt does not fit into the context */
    COLIBRI_ENGINE = -7        /* the engine could not be started, or has a fault */
};

/* A model that was loaded. What it points to is not for reading. */
typedef struct colibri_model colibri_model;

/* A token as it becomes final: its id, the text that became final with it (which may be empty) and ln of its probability.
 * The text is valid until the function returns; not 0 ends the generation. */
typedef int (*colibri_on_token)(void *context, int32_t id, const char *text, float logprob);

/* Load a model (a .gguf file or a Hugging Face directory), give the logits of every position, and close it.
 * logits: room for n times the vocabulary's size, a row for each id; after an error it holds nothing of use. */
int colibri_infer(const char *path, const int32_t *ids, float *logits, int32_t n);

/* Load a model. options: a JSON object with what Python's colibri.load takes, such as {"ram": 2684354560,
 * "context": 4096}; NULL for none. *model is the model, or NULL after an error. */
int colibri_load(const char *path, const char *options, colibri_model **model);

/* How many tokens its vocabulary has, at least 1; negative: the code of an error. */
int32_t colibri_vocabulary(colibri_model *model);

/* As colibri_infer, with a model that is loaded. */
int colibri_logits(colibri_model *model, const int32_t *ids, float *logits, int32_t n);

/* Continue a text. params: a JSON object with what Python's colibri.SamplingParams takes, such as {"max_tokens": 64,
 * "temperature": 0.6, "seed": 2}; NULL for none. on_token is called by this thread, with `context`, and may call every
 * function of this header. */
int colibri_generate(colibri_model *model, const char *prompt, const char *params,
                     colibri_on_token on_token, void *context);

/* The same for a prompt of n ids. */
int colibri_generate_ids(colibri_model *model, const int32_t *ids, int32_t n, const char *params,
                         colibri_on_token on_token, void *context);

/* The text of the last error in this thread, "" before the first. Valid until this thread's next error. */
const char *colibri_last_error(void);

/* Free a model; what other threads generate with it ends with an error. NULL is nothing to free. */
int colibri_close(colibri_model *model);

#ifdef __cplusplus
}
#endif

#endif
