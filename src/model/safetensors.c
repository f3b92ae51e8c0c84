/*
 * Reading and writing safetensors files. Nothing is allocated from a number in the file before it
 * was compared with the file's size.
 */
#include "model/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/bf16.h"
#include "core/crc.h"
#include "config/config.h"

#define HEADER_MOST ((uint64_t)100 << 20) /* as the reference implementation */
#define META_KEY "__metadata__"
/* its value: NAME=SUM for every tensor and for the other metadata, with spaces between them; a sum
 * is the CRC-32 of the bytes, eight hexadecimal digits */
#define SUMS_KEY "crc32"
#define SUM_DIGITS 8

/* ---- reading: the header ---- */

static ht_status bad(const hti_reader *r, const char *name, const char *what) {
    return hti_fail(r->ctx, HT_FORMAT, "%s is damaged: %s%s%s%s", r->path, name ? "tensor '" : "",
                    name ? name : "", name ? "' " : "", what);
}

static uint64_t element_bytes(ht_dtype dtype) {
    return dtype == HT_F64 ? 8 : dtype == HT_F32 ? 4 : 2;
}

static int read_dtype(ht_dtype *out, const cJSON *item) {
    static const char *const names[] = {"F32", "BF16", "F64", "F16"}; /* as ht_dtype */
    for (int i = 0; i < 4; i++)
        if (cJSON_IsString(item) && strcmp(item->valuestring, names[i]) == 0) {
            *out = (ht_dtype)i;
            return 1;
        }
    return 0;
}

static ht_status read_shape(hti_entry *e, const hti_reader *r, const cJSON *shape) {
    const cJSON *d;
    if (!cJSON_IsArray(shape)) return bad(r, e->name, "has no shape");
    e->rank = cJSON_GetArraySize(shape);
    e->count = 1;
    e->shape[0] = e->shape[1] = e->rank > 2 ? -1 : 1;
    int i = 0;
    cJSON_ArrayForEach(d, shape) {
        double x = cJSON_IsNumber(d) ? d->valuedouble : -1;
        if (x < 0 || x > 0x1p50 || x != (double)(int64_t)x ||
            !hti_mul(&e->count, e->count, (int64_t)x))
            return bad(r, e->name, "has an impossible shape");
        if (e->rank <= 2) e->shape[i++] = (int64_t)x;
    }
    return HT_OK;
}

static ht_status read_entry(hti_entry *e, const hti_reader *r, const cJSON *item, uint64_t room) {
    const cJSON *at = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    e->name = item->string;
    if (!read_dtype(&e->dtype, cJSON_GetObjectItemCaseSensitive(item, "dtype")))
        return hti_fail(r->ctx, HT_FORMAT,
                        "%s: tensor '%.64s' has a dtype that is not F32, F64, BF16 or F16", r->path,
                        e->name);
    TRY(read_shape(e, r, cJSON_GetObjectItemCaseSensitive(item, "shape")));
    double range[2] = {-1, -1};
    for (int i = 0; i < 2 && cJSON_IsArray(at) && cJSON_GetArraySize(at) == 2; i++)
        if (cJSON_IsNumber(cJSON_GetArrayItem(at, i)))
            range[i] = cJSON_GetArrayItem(at, i)->valuedouble;
    if (!(range[0] >= 0 && range[1] >= range[0] && range[1] <= (double)room))
        return bad(r, e->name, "lies outside the file");
    e->begin = (uint64_t)range[0];
    e->end = (uint64_t)range[1];
    if ((uint64_t)e->count > room ||
        (uint64_t)e->count * element_bytes(e->dtype) != e->end - e->begin)
        return bad(r, e->name, "has a shape that does not fit its bytes");
    return HT_OK;
}

static int by_place(const void *a, const void *b) {
    const hti_entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const hti_entry *)a)->name, ((const hti_entry *)b)->name);
}

/* They lie one after the other, fill the file and differ in name; then they are in order of it. */
static ht_status order(hti_reader *r, uint64_t room) {
    uint64_t at = 0;
    int fills = 1;
    qsort(r->entries, (size_t)r->count, sizeof *r->entries, by_place);
    for (int64_t i = 0; i < r->count; i++) {
        fills = fills && r->entries[i].begin == at;
        at = r->entries[i].end;
    }
    if (!fills || at != room) return bad(r, NULL, "its tensors do not fill it");
    qsort(r->entries, (size_t)r->count, sizeof *r->entries, by_name);
    for (int64_t i = 1; i < r->count; i++)
        if (strcmp(r->entries[i - 1].name, r->entries[i].name) == 0)
            return bad(r, r->entries[i].name, "is there twice");
    return HT_OK;
}

