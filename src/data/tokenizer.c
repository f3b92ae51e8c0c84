/*
 * Tokens of texts: bytes, the pieces of a SentencePiece model, or those of a tokenizer.json of
 * Hugging Face (bpe/).
 *
 * A piece stands for its own bytes (its mark U+2581 for a space), a byte piece for one byte, so
 * that the bytes of a text are those of its tokens one after the other. What SentencePiece would
 * not give back as it was (bytes that are no UTF-8, the mark itself, NUL, text that it normalises)
 * goes in as byte pieces. Token id = piece + 1: 0 stays the start of a document.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "data/bpe/bpe.h"
#include "data/data.h"
#include "data/sentencepiece.h"
#include "data/utf8.h"
#include "common/file.h"

struct ht_tokenizer {
    ht_context *ctx;
    void *model;  /* of SentencePiece, */
    hti_bpe *bpe; /* or of tokenizer.json; both NULL: bytes */
    int64_t vocab;
    hti_buffer text;        /* bytes of all pieces */
    size_t *starts;         /* [vocab + 1] */
    int32_t bytes[256];     /* token of each byte */
    unsigned char all[256]; /* without a model: the pieces are these */
};

#define MARK "\xE2\x96\x81"

/* ---- open and close ---- */

void ht_tokenizer_close(ht_tokenizer *t) {
    if (!t) return;
#ifdef HTI_SENTENCEPIECE
    if (t->model) hti_spm_close(t->model);
#endif
    hti_bpe_close(t->bpe);
    hti_buffer_free(&t->text);
    hti_host_free(t->ctx, t->starts);
    hti_host_free(t->ctx, t);
}

/* ---- tokenizer.json ---- */

static ht_status load_bpe(ht_tokenizer *t, const char *json, size_t bytes, const char *path) {
    TRY(hti_bpe_open(&t->bpe, t->ctx, json, bytes, path));
    hti_bpe *b = t->bpe;
    t->vocab = b->count + 1;
    t->starts = hti_host_alloc(t->ctx, sizeof *t->starts * (size_t)(b->count + 2));
    CHECK(t->ctx, t->starts, HT_NOMEM, "out of memory: %lld tokens", (long long)b->count);
    t->starts[0] = 0;
    memcpy(t->starts + 1, b->starts, sizeof *t->starts * (size_t)(b->count + 1));
    for (int i = 0; i < 256; i++) t->bytes[i] = b->bytes[i] + 1;
    return hti_buffer_add(&t->text, b->text.data, b->text.used);
}

/* ---- SentencePiece ---- */

#ifdef HTI_SENTENCEPIECE

static ht_status add_piece(ht_tokenizer *t, int id) {
    hti_spm_kind kind;
    const char *piece = hti_spm_piece(t->model, id, &kind);
    t->starts[id + 1] = t->text.used;
    CHECK(t->ctx, kind != HTI_SPM_BYTE || strlen(piece) == 6, HT_FORMAT,
          "its piece %d is damaged: a byte is written <0x41>, not %.20s", id, piece);
    if (kind == HTI_SPM_BYTE) {
        unsigned char byte = (unsigned char)strtoul(piece + 3, NULL, 16); /* <0x41> */
        t->bytes[byte] = id + 1;
        TRY(hti_buffer_add(&t->text, &byte, 1));
    }
    while (kind == HTI_SPM_TEXT && *piece) {
        int mark = strncmp(piece, MARK, 3) == 0;
        TRY(hti_buffer_add(&t->text, mark ? " " : piece, 1));
        piece += mark ? 3 : 1;
    }
    t->starts[id + 2] = t->text.used;
    return HT_OK;
}

