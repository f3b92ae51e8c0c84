/*
 * Sets as files: which task, progress, compressed writing, counts and sums.
 */
#include "data/lra/set.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/sized.h"
#ifdef HTI_ZSTD
#include <zstd.h>
#endif

const char *const hti_set_parts[3] = {"train", "valid", "test"};

ht_status hti_set_tell(hti_set *s, int64_t more) {
    s->done += more;
    CHECK(s->ctx, !s->desc->tell || !s->desc->tell(s->desc->user, s->done, s->all), HT_INVALID,
          "stopped after %lld of %lld items", (long long)s->done, (long long)s->all);
    return HT_OK;
}

void hti_set_count(hti_set *s, int part, uint64_t sum, int64_t tokens) {
    s->info->items[part]++;
    s->info->sum[part] += hti_sum_end(sum);
    if (tokens > s->info->longest[part]) s->info->longest[part] = tokens;
}

/* Sums of the published sets, in the form that docs/formats.md describes. */
static const struct published {
    const char *task;
    int64_t items[3];
    uint64_t sum[3];
} published[] = {
    {"imdb", {25000, 0, 25000}, {0x175cf150beecb8d9u, 0, 0x2df3b54db5dc271au}},
    {"cifar10",
     {45000, 5000, 10000},
     {0x02c46e5981de7cbfu, 0xc30f2bfd4c373de0u, 0x7ab024f1732c3d37u}},
    {"aan", /* pairs made anew, see docs/lra.md */
     {123246, 15482, 14782},
     {0x87ba495dc1be4c5du, 0x6dd20fd731164af9u, 0xf653b67726186463u}},
};

ht_status hti_set_expect(const hti_set *s, int part, int64_t items) {
    const ht_set_info *info = s->info;
    if (s->desc->unchecked) return HT_OK;
    CHECK(s->ctx, info->items[part] == items, HT_FORMAT,
          "%s: the %s part of %s has %lld items, there should be %lld", s->desc->source,
          hti_set_parts[part], s->desc->task, (long long)info->items[part], (long long)items);
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        CHECK(s->ctx,
              strcmp(published[i].task, s->desc->task) != 0 || published[i].items[part] != items ||
                  published[i].sum[part] == info->sum[part],
              HT_FORMAT,
              "%s: the %s part of %s has the right number of items but the sum %016llx, not "
              "%016llx: something in it differs from what was published",
              s->desc->source, hti_set_parts[part], s->desc->task,
              (unsigned long long)info->sum[part], (unsigned long long)published[i].sum[part]);
    return HT_OK;
}

static int is_published(const hti_set *s) {
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        if (strcmp(s->desc->task, published[i].task) == 0 &&
            memcmp(s->info->sum, published[i].sum, sizeof s->info->sum) == 0)
            return 1;
    return 0;
}

ht_status hti_set_find(char **out, ht_context *ctx, const char *folder, const char *name) {
    static const char *const ends[] = {"", ".zst", ".gz"};
    char whole[256];
    for (int i = 0; i < 3; i++) {
        snprintf(whole, sizeof whole, "%s%s", name, ends[i]);
        *out = hti_path_join(ctx, folder, whole);
        CHECK(ctx, *out, HT_NOMEM, "out of memory: the name of a file");
        if (access(*out, F_OK) == 0) return HT_OK;
        ht_status status =
            errno == ENOENT || errno == ENOTDIR
                ? HT_OK
                : hti_fail(ctx, HT_IO, "%s could not be opened: %s", *out, strerror(errno));
        hti_host_free(ctx, *out);
        *out = NULL;
        TRY(status);
    }
    return HT_OK;
}

/* ---- compressed files ---- */

enum { CHUNK = 1 << 17, LEVEL = 9 };

ht_status hti_pack_open(hti_pack *out, const hti_set *s, const char *name) {
    char whole[256];
    *out = (hti_pack){.out = {.ctx = s->ctx}};
    if (!s->desc->folder) return HT_OK;
    const char *end = "";
#ifdef HTI_ZSTD
    if (!s->desc->plain) {
        end = ".zst";
        out->zstd = ZSTD_createCCtx();
        CHECK(s->ctx, out->zstd, HT_NOMEM, "out of memory: compressing %s", name);
        ZSTD_CCtx_setParameter(out->zstd, ZSTD_c_compressionLevel, LEVEL);
    }
#endif
    snprintf(whole, sizeof whole, "%s-%s%s", s->desc->task, name, end);
    char *path = hti_path_join(s->ctx, s->desc->folder, whole);
    ht_status status = path ? hti_writer_open(&out->file, s->ctx, path)
                            : hti_fail(s->ctx, HT_NOMEM, "out of memory: the name of a file");
    hti_host_free(s->ctx, path);
    if (status != HT_OK) hti_pack_discard(out);
    return status;
}

