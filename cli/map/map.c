/*
 * htransformer map: pictures of the hierarchy, of a matrix's numerical ranks, of what an attention
 * looks at, and of how far it is from full attention.
 */
#include "map/map.h"

#include <string.h>

/* clang-format off: tables */
#define AT(field) offsetof(map_values, field)
static const cli_option options[] = {
    {"length", CLI_INT, AT(length), "N", "64", .min = 1, .max = 1 << 30,
     .help = "blocks: rows of the sequence"},
    {"block", CLI_INT, AT(block), "N", "16", .min = 2, .max = 1 << 20, .step = 2,
     .help = "rows of a block, even"},
    {"causal", CLI_FLAG, AT(causal), .help = "row i sees rows up to i"},
    {"query", CLI_CHOICE, AT(query), .choices = cli_queries, .fallback = "auto",
     .help = "query of a cluster; auto: with --causal fine, else mean"},
    {"open", CLI_INTS, AT(open), "K", .min = 0, .max = 1 << 20,
     .help = "clusters that a row opens per level, with query fine; error: a column for each of "
             "several; of a run: its own number"},
    {"open_leaf", CLI_INT, AT(leaf), "W", .min = 1, .max = 1 << 20,
     .help = "a cluster of so many rows is opened to its rows; 8, or the run's"},
    {"open_peek", CLI_INT, AT(peek), "P", .min = -1, .max = 48,
     .help = "levels below a cluster that its score looks at, -1: its mean alone; 2, or the run's"},
    {"rank", CLI_READ, AT(rank), "FILE",
     .help = "numerical ranks of the blocks of this matrix [rows, columns]"},
    {"tolerance", CLI_REAL, AT(tolerance), "X", "0.001", .min = 0, .max = 1 << 30,
     .help = "rank: the dropped singular values of a block sum to less than this"},
    {"levels", CLI_INT, AT(levels), "N", "0", .min = 0, .max = 12,
     .help = "rank: how often to halve the matrix; 0: until blocks have 4 to 7 rows"},
    {"error", CLI_FLAG, AT(error),
     .help = "relative error against full attention for every block size and query mode"},
    {"attention", CLI_FLAG, AT(attention),
     .help = "the weights of a layer and head, beside those of full attention; where rows open "
             "clusters, beside those without, too"},
    {"opened", CLI_FLAG, AT(opened), .help = "which clusters the rows of a head open"},
    {"row", CLI_INT, AT(row), "I", "-1", .min = -1, .max = 1 << 20,
     .help = "opened: the row whose choice is printed; -1: the last one"},
    {"q", CLI_READ, AT(q), "FILE",
     .help = "error, attention, opened: queries [batch, length, heads, dim]"},
    {"k", CLI_READ, AT(k), "FILE", .help = "keys [batch, length, key heads, dim]"},
    {"v", CLI_READ, AT(v), "FILE", .help = "values [batch, length, key heads, value dim]"},
    {"run", CLI_READ, AT(run), "RUN",
     .help = "or a run folder or checkpoint, whose layer makes them from --text"},
    {"text", CLI_TEXT, AT(text), "TEXT", .help = "what the model reads; @FILE: a file's contents"},
    {"layer", CLI_INT, AT(layer), "N", "0", .min = 0, .max = 1000, .help = "of the model"},
    {"head", CLI_INT, AT(head), "N", "0", .min = 0, .max = 1024,
     .help = "attention, opened: of the layer"},
    {"last", CLI_FLAG, AT(last), .help = "the newest checkpoint, not the best"},
    {"out", CLI_WRITE, AT(out), "FILE", .help = "the picture, .svg or .png"},
    {"effective", CLI_WRITE, AT(effective), "FILE",
     .help = "attention: also the weights as a .npy file [length, length]"},
    {"exact", CLI_WRITE, AT(exact), "FILE", .help = "attention: likewise those of full attention"},
    {"json", CLI_FLAG, AT(json), .help = "one JSON object instead of text"},
    {"device", CLI_TEXT, AT(device), "NAME", .help = "as in htransformer info; default auto"},
    {"threads", CLI_INT, AT(threads), "N", "0", .min = 0, .max = 4096,
     .help = "CPU threads; 0: all"},
    {0},
};
#undef AT
/* clang-format on */

