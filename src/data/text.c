/*
 * Texts for language models: documents one after the other, each begun by token 0, cut into windows
 * of `length` tokens. A window's targets are its tokens moved by one; its documents are sequences
 * of their own, unless `across` joins them.
 *
 * What a document is: a file; a line; an article between <doc> lines; an article of WikiText, begun
 * by " = Title = "; a record of FASTA. Read a piece at a time: a line or a document need not fit in
 * memory.
 */
#include <ctype.h>
#include <string.h>

#include "data/data.h"

enum { HEAD = 4096, FLUSH = 1 << 22 };

typedef struct reader {
    ht_data *d;
    const ht_data_desc *desc;
    int by_document; /* the parts are made of whole documents */
    int in_file;     /* a file has begun */
    int open, kept;  /* a document has begun; it belongs to this part */
    int64_t documents, kept_documents;
    hti_buffer line;         /* a line that is not complete, at most HEAD bytes */
    int in_line;             /* the line's beginning has been handed on */
    hti_buffer text;         /* of the document at work, not yet tokens */
    hti_buffer tokens;       /* int32_t: room for them */
    int64_t longest, length; /* tokens of the longest document, and of this one */
} reader;

/* ---- documents ---- */

/* Turns what was collected into tokens; `all`: else up to the last line's end. */
static ht_status flush(reader *r, int all) {
    size_t n = r->text.used;
    while (!all && n > 0 && r->text.data[n - 1] != '\n') n--;
    if (!all && n == 0) n = r->text.used;
    if (n == 0) return HT_OK;
    const ht_tokenizer *tokenizer = r->desc->tokenizer;
    int64_t room = (int64_t)n, count = room; /* never more tokens than bytes */
    TRY(hti_buffer_need(&r->tokens, sizeof(int32_t) * n));
    int32_t *ids = (int32_t *)(void *)r->tokens.data;
    if (tokenizer)
        TRY(ht_tokenizer_encode(tokenizer, r->text.data, n, ids, room, &count));
    else
        for (size_t i = 0; i < n; i++) ids[i] = (unsigned char)r->text.data[i] + 1;
    CHECK(r->d->ctx, count <= room, HT_FORMAT, "a text has more tokens than bytes");
    for (int64_t at = 0; at < count; at += HEAD) {
        uint16_t stage[HEAD];
        int64_t part = count - at < HEAD ? count - at : HEAD;
        for (int64_t i = 0; i < part; i++) stage[i] = (uint16_t)ids[at + i];
        TRY(hti_tokens_add(&r->d->text, stage, part));
    }
    r->length += count;
    memmove(r->text.data, r->text.data + n, r->text.used - n);
    r->text.used -= n;
    return HT_OK;
}

static ht_status end_document(reader *r) {
    if (r->open && r->kept) TRY(flush(r, 1));
    if (r->length > r->longest) r->longest = r->length;
    r->open = 0;
    return HT_OK;
}

static ht_status begin_document(reader *r) {
    uint16_t start = 0;
    int valid = r->desc->part == HT_PART_VALID;
    r->open = 1;
    r->kept = !r->by_document || hti_held_out(r->documents, r->desc->holdout) == valid;
    r->documents++;
    r->length = 0;
    if (!r->kept) return HT_OK;
    r->kept_documents++;
    return hti_tokens_add(&r->d->text, &start, 1);
}

/* Text of a document, which begins with its first byte. */
static ht_status add_text(reader *r, const char *bytes, size_t count) {
    if (count == 0) return HT_OK;
    if (!r->open) TRY(begin_document(r));
    if (!r->kept) return HT_OK;
    TRY(hti_buffer_add(&r->text, bytes, count));
    return r->text.used >= FLUSH ? flush(r, 0) : HT_OK;
}

/* ---- lines ---- */

/* A letter per base, without the ends of lines. */
static ht_status add_bases(reader *r, char *bytes, size_t count) {
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        if (!isspace((unsigned char)bytes[i])) bytes[n++] = (char)toupper((unsigned char)bytes[i]);
    return add_text(r, bytes, n);
}

