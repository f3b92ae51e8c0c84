/*
 * htransformer train: a configuration (preset, then file, then flags), data, a run folder; trains
 * and tells.
 */
#include "run/begin.h"
#include "run/given.h"
#include "run/linear.h"
#include "run/progress.h"
#include "run/rows.h"
#include "base/ranks.h"
#include "base/save.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct train_values {
    const char *run, *preset, *config, *data, *valid, *papers, *tokenizer, *init, *device;
    double holdout, epochs;
    int64_t threads;
    int resume, quiet, linear;
    run_rows rows;
    given key;
} train_values;

static const char *const linears[] = {"yes", "no", NULL};

/* the fixed ones; those of the settings follow (cli_train_options) */
static cli_option options[32 + GIVEN_MOST] = {
    {"run", CLI_TEXT, offsetof(train_values, run), "FOLDER", .required = 1,
     .help = "where the run is kept"},
    {"data", CLI_READ, offsetof(train_values, data), "PATH",
     .help = "a file, a folder or - for stdin: labelled texts (TSV, CSV, JSONL, a folder per "
             "label), plain text for a language model, or images; gzip and zstd are recognised. "
             "Without it listops, pathfinder, copy and recall make their items"},
    {"valid", CLI_READ, offsetof(train_values, valid), "PATH",
     .help = "data to validate on; else --holdout"},
    {"papers", CLI_READ, offsetof(train_values, papers), "PATH",
     .help = "id<TAB>text lines; then --data and --valid are label<TAB>id<TAB>id (task pairs)"},
    {"holdout", CLI_REAL, offsetof(train_values, holdout), "SHARE", .min = 0, .max = 1, .unset = -1,
     .help = "share of --data that is kept for validation if there is no --valid (default 0.1)"},
    RUN_ROWS_OPTIONS(train_values, rows),
    {"epochs", CLI_REAL, offsetof(train_values, epochs), "N", "0", .min = 0, .max = 1e6,
     .help = "as many steps as go over all items N times, instead of --steps; 0: steps says"},
    {"preset", CLI_TEXT, offsetof(train_values, preset), "NAME",
     .help =
         "start from these settings; default small-listops, of labelled texts encoder, of other "
         "--data small"},
    {"config", CLI_READ, offsetof(train_values, config), "FILE",
     .help = "JSON object of settings, over the preset"},
    {"tokenizer", CLI_READ, offsetof(train_values, tokenizer), "FILE",
     .help = "language models: a SentencePiece model, or a tokenizer.json of Hugging Face (BPE); "
             "without "
             "it tokens are bytes"},
    {"init", CLI_READ, offsetof(train_values, init), "RUN",
     .help =
         "start with this run's weights, or a checkpoint's, where names and shapes are the same"},
    {"resume", CLI_FLAG, offsetof(train_values, resume),
     .help = "go on with the run in the folder, bit for bit"},
    {"device", CLI_TEXT, offsetof(train_values, device), "NAME",
     .help = "as in htransformer info; default auto"},
    {"threads", CLI_INT, offsetof(train_values, threads), "N", "0", .min = 0, .max = 4096,
     .help = "CPU threads; 0: all"},
    {"linear", CLI_CHOICE, offsetof(train_values, linear), "WHICH", "yes", linears,
     .help = "classifiers of texts: fit a linear model first, a baseline that takes seconds, and "
             "let it answer, too, as far as that is better on the validation data: yes or no"},
    {"quiet", CLI_FLAG, offsetof(train_values, quiet), .help = "no lines about steps"},
    {0},
};

void cli_train_options(void) { given_options(options, offsetof(train_values, key)); }

static volatile sig_atomic_t stopped;
static struct timespec stopped_at;

/* The first signal ends the run after its step; one that comes a second or two later has its usual
 * effect. Sooner it is the same one again: timeout and some shells send it to the process and to
 * its group. */
static void on_signal(int number) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!stopped) {
        stopped = number;
        stopped_at = now;
    } else if (now.tv_sec - stopped_at.tv_sec > 1) {
        signal(number, SIG_DFL);
        raise(number); /* when this handler has returned */
    }
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* ---- the configuration: preset or old run, file, flags ---- */

