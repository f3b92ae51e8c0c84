/* Causal attention of eight heads over 4096 rows; as all v are 1, all outputs are 1. */
#include <htransformer.h>
#include <stdio.h>

enum { LENGTH = 4096, HEADS = 8, DIM = 64, COUNT = LENGTH * HEADS * DIM };
static float q[COUNT], k[COUNT], v[COUNT], z[COUNT]; /* each [LENGTH, HEADS, DIM] */

int main(void) {
    for (int i = 0; i < COUNT; i++) q[i] = i % 7, k[i] = i % 5, v[i] = 1;
    ht_context_desc where = {.size = sizeof where, .device = "cpu"};
    ht_attention_desc desc = {.size = sizeof desc, .causal = 1};
    desc.q_heads = HEADS, desc.head_dim = DIM, desc.max_rows = LENGTH;
    ht_attention_args args = {.size = sizeof args, .batch = 1, .length = LENGTH};
    args.q.data = q, args.k.data = k, args.v.data = v, args.out.data = z;

    ht_context *ctx = NULL;
    ht_attention *plan = NULL;
    ht_status status = ht_context_create(&ctx, &where);
    if (status == HT_OK) status = ht_attention_create(&plan, ctx, &desc);
    if (status == HT_OK) status = ht_attention_forward(plan, &args);
    if (status == HT_OK) printf("%s: %.4g ... %.4g\n", ht_context_device(ctx), z[0], z[COUNT - 1]);
    if (status != HT_OK) fprintf(stderr, "%s\n", ht_context_error(ctx));
    ht_attention_destroy(plan);
    ht_context_destroy(ctx);
    return status != HT_OK;
}
