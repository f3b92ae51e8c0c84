/*
 * A program outside the project, valid as C and as C++: attends with v = 1, so that the output
 * must be 1.
 */
#include <htransformer.h>
#include <stdio.h>

enum { LENGTH = 40, HEADS = 2, DIM = 4, COUNT = LENGTH * HEADS * DIM };

static int attend(ht_context *ctx) {
    static float q[COUNT], k[COUNT], v[COUNT], z[COUNT];
    for (int i = 0; i < COUNT; i++) {
        q[i] = (float)(i % 7);
        k[i] = (float)(i % 5);
        v[i] = 1;
    }
    ht_attention *plan = NULL;
    ht_attention_desc desc = HT_ATTENTION_DESC_INIT;
    desc.q_heads = HEADS;
    desc.head_dim = DIM;
    desc.block = 4;
    desc.max_rows = LENGTH;
    if (ht_attention_create(&plan, ctx, &desc) != HT_OK) return 1;
    ht_attention_args args = HT_ATTENTION_ARGS_INIT;
    args.batch = 1;
    args.length = LENGTH;
    args.q.data = q;
    args.k.data = k;
    args.v.data = v;
    args.out.data = z;
    ht_status status = ht_attention_forward(plan, &args);
    ht_attention_destroy(plan);
    if (status != HT_OK) return 1;
    for (int i = 1; i < COUNT; i++) {
        float off = z[i] - z[0];
        if (!(off < 1e-5f && off > -1e-5f)) return 1;
    }
    printf("htransformer %s: z = %g\n", ht_version(), (double)z[0]);
    return 0;
}

int main(void) {
    ht_context *ctx = NULL;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.device = "cpu";
    int failed = ht_context_create(&ctx, &desc) != HT_OK || attend(ctx);
    if (failed) fprintf(stderr, "%s\n", ht_context_error(ctx));
    ht_context_destroy(ctx);
    return failed;
}
