"""Every file of src/ and cli/ that reads foreign bytes has a fuzz target: readers.txt says which.

    python3 readers.py ROOT
"""
import pathlib
import re
import sys

READS = re.compile(
    r"\b(hti_file_(open|open_stream|read|line)|hti_stream_read|hti_source_(read|lines)|"
    r"hti_reader_open|hti_json_parse|ht_cache_load|hti_spm_open|hti_bpe_open|"
    r"save_(open_input|open_stream|line)|run_read_(text|part)|json_parse|npy_open\w*|fread|"
    r"getline|fgets|scandir|opendir|png_\w*read\w*|(inflate|ZSTD_dec)\w*) ?\(")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
# what all readers go through; none of them knows what the bytes mean
COMMON = {"src/common/file.c", "src/common/file.h", "src/common/public.c", "cli/base/save.c",
          "cli/base/save.h"}


def main():
    root = pathlib.Path(sys.argv[1])
    fuzz, faults, listed = root / "tests" / "fuzz", [], {}
    for line in (fuzz / "readers.txt").read_text().split("\n"):
        if line and line[0] != "#":
            path, targets = line.split(":")
            listed[path] = [] if targets.startswith(" - ") else targets.split()
    found = set()
    for path in sorted([*(root / "src").rglob("*.c*"), *(root / "cli").rglob("*.c")]):
        name = str(path.relative_to(root))
        if name not in COMMON and READS.search(COMMENT.sub("", path.read_text())):
            found.add(name)
    faults += ["%s reads, but readers.txt has no target for it" % n for n in found - set(listed)]
    faults += ["%s is in readers.txt, but does not read" % n for n in set(listed) - found]
    targets = {path.stem for path in fuzz.glob("*/*.c")}
    used = {target for names in listed.values() for target in names}
    faults += ["readers.txt has a target %s, which there is not" % n for n in used - targets]
    faults += ["target %s is of no reader" % n for n in targets - used - {"words"}]
    faults += ["target %s has no seeds" % n for n in targets
               if not list((fuzz / "seeds" / n).glob("*"))]
    print("%d readers, %d targets" % (len(found), len(targets)))
    for fault in sorted(faults):
        print(fault)
    sys.exit(1 if faults or not found else 0)


main()