/* Flags by themselves, before anything is made: a wrong one is wrong usage. */
static bool check_flags(ht_context *ctx, const train_values *v, cli_error *error) {
    ht_config *config;
    const char *names[64] = {0};
    char near[64];
    for (int i = 0; i < 63 && (names[i] = ht_config_preset_name(i)); i++) continue;
    if (ht_config_create(&config, ctx, v->preset) != HT_OK)
        return cli_fail(error, "--preset: %s%s", ht_context_error(ctx),
                        v->preset ? given_hint(near, v->preset, names) : "");
    bool good = given_set(ctx, config, &v->key, error);
    ht_config_destroy(config);
    return good;
}

/* text: what is in the file, freed here. */
static bool read_config(ht_context *ctx, ht_config *config, const char *path, char *text,
                        cli_error *error) {
    if (!text) return false;
    ht_status status = ht_config_read_json(config, text);
    free(text);
    return status == HT_OK || cli_fail(error, "%s: %s", path, ht_context_error(ctx));
}

static bool make_config(ht_context *ctx, ht_config **out, const char *preset, const train_values *v,
                        cli_error *error) {
    if (v->resume && v->preset)
        return cli_fail(error, "--preset starts a run, --resume goes on with one");
    if (ht_config_create(out, ctx, v->resume ? NULL : preset) != HT_OK)
        return cli_fail(error, "--preset: %s", ht_context_error(ctx));
    if (v->resume) {
        char path[4096];
        if (!run_path(path, v->run, "config.json", error) ||
            !read_config(ctx, *out, path, run_read_part(path, error), error))
            return false;
    }
    if (v->config && !read_config(ctx, *out, v->config, run_read_text(v->config, error), error))
        return false;
    if (!given_set(ctx, *out, &v->key, error)) return false;
    ht_status status = v->resume ? ht_config_resume(*out, ctx, v->run) : ht_config_check(*out);
    return status == HT_OK || cli_fail(error, "%s", ht_context_error(ctx));
}

/* ---- where the data is; kept in run.json for --resume ---- */

/* from NULL: as it is. */
static bool keep_name(char name[4096], const char *from, cli_error *error) {
    if (from && strlen(from) >= 4096)
        return cli_fail(error, "the name of %.200s... is too long", from);
    if (from) strcpy(name, from);
    return true;
}

static bool make_places(run_places *out, const train_values *v, cli_error *error) {
    *out = (run_places){.holdout = v->holdout < 0 ? 0.1 : v->holdout, .rows = v->rows};
    if (v->resume && !run_places_read(out, v->run, error)) return false;
    if (v->holdout >= 0 && v->holdout != out->holdout)
        return cli_fail(error, "%s has --holdout %g and keeps it: it cannot go on with %g", v->run,
                        out->holdout, v->holdout);
    return keep_name(out->data, v->data, error) && keep_name(out->valid, v->valid, error) &&
           keep_name(out->papers, v->papers, error);
}

/* ---- the run folder ---- */

