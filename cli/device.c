/*
 * What every command that computes shares: names of the enums, and the context made from
 * --device.
 */
#include "commands.h"

#include <stdlib.h>
#include <string.h>

const char *const cli_kinds[] = {"hierarchical", "full", "local", NULL};
const char *const cli_queries[] = {"auto", "mean", "first", "fine", NULL};
const char *const cli_dtypes[] = {"f32", "bf16", "f64", "f16", NULL};

_Static_assert(HT_HIERARCHICAL == 0 && HT_FULL == 1 && HT_LOCAL == 2, "order of cli_kinds");
_Static_assert(HT_QUERY_AUTO == 0 && HT_QUERY_MEAN == 1 && HT_QUERY_FIRST == 2 &&
                   HT_QUERY_FINE == 3,
               "order of cli_queries");
_Static_assert(HT_F32 == 0 && HT_BF16 == 1 && HT_F64 == 2 && HT_F16 == 3, "order of cli_dtypes");

ht_query cli_query(int chosen, int causal, int64_t open) {
    ht_attention_desc desc = HT_ATTENTION_DESC_INIT;
    desc.query = (ht_query)chosen;
    desc.causal = causal;
    desc.open = open;
    return ht_attention_query(&desc);
}

bool cli_check_query(int kind, int query, int causal, cli_error *error) {
    if (kind != HT_HIERARCHICAL || query != HT_QUERY_MEAN || !causal) return true;
    return cli_fail(error, "--query mean in causal attention would let later rows steer earlier "
                           "ones; use --query first or fine");
}

const char *cli_device(const char *device, int double_precision) {
    const char *set = getenv("HTRANSFORMER_DEVICE");
    if (device || (set && *set)) return device;
    return double_precision ? "cpu" : "auto";
}

/* Is `device` a name that this build knows? If not, *best is the nearest one. */
static bool known_device(const char *device, const char **best) {
    const char *names[64] = {"cpu", "auto", NULL};
    int count = 2;
    for (int i = 0; i < ht_device_count() && count < 63; i++) {
        ht_device_info info = HT_DEVICE_INFO_INIT;
        if (ht_device_get(i, &info) == HT_OK) names[count++] = info.name;
    }
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], device) == 0) return true;
    *best = cli_nearest(device, names);
    return false;
}

ht_context *cli_open_device(const char *device, int64_t threads, int *code, cli_error *error) {
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.device = cli_device(device, 0);
    desc.threads = (int)threads;
    ht_context *ctx = NULL;
    if (ht_context_create(&ctx, &desc) == HT_OK) {
        cli_detail(NULL, "version %s, device %s, %d threads", ht_version(), ht_context_device(ctx),
                   ht_context_threads(ctx));
        return ctx;
    }
    const char *best = NULL, *asked = device ? device : getenv("HTRANSFORMER_DEVICE");
    bool known = !asked || !*asked || known_device(asked, &best);
    *code = known || !device ? CLI_FAILED : CLI_USAGE;
    cli_fail(error, "%s%s%s%s", ht_context_error(NULL), best ? "; did you mean " : "",
             best ? best : "", best ? "?" : "");
    return NULL;
}
