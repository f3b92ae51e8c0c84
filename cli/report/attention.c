/*
 * Attention pictures for the report: every layer's first heads on one text.
 */
#include "map/map.h"
#include "report/report.h"

#include <math.h>
#include <stdlib.h>

#define LAYERS 8
#define HEADS 4
#define ROWS 1024

/* White to dark by the logarithm, between an even share's thousandth and the largest weight. */
static bool write_weights(FILE *out, const double *w, int64_t n) {
    uint8_t *pixels = malloc((size_t)(n * n) * 3);
    double high = 0, low = 1e-2 / (double)n;
    if (!pixels) return false;
    for (int64_t i = 0; i < n * n; i++) high = fmax(high, w[i]);
    for (int64_t i = 0; i < n * n; i++) {
        double t = w[i] > low ? log(w[i] / low) / log(fmax(high, 2 * low) / low) : 0;
        pixels[3 * i] = (uint8_t)(255 - 235 * fmin(1, t));
        pixels[3 * i + 1] = (uint8_t)(255 - 200 * fmin(1, t));
        pixels[3 * i + 2] = (uint8_t)(255 - 130 * fmin(1, t));
    }
    bool good = picture_data_uri(out, pixels, (int)n, (int)n);
    free(pixels);
    return good;
}

static bool write_layer(FILE *out, const map_input *in, int64_t layer, cli_error *error) {
    double *w = malloc((size_t)(in->length * in->length) * sizeof *w);
    bool good = w || cli_fail(error, "out of memory");
    for (int64_t head = 0; good && head < in->heads && head < HEADS; head++) {
        good = map_weights(w, NULL, in, head, error);
        if (!good) break;
        fprintf(out,
                "<figure><img class=\"matrix\" alt=\"attention weights\" width=\"%lld\" "
                "height=\"%lld\" src=\"",
                (long long)in->length, (long long)in->length);
        good = write_weights(out, w, in->length) || cli_fail(error, "out of memory");
        fprintf(out, "\"><figcaption>layer %lld, head %lld</figcaption></figure>\n",
                (long long)layer, (long long)head);
    }
    free(w);
    return good;
}

bool report_attention(FILE *out, const report_run *r, const report_values *v, cli_error *error) {
    int64_t layers = LAYERS;
    fputs("<div class=\"matrices\">\n", out);
    for (int64_t layer = 0; layer < layers; layer++) {
        map_values want = {.run = r->path, .text = v->text, .device = v->device};
        map_input in = {0};
        int code;
        want.threads = v->threads;
        want.last = v->last;
        want.layer = layer;
        bool good = map_open(&in, &want, &code, error);
        if (good && in.length > ROWS)
            good = cli_fail(error, "--text has %lld rows; at most %d are drawn",
                            (long long)in.length, ROWS);
        int64_t has = good ? setting_int(in.model.config, "layers") : layers;
        if (has < layers) layers = has;
        good = good && write_layer(out, &in, layer, error);
        map_close(&in);
        if (good) continue;
        if (cli_starved(error)) return false;
        fputs("<p class=\"note\">no attention pictures: ", out);
        picture_escaped(out, error->text);
        fputs("</p>\n", out);
        break;
    }
    fputs("</div>\n", out);
    return true;
}
