/*
 * Pathfinder as it was released: folders imgs/N of PNG files and, in metadata/N.npy, which are
 * plain text, one line per image: folder, file, number, label, and what the image was made with.
 * The images are dealt to the parts 80 : 10 : 10 in an order that the seed makes.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifdef HTI_PNG
#include <png.h>
#endif

#include "data/lra/dice.h"
#include "data/lra/set.h"

enum { ALL = 200000, CHUNK = 512 };

typedef struct picture {
    int64_t path; /* in the list's names */
    int32_t metadata, line;
    int label;
} picture;

typedef struct listing {
    hti_set *set;
    const char *root;
    hti_buffer names, pictures;
    int64_t count;
    int metadata; /* which file */
} listing;

static picture *pictures_of(const listing *l) { return (picture *)(void *)l->pictures.data; }

static ht_status read_line(void *user, const char *name, int64_t number, const char *line,
                           size_t bytes) {
    listing *l = user;
    ht_context *ctx = l->set->ctx;
    char text[1024], folder[256], file[256], path[4096];
    double label = -1;
    int fields = 0;
    if (bytes < sizeof text) {
        memcpy(text, line, bytes);
        text[bytes] = '\0';
        fields = sscanf(text, "%255s %255s %*s %lf", folder, file, &label);
    }
    CHECK(ctx, fields == 3 && (label == 0 || label == 1), HT_FORMAT,
          "%s:%lld: a line must begin with folder, file, number and a label of 0 or 1", name,
          (long long)number);
    CHECK(ctx, hti_path_inside(folder) && hti_path_inside(file), HT_FORMAT,
          "%s:%lld: %.100s/%.100s is not inside the folder", name, (long long)number, folder, file);
    int length = snprintf(path, sizeof path, "%s/%s/%s", l->root, folder, file);
    CHECK(ctx, length < (int)sizeof path, HT_FORMAT, "%s:%lld: the name is too long", name,
          (long long)number);
    picture p = {(int64_t)l->names.used, l->metadata, (int32_t)number, (int)label};
    TRY(hti_buffer_add(&l->names, path, (size_t)length + 1));
    TRY(hti_buffer_add(&l->pictures, &p, sizeof p));
    l->count++;
    return HT_OK;
}

static ht_status read_metadata(void *user, const char *name, const char *bytes, size_t count) {
    return hti_source_lines(user, name, bytes, count, read_line);
}

static int by_number(const struct dirent **a, const struct dirent **b) {
    long x = strtol((*a)->d_name, NULL, 10), y = strtol((*b)->d_name, NULL, 10);
    return x < y ? -1 : x > y ? 1 : strcmp((*a)->d_name, (*b)->d_name);
}
static int is_metadata(const struct dirent *entry) {
    size_t n = strlen(entry->d_name);
    return n > 4 && strcmp(entry->d_name + n - 4, ".npy") == 0;
}

/* What the metadata lists, in the order of its files' numbers. */
static ht_status list_pictures(listing *l) {
    ht_context *ctx = l->set->ctx;
    char folder[3072], name[4096];
    struct dirent **list;
    snprintf(folder, sizeof folder, "%s/metadata", l->root);
    int count = scandir(folder, &list, is_metadata, by_number);
    CHECK(ctx, count >= 0, HT_IO,
          "%s could not be opened: %s; a folder with metadata and imgs is needed", folder,
          strerror(errno));
    ht_status status = HT_OK;
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "%s/%s", folder, list[i]->d_name);
        l->metadata = (int)strtol(list[i]->d_name, NULL, 10);
        free(list[i]);
        if (status == HT_OK) status = hti_source_read(ctx, name, read_metadata, l);
    }
    free(list);
    if (status == HT_OK && l->count == 0)
        status = hti_fail(ctx, HT_FORMAT, "%s lists no images", folder);
    return status;
}

/* ---- pictures ---- */

typedef struct fault {
    int64_t index; /* -1: none */
    char text[256];
} fault;

#ifdef HTI_PNG
static int read_open(uint8_t *pixels, FILE *file, int side, fault *why) {
    png_image image = {.version = PNG_IMAGE_VERSION};
    int good = png_image_begin_read_from_stdio(&image, file) != 0;
    if (good && (image.width != (png_uint_32)side || image.height != (png_uint_32)side ||
                 image.format & (PNG_FORMAT_FLAG_COLOR | PNG_FORMAT_FLAG_LINEAR))) {
        snprintf(why->text, sizeof why->text, "not %d x %d grey pixels of 8 bits", side, side);
        png_image_free(&image);
        return -1;
    }
    image.format = PNG_FORMAT_GRAY;
    good = good && png_image_finish_read(&image, NULL, pixels, side, NULL);
    if (!good) snprintf(why->text, sizeof why->text, "damaged PNG: %s", image.message);
    png_image_free(&image);
    return good ? 1 : -1;
}
#else
static int read_open(uint8_t *pixels, FILE *file, int side, fault *why) {
    (void)pixels, (void)file, (void)side;
    snprintf(why->text, sizeof why->text, "this build has no libpng");
    return -1;
}
#endif

/* 1: done; 0: an empty file, which the release has; -1: at fault */
static int read_png(uint8_t *pixels, const char *path, int side, fault *why) {
    FILE *file;
    uint64_t bytes;
    if (hti_file_open(NULL, &file, &bytes, path) != HT_OK) {
        const char *said = ht_context_error(NULL); /* this thread's; it begins with the path */
        snprintf(why->text, sizeof why->text, "%s", said + strlen(path) + 1);
        return -1;
    }
    int done = bytes > 0 ? read_open(pixels, file, side, why) : 0;
    fclose(file);
    return done;
}