/* Two kinds at once, or what a kind does not know: said by name. */
static bool check(const map_values *v, cli_error *error) {
    int kinds = (v->rank != NULL) + v->error + v->attention + v->opened;
    bool files = v->q || v->k || v->v;
    if (kinds > 1)
        return cli_fail(error, "--rank, --error, --attention and --opened are four maps: one");
    if (v->open.count > 1 && !v->error)
        return cli_fail(error, "--open takes one number, but with --error");
    if (!cli_check_query(HT_HIERARCHICAL, v->query, v->causal, error)) return false;
    if (v->error || v->attention || v->opened) {
        if (files == (v->run != NULL))
            return cli_fail(error, "give either --q, --k and --v, or --run and --text");
        if (files && (!v->q || !v->k || (!v->v && v->error)))
            return cli_fail(error, "--%s is missing", !v->q ? "q" : !v->k ? "k" : "v");
        if (v->run && !v->text) return cli_fail(error, "--text is missing: what should it read?");
    } else if (files || v->run || v->open.count) {
        return cli_fail(error, "--%s goes with --error, --attention or --opened",
                        files    ? "q"
                        : v->run ? "run"
                                 : "open");
    }
    if ((v->effective || v->exact) && !v->attention)
        return cli_fail(error, "--%s goes with --attention", v->effective ? "effective" : "exact");
    if (v->out && v->error && strlen(v->out) > 4 && !strcmp(v->out + strlen(v->out) - 4, ".png"))
        return cli_fail(error, "--error draws a plot: --out must end in .svg, got '%s'", v->out);
    return !v->out || picture_name(v->out, error);
}

static int run(const void *values) {
    const map_values *v = values;
    cli_error error = {""};
    int code = CLI_USAGE;
    bool good = check(v, &error);
    if (good) {
        code = CLI_FAILED;
        good = v->rank        ? map_rank(v, &code, &error)
               : v->error     ? map_error(v, &code, &error)
               : v->attention ? map_attention(v, &code, &error)
               : v->opened    ? map_opened(v, &code, &error)
                              : map_blocks(v, &code, &error);
    }
    if (!good) cli_say("map", "%s", error.text);
    return good ? CLI_OK : code;
}

const cli_command cli_map = {
    .name = "map",
    .summary = "pictures: hierarchy, ranks, weights, what is opened, error",
    .about =
        "Without --rank, --error, --attention or --opened it draws who meets whom: every pair of "
        "rows meets at one level, the finest at which their blocks are the same or neighbours.\n"
        "--rank halves a matrix again and again; blocks off the diagonal are stored as two factors "
        "of their numerical rank where that is smaller. The compression rate is all entries over "
        "stored entries.\n"
        "--error is the Frobenius norm of the difference over that of full attention; a bias table "
        "of a model is stretched at its ends for blocks that it was not made for.\n"
        "--opened shows how each pair of rows meets where rows open clusters: row by row, as part "
        "of a cluster, or row by row since its cluster was opened.\n"
        "Examples: htransformer map --length 64 --block 4 --out hierarchy.svg\n"
        "htransformer map --rank A.npy --tolerance 1e-3\n"
        "htransformer map --error --q q.npy --k k.npy --v v.npy --out error.svg\n"
        "htransformer map --attention --run demo --text \"[MAX 2 9 [MIN 4 7 ] 0 ]\" --out a.svg\n"
        "htransformer map --opened --q q.npy --k k.npy --causal --open 8 --out opened.svg\n",
    .options = options,
    .values_bytes = sizeof(map_values),
    .run = run,
};
