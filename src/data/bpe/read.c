/*
 * tokenizer.json: what of it makes tokens of a text. What would change the text is refused by name;
 * what would put something before or behind it (a space, a special token) is left out.
 */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"
#include "data/bpe/bpe.h"
#include "data/utf8.h"

#define MARK "\xE2\x96\x81"
/* how GPT-2 splits, which ByteLevel does by itself */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

typedef struct reading {
    hti_bpe *b;
    const char *path;
    const cJSON *root, *model;
    const cJSON **words; /* [b->count]: each token as it is written; NULL: none */
    char *special;       /* [b->count] */
    int has_byte_level, has_marks;
} reading;

static const cJSON *get(const cJSON *of, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(of, name);
}
static const char *text_of(const cJSON *of, const char *name) {
    const char *text = cJSON_GetStringValue(get(of, name));
    return text ? text : "";
}
static int is(const cJSON *of, const char *name, const char *text) {
    return strcmp(text_of(of, name), text) == 0;
}

/* ---- normalizer and pre_tokenizer ---- */

static ht_status read_normalizer(reading *r, const cJSON *n) {
    const cJSON *each;
    if (!n || cJSON_IsNull(n) || is(n, "type", "NFC")) return HT_OK; /* texts are NFC, nearly all */
    if (is(n, "type", "Sequence")) {
        cJSON_ArrayForEach(each, get(n, "normalizers")) TRY(read_normalizer(r, each));
        return HT_OK;
    }
    if (is(n, "type", "Prepend")) return HT_OK;
    int mark =
        is(n, "type", "Replace") && is(n, "content", MARK) && is(get(n, "pattern"), "String", " ");
    CHECK(r->b->ctx, mark, HT_UNSUPPORTED,
          "%s: its normalizer '%.40s' would change the text, which must come back from its tokens",
          r->path, text_of(n, "type"));
    r->has_marks = 1;
    return HT_OK;
}

static ht_status read_split(reading *r, const cJSON *p) {
    const cJSON *pattern = get(p, "pattern");
    const char *regex = cJSON_GetStringValue(get(pattern, "Regex"));
    const char *text = cJSON_GetStringValue(get(pattern, "String"));
    CHECK(r->b->ctx, is(p, "behavior", "Isolated") && (regex || text), HT_UNSUPPORTED,
          "%s: its Split with behavior '%.40s' is not supported, but Isolated", r->path,
          text_of(p, "behavior"));
    return hti_bpe_add_split(r->b, regex ? regex : text, !regex);
}

static ht_status read_pre(reading *r, const cJSON *p) {
    const cJSON *each;
    if (!p || cJSON_IsNull(p)) return HT_OK;
    if (is(p, "type", "Sequence")) {
        cJSON_ArrayForEach(each, get(p, "pretokenizers")) TRY(read_pre(r, each));
        return HT_OK;
    }
    if (is(p, "type", "Split")) return read_split(r, p);
    if (is(p, "type", "Digits"))
        return hti_bpe_add_split(
            r->b, cJSON_IsTrue(get(p, "individual_digits")) ? "\\p{N}" : "\\p{N}+", 0);
    if (is(p, "type", "ByteLevel")) {
        r->has_byte_level = 1;
        return cJSON_IsFalse(get(p, "use_regex")) ? HT_OK : hti_bpe_add_split(r->b, GPT2, 0);
    }
    CHECK(r->b->ctx, is(p, "type", "Metaspace"), HT_UNSUPPORTED,
          "%s: its pre_tokenizer '%.40s' is not supported", r->path, text_of(p, "type"));
    r->has_marks = 1;
    return cJSON_IsFalse(get(p, "split")) ? HT_OK : hti_bpe_add_split(r->b, " [^ ]*|[^ ]+", 0);
}

/* ---- tokens ---- */

static ht_status id_of(const reading *r, const cJSON *number, int64_t *out) {
    double x = cJSON_IsNumber(number) ? number->valuedouble : -1;
    CHECK(r->b->ctx, x >= 0 && x < 65534 && x == (double)(int64_t)x, HT_UNSUPPORTED,
          "%s has token %.0f; at most 65534 tokens are supported", r->path, x);
    *out = (int64_t)x;
    return HT_OK;
}

