/*
 * Saved slots of a decode cache. The first byte: of which plan; whether the seal is set right. What
 * is taken is saved again as it was, and rows can be appended to it.
 */
#include "core/crc.h"
#include "patch.h"

enum { PLANS = 6, SEALED = 8, DIM = 4, HEADER = 112, MOST = 1 << 14 };
static const ht_attention_desc plans[PLANS] = {
    {.query = HT_QUERY_FINE}, {.kind = HT_FULL}, {.query = HT_QUERY_FIRST},
    {.kind = HT_LOCAL},       {.open = 2},       {.open = 1, .rotary_theta = 10000},
};
static ht_cache *caches[PLANS];
static uint8_t saved[PLANS][MOST];
static size_t saved_bytes[PLANS];

static void go_on(ht_cache *cache) {
    static const float rows[3 * DIM] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    float out[DIM];
    ht_attention_args args = HT_ATTENTION_ARGS_INIT;
    args.q.data = (void *)(uintptr_t)rows;
    args.k.data = (void *)(uintptr_t)(rows + DIM);
    args.v.data = (void *)(uintptr_t)(rows + 2 * DIM);
    args.out.data = out;
    args.batch = 1, args.length = 1;
    fuzz_taken(ht_cache_extend(cache, NULL, &args));
}

static void make(int which) {
    ht_attention *plan;
    ht_attention_desc desc = plans[which];
    desc.size = sizeof desc;
    desc.q_heads = 1, desc.head_dim = DIM, desc.block = 2, desc.causal = 1, desc.max_rows = 4;
    MUST(ht_attention_create(&plan, fuzz_context(), &desc) == HT_OK);
    MUST(ht_cache_create(&caches[which], plan, 1) == HT_OK);
    ht_attention_destroy(plan);
    for (int i = 0; i < 9; i++) go_on(caches[which]);
    MUST(ht_cache_save_bytes(caches[which], 0, &saved_bytes[which]) == HT_OK);
    MUST(ht_cache_save(caches[which], 0, saved[which], MOST) == HT_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_part rest = {data, size};
    int how = fuzz_option(&rest);
    int which = (how & 7) % PLANS;
    if (!caches[which]) make(which);
    ht_cache *cache = caches[which];
    size_t count, room;
    uint8_t *bytes = patch_make(&count, saved[which], saved_bytes[which], rest);
    if (how & SEALED && count >= HTI_SEAL) hti_seal(bytes, count);
    if (fuzz_taken(ht_cache_load(cache, 0, bytes, count))) {
        MUST(ht_cache_save_bytes(cache, 0, &room) == HT_OK);
        uint8_t *again = malloc(room);
        MUST(again && ht_cache_save(cache, 0, again, room) == HT_OK);
        if (bytes[7] == '2')
            MUST(count == room &&
                 memcmp(again + HEADER, bytes + HEADER, room - HEADER - HTI_SEAL) == 0);
        free(again);
        go_on(cache);
    }
    free(bytes);
    return 0;
}
