/* Two threads of a C program write with one model at once. After `make lib`:
 *
 *     cc -Ibuild/lib examples/embedding.c -o build/embedding -Lbuild/lib -Wl,-rpath,$PWD/build/lib -lcolibri -lpthread
 *     build/embedding src/colibri/demo/colibri-demo.gguf */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "colibri.h"

typedef struct {
    colibri_model *model;
    const char *prompt;
    char text[2048];
    int tokens;
    int code;
    char error[256];
} job;

static int add(void *context, int32_t id, const char *text, float logprob) {
    job *mine = context;
    (void)id, (void)logprob;
    mine->tokens++;
    strncat(mine->text, text, sizeof mine->text - 1 - strlen(mine->text));
    return 0; /* not 0 would end it here */
}

static void *write_text(void *context) {
    job *mine = context;
    mine->code = colibri_generate(mine->model, mine->prompt, "{\"max_tokens\": 24, \"temperature\": 0}", add, mine);
    if (mine->code) snprintf(mine->error, sizeof mine->error, "%s", colibri_last_error()); /* of this thread */
    return NULL;
}

int main(int count, char **arguments) {
    colibri_model *model;
    if (count != 2) return fprintf(stderr, "usage: embedding MODEL\n"), 2;
    if (colibri_load(arguments[1], "{\"sequences\": 2}", &model))
        return fprintf(stderr, "%s\n", colibri_last_error()), 1;

    job jobs[2] = {{.model = model, .prompt = "And the king said"}, {.model = model, .prompt = "Once upon a time"}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, write_text, &jobs[i]);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        if (jobs[i].code) return fprintf(stderr, "%s\n", jobs[i].error), 1;
        printf("%s|%s\n%d tokens\n", jobs[i].prompt, jobs[i].text, jobs[i].tokens);
    }
    printf("%d ids\n", (int)colibri_vocabulary(model));
    return colibri_close(model);
}