static ht_status count_tokens(reading *r) {
    const cJSON *each;
    int64_t id = 0;
    cJSON_ArrayForEach(each, get(r->model, "vocab")) {
        TRY(id_of(r, each, &id));
        if (id >= r->b->count) r->b->count = id + 1;
    }
    cJSON_ArrayForEach(each, get(r->root, "added_tokens")) {
        TRY(id_of(r, get(each, "id"), &id));
        if (id >= r->b->count) r->b->count = id + 1;
    }
    size_t count = (size_t)r->b->count;
    CHECK(r->b->ctx, count > 0, HT_FORMAT, "%s has no vocabulary", r->path);
    r->words = hti_host_alloc(r->b->ctx, sizeof *r->words * count);
    r->special = hti_host_alloc(r->b->ctx, count);
    r->b->starts = hti_host_alloc(r->b->ctx, sizeof *r->b->starts * (count + 1));
    CHECK(r->b->ctx, r->words && r->special && r->b->starts, HT_NOMEM,
          "out of memory: %zu tokens of %s", count, r->path);
    memset(r->words, 0, sizeof *r->words * count);
    memset(r->special, 0, count);
    return HT_OK;
}

/* The letter that stands for a byte: itself where it can be seen, else one from 256 on. */
static void alphabet(int16_t byte_of[324]) {
    int next = 256;
    memset(byte_of, 0xFF, sizeof *byte_of * 324);
    for (int b = 0; b < 256; b++) {
        int seen = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
        byte_of[seen ? b : next++] = (int16_t)b;
    }
}

/* A word in these letters as bytes; 0: it has others. */
static int to_bytes(hti_buffer *out, const char *word) {
    int16_t byte_of[324];
    alphabet(byte_of);
    size_t left = strlen(word), size;
    out->used = 0;
    for (; left > 0; word += size, left -= size) {
        const unsigned char *c = (const unsigned char *)word;
        size = hti_utf8(word, left);
        int letter = size == 1 ? c[0] : size == 2 ? (c[0] & 31) << 6 | (c[1] & 63) : 400;
        if (letter >= 324 || byte_of[letter] < 0) return 0;
        char byte = (char)byte_of[letter];
        if (hti_buffer_add(out, &byte, 1) != HT_OK) return 0;
    }
    return 1;
}

/* <0x41> */
static int byte_word(const char *word) {
    char *end;
    if (strlen(word) != 6 || strncmp(word, "<0x", 3) != 0) return -1;
    long byte = strtol(word + 3, &end, 16);
    return end == word + 5 && *end == '>' ? (int)byte : -1;
}

/* What a token stands for, into *out; how it is found, as a name. */
static ht_status add_word(reading *r, hti_buffer *out, int32_t id, const char *word) {
    hti_bpe *b = r->b;
    int32_t number, byte = b->by_byte ? -1 : byte_word(word);
    int known = b->by_byte && to_bytes(out, word);
    TRY(hti_buffer_need(out, strlen(word) + 1));
    if (!known) {
        out->used = 0;
        TRY(hti_buffer_add(out, word, strlen(word)));
    }
    if (byte < 0 && (known || !b->by_byte)) {
        TRY(hti_names_add(&b->words, out->data, out->used, &number));
        b->ids[number] = id;
    }
    if (b->by_byte && known && out->used == 1) byte = (unsigned char)out->data[0];
    if (byte >= 0) {
        b->bytes[byte] = id;
        out->data[0] = (char)byte, out->used = 1;
    }
    return HT_OK;
}

/* The mark is a space. */
static void unmark(hti_buffer *word) {
    size_t n = 0;
    for (size_t i = 0; i < word->used; n++) {
        int mark = word->used - i >= 3 && memcmp(word->data + i, MARK, 3) == 0;
        word->data[n] = mark ? ' ' : word->data[i];
        i += mark ? 3 : 1;
    }
    word->used = n;
}

