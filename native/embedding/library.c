/* The functions of colibri.h: they refuse NULL, start Python once, call embedded.py and keep each thread's last error. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <threads.h>

#include "colibri.h"
#include "engine.h"

#define PUBLIC __attribute__((visibility("default")))

static _Thread_local failure last;
static failure unready; /* why the engine cannot be used, where it cannot */
static once_flag once = ONCE_FLAG_INIT;

static const char *python(void) {
    const char *named = getenv("COLIBRI_PYTHON");
    return named && *named ? named : COLIBRI_PYTHON;
}

/* Extension modules look for Python's symbols among the global ones, where they are not if this library was opened by
 * dlopen with RTLD_LOCAL. */
static void publish_python(void) {
    Dl_info info;
    if (dladdr((void *)(uintptr_t)Py_IsInitialized, &info) && info.dli_fname)
        dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_NOW | RTLD_GLOBAL);
}

/* Python of the environment that this library was built in. Signals and the locale stay the program's. */
static PyStatus initialize(void) {
    PyPreConfig before;
    PyPreConfig_InitPythonConfig(&before);
    before.configure_locale = before.coerce_c_locale = 0;
    before.utf8_mode = 1;
    PyStatus status = Py_PreInitialize(&before);
    if (PyStatus_Exception(status)) return status;
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.install_signal_handlers = config.parse_argv = 0;
    status = PyConfig_SetBytesString(&config, &config.program_name, python());
    if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    return status;
}

static void explain_exception(void) {
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    const char *problem = text ? PyUnicode_AsUTF8(text) : NULL;
    snprintf(unready.text, sizeof unready.text,
             "libcolibri: the Python of %s cannot use Colibri: %s; expected the environment that `make lib` made, which "
             "COLIBRI_PYTHON may name (its bin/python)", python(), problem ? problem : "unknown");
    PyErr_Clear();
    Py_XDECREF(text);
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

static void import_engine(void) {
    PyObject *backend = PyImport_ImportModule("_cffi_backend");
    PyObject *engine = backend ? PyImport_ImportModule("colibri.embedded") : NULL;
    if (!engine) explain_exception();
    Py_XDECREF(engine);
    Py_XDECREF(backend);
}

static void start(void) {
    publish_python();
    if (Py_IsInitialized()) { /* the program is Python, or has one */
        PyGILState_STATE state = PyGILState_Ensure();
        import_engine();
        PyGILState_Release(state);
        return;
    }
    PyStatus status = initialize();
    if (PyStatus_Exception(status)) {
        snprintf(unready.text, sizeof unready.text, "libcolibri: Python of %s does not start: %s", python(),
                 status.err_msg ? status.err_msg : "it asked to end");
        return;
    }
    import_engine();
    PyEval_SaveThread();
}

static int is_ready(void) {
    call_once(&once, start);
    if (unready.text[0]) last = unready;
    return !unready.text[0];
}

static int answer(int code) {
    if (code == 0) snprintf(last.text, sizeof last.text, "libcolibri: its part in Python could not be called");
    return code > 0 ? COLIBRI_OK : code == 0 ? COLIBRI_ENGINE : code;
}

static int is_missing(const char *name, const void *argument) {
    if (!argument) snprintf(last.text, sizeof last.text, "%s: found NULL, expected a pointer", name);
    return !argument;
}

static int are_wrong(const int32_t *ids, int32_t n) {
    if (is_missing("ids", ids)) return 1;
    if (n < 1) snprintf(last.text, sizeof last.text, "n: found %d, expected an integer of at least 1", (int)n);
    return n < 1;
}

PUBLIC int colibri_infer(const char *path, const int32_t *ids, float *logits, int32_t n) {
    if (is_missing("path", path) || are_wrong(ids, n) || is_missing("logits", logits)) return COLIBRI_ARGUMENT;
    return is_ready() ? answer(colibri_engine_infer(&last, path, ids, logits, n)) : COLIBRI_ENGINE;
}

PUBLIC int colibri_load(const char *path, const char *options, colibri_model **model) {
    if (is_missing("model", model)) return COLIBRI_ARGUMENT;
    *model = NULL;
    if (is_missing("path", path)) return COLIBRI_ARGUMENT;
    if (!is_ready()) return COLIBRI_ENGINE;
    uintptr_t handle = 0;
    int code = answer(colibri_engine_load(&last, path, options, &handle));
    *model = (colibri_model *)handle; /* a number of embedded.py: one that is closed is found to be */
    return code;
}

PUBLIC int32_t colibri_vocabulary(colibri_model *model) {
    if (is_missing("model", model)) return COLIBRI_ARGUMENT;
    if (!is_ready()) return COLIBRI_ENGINE;
    int32_t size = 0;
    int code = answer(colibri_engine_vocabulary(&last, (uintptr_t)model, &size));
    return code == COLIBRI_OK ? size : code;
}

PUBLIC int colibri_logits(colibri_model *model, const int32_t *ids, float *logits, int32_t n) {
    if (is_missing("model", model) || are_wrong(ids, n) || is_missing("logits", logits)) return COLIBRI_ARGUMENT;
    return is_ready() ? answer(colibri_engine_logits(&last, (uintptr_t)model, ids, logits, n)) : COLIBRI_ENGINE;
}

static int generate(colibri_model *model, const char *prompt, const int32_t *ids, int32_t n, const char *params,
                    colibri_on_token see, void *context) {
    if (is_missing("model", model) || is_missing("on_token", (const void *)(uintptr_t)see)) return COLIBRI_ARGUMENT;
    if (!is_ready()) return COLIBRI_ENGINE;
    return answer(colibri_engine_generate(&last, (uintptr_t)model, prompt, ids, n, params, see, context));
}

PUBLIC int colibri_generate(colibri_model *model, const char *prompt, const char *params, colibri_on_token see,
                            void *context) {
    if (is_missing("prompt", prompt)) return COLIBRI_ARGUMENT;
    return generate(model, prompt, NULL, 0, params, see, context);
}

PUBLIC int colibri_generate_ids(colibri_model *model, const int32_t *ids, int32_t n, const char *params,
                                colibri_on_token see, void *context) {
    if (are_wrong(ids, n)) return COLIBRI_ARGUMENT;
    return generate(model, NULL, ids, n, params, see, context);
}

PUBLIC const char *colibri_last_error(void) {
    return last.text;
}

PUBLIC int colibri_close(colibri_model *model) {
    if (!model) return COLIBRI_OK;
    return is_ready() ? answer(colibri_engine_close(&last, (uintptr_t)model)) : COLIBRI_ENGINE;
}