/* ---- models of other programs ---- */

static ht_status not_ours(const hti_reader *r, const char *kind) {
    return hti_fail(r->ctx, HT_FORMAT,
                    "%s holds a %s model. Such weights were trained with full attention and mean "
                    "nothing to hierarchical attention, so they are not loaded; train a model here "
                    "(docs/lm.md), its tokens may be the same (--tokenizer tokenizer.json)",
                    r->path, kind);
}

/* Known by what a tensor is called. Ours have the configuration in their metadata. */
static ht_status check_others(const hti_reader *r) {
    static const struct {
        const char *part, *kind;
    } others[] = {{"attn.c_attn.weight", "GPT-2-like"},
                  {"self_attn.q_proj.weight", "Llama-like"},
                  {"self_attn.qkv_proj.weight", "Llama-like"},
                  {"attention.query_key_value.weight", "GPT-NeoX-like"},
                  {"attention.self.query.weight", "BERT-like"},
                  {"SelfAttention.q.weight", "T5-like"}};
    const cJSON *item, *root = r->json;
    if (hti_reader_meta(r, "htransformer")) return HT_OK;
    cJSON_ArrayForEach(item, root) {
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
            if (strstr(item->string, others[i].part)) return not_ours(r, others[i].kind);
    }
    return HT_OK;
}

static ht_status read_entries(hti_reader *r, uint64_t room) {
    const cJSON *root = r->json, *item;
    if (!cJSON_IsObject(root)) return bad(r, NULL, "its header is not a JSON object");
    TRY(check_others(r));
    r->entries =
        hti_host_alloc(r->ctx, sizeof *r->entries * (size_t)(cJSON_GetArraySize(root) + 1));
    CHECK(r->ctx, r->entries, HT_NOMEM, "out of memory: the list of tensors of %s", r->path);
    cJSON_ArrayForEach(item, root) {
        if (strcmp(item->string, META_KEY) == 0) continue;
        hti_entry *e = &r->entries[r->count];
        *e = (hti_entry){0};
        TRY(read_entry(e, r, item, room));
        r->count++;
    }
    return order(r, room);
}

/* ---- checksums ---- */

static ht_status wrong_sum(const hti_reader *r, const char *name) {
    return hti_fail(r->ctx, HT_FORMAT,
                    "%s is damaged: the checksum of '%.64s' is wrong; if another program changed "
                    "it, that program must leave out '" SUMS_KEY "' of the metadata",
                    r->path, name);
}

/* One NAME=SUM: of a tensor, kept for when it is read, or of metadata. Others may have gone. */
static ht_status read_sum(const hti_reader *r, char *name, uint32_t sum) {
    hti_entry *e = (hti_entry *)(uintptr_t)hti_reader_find(r, name);
    const char *meta = e ? NULL : hti_reader_meta(r, name);
    if (e) e->sum = sum, e->has_sum = 1;
    if (meta && hti_crc32(0, meta, strlen(meta)) != sum) return wrong_sum(r, name);
    return HT_OK;
}

static ht_status read_sums(const hti_reader *r) {
    cJSON *meta = cJSON_GetObjectItemCaseSensitive(r->json, META_KEY);
    cJSON *item = cJSON_GetObjectItemCaseSensitive(meta, SUMS_KEY);
    char *rest = cJSON_IsString(item) ? item->valuestring : NULL, *end;
    while (rest && *rest) {
        char *word = rest, *equals;
        rest += strcspn(rest, " ");
        if (*rest) *rest++ = '\0';
        equals = strrchr(word, '=');
        unsigned long sum = equals ? strtoul(equals + 1, &end, 16) : 0;
        if (!equals || *end || strlen(equals + 1) != SUM_DIGITS)
            return bad(r, NULL, "its checksums make no sense");
        *equals = '\0';
        TRY(read_sum(r, word, (uint32_t)sum));
    }
    return HT_OK;
}

ht_status hti_reader_agrees(const hti_reader *r, const hti_entry *e, uint32_t sum) {
    return e->has_sum && e->sum != sum ? wrong_sum(r, e->name) : HT_OK;
}

/* ---- open and close ---- */

