/*
 * htransformer export: the weights of a run as one file, with fewer bits if wanted.
 */
#include "run/run.h"

#include <string.h>
#include <strings.h>

typedef struct export_values {
    const char *run, *to;
    int dtype, last;
} export_values;

static const char *const dtypes[] = {"f32", "bf16", NULL};

static const cli_option options[] = {
    {"to", CLI_WRITE, offsetof(export_values, to), "FILE", .required = 1,
     .help = "the safetensors file to write"},
    {"dtype", CLI_CHOICE, offsetof(export_values, dtype), NULL, "bf16", dtypes,
     .help = "type of the numbers; bf16 is half as large"},
    {"last", CLI_FLAG, offsetof(export_values, last),
     .help = "the newest checkpoint, not the best"},
    {0},
};

/* Names whose ending promises another format; what is written is safetensors, whatever the name. */
static bool check_ending(const char *to, cli_error *error) {
    static const char *const others[] = {
        "onnx", "gguf",    "ggml",   "pt",     "pth", "bin",        "ckpt",   "h5",
        "hdf5", "keras",   "tflite", "pb",     "npz", "npy",        "pickle", "mlmodel",
        "pkl",  "msgpack", "json",   "engine", "trt", "torchscript"};
    const char *dot = strrchr(to, '.');
    for (size_t i = 0; dot && i < sizeof others / sizeof *others; i++)
        if (strcasecmp(dot + 1, others[i]) == 0)
            return cli_fail(error,
                            "--to %s: export writes safetensors, not .%s%s; name it "
                            "%.*s.safetensors",
                            to, others[i],
                            i < 3 ? ", whose readers know no hierarchical attention" : "",
                            (int)(dot - to), to);
    return true;
}

static int run(const void *values) {
    const export_values *v = values;
    run_model m;
    cli_error error = {""};
    int code;
    if (!check_ending(v->to, &error)) {
        cli_say("export", "%s", error.text);
        return CLI_USAGE;
    }
    bool good = run_load(&m, v->run, v->last, "cpu", 1, &code, &error);
    if (good && ht_model_export(m.model, v->to, v->dtype ? HT_BF16 : HT_F32) != HT_OK)
        good = cli_fail(&error, "%s", ht_context_error(m.ctx));
    if (good)
        printf("%s: %lld parameters from %s\n", v->to, (long long)ht_model_parameters(m.model),
               m.path);
    else
        cli_say("export", "%s", error.text);
    run_close(&m);
    return good ? CLI_OK : code;
}

const cli_command cli_export = {
    .name = "export",
    .summary = "the weights of a run as one small file",
    .about =
        "RUN is a run folder of train, or a checkpoint itself. The file is a checkpoint again: "
        "eval, predict and generate take it, and the safetensors package of Python reads it. Other "
        "formats (ONNX, GGUF, PyTorch's) are not written.\n",
    .options = options,
    .word = "RUN",
    .word_offset = offsetof(export_values, run),
    .values_bytes = sizeof(export_values),
    .run = run,
};