static int begins(const char *line, size_t count, const char *with) {
    size_t n = strlen(with);
    return count >= n && memcmp(line, with, n) == 0;
}

/* " = Title = ", but not the headings inside an article, " = = Part = = ". */
static int is_title(const char *line, size_t count) {
    while (count > 0 && isspace((unsigned char)line[count - 1])) count--;
    return count >= 6 && begins(line, count, " = ") && memcmp(line + count - 2, " =", 2) == 0 &&
           line[3] != '=' && line[count - 3] != '=';
}

/* A line, or a part of one: `first` its beginning, `last` its end (with the '\n', if it has one).
 */
static ht_status take_line(reader *r, char *line, size_t count, int first, int last) {
    int64_t kind = r->d->config.documents;
    if (kind == HTI_DOCUMENTS_LINES) {
        size_t n = count;
        if (last && n > 0 && line[n - 1] == '\n') n--;
        if (last && n > 0 && line[n - 1] == '\r') n--;
        TRY(add_text(r, line, n));
        return last ? end_document(r) : HT_OK;
    }
    if (kind == HTI_DOCUMENTS_FASTA) {
        if (first && count > 0 && (line[0] == '>' || line[0] == ';')) return end_document(r);
        return add_bases(r, line, count);
    }
    if (kind == HTI_DOCUMENTS_ARTICLES && first) {
        if (begins(line, count, "<doc ") || begins(line, count, "</doc>")) return end_document(r);
        if (!r->open && (count == 0 || isspace((unsigned char)line[0]))) return HT_OK;
    }
    if (kind == HTI_DOCUMENTS_WIKITEXT && first && is_title(line, count)) TRY(end_document(r));
    return add_text(r, line, count);
}

/* Makes lines of pieces. Lines longer than HEAD are handed on in parts. */
static ht_status split_lines(reader *r, const char *bytes, size_t count, int end) {
    while (count > 0) {
        const char *stop = memchr(bytes, '\n', count);
        size_t n = stop ? (size_t)(stop - bytes) + 1 : count;
        TRY(hti_buffer_add(&r->line, bytes, n));
        bytes += n;
        count -= n;
        if (!stop && r->line.used < HEAD) return HT_OK;
        /* a line's end may be \r\n: it is seen as a whole */
        size_t give = r->line.used, hold = !stop && r->line.data[give - 1] == '\r';
        TRY(take_line(r, r->line.data, give - hold, !r->in_line, stop != NULL));
        r->in_line = !stop;
        r->line.used = hold;
        if (hold) r->line.data[0] = '\r';
    }
    if (!end) return HT_OK;
    if (r->line.used > 0 || r->in_line)
        TRY(take_line(r, r->line.data, r->line.used, !r->in_line, 1));
    r->line.used = 0;
    r->in_line = 0;
    return end_document(r);
}

static ht_status take_piece(void *user, const char *name, const char *bytes, size_t count,
                            int end) {
    reader *r = user;
    if (end == HTI_EMPTY) return HT_OK;
    if (!r->in_file) TRY(hti_stream_foreign(r->d->ctx, name, bytes, count));
    r->in_file = !end;
    if (r->d->config.documents != HTI_DOCUMENTS_FILE) return split_lines(r, bytes, count, end);
    TRY(add_text(r, bytes, count));
    return end ? end_document(r) : HT_OK;
}

/* ---- a part of a text ---- */

static ht_status read_all(reader *r) {
    hti_tokens *t = &r->d->text;
    hti_tokens_free(t);
    t->memory.ctx = r->line.ctx = r->text.ctx = r->tokens.ctx = r->d->ctx;
    t->limit = r->desc->memory ? r->desc->memory : (size_t)1 << 30;
    r->documents = r->kept_documents = r->longest = 0;
    r->open = r->in_line = r->in_file = 0;
    r->line.used = r->text.used = 0;
    TRY(hti_stream_read(r->d->ctx, r->desc->path, take_piece, r));
    /* the end of the last document is asked for, too */
    uint16_t end = 0;
    if (r->d->config.documents != HTI_DOCUMENTS_FILE && t->count > 0)
        TRY(hti_tokens_add(t, &end, 1));
    return hti_tokens_finish(t);
}