/* The file said that there was more. */
static ht_status cut_off(const hti_reader *r) {
    return hti_fail(r->ctx, HT_IO, "%s could not be read to its end: %s", r->path,
                    ferror(r->file) ? strerror(errno) : "it became shorter");
}

static ht_status read_header(hti_reader *r) {
    unsigned char first[8];
    uint64_t size = r->bytes, length = 0;
    int got = fread(first, 1, 8, r->file) == 8, letter = got ? fgetc(r->file) : EOF;
    for (int i = 7; i >= 0 && got; i--) length = length << 8 | first[i];
    if (got && memcmp(first, "GGUF", 4) == 0) return not_ours(r, "GGUF");
    CHECK(r->ctx,
          got && length >= 2 && length <= HEADER_MOST && length <= size - 8 && letter == '{',
          HT_FORMAT, "%s is not a safetensors file", r->path);
    char *text = hti_host_alloc(r->ctx, (size_t)length), what[256];
    CHECK(r->ctx, text, HT_NOMEM, "out of memory: the header of %s", r->path);
    text[0] = '{';
    size_t n = fread(text + 1, 1, (size_t)length - 1, r->file);
    snprintf(what, sizeof what, "the header of %s", r->path);
    ht_status status =
        n == length - 1 ? hti_json_parse(r->ctx, &r->json, text, n + 1, what) : cut_off(r);
    hti_host_free(r->ctx, text);
    TRY(status);
    r->data = 8 + length;
    TRY(read_entries(r, size - r->data));
    return read_sums(r);
}

ht_status hti_reader_open(hti_reader *out, ht_context *ctx, const char *path) {
    *out = (hti_reader){.ctx = ctx, .path = path};
    TRY(hti_file_open(ctx, &out->file, &out->bytes, path));
    ht_status status = read_header(out);
    if (status != HT_OK) hti_reader_close(out);
    return status;
}

void hti_reader_close(hti_reader *r) {
    if (!r->ctx) return;
    if (r->file) fclose(r->file);
    cJSON_Delete(r->json);
    hti_host_free(r->ctx, r->entries);
    *r = (hti_reader){0};
}

const hti_entry *hti_reader_find(const hti_reader *r, const char *name) {
    const hti_entry wanted = {.name = name};
    return r->count ? bsearch(&wanted, r->entries, (size_t)r->count, sizeof wanted, by_name) : NULL;
}

