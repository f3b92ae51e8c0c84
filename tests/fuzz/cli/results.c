/* A file of runs as the command results reads it; what is read becomes a table. */
#include "fuzz.h"

#include <commands.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static void *values;
    static FILE *nowhere;
    fuzz_part rest = {data, size};
    int how = fuzz_option(&rest);
    char path[128], *words[] = {path, "--best", "--markdown"};
    cli_error error = {""};
    snprintf(path, sizeof path, "%s", fuzz_file(0, rest.at, rest.bytes));
    if (!values) {
        values = calloc(1, cli_results.values_bytes);
        MUST(values && (nowhere = fopen("/dev/null", "w")) != NULL);
        stderr = nowhere;
    }
    MUST(cli_parse(values, &cli_results, 1 + how % 3, words, &error));
    FILE *own = stdout;
    stdout = nowhere;
    int code = cli_results.run(values);
    stdout = own;
    MUST(code == CLI_OK || code == CLI_FAILED);
    fuzz_said(code == CLI_OK ? NULL : "refused");
    return 0;
}
