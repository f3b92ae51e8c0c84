/* Forward and backward, as in a step of training: the loss is half the sum of the squares of the
 * outputs, so that its gradient by them is the outputs. Then one number of q is moved a little, to
 * see that the loss follows the gradient. float64 is for such checks; train in float. */
#include <htransformer.h>
#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 200, HEADS = 2, DIM = 16, COUNT = LENGTH * HEADS * DIM };
/* each [LENGTH, HEADS, DIM]; z is also the gradient of the loss by z */
static double q[COUNT], k[COUNT], v[COUNT], z[COUNT], dq[COUNT], dk[COUNT], dv[COUNT];

static ht_status loss_of(double *loss, const ht_attention *plan, const ht_attention_args *args) {
    ht_status status = ht_attention_forward(plan, args);
    *loss = 0;
    for (int i = 0; i < COUNT; i++) *loss += 0.5 * z[i] * z[i];
    return status;
}

/* saved: what forward keeps for backward, need.saved bytes */
static ht_status step(const ht_attention *plan, void *saved) {
    enum { MOVED = 3 * HEADS * DIM }; /* row 3, head 0, column 0 */
    const double by = 1e-5;
    double before, after, below;
    ht_attention_args args = {.size = sizeof args, .batch = 1, .length = LENGTH, .saved = saved};
    args.q.data = q, args.k.data = k, args.v.data = v, args.out.data = z;
    ht_attention_grads grads = {.size = sizeof grads};
    grads.dout.data = z, grads.dq.data = dq, grads.dk.data = dk, grads.dv.data = dv;

    ht_status status = loss_of(&before, plan, &args);
    if (status == HT_OK) status = ht_attention_backward(plan, &args, &grads);
    args.saved = NULL; /* no backward follows: nothing need be kept */
    q[MOVED] += by;
    if (status == HT_OK) status = loss_of(&after, plan, &args);
    q[MOVED] -= 2 * by;
    if (status == HT_OK) status = loss_of(&below, plan, &args);
    if (status == HT_OK)
        printf("loss %.6g, gradient %.6f, by moving %.6f\n", before, dq[MOVED],
               (after - below) / (2 * by));
    return status;
}

int main(void) {
    for (int i = 0; i < COUNT; i++) q[i] = i % 7 - 3, k[i] = i % 5 - 2, v[i] = i % 11 - 5;
    ht_context_desc where = {.size = sizeof where, .device = "cpu"};
    ht_attention_desc desc = {.size = sizeof desc, .causal = 1, .dtype = HT_F64};
    desc.q_heads = HEADS, desc.head_dim = DIM, desc.max_rows = LENGTH;
    ht_attention_need need = {.size = sizeof need};

    ht_context *ctx = NULL;
    ht_attention *plan = NULL;
    void *saved = NULL;
    ht_status status = ht_context_create(&ctx, &where);
    if (status == HT_OK) status = ht_attention_create(&plan, ctx, &desc);
    if (status == HT_OK) status = ht_attention_get_need(plan, &need);
    if (status == HT_OK) saved = malloc(need.saved);
    if (status == HT_OK) status = saved ? step(plan, saved) : HT_NOMEM;
    if (status != HT_OK) fprintf(stderr, "%s\n", ht_context_error(ctx));
    free(saved);
    ht_attention_destroy(plan);
    ht_context_destroy(ctx);
    return status != HT_OK;
}
