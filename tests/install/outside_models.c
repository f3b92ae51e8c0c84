/*
 * A program outside the project that uses both libraries, valid as C and as C++: bytes as tokens,
 * and a product of the models' kernels on a context of the attention's.
 */
#include <htransformer_models.h>
#include <stdio.h>

static int use(ht_context *ctx) {
    ht_tokenizer *bytes = NULL;
    int32_t tokens[4];
    int64_t count = 0;
    double peak = 0;
    if (ht_tokenizer_open(&bytes, ctx, NULL) != HT_OK) return 1;
    ht_status status = ht_tokenizer_encode(bytes, "abc", 3, tokens, 4, &count);
    ht_tokenizer_close(bytes);
    if (status != HT_OK || count != 3 || tokens[0] != 'a' + 1) return 1;
    if (ht_context_peak(ctx, HT_F32, &peak) != HT_OK || !(peak > 0)) return 1;
    printf("htransformer %s: %d tokens\n", ht_version(), (int)count);
    return 0;
}

int main(void) {
    ht_context *ctx = NULL;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.device = "cpu";
    int failed = ht_context_create(&ctx, &desc) != HT_OK || use(ctx);
    if (failed) fprintf(stderr, "%s\n", ht_context_error(ctx));
    ht_context_destroy(ctx);
    return failed;
}
