/* What tests/embedding/test_embedding.py asks of libcolibri: `program ACTION MODEL`. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri.h"

static const int32_t IDS[] = {5, 6, 7, 8, 9};
enum { N = sizeof IDS / sizeof *IDS, THREADS = 4 };

static int failures;

static void refused(const char *what, int found, int expected, const char *words) {
    const char *text = colibri_last_error();
    if (found == expected && strstr(text, words)) return;
    failures++;
    printf("%s: found %d and '%s', expected %d and '%s'\n", what, found, text, expected, words);
}

static void equal(const char *what, long found, long expected) {
    if (found == expected) return;
    failures++;
    printf("%s: found %ld, expected %ld (%s)\n", what, found, expected, colibri_last_error());
}

static int count(void *context, int32_t id, const char *text, float logprob) {
    (void)id, (void)text, (void)logprob;
    ++*(int *)context;
    return 0;
}

static int stop_at_three(void *context, int32_t id, const char *text, float logprob) {
    return count(context, id, text, logprob), *(int *)context == 3;
}

static int close_it(void *context, int32_t id, const char *text, float logprob) {
    (void)id, (void)text, (void)logprob;
    return equal("close inside", colibri_close(context), 0), 0;
}

static int generate_inside(void *context, int32_t id, const char *text, float logprob) {
    int inner = 0;
    (void)id, (void)text, (void)logprob;
    const char *params = "{\"max_tokens\": 2, \"ignore_eos\": true}";
    equal("generate inside", colibri_generate_ids(context, IDS, N, params, count, &inner), 0);
    return equal("tokens inside", inner, 2), 0;
}

static int print(void *context, int32_t id, const char *text, float logprob) {
    (void)context, (void)logprob;
    return printf("%d %s\n", (int)id, text) < 0;
}

static colibri_model *loaded(const char *path) {
    colibri_model *model;
    equal("load", colibri_load(path, "{\"sequences\": 4}", &model), 0);
    return model;
}

static int infer(const char *path) {
    int32_t size = 0;
    colibri_model *model = loaded(path);
    if (model) size = colibri_vocabulary(model);
    float *logits = calloc((size_t)N * (size + 1), sizeof *logits);
    float *again = calloc((size_t)N * (size + 1), sizeof *logits);
    equal("infer", colibri_infer(path, IDS, logits, N), 0);
    equal("logits", colibri_logits(model, IDS, again, N), 0);
    equal("same", memcmp(logits, again, (size_t)N * size * sizeof *logits), 0);
    equal("past the end", logits[(size_t)N * size] != 0, 0);
    fwrite(logits, sizeof *logits, (size_t)N * size, stdout);
    free(logits), free(again);
    return colibri_close(model);
}

static void faults_of_arguments(const char *path) {
    static float logits[1];
    colibri_model *model = (colibri_model *)logits;
    refused("no path", colibri_infer(NULL, IDS, logits, N), -5, "path: found NULL");
    refused("no ids", colibri_infer(path, NULL, logits, N), -5, "ids: found NULL");
    refused("no logits", colibri_infer(path, IDS, NULL, N), -5, "logits: found NULL");
    refused("n of 0", colibri_infer(path, IDS, logits, 0), -5, "n: found 0");
    refused("n of -1", colibri_infer(path, IDS, logits, -1), -5, "n: found -1");
    refused("no file", colibri_infer("/nowhere/m.gguf", IDS, logits, N), -1, "/nowhere/m.gguf");
    refused("not a model", colibri_infer("/bin/sh", IDS, logits, N), -3, "/bin/sh");
    refused("empty path", colibri_load("", NULL, &model), -5, "path: found ''");
    equal("model after an error", model != NULL, 0);
    refused("bytes that are no text", colibri_load("/nowhere/\xff", NULL, &model), -1, "/nowhere/");
    refused("nowhere to load to", colibri_load(path, NULL, NULL), -5, "model: found NULL");
    refused("no JSON", colibri_load(path, "ram=1", &model), -5, "options: is not valid JSON");
    refused("an array", colibri_load(path, "[]", &model), -5, "an object is expected");
    refused("unknown option", colibri_load(path, "{\"rum\": 1}", &model), -5, "options: found 'rum', expected chunk, ");
    refused("option of a wrong kind", colibri_load(path, "{\"context\": \"x\"}", &model), -5, "context: found 'x'");
    refused("little memory", colibri_load(path, "{\"ram\": 1000}", &model), -2, "");
}

static void faults_of_models(colibri_model *model) {
    int seen = 0;
    static float logits[1 << 16];
    const int32_t outside[] = {1, -1};
    int32_t *many = calloc(1 << 20, sizeof *many);
    refused("id", colibri_logits(model, outside, logits, 2), -5, "token id -1 at position 1");
    refused("full", colibri_logits(model, many, logits, 1 << 20), -6, "the context holds");
    refused("no callback", colibri_generate(model, "a", NULL, NULL, NULL), -5, "on_token: found NULL");
    refused("no prompt", colibri_generate(model, NULL, NULL, count, &seen), -5, "prompt: found NULL");
    refused("no UTF-8", colibri_generate(model, "a\xff", NULL, count, &seen), -5, "prompt: found 0xff at byte 1");
    refused("parameter", colibri_generate(model, "a", "{\"temp\": 1}", count, &seen), -5, "params: found 'temp'");
    refused("value", colibri_generate(model, "a", "{\"top_p\": 2}", count, &seen), -5, "top_p: found 2");
    refused("twice", colibri_generate(model, "a", "{\"seed\": 1, \"seed\": 2}", count, &seen), -5, "appears twice");
    refused("no model", colibri_generate_ids(NULL, IDS, N, NULL, count, &seen), -5, "model: found NULL");
    refused("never a model", colibri_vocabulary((colibri_model *)logits), -5, "model: found 0x");
    equal("tokens of errors", seen, 0);
    free(many);
}

static int faults(const char *path) {
    int seen = 0;
    equal("no error yet", colibri_last_error()[0], 0);
    equal("close of nothing", colibri_close(NULL), 0);
    faults_of_arguments(path);
    colibri_model *model = loaded(path), *other = loaded(path);
    faults_of_models(model);
    equal("stop", colibri_generate(model, "Once", "{\"ignore_eos\": true}", stop_at_three, &seen), 0);
    equal("tokens until the stop", seen, 3);
    const char *three = "{\"max_tokens\": 3, \"ignore_eos\": true}";
    equal("nested", colibri_generate_ids(model, IDS, N, three, generate_inside, model), 0);
    refused("closed inside", colibri_generate(model, "Once", "{\"ignore_eos\": true}", close_it, model), -5, "closed");
    refused("closed twice", colibri_close(model), -5, "not closed");
    refused("closed", colibri_vocabulary(model), -5, "not closed");
    equal("the other lives", colibri_vocabulary(other) > 0, 1);
    return colibri_close(other);
}

static int write_text(const char *path) {
    colibri_model *model = loaded(path);
    const char *params = "{\"max_tokens\": 16, \"seed\": 3}";
    equal("generate", colibri_generate(model, "And the king said", params, print, NULL), 0);
    return colibri_close(model);
}

typedef struct {
    const char *path;
    colibri_model *shared;
    float *logits;
    int seen;
} thread_job;

/* Each thread infers, generates with the model of all and with one of its own, and has its own error. */
static void *work(void *context) {
    thread_job *job = context;
    colibri_model *mine = loaded(job->path);
    equal("logits", colibri_logits(job->shared, IDS, job->logits, N), 0);
    const char *params = "{\"max_tokens\": 20, \"ignore_eos\": true}";
    equal("shared", colibri_generate(job->shared, "Once", params, count, &job->seen), 0);
    equal("own", colibri_generate(mine, "Once", params, count, &job->seen), 0);
    equal("error of this thread", colibri_last_error()[0], 0);
    refused("n", colibri_logits(mine, IDS, job->logits, -7), -5, "n: found -7");
    equal("close", colibri_close(mine), 0);
    return NULL;
}

static void *start_and_end(void *path) { /* the first call of all, from a thread that ends before the others */
    equal("close", colibri_close(loaded(path)), 0);
    return NULL;
}

static int threads(char *path) {
    pthread_t first, all[THREADS];
    thread_job jobs[THREADS];
    pthread_create(&first, NULL, start_and_end, path);
    pthread_join(first, NULL);
    colibri_model *shared = loaded(path);
    size_t size = (size_t)colibri_vocabulary(shared) * N;
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (thread_job){.path = path, .shared = shared, .logits = calloc(size, sizeof(float))};
        pthread_create(&all[i], NULL, work, &jobs[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(all[i], NULL);
        equal("tokens", jobs[i].seen, 40);
        equal("same", memcmp(jobs[i].logits, jobs[0].logits, size * sizeof(float)), 0);
    }
    return colibri_close(shared);
}

int main(int arguments, char **argument) {
    if (arguments != 3) return 2;
    const char *action = argument[1];
    int code = !strcmp(action, "infer")    ? infer(argument[2])
               : !strcmp(action, "faults") ? faults(argument[2])
               : !strcmp(action, "text")   ? write_text(argument[2])
                                           : threads(argument[2]);
    equal("last close", code, 0);
    return failures != 0;
}