/* Reads pictures order[0 ... n - 1] as records; sizes[i] is 0 where the file was empty. */
static ht_status read_chunk(const listing *l, uint8_t *records, int *sizes, const int32_t *order,
                            int64_t n, int side) {
    int64_t bytes = 1 + (int64_t)side * side;
    fault first = {.index = -1};
#pragma omp parallel for schedule(dynamic, 8) num_threads(l->set->ctx->threads)
    for (int64_t i = 0; i < n; i++) {
        const picture *p = &pictures_of(l)[order[i]];
        fault why = {.index = i};
        records[i * bytes] = (uint8_t)p->label;
        sizes[i] = read_png(records + i * bytes + 1, l->names.data + p->path, side, &why);
        if (sizes[i] >= 0) continue;
#pragma omp critical(hti_png_fault)
        if (first.index < 0 || i < first.index) first = why;
    }
    if (first.index < 0) return HT_OK;
    const picture *p = &pictures_of(l)[order[first.index]];
    return hti_fail(l->set->ctx, HT_FORMAT, "%s/metadata/%d.npy:%d: %s: %s", l->root, p->metadata,
                    p->line, l->names.data + p->path, first.text);
}

/* Empty files first: the header of a file of images says how many follow. */
static int64_t count_part(const listing *l, const int32_t *order, int64_t n) {
    int64_t count = 0;
    struct stat about;
    for (int64_t i = 0; i < n; i++) {
        const char *path = l->names.data + pictures_of(l)[order[i]].path;
        count += stat(path, &about) != 0 || about.st_size > 0;
    }
    return count;
}

static ht_status write_chunk(listing *l, hti_pack *pack, int part, const uint8_t *records,
                             const int *sizes, int64_t n, int side) {
    int64_t bytes = 1 + (int64_t)side * side;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *r = records + i * bytes;
        if (!sizes[i]) continue;
        hti_set_count(l->set, part, hti_sum_add(hti_sum_begin(r[0]), r + 1, (size_t)bytes - 1),
                      bytes - 1);
        TRY(hti_pack_put(pack, r, (size_t)bytes));
    }
    return hti_set_tell(l->set, n);
}

static ht_status write_part(listing *l, int part, const int32_t *order, int64_t count, int side,
                            uint8_t *records) {
    unsigned char header[HTI_IMAGES_HEADER];
    int sizes[CHUNK];
    char name[32];
    hti_pack pack;
    snprintf(name, sizeof name, "%s.images", hti_set_parts[part]);
    TRY(hti_pack_open(&pack, l->set, name));
    hti_images_header(header, side, side, 2, count_part(l, order, count));
    ht_status status = hti_pack_put(&pack, header, sizeof header);
    for (int64_t at = 0; at < count && status == HT_OK; at += CHUNK) {
        int64_t n = count - at < CHUNK ? count - at : CHUNK;
        status = read_chunk(l, records, sizes, order + at, n, side);
        if (status == HT_OK) status = write_chunk(l, &pack, part, records, sizes, n, side);
    }
    if (status == HT_OK) status = hti_pack_close(&pack);
    hti_pack_discard(&pack);
    return status;
}

static void deal(int32_t *order, int64_t count, uint64_t seed) {
    hti_dice dice = hti_dice_of(seed, 0, 0xDEA1u);
    for (int64_t i = 0; i < count; i++) order[i] = (int32_t)i;
    for (int64_t i = count - 1; i > 0; i--) {
        int k = hti_roll_below(&dice, (int)i + 1);
        int32_t swap = order[i];
        order[i] = order[k], order[k] = swap;
    }
}

static ht_status write_all(listing *l, int side) {
    ht_context *ctx = l->set->ctx;
    int64_t n = l->count, tenth = n / 10;
    CHECK(ctx, l->set->desc->unchecked || n == ALL, HT_FORMAT,
          "%s lists %lld images, there should be %d", l->root, (long long)n, ALL);
    int32_t *order = hti_host_alloc(ctx, sizeof *order * (size_t)n);
    uint8_t *records = hti_host_alloc(ctx, (size_t)CHUNK * (size_t)(1 + side * side));
    ht_status status =
        order && records ? HT_OK : hti_fail(ctx, HT_NOMEM, "out of memory: %d images", CHUNK);
    if (status == HT_OK) deal(order, n, (uint64_t)l->set->desc->seed);
    l->set->all = n;
    const int64_t from[4] = {0, n - 2 * tenth, n - tenth, n};
    for (int part = 0; part < 3 && status == HT_OK; part++)
        status =
            write_part(l, part, order + from[part], from[part + 1] - from[part], side, records);
    hti_host_free(ctx, order);
    hti_host_free(ctx, records);
    return status;
}

ht_status hti_pathfinder_import(hti_set *s, int side) {
    listing l = {.set = s, .names = {.ctx = s->ctx}, .pictures = {.ctx = s->ctx}};
    struct stat about;
    char root[2048];
    snprintf(root, sizeof root, "%s/curv_contour_length_14", s->desc->source);
    l.root = stat(root, &about) == 0 ? root : s->desc->source;
    ht_status status = list_pictures(&l);
    if (status == HT_OK) status = write_all(&l, side);
    hti_buffer_free(&l.names);
    hti_buffer_free(&l.pictures);
    return status;
}
