/*
 * htransformer info: what this build knows and what this machine has.
 */
#include "commands.h"
#include "base/json.h"
#include "bench/sgemm.h"

#include <htransformer_models.h>
#include <math.h>
#include <string.h>

typedef struct info_values {
    int json;
} info_values;

static const cli_option options[] = {
    {"json", CLI_FLAG, offsetof(info_values, json), .help = "one JSON object instead of text"},
    {0},
};

/* Matrix products of the device, 1e9 operations per second; of a GPU by its data sheet. */
static double measured(ht_context *ctx) {
    double peak = 0;
    return ctx && ht_context_peak(ctx, HT_F32, &peak) == HT_OK && peak > 0 ? peak / 1e9 : NAN;
}

/* ctx NULL: no device could be taken, and error says why */
static void print_json(ht_context *ctx, const cli_error *error) {
    json_writer json = {.out = stdout};
    json_open(&json, NULL, '{');
    json_text(&json, "version", ht_version());
    json_text(&json, "device", ctx ? ht_context_device(ctx) : NULL);
    if (ctx)
        json_int(&json, "threads", ht_context_threads(ctx));
    else
        json_text(&json, "error", error->text);
    json_text(&json, "blas", sgemm_blas());
    json_real(&json, "gflops", measured(ctx));
    json_open(&json, "devices", '[');
    for (int i = 0; i < ht_device_count(); i++) {
        ht_device_info device = HT_DEVICE_INFO_INIT;
        if (ht_device_get(i, &device) != HT_OK) continue;
        json_open(&json, NULL, '{');
        json_text(&json, "name", device.name);
        json_bool(&json, "available", device.available);
        json_bool(&json, "chosen", device.chosen);
        json_text(&json, "about", device.about);
        json_close(&json, '}');
    }
    json_close(&json, ']');
    json_close(&json, '}');
    putchar('\n');
}

static void print_text(ht_context *ctx) {
    const char *bold = cli_bold(stdout), *plain = cli_plain(stdout), *blas = sgemm_blas();
    printf("%sversion%s  %s\n", bold, plain, ht_version());
    if (ctx)
        printf("%sdevice%s   %s, %d thread%s\n", bold, plain, ht_context_device(ctx),
               ht_context_threads(ctx), ht_context_threads(ctx) == 1 ? "" : "s");
    printf("%sblas%s     %s\n", bold, plain,
           blas ? blas : "none: training on the CPU is 20 times slower (libopenblas-dev)");
    double gflops = measured(ctx);
    if (!isnan(gflops))
        printf("%sproducts%s %.0f GFLOP/s in float, %s\n", bold, plain, gflops,
               strncmp(ht_context_device(ctx), "cpu", 3) ? "by its data sheet" : "measured now");
    printf("%sdevices%s  (* is what \"cpu\" means here, - is not available)\n", bold, plain);
    for (int i = 0; i < ht_device_count(); i++) {
        ht_device_info device = HT_DEVICE_INFO_INIT;
        if (ht_device_get(i, &device) != HT_OK) continue;
        const char *mark = device.chosen ? "*" : device.available ? " " : "-";
        printf("  %s %-12s %s\n", mark, device.name, device.about);
    }
}

static int run(const void *values) {
    const info_values *v = values;
    cli_error error = {""};
    int code = CLI_OK;
    ht_context *ctx = cli_open_device(NULL, 0, &code, &error);
    if (v->json)
        print_json(ctx, &error);
    else
        print_text(ctx);
    if (!ctx) cli_say("info", "%s", error.text);
    ht_context_destroy(ctx);
    return code;
}

const cli_command cli_info = {
    .name = "info",
    .summary = "what this build knows and what this machine has",
    .about = "The device is the one that commands take without --device: auto, which is cuda:0 "
             "where it can be used, else cpu. HTRANSFORMER_DEVICE in the environment changes it. "
             "The BLAS makes the matrix products of models on the CPU, "
             "and bench compares with it; they are measured for a tenth of a second.\n",
    .options = options,
    .values_bytes = sizeof(info_values),
    .run = run,
};
