/* Configurations: JSON into keys. What is taken can be written, and is read again as the same. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char once[8192], twice[8192];
    char *text = fuzz_text(&(fuzz_part){data, size});
    ht_config *config = fuzz_config("{}"), *again = fuzz_config("{}");
    if (fuzz_taken(ht_config_read_json(config, text))) {
        MUST(ht_config_write_json(config, once, sizeof once, NULL) == HT_OK);
        MUST(ht_config_read_json(again, once) == HT_OK);
        MUST(ht_config_write_json(again, twice, sizeof twice, NULL) == HT_OK);
        MUST(strcmp(once, twice) == 0);
        fuzz_taken(ht_config_check(config));
    }
    ht_config_destroy(config);
    ht_config_destroy(again);
    free(text);
    return 0;
}