/* One process at a time: two would remove each other's checkpoints. The lock ends with `lock`. */
static bool make_folder(int *lock, const train_values *v, cli_error *error) {
    char path[4096];
    if (!run_path(path, v->run, "config.json", error)) return false;
    if (!v->resume && mkdir(v->run, 0777) != 0 && errno != EEXIST)
        return cli_fail(error, "%s could not be made: %s", v->run, strerror(errno));
    *lock = open(v->run, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*lock < 0 && v->resume && errno == ENOENT)
        return cli_fail(error, "%s holds no run to go on with", v->run);
    if (*lock < 0) return cli_fail(error, "%s could not be opened: %s", v->run, strerror(errno));
    if (flock(*lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return cli_fail(error, "%s is in use: another process trains there", v->run);
    bool there;
    if (!save_there(&there, path, error)) return false;
    if (v->resume && !there) return cli_fail(error, "%s holds no run to go on with", v->run);
    if (!v->resume && there)
        return cli_fail(
            error,
            "%s already holds a run: --resume goes on with it, another --run starts a new one",
            v->run);
    return true;
}

static bool write_folder(ht_context *ctx, const ht_config *config, const run_places *p,
                         const char *run, cli_error *error) {
    char text[8192], path[4096];
    if (ht_config_write_json(config, text, sizeof text, NULL) != HT_OK)
        return cli_fail(error, "%s", ht_context_error(ctx));
    return run_path(path, run, "config.json", error) && run_places_write(p, run, error) &&
           run_write_text(path, text, error);
}

/* ---- data ---- */

#define STDIN "stdin.data"

/* stdin is needed more than once (both parts, --resume): it is kept in the run folder. */
static bool keep_stdin(char *data, const char *run, cli_error *error) {
    static char chunk[1 << 16];
    char path[4096];
    save_file save = {0};
    bool good = run_path(path, run, STDIN, error) && save_open(&save, path, error);
    for (size_t n; good && (n = fread(chunk, 1, sizeof chunk, stdin)) > 0;)
        good = save_write(&save, chunk, n, error);
    if (good && ferror(stdin)) good = cli_fail(error, "stdin could not be read");
    good = good && save_finish(&save, error) && save_commit(&save, error);
    save_discard(&save);
    if (good) memcpy(data, path, sizeof path);
    return good;
}

/* ---- the run ---- */

typedef struct run_parts {
    begin_words said; /* its preset: the user's, or what was taken instead */
    ht_config *config;
    run_places where;
    ht_context *ctx;
    ht_data *train, *valid;
    ht_model *model;
    ht_trainer *trainer;
    ht_linear *linear;       /* or NULL */
    ht_tokenizer *tokenizer; /* NULL: bytes */
    int lock;                /* of the run folder; -1: none */
    ranks ranks;
    bool on_gpu;
} run_parts;

static bool use_tokenizer(run_parts *p, const train_values *v, cli_error *error) {
    char path[4096];
    bool there;
    if (!run_path(path, v->run, "tokens.model", error)) return false;
    if (!save_there(&there, path, error)) return false;
    if (!v->tokenizer && !there) return true;
    if (!setting_is(p->config, "task", "language"))
        return cli_fail(error, "--tokenizer is for language models, got task %s",
                        setting_word(p->config, "task"));
    if (ht_tokenizer_open(&p->tokenizer, p->ctx, v->tokenizer ? v->tokenizer : path) != HT_OK)
        return cli_fail(error, "%s", ht_context_error(p->ctx));
    int64_t vocab = ht_tokenizer_vocab(p->tokenizer);
    return given_for(&v->key, "vocab") || ht_config_set_int(p->config, "vocab", vocab) == HT_OK ||
           cli_fail(error, "%s", ht_context_error(p->ctx));
}

/* Weights of another run, or of the encoder in the box; a run that goes on has its own. */
static bool use_weights(run_parts *p, const train_values *v, cli_error *error) {
    char path[4096] = "";
    int64_t taken = 0;
    if (v->init && v->resume)
        return cli_fail(error, "--init starts a run, --resume goes on with one");
    if (v->resume) return true;
    if (v->init ? !run_find(path, v->init, 0, error)
                : !begin_encoder(path, &p->said, p->config, error))
        return false;
    if (!path[0]) return true;
    if (ht_model_take(p->model, path, &taken) != HT_OK)
        return cli_fail(error, "--init: %s", ht_context_error(p->ctx));
    if (!v->init && 2 * taken < ht_model_tensors(p->model)) /* all but the head */
        return cli_fail(error, "%s is no encoder of this form: %lld of %lld tensors fit", path,
                        (long long)taken, (long long)ht_model_tensors(p->model));
    if (!v->quiet)
        printf("  init       %lld of %lld tensors from %s%s\n", (long long)taken,
               (long long)ht_model_tensors(p->model), path,
               v->init ? "" : " (--preset small: from scratch)");
    return true;
}

/* The newest checkpoint, before anything is written: settings that do not fit it must not take the
 * place of those that do. A run that was stopped before its first one starts again. */
static bool go_on(run_parts *p, const train_values *v, cli_error *error) {
    ht_resume_info info = HT_RESUME_INFO_INIT;
    if (!v->resume) return true;
    if (ht_trainer_resume(p->trainer, p->train, v->run, &info) != HT_OK)
        return cli_fail(error, "%s", ht_context_error(p->ctx));
    if (info.skipped && ranks_first(&p->ranks))
        cli_say("train", "%s; going on from step %lld", info.why, (long long)info.step);
    return true;
}

/* --tokenizer is kept in the run folder, so that the run can be used without it. */
static bool keep_tokenizer(const train_values *v, cli_error *error) {
    char path[4096];
    return !v->tokenizer ||
           (run_path(path, v->run, "tokens.model", error) && run_copy(path, v->tokenizer, error));
}

static bool opened(run_parts *p, ht_status status, cli_error *error) {
    return status == HT_OK || cli_fail(error, "%s", ht_context_error(p->ctx));
}

/* Data of its own to validate on, or what is made for it; the labels are those of the first. */
static bool open_valid(run_parts *p, ht_data_desc *desc, cli_error *error) {
    const run_places *at = &p->where;
    if (desc->path && !at->valid[0]) return true; /* none wanted */
    if (at->valid[0]) desc->path = at->valid;
    desc->part = HT_PART_VALID;
    desc->labels = ht_data_labels(p->train);
    return opened(p, ht_data_open(&p->valid, p->ctx, desc), error);
}

/* Both parts; their labels are the model's. */
static bool open_data(run_parts *p, cli_error *error) {
    const run_places *at = &p->where;
    ht_data_desc desc = HT_DATA_DESC_INIT;
    ht_rows_desc rows = run_rows_desc(&at->rows);
    desc.config = p->config;
    desc.path = at->data[0] ? at->data : NULL;
    desc.papers = at->papers[0] ? at->papers : NULL;
    desc.tokenizer = p->tokenizer;
    desc.rows = &rows;
    desc.keep_texts = linear_fits(p->config);
    desc.holdout = desc.path && !at->valid[0] ? at->holdout : 0;
    int parts = desc.holdout > 0;
    ht_status status = parts ? ht_data_open_parts(&p->train, &p->valid, p->ctx, &desc)
                             : ht_data_open(&p->train, p->ctx, &desc);
    if (!opened(p, status, error)) return false;
    const ht_labels *labels = ht_data_labels(p->train);
    if (labels) status = ht_config_set_int(p->config, "classes", ht_labels_count(labels));
    return opened(p, status, error) && (parts || open_valid(p, &desc, error));
}

/* Without a word on it a GPU goes over the items as often as pays with the encoder: the preset's
 * steps are those of a CPU. */
static double epochs_of(const run_parts *p, const train_values *v) {
    bool said = v->resume || v->preset || given_for(&v->key, "steps") ||
                setting_real(p->config, "minutes") > 0;
    if (v->epochs > 0 || said || !p->on_gpu || strcmp(p->said.preset, "encoder") != 0)
        return v->epochs;
    return BEGIN_EPOCHS;
}

/* A longer run than the preset's is judged as often, not more often: patience is a share of it. */
static bool spread_evaluations(run_parts *p, const train_values *v, int64_t steps,
                               cli_error *error) {
    int64_t every = steps / BEGIN_EVALUATIONS;
    if (v->epochs > 0 || given_for(&v->key, "eval_every")) return true;
    if (every <= setting_int(p->config, "eval_every")) return true;
    return ht_config_set_int(p->config, "eval_every", every) == HT_OK ||
           cli_fail(error, "%s", ht_context_error(p->ctx));
}

/* Steps that go over the items so many times. */
static bool count_epochs(run_parts *p, const train_values *v, cli_error *error) {
    ht_data_info info = HT_DATA_INFO_INIT;
    double epochs = epochs_of(p, v);
    if (epochs == 0) return true;
    if (given_for(&v->key, "steps") || setting_real(p->config, "minutes") > 0)
        return cli_fail(error, "--epochs, --steps and --minutes say the same thing: give one");
    if (ht_data_get_info(p->train, &info) != HT_OK)
        return cli_fail(error, "%s", ht_context_error(p->ctx));
    int64_t each = setting_int(p->config, "batch") * setting_int(p->config, "accumulate");
    double steps = fmin(ceil(epochs * (double)info.items / (double)each), 1e9);
    if (ht_config_set_int(p->config, "steps", (int64_t)steps) != HT_OK)
        return cli_fail(error, "--epochs: %s", ht_context_error(p->ctx));
    return spread_evaluations(p, v, (int64_t)steps, error);
}

/* The encoder was taken because nothing else was said, and these are no words. */
static bool prefer_scratch(run_parts *p, const train_values *v, cli_error *error) {
    if (v->preset || v->resume || strcmp(p->said.preset, "encoder") != 0) return true;
    if (begin_has_words(p->train)) return true;
    ht_data_close(p->train);
    ht_data_close(p->valid);
    ht_config_destroy(p->config);
    p->train = p->valid = NULL;
    p->config = NULL;
    p->said.preset = "small";
    return make_config(p->ctx, &p->config, p->said.preset, v, error) && open_data(p, error);
}

static bool settle(run_parts *p, const train_values *v, cli_error *error) {
    p->said = (begin_words){v->preset, v->config, v->data, v->init, &v->key};
    if (!v->preset) p->said.preset = begin_preset(&p->said);
    return make_places(&p->where, v, error) &&
           make_config(p->ctx, &p->config, p->said.preset, v, error);
}

/* The folder, the settings, where the data is. */
static bool begin(run_parts *p, const train_values *v, cli_error *error) {
    bool good = !ranks_first(&p->ranks) || make_folder(&p->lock, v, error);
    if (!ranks_agree(&p->ranks, good, error) || !settle(p, v, error)) return false;
    if (!p->where.data[0] && !setting_makes_items(p->config))
        return cli_fail(error, "--data is missing: the settings ask for format %s",
                        setting_word(p->config, "format"));
    if (strcmp(p->where.data, "-") != 0) return true;
    return ranks_first(&p->ranks) ? keep_stdin(p->where.data, v->run, error)
                                  : run_path(p->where.data, v->run, STDIN, error);
}

static bool make(run_parts *p, const train_values *v, cli_error *error) {
    ht_trainer_desc desc = HT_TRAINER_DESC_INIT;
    if (!use_tokenizer(p, v, error)) return false;
    if (!open_data(p, error) || !prefer_scratch(p, v, error) || !count_epochs(p, v, error))
        return false;
    desc.config = p->config;
    desc.world = p->ranks.world;
    if (ht_model_create(&p->model, p->ctx, p->config) != HT_OK)
        return cli_fail(error, "%s", ht_context_error(p->ctx));
    if (!use_weights(p, v, error)) return false;
    if (ht_trainer_create(&p->trainer, p->model, &desc) != HT_OK)
        return cli_fail(error, "%s", ht_context_error(p->ctx));
    return go_on(p, v, error);
}

/* One after the other, so that what rank 0 writes is there when others read it, and not before. */
static bool prepare(run_parts *p, const train_values *v, cli_error *error) {
    if (!ranks_agree(&p->ranks, begin(p, v, error), error)) return false;
    if (!ranks_agree(&p->ranks, make(p, v, error), error)) return false;
    return !ranks_first(&p->ranks) ||
           (keep_tokenizer(v, error) &&
            write_folder(p->ctx, ht_trainer_config(p->trainer), &p->where, v->run, error));
}

typedef struct telling {
    progress show;
    ranks *ranks;
    bool early; /* if this step was the last: somebody asked for it */
} telling;

static int tell(void *user, const ht_event *event) {
    telling *to = user;
    ranks_step(to->ranks, event->step);
    progress_step(&to->show, event);
    to->early = event->step < event->steps && !event->tired;
    return stopped != 0;
}

/* A run goes on with the one that it was begun with, if there was one. */
static bool linear_begins(run_parts *p, const train_values *v, cli_error *error) {
    char path[4096];
    bool there;
    if (v->linear != 0 || !linear_fits(p->config) || !ranks_first(&p->ranks)) return true;
    if (!run_path(path, v->run, "linear.safetensors", error)) return false;
    if (!save_there(&there, path, error)) return false;
    if (v->resume && !there) return true;
    return linear_begin(&p->linear, p->ctx, v->run, p->train, p->valid,
                        setting_int(p->config, "eval_items"), v->quiet, error);
}

/* Among ranks the trainer has room for its share of a batch alone. */
static bool linear_ends(run_parts *p, const train_values *v, cli_error *error) {
    ht_trainer_desc desc = HT_TRAINER_DESC_INIT;
    desc.inference = 1;
    if (p->linear && p->ranks.world) {
        desc.config = p->config;
        ht_trainer_destroy(p->trainer);
        if (ht_trainer_create(&p->trainer, p->model, &desc) != HT_OK)
            return cli_fail(error, "%s", ht_context_error(p->ctx));
    }
    return linear_end(p->linear, p->ctx, v->run, p->model, p->trainer, p->valid, v->quiet, error);
}

static bool train(run_parts *p, const train_values *v, cli_error *error) {
    telling to = {.ranks = &p->ranks};
    ht_train_desc desc = HT_TRAIN_DESC_INIT;
    progress_begin(&to.show, p->ctx, p->model, ht_trainer_config(p->trainer), v->quiet);
    if (!v->quiet) progress_header(p->model, p->trainer, p->train, p->valid);
    if (!ranks_agree(&p->ranks, linear_begins(p, v, error), error)) return false;
    desc.folder = v->run;
    desc.train = p->train;
    desc.valid = p->valid;
    desc.tell = tell;
    desc.user = &to;
    catch_signals();
    ht_status status = ht_train(p->trainer, &desc);
    int64_t at = ht_trainer_steps(p->trainer);
    progress_end(&to.show);
    if (status != HT_OK) return cli_fail(error, "%s", ht_context_error(p->ctx));
    if (!v->quiet) ranks_print(&p->ranks, p->trainer);
    if (!ranks_agree(&p->ranks, linear_ends(p, v, error), error)) return false;
    if ((stopped || to.early) && !v->quiet)
        printf("stopped at step %lld; go on with: htransformer train --run %s --resume\n",
               (long long)at, v->run);
    else if (to.show.last < 0 && !v->quiet) /* no step was shown: there was none left */
        printf("nothing to do: the run is at step %lld of %lld; --steps N goes further\n",
               (long long)at, (long long)setting_int(p->config, "steps"));
    return true;
}

/* The device of this process, and the others. */
static bool open_all(run_parts *p, const train_values *v, int *code, cli_error *error) {
    const char *dtype = given_for(&v->key, "dtype");
    int f64 = dtype && strcmp(dtype, "f64") == 0;
    if (!ranks_find(&p->ranks, error)) return false;
    p->ctx = cli_open_device(ranks_device(&p->ranks, cli_device(v->device, f64)),
                             ranks_threads(&p->ranks, v->threads), code, error);
    p->on_gpu = p->ctx && strncmp(ht_context_device(p->ctx), "cuda", 4) == 0;
    return p->ctx && ranks_open(&p->ranks, p->ctx, error);
}

static int run(const void *values) {
    const train_values *v = values;
    train_values silent = *v;
    run_parts p = {.lock = -1};
    cli_error error = {""};
    int code = CLI_FAILED;
    signal(SIGPIPE, SIG_IGN); /* a run whose reader is gone still goes on and saves */
    bool open = open_all(&p, v, &code, &error);
    if (!ranks_first(&p.ranks)) silent.quiet = 1, v = &silent;
    if (open && !ranks_agree(&p.ranks, check_flags(p.ctx, v, &error), &error))
        code = CLI_USAGE;
    else if (open)
        code = prepare(&p, v, &error) && train(&p, v, &error) ? CLI_OK : CLI_FAILED;
    ht_linear_destroy(p.linear);
    ht_trainer_destroy(p.trainer);
    ht_model_destroy(p.model);
    ht_data_close(p.train);
    ht_data_close(p.valid);
    ht_tokenizer_close(p.tokenizer);
    ht_config_destroy(p.config);
    ranks_close(&p.ranks, "train", code == CLI_OK ? NULL : &error);
    ht_context_destroy(p.ctx);
    if (p.lock >= 0) close(p.lock);
    return code;
}

const cli_command cli_train = {
    .name = "train",
    .summary = "train a model on texts, labelled or not",
    .about = "Settings come from the preset, then --config, then flags; in brackets is what they "
             "are without a "
             "preset; config.json in the run folder has them all. Presets: small, small-listops, "
             "small-text, copy, recall run on a CPU in minutes; lra/listops, lra/text, "
             "lra/retrieval, lra/image, "
             "lra/pathfinder, lra/pathx have the sizes of the Long Range Arena, best/ and the same "
             "names are larger; lm/tiny, lm/small, lm/53m, lm/144m are language models.\n"
             "Options by the names of other programs are taken, too (--lr, --batch_size, "
             "--max_steps, --hidden_size, ...): docs/cli.md has the list.\n"
             "Ctrl-C and SIGTERM save a checkpoint and leave; --resume goes on from it.\n",
    .options = options,
    .values_bytes = sizeof(train_values),
    .run = run,
};
