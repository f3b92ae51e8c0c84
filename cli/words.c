/*
 * Other programs' words.
 */
#include "words.h"

#include <string.h>

/* Our option, and what others call it; `only`: in this command, elsewhere ours means another thing.
 * A word may stand for several options of several commands. */
static const struct {
    const char *only, *ours, *theirs[CLI_WORDS];
} same[] = {
    {"train", "run", {"output_dir", "out_dir", "save_dir", "run_dir"}},
    {NULL, "data", {"train_file", "train_data", "dataset", "data_path", "data_dir", "input_file"}},
    {"train",
     "valid",
     {"validation_file", "valid_file", "valid_data", "val_data", "val_file", "dev_file",
      "eval_file", "validation", "val", "dev"}},
    {NULL, "holdout", {"val_split", "validation_split", "valid_split", "test_size"}},
    {NULL,
     "text_column",
     {"text_field", "text_key", "text_col", "text_columns", "text_column_names"}},
    {NULL, "label_column", {"label_field", "label_key", "label_col", "label_column_name"}},
    {NULL, "rate", {"lr", "learning_rate", "base_lr"}},
    {NULL,
     "steps",
     {"max_steps", "num_steps", "train_steps", "max_iters", "iterations", "total_steps"}},
    {NULL, "epochs", {"num_epochs", "num_train_epochs", "n_epochs", "max_epochs"}},
    {NULL, "patience", {"early_stopping_patience"}},
    {NULL, "minutes", {"max_minutes", "time_limit"}},
    {NULL, "batch", {"batch_size", "per_device_train_batch_size", "train_batch_size", "bs"}},
    {NULL, "accumulate", {"gradient_accumulation_steps", "accumulation_steps", "grad_accum"}},
    {NULL,
     "length",
     {"seq_len", "seq_length", "max_length", "max_len", "max_seq_length", "max_seq_len",
      "context_length", "context", "sequence_length"}},
    {NULL,
     "width",
     {"hidden_size", "d_model", "n_embd", "embed_dim", "embedding_dim", "model_dim", "dim"}},
    {NULL, "layers", {"num_layers", "n_layer", "n_layers", "num_hidden_layers", "depth"}},
    {NULL, "heads", {"num_heads", "n_head", "n_heads", "num_attention_heads"}},
    {NULL, "kv_heads", {"num_kv_heads", "n_kv_heads", "num_key_value_heads"}},
    {NULL, "hidden", {"intermediate_size", "ffn_dim", "d_ff", "mlp_dim"}},
    {NULL, "classes", {"num_labels", "num_classes", "n_classes"}},
    {NULL, "vocab", {"vocab_size"}},
    {NULL, "dropout", {"dropout_rate", "hidden_dropout_prob"}},
    {NULL, "attention_dropout", {"attn_dropout", "attention_probs_dropout_prob"}},
    {NULL, "warmup", {"warmup_steps", "warmup_iters", "num_warmup_steps"}},
    {NULL, "schedule", {"lr_scheduler", "lr_scheduler_type", "scheduler", "lr_schedule"}},
    {NULL, "weight_decay", {"wd"}},
    {NULL, "optimizer", {"optim"}},
    {NULL, "clip", {"max_grad_norm", "grad_clip", "gradient_clip"}},
    {NULL, "beta1", {"adam_beta1"}},
    {NULL, "beta2", {"adam_beta2"}},
    {NULL, "seed", {"random_seed", "rng_seed"}},
    {NULL, "eval_every", {"eval_steps", "eval_interval"}},
    {NULL, "save_every", {"save_steps", "save_interval"}},
    {"train", "keep", {"save_total_limit"}},
    {NULL, "tokens", {"max_new_tokens", "max_tokens", "n_tokens", "num_tokens", "n_predict"}},
    {NULL, "temperature", {"temp"}},
    {NULL, "top_k", {"topk"}},
    {NULL, "top_p", {"topp"}},
    {NULL, "repeat_penalty", {"repetition_penalty"}},
    {NULL, "prompts", {"prompt_file"}},
    {NULL, "out", {"output", "output_file", "outfile"}},
    {NULL, "to", {"output", "output_file", "outfile", "out"}},
    {NULL, "threads", {"num_threads", "n_threads", "nthreads"}},
};
enum { SAME = sizeof same / sizeof *same };