/* Does a simple text survive? Models that normalise it, or put a space before it, do not. */
static ht_status probe(const ht_tokenizer *t, const char *path) {
    static const char text[] = "a  b c";
    int32_t *ids;
    int64_t n = hti_spm_encode(t->model, text, sizeof text - 1, &ids);
    size_t at = 0;
    CHECK(t->ctx, n != HTI_SPM_STARVED, HT_NOMEM, "out of memory: the tokens of %s", path);
    int same = n >= 0;
    for (int64_t i = 0; i < n && same; i++) {
        size_t from = t->starts[ids[i] + 1], count = t->starts[ids[i] + 2] - from;
        same = at + count < sizeof text && memcmp(text + at, t->text.data + from, count) == 0;
        at += count;
    }
    free(ids);
    CHECK(t->ctx, same && at == sizeof text - 1, HT_INVALID,
          "%s changes the text: train it with --normalization_rule_name=identity "
          "--add_dummy_prefix=false --remove_extra_whitespaces=false",
          path);
    return HT_OK;
}

static ht_status load_pieces(ht_tokenizer *t, const char *bytes, size_t size, const char *path) {
    bool starved;
    t->model = hti_spm_open(bytes, size, &starved);
    CHECK(t->ctx, !starved, HT_NOMEM, "out of memory: the tokens of %s", path);
    CHECK(t->ctx, t->model, HT_FORMAT, "%s is no SentencePiece model, and no tokenizer.json", path);
    int count = hti_spm_count(t->model);
    CHECK(t->ctx, count > 0 && count < 65535, HT_UNSUPPORTED,
          "%s has %d pieces; at most 65534 are supported", path, count);
    t->vocab = count + 1;
    t->starts = hti_host_alloc(t->ctx, sizeof *t->starts * (size_t)(count + 2));
    CHECK(t->ctx, t->starts, HT_NOMEM, "out of memory: %d pieces", count);
    t->starts[0] = 0;
    for (int id = 0; id < count; id++) TRY(add_piece(t, id));
    for (int b = 0; b < 256; b++)
        CHECK(t->ctx, t->bytes[b] > 0, HT_INVALID,
              "%s has no piece for byte %d: train it with --byte_fallback", path, b);
    return probe(t, path);
}

#else

static ht_status load_pieces(ht_tokenizer *t, const char *bytes, size_t size, const char *path) {
    (void)bytes, (void)size;
    return hti_fail(t->ctx, HT_UNSUPPORTED,
                    "%s: this build has no SentencePiece (Debian: libsentencepiece-dev)", path);
}

#endif

static ht_status load(ht_tokenizer *t, const char *path) {
    enum { MOST = 1 << 28 };
    char *bytes;
    size_t size, at = 0;
    TRY(hti_file_read(t->ctx, &bytes, &size, path, MOST));
    while (at < size && (unsigned char)bytes[at] <= ' ') at++;
    int json = at < size && bytes[at] == '{'; /* a model's first byte is that of a field */
    ht_status status = json ? load_bpe(t, bytes, size, path) : load_pieces(t, bytes, size, path);
    hti_host_free(t->ctx, bytes);
    return status;
}

ht_status ht_tokenizer_open(ht_tokenizer **out, ht_context *ctx, const char *path) {
    CHECK(ctx, out, HT_INVALID, "ht_tokenizer_open: out is NULL");
    *out = NULL;
    NEED(ctx);
    ht_tokenizer *t = hti_host_alloc(ctx, sizeof *t);
    CHECK(ctx, t, HT_NOMEM, "out of memory: %zu bytes for a tokenizer", sizeof *t);
    memset(t, 0, sizeof *t);
    t->ctx = t->text.ctx = ctx;
    t->vocab = 257;
    for (int b = 0; b < 256; b++) {
        t->all[b] = (unsigned char)b;
        t->bytes[b] = path ? 0 : b + 1;
    }
    ht_status status = path ? load(t, path) : HT_OK;
    if (status != HT_OK) {
        ht_tokenizer_close(t);
        return status;
    }
    *out = t;
    return HT_OK;
}

int64_t ht_tokenizer_vocab(const ht_tokenizer *t) { return t ? t->vocab : 0; }