/* Too few documents to hold some out: the end of the text is, instead. */
static ht_status hold_windows(ht_data *d, const ht_data_desc *desc) {
    int64_t length = d->config.length, windows = (d->text.count - 1 + length - 1) / length;
    int64_t held = (int64_t)(desc->holdout * (double)windows + 0.5);
    int valid = desc->part == HT_PART_VALID;
    if (held < 1) held = 1;
    CHECK(d->ctx, held < windows, HT_INVALID,
          "%s is too short to hold out %.3g of it: it has %lld windows of %lld tokens", desc->path,
          desc->holdout, (long long)windows, (long long)length);
    d->first_window = valid ? windows - held : 0;
    d->items = valid ? held : windows - held;
    return HT_OK;
}

static ht_status read_part(reader *r) {
    ht_data *d = r->d;
    double share = r->desc->holdout;
    int again = strcmp(r->desc->path, "-") != 0;
    r->by_document = share > 0 && again;
    TRY(read_all(r));
    double smaller = share < 0.5 ? share : 1 - share;
    if (r->by_document && (double)r->documents * smaller < 2) {
        r->by_document = 0;
        TRY(read_all(r));
    }
    d->documents = r->kept_documents;
    d->longest = r->longest;
    d->first_window = 0;
    d->items = d->text.count > 1 ? (d->text.count - 2) / d->config.length + 1 : 0;
    if (share > 0 && !r->by_document) return hold_windows(d, r->desc);
    return HT_OK;
}

static ht_status check(const ht_data *d, const ht_data_desc *desc) {
    const ht_config *c = &d->config;
    int64_t vocab = desc->tokenizer ? ht_tokenizer_vocab(desc->tokenizer) : 257;
    CHECK(d->ctx, desc->path, HT_INVALID, "data from a text needs a path");
    CHECK(d->ctx, hti_config_by_token(c), HT_INVALID,
          "plain text has no labels: it is for task language or denoise");
    CHECK(d->ctx, c->merge == 1 || c->across, HT_INVALID,
          "with merge %lld a text that is split where documents end has more rows than a batch has "
          "room for; join documents with across 1",
          (long long)c->merge);
    CHECK(d->ctx, c->vocab >= vocab, HT_INVALID, "%s need a vocab of %lld, got %lld",
          desc->tokenizer ? "the tokens" : "bytes", (long long)vocab, (long long)c->vocab);
    CHECK(d->ctx, !c->pad || c->across, HT_INVALID,
          "pad gives every batch the same shape, but windows are split where a document ends; join "
          "documents with across 1");
    return HT_OK;
}

ht_status hti_text_read(ht_data *d, const ht_data_desc *desc) {
    reader r = {.d = d, .desc = desc};
    TRY(check(d, desc));
    ht_status status = read_part(&r);
    hti_buffer_free(&r.line);
    hti_buffer_free(&r.text);
    hti_buffer_free(&r.tokens);
    return status;
}

/* ---- windows ---- */

/* `length` tokens and their successors; the last window is shorter. */
void hti_text_put(ht_data *d, int64_t item) {
    int64_t length = d->config.length, from = (d->first_window + item) * length;
    int64_t left = d->text.count - 1 - from, n = left < length ? left : length;
    int64_t at = d->batch_starts[d->batch_sequences];
    const uint16_t *tokens = d->text.at + from;
    for (int64_t i = 0; i < n; i++) {
        if (i > 0 && tokens[i] == 0 && !d->config.across)
            d->batch_starts[++d->batch_sequences] = (int32_t)(at + i);
        d->batch_tokens[at + i] = tokens[i];
        d->batch_targets[at + i] = tokens[i + 1];
    }
    d->batch_starts[++d->batch_sequences] = (int32_t)(at + n);
}