/* No letter stands before a space in it. */
static int may_cut(const char *text, size_t bytes) {
    for (size_t i = 1; i < bytes; i++)
        if (text[i] == ' ' && text[i - 1] != ' ') return 0;
    return 1;
}

static ht_status add_texts(reading *r, hti_buffer *word) {
    hti_bpe *b = r->b;
    b->cuts = 1;
    for (int64_t id = 0; id < b->count; id++) {
        b->starts[id] = b->text.used;
        const char *text = r->words[id] && !r->special[id] ? r->words[id]->string : NULL;
        if (!text) continue;
        TRY(add_word(r, word, (int32_t)id, text));
        if (!b->by_byte && byte_word(text) < 0) unmark(word);
        b->cuts = b->cuts && may_cut(word->data, word->used);
        TRY(hti_buffer_add(&b->text, word->data, word->used));
    }
    b->starts[b->count] = b->text.used;
    return HT_OK;
}

static ht_status read_tokens(reading *r) {
    const cJSON *each;
    hti_buffer word = {.ctx = r->b->ctx};
    int64_t id = 0;
    TRY(count_tokens(r));
    cJSON_ArrayForEach(each, get(r->model, "vocab")) {
        TRY(id_of(r, each, &id));
        r->words[id] = each;
    }
    cJSON_ArrayForEach(each, get(r->root, "added_tokens")) {
        TRY(id_of(r, get(each, "id"), &id));
        r->special[id] = 1; /* not found in texts, so none comes back as text */
    }
    r->b->ids = hti_host_alloc(r->b->ctx, sizeof *r->b->ids * (size_t)r->b->count);
    CHECK(r->b->ctx, r->b->ids, HT_NOMEM, "out of memory: the tokens of %s", r->path);
    ht_status status = add_texts(r, &word);
    hti_buffer_free(&word);
    TRY(status);
    for (int i = 0; i < 256; i++)
        CHECK(r->b->ctx, r->b->bytes[i] >= 0, HT_INVALID,
              "%s has no token for byte %d, which a text may hold: a byte-level tokenizer has all, "
              "and others with byte_fallback",
              r->path, i);
    return HT_OK;
}

/* ---- pairs ---- */

/* The word as it is kept, added to *out. */
static ht_status add_name(const reading *r, hti_buffer *out, hti_buffer *word, const char *text,
                          size_t bytes) {
    char *copy = hti_host_alloc(r->b->ctx, bytes + 1);
    CHECK(r->b->ctx, copy, HT_NOMEM, "out of memory: a pair of tokens");
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    int good = r->b->by_byte && to_bytes(word, copy);
    ht_status status =
        good ? hti_buffer_add(out, word->data, word->used) : hti_buffer_add(out, copy, bytes);
    hti_host_free(r->b->ctx, copy);
    return status;
}

static int32_t find(const hti_bpe *b, const char *name, size_t bytes) {
    int32_t number = hti_names_find(&b->words, name, bytes);
    return number < 0 ? -1 : b->ids[number];
}

/* "a b" or ["a", "b"]; names: room for both, word: for one. */
static ht_status read_pair(const reading *r, hti_buffer *names, hti_buffer *word, const cJSON *item,
                           int32_t rank) {
    const char *left =
        cJSON_GetStringValue(cJSON_IsArray(item) ? cJSON_GetArrayItem(item, 0) : item);
    const char *space = cJSON_IsArray(item) || !left ? NULL : strchr(left + (*left == ' '), ' ');
    const char *right = cJSON_IsArray(item) ? cJSON_GetStringValue(cJSON_GetArrayItem(item, 1))
                        : space             ? space + 1
                                            : NULL;
    CHECK(r->b->ctx, left && right, HT_FORMAT, "%s: its merge %d is no pair", r->path, (int)rank);
    names->used = 0;
    TRY(add_name(r, names, word, left, space ? (size_t)(space - left) : strlen(left)));
    size_t first = names->used;
    TRY(add_name(r, names, word, right, strlen(right)));
    hti_bpe_pair pair = {.left = find(r->b, names->data, first),
                         .right = find(r->b, names->data + first, names->used - first),
                         .rank = rank,
                         .merged = find(r->b, names->data, names->used)};
    CHECK(r->b->ctx, pair.left >= 0 && pair.right >= 0 && pair.merged >= 0, HT_FORMAT,
          "%s: its merge %d, '%.40s', is of words that its vocabulary has not", r->path, (int)rank,
          left);
    hti_bpe_add_pair(r->b, &pair);
    return HT_OK;
}

