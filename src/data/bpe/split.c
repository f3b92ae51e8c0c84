/*
 * Parts of a text: what a regular expression matches, and what lies between. Several work one
 * after the other, each on the parts of the one before, and see nothing beyond a part.
 */
#include <string.h>

#include "data/bpe/bpe.h"

#ifdef HTI_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

ht_status hti_bpe_add_split(hti_bpe *b, const char *pattern, int literal) {
    int code;
    PCRE2_SIZE at;
    CHECK(b->ctx, b->split_count < HTI_BPE_SPLITS, HT_UNSUPPORTED,
          "more than %d expressions that split a text", HTI_BPE_SPLITS);
    uint32_t how = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP);
    pcre2_code *made =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, how, &code, &at, NULL);
    CHECK(b->ctx, made || code != PCRE2_ERROR_HEAP_FAILED, HT_NOMEM,
          "out of memory: a regular expression");
    CHECK(b->ctx, made, HT_FORMAT, "its regular expression '%.100s' cannot be read, from place %zu",
          pattern, (size_t)at);
    pcre2_jit_compile(made, PCRE2_JIT_COMPLETE); /* faster; without it, it works, too */
    b->splits[b->split_count++] = made;
    return HT_OK;
}

void hti_bpe_free_splits(hti_bpe *b) {
    for (int i = 0; i < b->split_count; i++) pcre2_code_free(b->splits[i]);
    b->split_count = 0;
}

ht_status hti_bpe_begin(hti_bpe_work *w, const hti_bpe *b) {
    *w = (hti_bpe_work){.bpe = b};
    for (int i = 0; i < b->split_count; i++) {
        w->matches[i] = pcre2_match_data_create_from_pattern(b->splits[i], NULL);
        CHECK(NULL, w->matches[i], HT_NOMEM, "out of memory: a regular expression");
    }
    return HT_OK;
}

void hti_bpe_end(hti_bpe_work *w) {
    for (int i = 0; i < HTI_BPE_SPLITS; i++) pcre2_match_data_free(w->matches[i]);
    hti_buffer_free(&w->symbols);
    hti_buffer_free(&w->heap);
}

static ht_status encode_from(hti_bpe_work *w, int split, const char *text, size_t bytes);

/* What lies before the next match, then the match. */
static ht_status next_part(hti_bpe_work *w, int split, const char *text, size_t bytes, size_t *at) {
    int code = pcre2_match(w->bpe->splits[split], (PCRE2_SPTR)text, bytes, *at,
                           PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, w->matches[split], NULL);
    CHECK(NULL, code != PCRE2_ERROR_NOMEMORY, HT_NOMEM, "out of memory: a regular expression");
    CHECK(NULL, code > 0 || code == PCRE2_ERROR_NOMATCH, HT_UNSUPPORTED,
          "a text cannot be split into words: error %d of PCRE2", code);
    size_t from = bytes, to = bytes;
    if (code > 0) {
        const PCRE2_SIZE *place = pcre2_get_ovector_pointer(w->matches[split]);
        from = place[0], to = place[1];
    }
    TRY(encode_from(w, split + 1, text + *at, from - *at));
    TRY(encode_from(w, split + 1, text + from, to - from));
    *at = to;
    return HT_OK;
}

static ht_status encode_from(hti_bpe_work *w, int split, const char *text, size_t bytes) {
    if (bytes == 0) return HT_OK;
    if (split == w->bpe->split_count) return hti_bpe_merge(w, text, bytes);
    for (size_t at = 0; at < bytes;) TRY(next_part(w, split, text, bytes, &at));
    return HT_OK;
}

ht_status hti_bpe_encode(hti_bpe_work *w, const char *text, size_t bytes) {
    return encode_from(w, 0, text, bytes);
}

#else

ht_status hti_bpe_add_split(hti_bpe *b, const char *pattern, int literal) {
    (void)pattern, (void)literal;
    return hti_fail(b->ctx, HT_UNSUPPORTED,
                    "this build has no PCRE2, which splits texts into words (Debian: "
                    "libpcre2-dev)");
}
void hti_bpe_free_splits(hti_bpe *b) { (void)b; }
ht_status hti_bpe_begin(hti_bpe_work *w, const hti_bpe *b) {
    *w = (hti_bpe_work){.bpe = b};
    return HT_OK;
}
void hti_bpe_end(hti_bpe_work *w) {
    hti_buffer_free(&w->symbols);
    hti_buffer_free(&w->heap);
}
ht_status hti_bpe_encode(hti_bpe_work *w, const char *text, size_t bytes) {
    return bytes ? hti_bpe_merge(w, text, bytes) : HT_OK;
}

#endif