/* Words that have no option of ours with the same meaning; command NULL: any. */
static const struct {
    const char *command, *theirs[CLI_WORDS], *answer;
} answers[] = {
    {"train",
     {"block_size"},
     "the context of a model is --length here; --block is the attention's block"},
    {"train",
     {"fp16", "bf16", "half", "amp", "mixed_precision", "precision"},
     "--dtype bf16 does that, on a GPU"},
    {"train",
     {"model", "model_name", "model_name_or_path", "pretrained", "checkpoint", "ckpt", "weights"},
     "--init RUN starts with the weights of a run or checkpoint of this program; those of others "
     "cannot be loaded"},
    {NULL,
     {"model", "model_path", "checkpoint", "ckpt", "weights"},
     "the run or checkpoint is a word of its own: htransformer eval RUN"},
    {"train",
     {"resume_from_checkpoint", "resume_from", "continue"},
     "--resume goes on with the run in the folder of --run"},
    {"train", {"gradient_checkpointing", "checkpointing", "remat"}, "--recompute 1 does that"},
    {"train",
     {"early_stopping", "load_best_model_at_end"},
     "--patience N ends a run after N evaluations without a better one; the weights of the best "
     "are "
     "kept and used anyway: best.safetensors"},
    {"train",
     {"test_file", "test_data", "test"},
     "train sees no test data; afterwards: htransformer eval RUN --data FILE"},
    {"train",
     {"num_workers", "dataloader_num_workers"},
     "there are none: data lies in memory; --threads N are for computing"},
    {"train",
     {"wandb", "report_to", "tensorboard", "logging_dir", "logging_steps", "log_interval"},
     "every step is in log.jsonl of the run; htransformer report RUN draws it"},
    {NULL, {"gpu", "gpus", "cuda", "use_gpu"}, "--device cuda:0 takes the first GPU"},
    {NULL, {"cpu", "no_cuda", "use_cpu"}, "--device cpu"},
    {"generate", {"num_samples", "n", "num_return_sequences"}, "--prompts FILE makes many texts"},
    {"generate", {"greedy", "do_sample"}, "--temperature 0 takes the likeliest token"},
};
enum { ANSWERS = sizeof answers / sizeof *answers };

static const struct {
    const char *theirs[CLI_WORDS], *answer;
} commands[] = {
    {{"chat", "talk", "complete", "sample", "infer", "run", "write"},
     "htransformer generate RUN --prompt TEXT goes on with a text; models here learn from plain "
     "text, not from conversations"},
    {{"serve", "server", "api", "deploy"},
     "there is no server; htransformer predict RUN and generate RUN read lines from a pipe, and "
     "the "
     "C library does the same inside a program: docs/api.md"},
    {{"import", "convert", "load", "from_pretrained", "pull", "download"},
     "weights of other models cannot be loaded: they were trained with another attention. Data is "
     "read as it is (htransformer train --data FILE), the Long Range Arena by data import"},
    {{"finetune", "fine-tune", "tune", "pretrain", "fit", "learn"},
     "htransformer train, with --init RUN from the weights of another run"},
    {{"test", "evaluate", "validate", "score", "perplexity"}, "htransformer eval RUN --data FILE"},
    {{"classify", "inference", "label", "tag"}, "htransformer predict RUN --data FILE"},
    {{"plot", "tensorboard", "log", "logs", "curve", "dashboard"},
     "htransformer report RUN makes a page with the curves"},
    {{"devices", "gpu", "gpus", "status", "doctor", "env"}, "htransformer info"},
    {{"tokenize", "tokenizer", "encode"},
     "tokens are bytes, or with train --tokenizer FILE those of a SentencePiece model or a "
     "tokenizer.json"},
    {{"benchmark", "speed", "profile"}, "htransformer bench attention, or bench decode"},
    {{"save", "quantize", "onnx", "gguf"}, "htransformer export RUN --to FILE.safetensors"},
    {{"embed", "embeddings", "vectors"},
     "in Python htransformer.load(RUN).embed(texts), in C ht_trainer_embed"},
    {{"version"}, "htransformer --version"},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

/* '-' and '_' are the same to us. */
static bool is_word(const char *word, const char *name, size_t n) {
    size_t i = 0;
    for (; i < n && word[i]; i++)
        if (word[i] != name[i] && !(word[i] == '_' && name[i] == '-')) return false;
    return i == n && !word[i];
}

static bool is_one_of(const char *const *list, int most, const char *name, size_t n) {
    for (int i = 0; i < most && list[i]; i++)
        if (is_word(list[i], name, n)) return true;
    return false;
}

bool cli_word_is_of(int index, const cli_command *command) {
    const char *only = same[index].only;
    if (only && strcmp(only, command->name) != 0) return false;
    for (const cli_option *o = command->options; o->name; o++)
        if (strcmp(o->name, same[index].ours) == 0) return true;
    return false;
}

const char *cli_word_option(const char **answer, const cli_command *command, const char *name,
                            size_t n) {
    *answer = NULL;
    for (int i = 0; i < SAME; i++)
        if (is_one_of(same[i].theirs, CLI_WORDS, name, n) && cli_word_is_of(i, command))
            return same[i].ours;
    for (int i = 0; i < ANSWERS && !*answer; i++) {
        bool here = !answers[i].command || strcmp(answers[i].command, command->name) == 0;
        if (here && is_one_of(answers[i].theirs, CLI_WORDS, name, n)) *answer = answers[i].answer;
    }
    return NULL;
}

const char *cli_word_command(const char *name) {
    for (int i = 0; i < COMMANDS; i++)
        if (is_one_of(commands[i].theirs, CLI_WORDS, name, strlen(name))) return commands[i].answer;
    return NULL;
}

const char *cli_word_row(const char *const **theirs, int index) {
    if (index >= SAME) return NULL;
    *theirs = same[index].theirs;
    return same[index].ours;
}
