/* A run's folder as report reads it: configuration, form feed, log; what is read becomes a page. */
#include "fuzz.h"

#include <report/report.h>
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static FILE *nowhere;
    fuzz_part rest = {data, size};
    if (!nowhere) {
        nowhere = fopen("/dev/null", "w");
        MUST(nowhere != NULL);
        fuzz_link("config.json", 0), fuzz_link("log.jsonl", 1);
    }
    fuzz_part config = fuzz_next(&rest);
    fuzz_file(0, config.at, config.bytes);
    fuzz_file(1, rest.at, rest.bytes);
    report_run run;
    report_values values = {.items = 1};
    cli_error error = {""};
    bool good = report_read(&run, fuzz_root(), &error);
    MUST(good || error.text[0]);
    if (fuzz_said(error.text)) {
        MUST(report_page(nowhere, &run, 1, &values, &error));
        report_best(&run);
    }
    report_release(&run);
    return 0;
}
