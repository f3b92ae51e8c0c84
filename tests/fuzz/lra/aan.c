/*
 * The ACL Anthology Network: papers and pairs, or official lines of five columns, where the first
 * byte says so.
 */
#include "import.h"

#include <stdio.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int official = -1;
    fuzz_part rest = {data, size};
    int how = fuzz_option(&rest) & 1;
    char papers[128];
    snprintf(papers, sizeof papers, "%s/aan-papers.tsv", fuzz_root());
    if (official < 0) {
        fuzz_link("aan-papers.tsv", 0), fuzz_link("aan-train.tsv", 1);
        fuzz_link("aan-valid.tsv", 2), fuzz_link("aan-test.tsv", 3);
        fuzz_link("new_aan_pairs.train.tsv", 1), fuzz_link("new_aan_pairs.eval.tsv", 2);
        fuzz_link("new_aan_pairs.test.tsv", 3);
        official = 0;
    }
    if (how && !official) MUST(unlink(papers) == 0);
    import_parts(&rest, 4); /* official: the first is not read */
    if (!how && official) fuzz_link("aan-papers.tsv", 0);
    official = how;
    import_set("aan");
    return 0;
}
