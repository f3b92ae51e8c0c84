/*
 * What fuzz targets share.
 */
#define _GNU_SOURCE /* memfd_create */
#include "fuzz.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* bytes at a time that a small input is good for: models and batches of the targets are tiny */
#define MOST ((size_t)1 << 26)

void fuzz_must(int holds, const char *what, const char *file, int line) {
    if (holds) return;
    dprintf(2, "%s:%d: does not hold: %s\n", file, line, what);
    abort();
}

/* ---- context ---- */

static void *take(void *user, size_t bytes) {
    (void)user;
    MUST(bytes < MOST);
    void *block = NULL;
    return posix_memalign(&block, 64, bytes ? bytes : 1) == 0 ? block : NULL;
}
static void give(void *user, void *block) {
    (void)user;
    free(block);
}

ht_context *fuzz_context(void) {
    static ht_context *ctx;
    if (ctx) return ctx;
    ht_context_desc desc = HT_CONTEXT_DESC_INIT;
    desc.device = "cpu:ref";
    desc.threads = 1;
    desc.allocator = (ht_allocator){.alloc = take, .release = give};
    MUST(ht_context_create(&ctx, &desc) == HT_OK);
    return ctx;
}

static long taken;
long fuzz_count_taken(void) { return taken; }

int fuzz_said(const char *sentence) {
    if (!sentence || !*sentence) return ++taken > 0;
    for (const char *p = sentence; *p; p++) MUST((unsigned char)*p >= ' ' && *p != 0x7F);
    return 0;
}

int fuzz_taken(ht_status status) {
    if (status == HT_OK) return fuzz_said(NULL);
    MUST(status == HT_FORMAT || status == HT_INVALID || status == HT_IO ||
         status == HT_UNSUPPORTED || status == HT_END);
    MUST(status == HT_END || *ht_context_error(fuzz_context()));
    if (status != HT_END) fuzz_said(ht_context_error(fuzz_context()));
    return 0;
}

/* ---- inputs ---- */

int fuzz_option(fuzz_part *rest) {
    if (!rest->bytes) return 0;
    rest->bytes--;
    return *rest->at++;
}

fuzz_part fuzz_next(fuzz_part *rest) {
    const uint8_t *end = rest->bytes ? memchr(rest->at, '\f', rest->bytes) : NULL;
    fuzz_part part = {rest->at, end ? (size_t)(end - rest->at) : rest->bytes};
    rest->at += part.bytes + (end != NULL);
    rest->bytes -= part.bytes + (end != NULL);
    return part;
}

char *fuzz_text(const fuzz_part *part) {
    char *text = malloc(part->bytes + 1);
    MUST(text != NULL);
    if (part->bytes) memcpy(text, part->at, part->bytes);
    text[part->bytes] = '\0';
    return text;
}

/* ---- files ---- */

const char *fuzz_file(int number, const void *bytes, size_t size) {
    static struct {
        int fd;
        char name[40];
    } files[8];
    if (!files[number].name[0]) {
        files[number].fd = memfd_create("fuzz", 0);
        MUST(files[number].fd >= 0);
        snprintf(files[number].name, sizeof files[number].name, "/proc/self/fd/%d",
                 files[number].fd);
    }
    MUST(ftruncate(files[number].fd, (off_t)size) == 0);
    MUST(size == 0 || pwrite(files[number].fd, bytes, size, 0) == (ssize_t)size);
    return files[number].name;
}

static char root[64];

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *place) {
    (void)about, (void)kind, (void)place;
    return remove(path);
}
static void remove_root(void) { nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS); }

const char *fuzz_root(void) {
    if (root[0]) return root;
    snprintf(root, sizeof root, "%s/fuzz-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    MUST(mkdtemp(root) != NULL);
    atexit(remove_root);
    return root;
}

void fuzz_folder(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", fuzz_root(), name);
    MUST(mkdir(path, 0700) == 0);
}

void fuzz_link(const char *name, int number) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", fuzz_root(), name);
    MUST(symlink(fuzz_file(number, "", 0), path) == 0);
}

/* ---- data ---- */

ht_config *fuzz_config(const char *json) {
    ht_config *config;
    MUST(ht_config_create(&config, fuzz_context(), NULL) == HT_OK);
    MUST(ht_config_read_json(config, json) == HT_OK);
    return config;
}

static void look(const ht_batch *batch, int64_t vocab) {
    MUST(batch->sequences > 0 && batch->cu_seqlens[0] == 0);
    for (int64_t i = 0; i < batch->sequences; i++) {
        MUST(batch->cu_seqlens[i] < batch->cu_seqlens[i + 1]);
        for (int32_t t = batch->cu_seqlens[i]; t < batch->cu_seqlens[i + 1]; t++)
            MUST(batch->tokens[t] >= 0 && batch->tokens[t] < vocab);
    }
}

void fuzz_batches(ht_data *data, int64_t vocab) {
    ht_batch batch = HT_BATCH_INIT;
    ht_data_info info = HT_DATA_INFO_INIT;
    MUST(ht_data_get_info(data, &info) == HT_OK && info.items > 0);
    while (ht_data_next(data, &batch) == HT_OK) look(&batch, vocab);
    MUST(ht_data_draw(data, &batch) == HT_OK);
    look(&batch, vocab);
}
