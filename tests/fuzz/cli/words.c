/* Command lines: which command the first byte says, its words the lines of the rest. */
#include "fuzz.h"

#include <commands.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <words.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int made;
    fuzz_part rest = {data, size};
    if (!made++) cli_train_options(), MUST((stderr = fopen("/dev/null", "w")) != NULL);
    int which = fuzz_option(&rest), commands = 0, count = 0;
    char *text = fuzz_text(&rest), *words[64];
    while (cli_commands[commands]) commands++;
    const cli_command *command = cli_commands[which % commands];
    for (char *word = strtok(text, "\n"); word && count < 64; word = strtok(NULL, "\n"))
        words[count++] = word;
    cli_error error = {""};
    void *values = calloc(1, command->values_bytes + 1);
    MUST(values != NULL);
    MUST(cli_parse(values, command, count, words, &error) == !error.text[0]);
    fuzz_said(error.text);
    if (count) cli_word_command(words[0]);
    free(values);
    free(text);
    return 0;
}
