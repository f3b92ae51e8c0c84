/*
 * Sums of losses, and what they mean.
 *
 * Words are what white space separates. The end of a line in WikiText, and of a line that is a
 * document, counts as one more, as in published perplexities per word of such files.
 */
#include "eval/measure.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#define LONG_WORD 20.0 /* bytes of a word and its blank; no language that has blanks needs more */

/* ---- adding up ---- */

static void add_ratio(measure_ratio *r, double amount, double loss) {
    r->amount += amount;
    r->square += amount * amount;
    r->cross += amount * loss;
}

/* Words that begin in the target's bytes, after a byte that is white space or the start. */
static int words_in(const measure *m, int32_t before, int32_t target) {
    size_t n, k;
    const char *last = ht_tokenizer_piece(m->tokenizer, before, &k);
    const char *piece = ht_tokenizer_piece(m->tokenizer, target, &n);
    int gap = k == 0 || isspace((unsigned char)last[k - 1]), words = 0;
    if (target == 0) return strcmp(m->documents, "lines") == 0;
    for (size_t i = 0; i < n; i++) {
        int space = isspace((unsigned char)piece[i]);
        words += !space && gap;
        words += piece[i] == '\n' && strcmp(m->documents, "wikitext") == 0;
        gap = space;
    }
    return words;
}

static int place_of(int32_t position) {
    int place = 0;
    while (position > 0) position >>= 1, place++;
    return place;
}

static void add_sequence(measure *m, const ht_batch *b, const float *losses, int32_t from,
                         int32_t to) {
    double loss = 0, tokens = 0, words = 0, bytes = 0;
    for (int32_t i = from; i < to; i++) {
        size_t n;
        if (b->targets[i] < 0) continue;
        ht_tokenizer_piece(m->tokenizer, b->targets[i], &n);
        loss += losses[i];
        tokens++;
        bytes += (double)n;
        words += words_in(m, b->tokens[i], b->targets[i]);
        int place = place_of(i - from);
        m->place_loss[place] += losses[i];
        m->place_square[place] += (double)losses[i] * losses[i];
        m->place_count[place]++;
    }
    if (tokens == 0) return;
    m->loss += loss;
    m->square += loss * loss;
    m->sequences++;
    add_ratio(&m->tokens, tokens, loss);
    add_ratio(&m->words, words, loss);
    add_ratio(&m->bytes, bytes, loss);
}

void measure_add(measure *m, const ht_batch *b, const float *losses) {
    for (int64_t i = 0; i < b->sequences; i++)
        add_sequence(m, b, losses, b->cu_seqlens[i], b->cu_seqlens[i + 1]);
}

/* ---- what they mean ---- */

double measure_loss(const measure *m, const measure_ratio *r) { return m->loss / r->amount; }

/* The error of a ratio of sums: the spread of loss - R * amount over sequences. */
double measure_error(const measure *m, const measure_ratio *r) {
    double ratio = measure_loss(m, r), n = m->sequences;
    double spread = m->square - 2 * ratio * r->cross + ratio * ratio * r->square;
    return n < 2 ? NAN : sqrt(fmax(0, spread) * n / (n - 1)) / r->amount;
}

static double place_error(const measure *m, int i) {
    double n = m->place_count[i], mean = m->place_loss[i] / n;
    return n < 2 ? NAN : sqrt(fmax(0, m->place_square[i] / n - mean * mean) / (n - 1));
}

static long long place_first(int i) { return i == 0 ? 0 : 1LL << (i - 1); }
static long long place_last(int i) { return i == 0 ? 0 : (1LL << i) - 1; }

/* A number with so many digits, "?" where it is not known. */
static const char *known(char out[32], double x, int digits) {
    snprintf(out, 32, isnan(x) ? "?" : "%.*f", digits, x);
    return out;
}

bool measure_has_words(const measure *m) {
    return strcmp(m->documents, "fasta") != 0 && m->words.amount > 0 &&
           m->bytes.amount / m->words.amount <= LONG_WORD;
}

static const char *why_no_words(char *out, size_t bytes, const measure *m) {
    if (strcmp(m->documents, "fasta") == 0) return "bases are no words";
    if (m->words.amount == 0) return "there are no words";
    snprintf(out, bytes, "between white space lie %.0f bytes on average, not words",
             m->bytes.amount / m->words.amount);
    return out;
}

void measure_print(const measure *m, const char *model, int by_position) {
    char a[32], b[32], why[96];
    double token = measure_loss(m, &m->tokens), word = measure_loss(m, &m->words);
    double token_error = measure_error(m, &m->tokens), word_error = measure_error(m, &m->words);
    printf("%.4f +- %s bits per byte over %.0f bytes (%s)\n", measure_loss(m, &m->bytes) / log(2),
           known(a, measure_error(m, &m->bytes) / log(2), 4), m->bytes.amount, model);
    printf("loss %.4f +- %s and perplexity %.2f +- %s per token, of %.0f\n", token,
           known(a, token_error, 4), exp(token), known(b, exp(token) * token_error, 2),
           m->tokens.amount);
    if (!measure_has_words(m))
        printf("perplexity per word means nothing here: %s\n", why_no_words(why, sizeof why, m));
    else
        printf("loss %.4f +- %s and perplexity %.2f +- %s per word, of %.0f\n", word,
               known(a, word_error, 4), exp(word), known(b, exp(word) * word_error, 2),
               m->words.amount);
    if (m->sequences < 2) printf("one sequence has no spread, so its errors are not known\n");
    if (!by_position) return;
    printf("%19s %10s %9s %10s\n", "position", "loss", "+-", "tokens");
    for (int i = 0; i < MEASURE_PLACES; i++)
        if (m->place_count[i] > 0)
            printf("%9lld-%9lld %10.4f %9s %10.0f\n", place_first(i), place_last(i),
                   m->place_loss[i] / m->place_count[i], known(a, place_error(m, i), 4),
                   m->place_count[i]);
}

void measure_json(const measure *m, json_writer *json, int by_position) {
    double token = measure_loss(m, &m->tokens), word = measure_loss(m, &m->words);
    double token_error = measure_error(m, &m->tokens), word_error = measure_error(m, &m->words);
    json_int(json, "targets", (int64_t)m->tokens.amount);
    json_int(json, "bytes", (int64_t)m->bytes.amount);
    json_int(json, "words", (int64_t)m->words.amount);
    json_int(json, "sequences", (int64_t)m->sequences);
    json_real(json, "loss", token);
    json_real(json, "loss_error", token_error);
    json_real(json, "perplexity", exp(token));
    json_real(json, "perplexity_error", exp(token) * token_error);
    json_real(json, "bits_per_byte", measure_loss(m, &m->bytes) / log(2));
    json_real(json, "bits_per_byte_error", measure_error(m, &m->bytes) / log(2));
    if (!measure_has_words(m)) word = word_error = NAN;
    json_real(json, "word_loss", word);
    json_real(json, "word_loss_error", word_error);
    json_real(json, "word_perplexity", exp(word));
    json_real(json, "word_perplexity_error", exp(word) * word_error);
    if (!by_position) return;
    json_open(json, "by_position", '[');
    for (int i = 0; i < MEASURE_PLACES; i++) {
        if (m->place_count[i] == 0) continue;
        json_open(json, NULL, '{');
        json_int(json, "from", place_first(i));
        json_int(json, "to", place_last(i));
        json_real(json, "loss", m->place_loss[i] / m->place_count[i]);
        json_real(json, "loss_error", place_error(m, i));
        json_int(json, "targets", (int64_t)m->place_count[i]);
        json_close(json, '}');
    }
    json_close(json, ']');
}