#ifdef HTI_ZSTD
static ht_status compress(hti_pack *p, const void *bytes, size_t count, ZSTD_EndDirective end) {
    ZSTD_inBuffer from = {bytes, count, 0};
    size_t left = 1;
    TRY(hti_buffer_need(&p->out, CHUNK));
    while (from.pos < from.size || (end == ZSTD_e_end && left)) {
        ZSTD_outBuffer to = {p->out.data, p->out.room, 0};
        left = ZSTD_compressStream2(p->zstd, &to, &from, end);
        CHECK(p->out.ctx, !ZSTD_isError(left), HT_IO, "%s could not be compressed: %s",
              p->file.path, ZSTD_getErrorName(left));
        TRY(hti_writer_put(&p->file, p->out.data, to.pos));
    }
    return HT_OK;
}
#endif

ht_status hti_pack_put(hti_pack *p, const void *bytes, size_t count) {
    if (!p->file.file || count == 0) return HT_OK;
#ifdef HTI_ZSTD
    if (p->zstd) return compress(p, bytes, count, ZSTD_e_continue);
#endif
    return hti_writer_put(&p->file, bytes, count);
}

ht_status hti_pack_close(hti_pack *p) {
    if (!p->file.file) return HT_OK;
#ifdef HTI_ZSTD
    if (p->zstd) TRY(compress(p, NULL, 0, ZSTD_e_end));
#endif
    TRY(hti_writer_commit(&p->file));
    hti_pack_discard(p);
    return HT_OK;
}

void hti_pack_discard(hti_pack *p) {
#ifdef HTI_ZSTD
    ZSTD_freeCCtx(p->zstd);
    p->zstd = NULL;
#endif
    hti_writer_discard(&p->file);
    hti_buffer_free(&p->out);
}

/* ---- tasks ---- */

static ht_status import(hti_set *s) {
    const char *task = s->desc->task;
    if (strcmp(task, "listops") == 0) return hti_listops_import(s);
    if (strcmp(task, "imdb") == 0) return hti_imdb_import(s);
    if (strcmp(task, "cifar10") == 0) return hti_cifar10_import(s);
    if (strcmp(task, "aan") == 0) return hti_aan_import(s);
    if (strcmp(task, "pathfinder") == 0) return hti_pathfinder_import(s, 32);
    if (strcmp(task, "pathx") == 0) return hti_pathfinder_import(s, 128);
    return hti_fail(s->ctx, HT_INVALID,
                    "there is no set '%s' to import, but listops, imdb, cifar10, aan, pathfinder "
                    "and pathx",
                    task);
}

static ht_status make(hti_set *s) {
    const char *task = s->desc->task;
    if (strcmp(task, "listops") == 0) return hti_listops_set(s);
    if (strcmp(task, "pathfinder") == 0) return hti_pathfinder_set(s, 32);
    if (strcmp(task, "pathx") == 0) return hti_pathfinder_set(s, 128);
    if (strcmp(task, "copy") == 0) return hti_marked_set(s, HTI_FORMAT_COPY);
    if (strcmp(task, "recall") == 0) return hti_marked_set(s, HTI_FORMAT_RECALL);
    return hti_fail(s->ctx, HT_INVALID,
                    "'%s' cannot be made: listops, pathfinder, pathx, copy and recall can be",
                    task);
}

ht_status ht_set_write(ht_context *ctx, const ht_set_desc *given, ht_set_info *out) {
    NEED(ctx);
    ht_set_desc own, *desc = &own;
    ht_set_info info = HT_SET_INFO_INIT;
    TRY(HTI_TAKE(ctx, ht_set_desc, &own, given));
    TRY(HTI_WANT(ctx, ht_set_info, out));
    CHECK(ctx, desc->task, HT_INVALID, "ht_set_desc.task is NULL");
    CHECK(ctx, desc->seed >= 0, HT_INVALID, "seed must not be negative, got %lld",
          (long long)desc->seed);
    CHECK(ctx, desc->distractors >= 0 && desc->distractors <= 100, HT_INVALID,
          "distractors must be 0 to 100, got %lld", (long long)desc->distractors);
    CHECK(ctx, desc->length >= 0 && desc->length <= INT32_MAX / 2, HT_INVALID,
          "length must be 0 to %d, got %lld", INT32_MAX / 2, (long long)desc->length);
    for (int i = 0; i < 3; i++)
        CHECK(ctx, desc->items[i] >= 0 && desc->items[i] <= 1000000000, HT_INVALID,
              "items must be 0 to 1000000000, got %lld", (long long)desc->items[i]);
    hti_set s = {.ctx = ctx, .desc = desc, .info = &info};
    TRY(desc->source ? import(&s) : make(&s));
    info.known = desc->source && is_published(&s);
    HTI_GIVE(ht_set_info, out, &info);
    return HT_OK;
}
