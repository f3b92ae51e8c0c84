/*
 * Reading and writing safetensors files. Nothing is allocated from a number in the file before it
 * was compared with the file's size.
 */
#include "model/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <string.h>

#include "core/bf16.h"

#define HEADER_MOST ((uint64_t)100 << 20) /* as the reference implementation */

/* ---- reading ---- */

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

static ht_status read_entries(hti_reader *r, uint64_t room) {
    const cJSON *root = r->json, *item;
    uint64_t sum = 0;
    if (!cJSON_IsObject(root)) return bad(r, NULL, "its header is not a JSON object");
    r->entries =
        hti_host_alloc(r->ctx, sizeof *r->entries * (size_t)(cJSON_GetArraySize(root) + 1));
    CHECK(r->ctx, r->entries, HT_NOMEM, "out of memory: the list of tensors of %s", r->path);
    cJSON_ArrayForEach(item, root) {
        if (strcmp(item->string, "__metadata__") == 0) continue;
        hti_entry *e = &r->entries[r->count];
        TRY(read_entry(e, r, item, room));
        sum += e->end - e->begin;
        r->count++;
    }
    if (sum != room) return bad(r, NULL, "its tensors do not fill it");
    return HT_OK;
}

static ht_status read_header(hti_reader *r) {
    unsigned char first[8];
    uint64_t size = r->bytes, length = 0;
    int got = fread(first, 1, 8, r->file) == 8, letter = got ? fgetc(r->file) : EOF;
    for (int i = 7; i >= 0 && got; i--) length = length << 8 | first[i];
    CHECK(r->ctx,
          got && length >= 2 && length <= HEADER_MOST && length <= size - 8 && letter == '{',
          HT_FORMAT, "%s is not a safetensors file", r->path);
    char *text = hti_host_alloc(r->ctx, (size_t)length + 1);
    CHECK(r->ctx, text, HT_NOMEM, "out of memory: the header of %s", r->path);
    text[0] = '{';
    size_t n = fread(text + 1, 1, (size_t)length - 1, r->file);
    text[length] = '\0';
    if (n == length - 1) r->json = cJSON_ParseWithLength(text, (size_t)length);
    hti_host_free(r->ctx, text);
    if (!r->json) return bad(r, NULL, "its header is not JSON");
    r->data = 8 + length;
    return read_entries(r, size - r->data);
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
    for (int64_t i = 0; i < r->count; i++)
        if (strcmp(r->entries[i].name, name) == 0) return &r->entries[i];
    return NULL;
}

const char *hti_reader_meta(const hti_reader *r, const char *key) {
    const cJSON *meta = cJSON_GetObjectItemCaseSensitive(r->json, "__metadata__");
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
                         int64_t count) {
    unsigned char stage[8192];
    uint64_t size = element_bytes(e->dtype);
    int64_t room = (int64_t)(sizeof stage / size);
    CHECK(r->ctx,
          fseeko(r->file, (off_t)(r->data + e->begin + (uint64_t)first * size), SEEK_SET) == 0,
          HT_IO, "%s could not be read: %s", r->path, strerror(errno));
    for (int64_t i = 0; i < count; i += room) {
        int64_t n = count - i < room ? count - i : room;
        CHECK(r->ctx, fread(stage, size, (size_t)n, r->file) == (size_t)n, HT_IO,
              "%s could not be read to its end", r->path);
        for (int64_t k = 0; k < n; k++) out[i + k] = element(stage + (uint64_t)k * size, e->dtype);
    }
    return HT_OK;
}

/* ---- writing ---- */

static cJSON *entry_json(const hti_entry *e, uint64_t begin) {
    cJSON *item = cJSON_CreateObject(), *shape = cJSON_CreateArray(), *at = cJSON_CreateArray();
    uint64_t end = begin + (uint64_t)e->count * element_bytes(e->dtype);
    for (int i = 0; i < e->rank; i++)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)e->shape[i]));
    cJSON_AddItemToArray(at, cJSON_CreateNumber((double)begin));
    cJSON_AddItemToArray(at, cJSON_CreateNumber((double)end));
    cJSON_AddStringToObject(item, "dtype",
                            e->dtype == HT_F64    ? "F64"
                            : e->dtype == HT_BF16 ? "BF16"
                                                  : "F32");
    cJSON_AddItemToObject(item, "shape", shape);
    cJSON_AddItemToObject(item, "data_offsets", at);
    return item;
}

ht_status hti_header_write(hti_writer *w, const hti_entry *entries, int64_t count,
                           const char *const *meta) {
    cJSON *root = cJSON_CreateObject(), *about = cJSON_CreateObject();
    uint64_t at = 0;
    cJSON_AddItemToObject(root, "__metadata__", about);
    for (int i = 0; meta[i]; i += 2) cJSON_AddStringToObject(about, meta[i], meta[i + 1]);
    for (int64_t i = 0; i < count; i++) {
        cJSON_AddItemToObject(root, entries[i].name, entry_json(&entries[i], at));
        at += (uint64_t)entries[i].count * element_bytes(entries[i].dtype);
    }
    char *text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    CHECK(w->ctx, text, HT_NOMEM, "out of memory: the header of %s", w->path);
    /* spaces up to a multiple of 8, so that the numbers are aligned in the file */
    uint64_t used = strlen(text), length = (used + 7) / 8 * 8;
    unsigned char first[8];
    for (int i = 0; i < 8; i++) first[i] = (unsigned char)(length >> 8 * i);
    ht_status status = hti_writer_put(w, first, 8);
    if (status == HT_OK) status = hti_writer_put(w, text, used);
    if (status == HT_OK) status = hti_writer_put(w, "        ", length - used);
    cJSON_free(text);
    return status;
}
