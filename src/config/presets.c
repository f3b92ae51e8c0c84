/*
 * Presets: settings that go together, as JSON over the defaults.
 */
#include "config/config.h"

#include <stdio.h>
#include <string.h>

/* Sizes, head, optimiser of the Long Range Arena's public Transformer; all parameters decay there.
 */
#define LRA "\"decay\":\"all\",\"beta2\":0.98,\"adam_epsilon\":1e-9,"
#define RSQRT                                                                                \
    "\"schedule\":\"rsqrt\",\"rate\":0.05,\"weight_decay\":0.1,\"dropout\":0.1,\"attention_" \
    "dropout\":0.1,"
/* black pixels are pixels: mask_zero 1 makes them padding, as the original does */
#define PIXELS "\"vocab\":256,\"mask_zero\":0,\"schedule\":\"cosine\",\"weight_decay\":0,"
#define SNAKES "\"format\":\"pathfinder\",\"train_items\":160000,\"valid_items\":20000,"
/* The largest of each column, not the mean: few of the pixels know whether the dots are connected.
 * No hidden units in the head: ReLUs that see only a constant for long die (docs/lab/lra.md). */
#define TRACER                                                                                    \
    "\"vocab\":256,\"mask_zero\":0,\"pool\":\"max\",\"heads\":4,\"width\":128,\"hidden\":512,"    \
    "\"sinusoidal\":0,\"query\":\"fine\",\"block\":64,\"rotary\":\"all\",\"relative_bias\":1,"    \
    "\"relative_slope\":0.5,\"embed_std\":0.1,\"embed_waves\":2,\"optimizer\":\"muon\",\"weight_" \
    "decay\":0.5,\"clip\":1,"
/* Positions that won on Wikipedia bytes: rotary on the exact level (docs/lab/lm.md). */
#define LM                                                                                         \
    "\"task\":\"language\",\"format\":\"text\",\"sinusoidal\":0,\"rotary\":\"level0\",\"clip\":1," \
    "\"weight_decay\":0.1,"
#define PAPER                                                                                \
    "\"layers\":6,\"heads\":8,\"vocab\":33000,\"length\":1024,\"dropout\":0.1,\"schedule\":" \
    "\"rsqrt\",\"rate\":0.05,\"warmup\":4000,\"steps\":100000,"
#define SMALL "\"layers\":2,\"width\":128,\"heads\":4,\"hidden\":256,"
/* Items that take finding single far rows again: rows open clusters, and positions help to find
 * them (docs/lab/opening.md). */
#define FAR                                                                                 \
    "\"task\":\"language\",\"sinusoidal\":0,\"rotary\":\"all\",\"open\":8,\"clip\":1,"      \
    "\"weight_decay\":0.1,\"layers\":2,\"width\":128,\"heads\":4,\"hidden\":512,"           \
    "\"length\":256,\"batch\":16,\"train_items\":20000,\"valid_items\":512,\"steps\":2500," \
    "\"eval_every\":250,\"eval_items\":128,\"optimizer\":\"muon\",\"rate\":0.002,"
/* What made the difference on Text (docs/lab/lra.md): some heads begin with the letters nearby, and
 * the largest of each column is what counts. */
#define READER                                                                            \
    "\"format\":\"tsv\",\"pool\":\"max\",\"sinusoidal\":0,\"rotary\":\"all\",\"relative_" \
    "bias\":1,\"relative_slope\":1,"