const char *hti_reader_meta(const hti_reader *r, const char *key) {
    const cJSON *meta = cJSON_GetObjectItemCaseSensitive(r->json, META_KEY);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(meta, key);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

/* The double that an element's bytes stand for. */
static double element(const unsigned char *at, ht_dtype dtype) {
    double d;
    float f;
    uint16_t h;
    if (dtype == HT_F64) return memcpy(&d, at, 8), d;
    if (dtype == HT_F32) return memcpy(&f, at, 4), (double)f;
    memcpy(&h, at, 2);
    if (dtype == HT_BF16) return (double)hti_from_bf16(h);
    int exponent = h >> 10 & 31; /* half precision */
    double m = h & 1023, sign = h >> 15 ? -1 : 1;
    if (exponent == 31) return m ? (double)(0.0f / 0.0f) : sign * (double)(1e300 * 1e300);
    d = exponent ? 1024 + m : 2 * m;
    for (int e = exponent; e < 26; e++) d /= 2;
    for (int e = 26; e < exponent; e++) d *= 2;
    return sign * d;
}

ht_status hti_reader_get(const hti_reader *r, double *out, const hti_entry *e, int64_t first,
                         int64_t count, uint32_t *sum) {
    unsigned char stage[8192];
    uint64_t size = element_bytes(e->dtype);
    int64_t room = (int64_t)(sizeof stage / size);
    CHECK(r->ctx,
          fseeko(r->file, (off_t)(r->data + e->begin + (uint64_t)first * size), SEEK_SET) == 0,
          HT_IO, "%s could not be read: %s", r->path, strerror(errno));
    for (int64_t i = 0; i < count; i += room) {
        int64_t n = count - i < room ? count - i : room;
        if (fread(stage, size, (size_t)n, r->file) != (size_t)n) return cut_off(r);
        *sum = hti_crc32(*sum, stage, size * (size_t)n);
        for (int64_t k = 0; k < n; k++) out[i + k] = element(stage + (uint64_t)k * size, e->dtype);
    }
    return HT_OK;
}

/* ---- writing ---- */

/* Straight into the file, whose length is not needed before it is known: no text of it in memory.
 */
static ht_status put(hti_writer *w, const char *text) {
    return hti_writer_put(w, text, strlen(text));
}

/* What stands between quotes. */
static ht_status put_escaped(hti_writer *w, const char *text) {
    while (*text) {
        size_t plain = 0;
        while ((unsigned char)text[plain] >= 0x20 && text[plain] != '"' && text[plain] != '\\')
            plain++;
        TRY(hti_writer_put(w, text, plain));
        text += plain;
        if (!*text) break;
        char c = *text++, code[8] = {'\\', c == '\n' ? 'n' : c};
        if (c != '\n' && c != '"' && c != '\\')
            snprintf(code, sizeof code, "\\u%04x", (unsigned)(unsigned char)c);
        TRY(put(w, code));
    }
    return HT_OK;
}

static ht_status put_entry(hti_writer *w, const hti_entry *e, uint64_t begin) {
    char text[192], shape[64];
    uint64_t end = begin + (uint64_t)e->count * element_bytes(e->dtype);
    snprintf(shape, sizeof shape, e->rank > 1 ? "%lld,%lld" : "%lld", (long long)e->shape[0],
             (long long)e->shape[1]);
    TRY(put(w, ",\""));
    TRY(put_escaped(w, e->name));
    snprintf(text, sizeof text, "\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
             e->dtype == HT_F64    ? "F64"
             : e->dtype == HT_BF16 ? "BF16"
                                   : "F32",
             shape, (unsigned long long)begin, (unsigned long long)end);
    return put(w, text);
}

/* NAME=SUM; of a tensor, whose numbers are still to come, room for it. */
static ht_status put_sum(hti_writer *w, const char *name, uint32_t sum, uint64_t *at) {
    char digits[SUM_DIGITS + 1];
    TRY(put_escaped(w, name));
    TRY(put(w, "="));
    if (at) TRY(hti_writer_tell(w, at));
    snprintf(digits, sizeof digits, "%08x", (unsigned)sum);
    return put(w, digits);
}

static ht_status put_metadata(hti_writer *w, hti_entry *entries, int64_t count,
                              const char *const *meta) {
    TRY(put(w, "{\"" META_KEY "\":{"));
    for (int i = 0; meta[i]; i += 2) {
        TRY(put(w, i ? ",\"" : "\""));
        TRY(put_escaped(w, meta[i]));
        TRY(put(w, "\":\""));
        TRY(put_escaped(w, meta[i + 1]));
        TRY(put(w, "\""));
    }
    TRY(put(w, ",\"" SUMS_KEY "\":\""));
    for (int i = 0; meta[i]; i += 2) {
        TRY(put(w, i ? " " : ""));
        TRY(put_sum(w, meta[i], hti_crc32(0, meta[i + 1], strlen(meta[i + 1])), NULL));
    }
    for (int64_t i = 0; i < count; i++) {
        TRY(put(w, " "));
        TRY(put_sum(w, entries[i].name, 0, &entries[i].sum_at));
    }
    return put(w, "\"}");
}

ht_status hti_header_write(hti_writer *w, hti_entry *entries, int64_t count,
                           const char *const *meta) {
    unsigned char first[8] = {0};
    uint64_t at = 0, end;
    TRY(hti_writer_put(w, first, sizeof first));
    TRY(put_metadata(w, entries, count, meta));
    for (int64_t i = 0; i < count; i++) {
        TRY(put_entry(w, &entries[i], at));
        at += (uint64_t)entries[i].count * element_bytes(entries[i].dtype);
    }
    TRY(put(w, "}"));
    TRY(hti_writer_tell(w, &end));
    /* spaces up to a multiple of 8, so that the numbers are aligned in the file */
    uint64_t length = (end - sizeof first + 7) / 8 * 8;
    TRY(hti_writer_put(w, "        ", length + sizeof first - end));
    for (int i = 0; i < 8; i++) first[i] = (unsigned char)(length >> 8 * i);
    return hti_writer_patch(w, 0, first, sizeof first);
}

ht_status hti_header_sum(hti_writer *w, const hti_entry *entry, uint32_t sum) {
    char digits[SUM_DIGITS + 1];
    snprintf(digits, sizeof digits, "%08x", (unsigned)sum);
    return hti_writer_patch(w, entry->sum_at, digits, SUM_DIGITS);
}