static ht_status read_pairs(const reading *r) {
    const cJSON *merges = get(r->model, "merges"), *each;
    hti_buffer names = {.ctx = r->b->ctx}, word = {.ctx = r->b->ctx};
    int32_t rank = 0;
    TRY(hti_bpe_make_pairs(r->b, cJSON_GetArraySize(merges)));
    ht_status status = HT_OK;
    cJSON_ArrayForEach(each, merges) {
        if (status == HT_OK) status = read_pair(r, &names, &word, each, rank++);
    }
    hti_buffer_free(&names);
    hti_buffer_free(&word);
    return status;
}

/* ---- the file ---- */

static ht_status read_all(reading *r) {
    ht_context *ctx = r->b->ctx;
    r->model = get(r->root, "model");
    const char *kind = text_of(r->model, "type");
    int bpe = strcmp(kind, "BPE") == 0 || (!*kind && get(r->model, "merges"));
    CHECK(ctx, bpe, HT_UNSUPPORTED,
          "%s has a model of type '%.40s', but BPE is supported; of Unigram take the "
          "SentencePiece model beside it (tokenizer.model, spiece.model)",
          r->path, kind);
    CHECK(
        ctx,
        !*text_of(r->model, "continuing_subword_prefix") &&
            !*text_of(r->model, "end_of_word_suffix"),
        HT_UNSUPPORTED,
        "%s marks the insides or ends of words; byte-level tokenizers and those with U+2581 for a "
        "space are supported",
        r->path);
    TRY(read_normalizer(r, get(r->root, "normalizer")));
    TRY(read_pre(r, get(r->root, "pre_tokenizer")));
    CHECK(ctx, r->has_byte_level != r->has_marks, HT_UNSUPPORTED,
          "%s is neither byte-level (pre_tokenizer ByteLevel) nor has it U+2581 for a space",
          r->path);
    r->b->by_byte = r->has_byte_level;
    r->b->whole_first = cJSON_IsTrue(get(r->model, "ignore_merges"));
    CHECK(ctx, !r->b->whole_first || r->b->by_byte, HT_UNSUPPORTED,
          "%s has ignore_merges, which is supported of byte-level tokenizers alone", r->path);
    TRY(read_tokens(r));
    return read_pairs(r);
}

ht_status hti_bpe_open(hti_bpe **out, ht_context *ctx, const char *json, size_t bytes,
                       const char *path) {
    cJSON *root;
    *out = NULL;
    TRY(hti_json_parse(ctx, &root, json, bytes, path));
    hti_bpe *b = hti_host_alloc(ctx, sizeof *b);
    reading r = {.b = b, .path = path, .root = root};
    ht_status status = HT_OK;
    if (!b) {
        status = hti_fail(ctx, HT_NOMEM, "out of memory: the tokens of %s", path);
    } else {
        memset(b, 0, sizeof *b);
        memset(b->bytes, 0xFF, sizeof b->bytes);
        b->ctx = b->words.ctx = b->text.ctx = ctx;
        status = read_all(&r);
    }
    hti_host_free(ctx, (void *)r.words);
    hti_host_free(ctx, r.special);
    cJSON_Delete(root);
    if (status == HT_OK) *out = b;
    if (status != HT_OK) hti_bpe_close(b);
    return status;
}

void hti_bpe_close(hti_bpe *b) {
    if (!b) return;
    hti_bpe_free_splits(b);
    hti_names_free(&b->words);
    hti_buffer_free(&b->text);
    hti_host_free(b->ctx, b->ids);
    hti_host_free(b->ctx, b->pairs);
    hti_host_free(b->ctx, b->starts);
    hti_host_free(b->ctx, b);
}