const char *ht_tokenizer_piece(const ht_tokenizer *t, int32_t token, size_t *bytes) {
    size_t unwanted;
    if (!bytes) bytes = &unwanted;
    *bytes = 0;
    if (!t || token <= 0 || token >= t->vocab) return "";
    if (!t->starts) {
        *bytes = 1;
        return (const char *)&t->all[token - 1];
    }
    *bytes = t->starts[token + 1] - t->starts[token];
    return t->text.data + t->starts[token];
}

/* ---- encode ---- */

typedef struct sink {
    int32_t *tokens;
    int64_t room, count;
} sink;

static void emit(sink *s, int32_t token) {
    if (s->count < s->room) s->tokens[s->count] = token;
    s->count++;
}

static void emit_bytes(sink *s, const ht_tokenizer *t, const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) emit(s, t->bytes[(unsigned char)text[i]]);
}

#ifdef HTI_SENTENCEPIECE

/* Valid characters up to the end of the line, but not too many; the mark and NUL end it, too. */
static size_t plain_run(const char *text, size_t left) {
    enum { MOST = 4096 };
    size_t at = 0;
    while (at < left && at < MOST) {
        size_t n = hti_utf8(text + at, left - at);
        if (n == 0 || text[at] == '\0' || (n == 3 && memcmp(text + at, MARK, 3) == 0)) break;
        at += n;
        if (text[at - 1] == '\n') break;
    }
    return at;
}

static int gives_back(const ht_tokenizer *t, const int32_t *ids, int64_t count, const char *text,
                      size_t bytes) {
    size_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        size_t n;
        const char *piece = ht_tokenizer_piece(t, ids[i] + 1, &n);
        if (n == 0 || n > bytes - at || memcmp(piece, text + at, n) != 0) return 0;
        at += n;
    }
    return at == bytes;
}

/* A run that does not come back as it was, or that SentencePiece cannot make tokens of, is halved
 * until what is at fault is one character. Returns 0 without memory. */
static int encode_run(sink *s, const ht_tokenizer *t, const char *text, size_t bytes) {
    int32_t *ids;
    int64_t count = hti_spm_encode(t->model, text, bytes, &ids);
    if (count == HTI_SPM_STARVED) return 0;
    int good = count >= 0 && gives_back(t, ids, count, text, bytes);
    for (int64_t i = 0; i < count && good; i++) emit(s, ids[i] + 1);
    free(ids);
    if (good) return 1;
    size_t half = 0;
    while (half < bytes / 2) half += hti_utf8(text + half, bytes - half);
    if (half == 0 || half == bytes) {
        emit_bytes(s, t, text, bytes);
        return 1;
    }
    return encode_run(s, t, text, half) && encode_run(s, t, text + half, bytes - half);
}

static int encode_pieces(sink *s, const ht_tokenizer *t, const char *text, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        size_t n = plain_run(text + at, bytes - at);
        if (n > 0 && !encode_run(s, t, text + at, n)) return 0;
        if (n == 0) emit_bytes(s, t, text + at, n = 1);
        at += n;
    }
    return 1;
}

#else

static int encode_pieces(sink *s, const ht_tokenizer *t, const char *text, size_t bytes) {
    emit_bytes(s, t, text, bytes);
    return 1;
}

#endif

/* ---- of tokenizer.json ---- */

/* Valid characters go to the encoder, other bytes are tokens by themselves. */
static ht_status encode_runs(hti_bpe_work *w, const ht_tokenizer *t, const char *text,
                             size_t bytes) {
    for (size_t at = 0, from = 0, n; at < bytes; at += n) {
        n = hti_utf8(text + at, bytes - at);
        if (n == 0 || at + n == bytes) {
            size_t end = n == 0 ? at : bytes;
            TRY(hti_bpe_encode(w, text + from, end - from));
            from = at + (n ? n : 1);
        }
        if (n == 0) hti_bpe_emit(w, t->bpe->bytes[(unsigned char)text[at]]), n = 1;
    }
    return HT_OK;
}