static const struct {
    const char *name, *about, *json;
} presets[] = {
    {"small", "a classifier of texts (tsv) that trains on a CPU",
     "{" SMALL READER "\"length\":2048,\"merge\":2,\"dropout\":0.1,\"steps\":1000,\"patience\":6,"
     "\"optimizer\":\"muon\","
     "\"rate\":0.002,\"weight_decay\":0.1,\"clip\":1}"},
    {"encoder", "a classifier of texts that begins with the encoder in the box (training.md)",
     "{\"layers\":4,\"width\":256,\"heads\":4,\"hidden\":1024," READER
     "\"length\":2048,\"merge\":4,\"hide_run\":6,\"dropout\":0.1,\"steps\":300,\"warmup\":30,"
     "\"eval_every\":50,\"patience\":6,\"optimizer\":\"muon\",\"rate\":0.001,"
     "\"weight_decay\":0.1,\"clip\":1}"},
    {"small-listops", "ListOps with short expressions, a minute on a CPU",
     "{" SMALL "\"format\":\"listops\",\"vocab\":17,\"classes\":10,\"length\":96,\"block\":8,"
     "\"causal\":1,\"pool\":\"last\",\"query\":\"fine\",\"sinusoidal\":0,\"rotary\":\"all\","
     "\"relative_bias\":1,\"relative_slope\":1,\"embed_std\":0.3,\"listops_min\":15,"
     "\"listops_max\":97,\"listops_depth\":5,\"listops_arguments\":5,\"train_items\":50000,"
     "\"valid_items\":1000,\"batch\":32,\"steps\":700,\"warmup\":100,\"optimizer\":\"muon\","
     "\"rate\":0.002,\"weight_decay\":0.3,\"clip\":1}"},
    {"small-text", "a language model of bytes that trains on a CPU",
     "{\"task\":\"language\",\"format\":\"text\",\"layers\":4,\"width\":128,\"heads\":4,\"hidden\":"
     "512,"
     "\"sinusoidal\":0,\"rotary\":\"level0\",\"length\":512,\"batch\":8,\"steps\":2000,\"clip\":1,"
     "\"weight_decay\":0.1,\"warmup\":100,\"optimizer\":\"muon\",\"rate\":0.005}"},
    {"copy", "a language model that copies what it read, on a CPU; the items are made",
     "{" FAR "\"format\":\"copy\"}"},
    {"recall", "a language model that recalls values by their keys, on a CPU; the items are made",
     "{" FAR "\"format\":\"recall\",\"vocab\":1089}"},
    {"lra/listops", "Long Range Arena ListOps, 8.9 million parameters",
     "{" LRA RSQRT
     "\"format\":\"listops\",\"vocab\":17,\"classes\":10,\"layers\":4,\"heads\":8,\"width\":512,"
     "\"hidden\":1024,\"head_hidden\":1024,\"length\":2000,\"batch\":32,\"steps\":5000,\"warmup\":"
     "1000,\"eval_every\":250}"},
    {"lra/text", "Long Range Arena Text (bytes of reviews), 3.5 million parameters",
     "{" LRA RSQRT "\"format\":\"tsv\",\"layers\":4,\"heads\":4,\"width\":256,\"hidden\":1024,"
     "\"head_hidden\":1024,"
     "\"length\":4000,\"batch\":32,\"steps\":20000,\"warmup\":8000,\"eval_every\":500}"},
    {"lra/retrieval", "Long Range Arena Retrieval (pairs of papers), 1.1 million parameters",
     "{" LRA RSQRT "\"task\":\"pairs\",\"format\":\"tsv\",\"pool\":\"first\",\"layers\":4,"
     "\"heads\":4,\"width\":128,"
     "\"hidden\":512,\"head_hidden\":512,\"length\":4000,\"batch\":32,\"steps\":5000,\"warmup\":"
     "8000,\"eval_every\":500,\"eval_items\":4000}"},
    {"lra/image", "Long Range Arena Image (grey CIFAR-10), 0.25 million parameters",
     "{" LRA PIXELS "\"format\":\"images\","
     "\"classes\":10,\"layers\":1,\"heads\":8,\"width\":128,\"inner\":64,\"hidden\":128,"
     "\"head_hidden\":128,\"sinusoidal\":0,\"learned\":1,\"dropout\":0.3,\"attention_dropout\":0.2,"
     "\"length\":1024,\"batch\":256,\"steps\":35000,\"rate\":5e-4,\"warmup\":175,\"eval_every\":"
     "350}"},
    {"lra/pathfinder", "Long Range Arena Pathfinder, 27 thousand parameters",
     "{" LRA PIXELS SNAKES
     "\"pool\":\"mean_all\",\"layers\":4,\"heads\":4,\"width\":32,\"inner\":16,\"hidden\":32,"
     "\"head_hidden\":32,\"dropout\":0.2,\"attention_dropout\":0.1,\"length\":1024,\"batch\":512,"
     "\"steps\":62400,\"rate\":1e-3,\"warmup\":312,\"eval_every\":624}"},
    {"lra/pathx", "Long Range Arena Path-X, 16,384 pixels",
     "{" LRA PIXELS SNAKES
     "\"pool\":\"mean_all\",\"layers\":1,\"heads\":2,\"width\":32,\"inner\":16,\"hidden\":32,"
     "\"head_hidden\":32,\"sinusoidal\":0,\"learned\":1,\"dropout\":0.1,\"attention_dropout\":0.1,"
     "\"length\":16384,\"batch\":64,\"steps\":500000,\"rate\":1e-3,\"warmup\":2500,\"clip\":1,"
     "\"eval_every\":2500}"},
    {"best/listops", "ListOps without the benchmark's limits; next tokens come first (docs/lra.md)",
     "{\"format\":\"listops\",\"vocab\":17,\"classes\":10,\"causal\":1,\"pool\":\"last\","
     "\"layers\":6,\"heads\":4,\"width\":256,\"hidden\":1024,\"sinusoidal\":0,\"query\":\"fine\","
     "\"block\":64,\"rotary\":\"all\",\"relative_bias\":1,\"relative_slope\":1,\"embed_std\":0.3,"
     "\"length\":2000,\"batch\":32,\"steps\":36000,\"optimizer\":\"muon\",\"rate\":1e-3,"
     "\"warmup\":300,\"weight_decay\":0.3,\"clip\":1,\"eval_every\":2000}"},
    {"best/text", "Text without the benchmark's limits; hidden tokens come first (docs/lra.md)",
     "{\"format\":\"tsv\",\"pool\":\"mean\",\"layers\":4,\"heads\":4,\"width\":256,\"hidden\":1024,"
     "\"head_hidden\":256,\"sinusoidal\":0,\"rotary\":\"all\",\"length\":4000,\"dropout\":0.2,"
     "\"batch\":32,\"steps\":4000,\"rate\":3e-4,\"warmup\":300,\"weight_decay\":0.05,\"clip\":1,"
     "\"hide_run\":3,\"eval_every\":500}"},
    {"best/retrieval", "Retrieval without the benchmark's limits; hidden tokens come first",
     "{\"task\":\"pairs\",\"format\":\"tsv\",\"pool\":\"mean\",\"pair_features\":4,\"merge\":4,"
     "\"layers\":4,\"heads\":8,\"width\":512,\"hidden\":2048,\"head_hidden\":256,\"sinusoidal\":0,"
     "\"rotary\":\"all\",\"relative_bias\":1,\"relative_slope\":1,\"length\":4000,\"dropout\":0.1,"
     "\"batch\":32,\"steps\":8000,\"optimizer\":\"muon\",\"rate\":5e-4,\"warmup\":200,"
     "\"weight_decay\":0.05,\"clip\":1,\"hide_run\":3,\"eval_every\":2000,\"eval_items\":2000}"},
    {"best/image", "Image without the benchmark's limits; hidden pixels come first",
     "{\"format\":\"images\",\"vocab\":256,\"mask_zero\":0,\"classes\":10,\"pool\":\"mean\","
     "\"layers\":4,\"heads\":2,\"width\":128,\"hidden\":512,\"head_hidden\":128,\"sinusoidal\":0,"
     "\"query\":\"fine\",\"block\":64,\"rotary\":\"all\",\"relative_bias\":1,\"relative_slope\":0."
     "5,"
     "\"embed_std\":0.1,\"embed_waves\":1,\"length\":1024,\"dropout\":0.2,\"batch\":128,\"steps\":"
     "8000,"
     "\"optimizer\":\"muon\",\"rate\":1e-3,\"warmup\":500,\"weight_decay\":0.1,\"clip\":1,\"eval_"
     "every\":800}"},
    {"best/pathfinder", "Pathfinder without the benchmark's limits; hidden squares come first",
     "{" SNAKES TRACER "\"length\":1024,\"patch\":2,\"merge\":4,\"layers\":8,\"batch\":128,"
     "\"steps\":12000,\"rate\":5e-4,\"warmup\":500,\"eval_every\":1500,\"eval_items\":4000}"},
    {"best/pathx", "Path-X without the benchmark's limits; hidden squares come first",
     "{" SNAKES TRACER "\"length\":4096,\"shrink\":2,\"patch\":4,\"merge\":16,\"layers\":8,"
     "\"rotary_grid\":16,\"rotary_theta\":100,\"batch\":128,\"steps\":12000,\"rate\":2e-4,"
     "\"warmup\":500,\"weight_decay\":0.1,\"momentum\":0.98,\"output_scale\":0,"
     "\"eval_every\":1000,\"eval_items\":4000}"},
    {"lm/53m", "language model, sizes of the H-Transformer-1D paper's smaller one",
     "{" LM PAPER "\"width\":512,\"hidden\":2048}"},
    {"lm/144m", "language model, sizes of the paper's larger one",
     "{" LM PAPER "\"width\":1024,\"hidden\":4096}"},
    {"lm/small", "language model of bytes, 12 million parameters",
     "{" LM "\"query\":\"fine\",\"layers\":6,\"heads\":6,\"width\":384,\"hidden\":1792,"
     "\"length\":4096,\"batch\":8,\"rate\":1e-3,\"warmup\":200,\"steps\":5000}"},
    {"lm/tiny", "language model of bytes for a CPU, 0.8 million parameters",
     "{" LM "\"query\":\"first\",\"layers\":4,\"heads\":4,\"width\":128,\"hidden\":512,\"tied\":1,"
     "\"length\":512,\"batch\":8,\"rate\":2e-3,\"warmup\":100,\"steps\":3000}"},
};
enum { PRESETS = sizeof presets / sizeof *presets };

const char *ht_config_preset_name(int i) { return i >= 0 && i < PRESETS ? presets[i].name : NULL; }
const char *ht_config_preset_about(int i) {
    return i >= 0 && i < PRESETS ? presets[i].about : NULL;
}

ht_status hti_config_preset(ht_config *config, const char *name) {
    for (int i = 0; i < PRESETS; i++) {
        const char *own = presets[i].name;
        int benchmark = strncmp(own, "lra/", 4) == 0; /* "text" is short for "lra/text" */
        if (strcmp(own, name) == 0 || (benchmark && strcmp(own + 4, name) == 0))
            return ht_config_read_json(config, presets[i].json);
    }
    char all[400] = "";
    for (int i = 0; i < PRESETS; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "",
                 presets[i].name);
    return hti_fail(config->ctx, HT_INVALID, "there is no preset '%s', but %s", name, all);
}