static ht_status encode_words(sink *s, const ht_tokenizer *t, const char *text, size_t bytes) {
    hti_bpe_work work;
    ht_status status = hti_bpe_begin(&work, t->bpe);
    work.tokens = s->tokens + (s->count < s->room ? s->count : 0);
    work.room = s->count < s->room ? s->room - s->count : 0;
    if (status == HT_OK) status = encode_runs(&work, t, text, bytes);
    for (int64_t i = 0; i < work.count && i < work.room; i++) work.tokens[i]++;
    s->count += work.count;
    hti_bpe_end(&work);
    return status;
}

/* ---- both ---- */

static ht_status encode_part(sink *s, const ht_tokenizer *t, const char *text, size_t bytes) {
    if (t->bpe) return encode_words(s, t, text, bytes);
    return encode_pieces(s, t, text, bytes) ? HT_OK : HT_NOMEM;
}

static int is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* The end of a part of a text, where a run ends in any case: a line's end, or before the space
 * between two letters. */
static size_t part_end(const ht_tokenizer *t, const char *text, size_t bytes, size_t least) {
    const char *stop = least < bytes && !t->bpe ? memchr(text + least, '\n', bytes - least) : NULL;
    if (stop) return (size_t)(stop - text) + 1;
    for (size_t i = least; t->bpe && t->bpe->cuts && i + 1 < bytes; i++)
        if (i > 0 && text[i] == ' ' && is_letter(text[i - 1]) && is_letter(text[i + 1])) return i;
    return bytes;
}

/* Parts of a text side by side, with the tokens that the whole would have. A text never has more
 * tokens than bytes, so each part's find room where its bytes are. */
static ht_status encode(sink *s, const ht_tokenizer *t, const char *text, size_t bytes) {
    enum { PARTS = 64, LEAST = 1 << 14 };
    size_t starts[PARTS + 1] = {0}, size = bytes / PARTS < LEAST ? LEAST : bytes / PARTS;
    sink sinks[PARTS];
    int parts = 0, worst = HT_OK;
    if ((size_t)s->room < bytes) size = bytes; /* counted and cut: one part */
    while (starts[parts] < bytes) {
        size_t from = starts[parts];
        sinks[parts] = (sink){s->tokens + from, s->room - (int64_t)from, 0};
        if (size >= bytes) sinks[parts] = *s;
        parts++;
        starts[parts] =
            parts == PARTS ? bytes : from + part_end(t, text + from, bytes - from, size);
    }
#pragma omp parallel for schedule(dynamic) num_threads(t->ctx->threads) reduction(max : worst)
    for (int i = 0; i < parts; i++) {
        int got = (int)encode_part(&sinks[i], t, text + starts[i], starts[i + 1] - starts[i]);
        if (got > worst) worst = got;
    }
    CHECK(t->ctx, worst == HT_OK, (ht_status)worst,
          "a text of %zu bytes could not be made tokens: %s", bytes,
          worst == HT_NOMEM ? "out of memory"
                            : "the tokenizer's regular expression gives up on it");
    for (int i = 0; i < parts; i++) {
        int32_t *to = s->tokens + s->count;
        if (parts > 1) memmove(to, sinks[i].tokens, sizeof *to * (size_t)sinks[i].count);
        s->count += sinks[i].count;
    }
    return HT_OK;
}

ht_status ht_tokenizer_encode(const ht_tokenizer *t, const char *text, size_t bytes,
                              int32_t *tokens, int64_t room, int64_t *count) {
    NEED(t);
    sink s = {tokens, room, 0};
    CHECK(t->ctx, (text || !bytes) && count && (tokens || room == 0), HT_INVALID,
          "ht_tokenizer_encode: NULL pointer");
    if (t->starts)
        TRY(encode(&s, t, text, bytes));
    else
        emit_bytes(&s, t, text, bytes);
    *count = s.count;
    return HT_OK;
}
