"""scripts/abi.py's own test: after a release what may come passes, and what breaks a program that
was built with it is caught by its name.

    abi.py ROOT
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
NEW = "HT_API int ht_news(int count);"
# name, file, what stands there, what comes there, what is said; None: it may come
CASES = [
    ("nothing", "include/htransformer.h", "", "", None),
    ("another comment", "include/htransformer.h", "/* \"0.1.0\" */", "/* the release */", None),
    ("another name of a parameter", "include/htransformer.h", "ht_status status);",
     "ht_status which);", None),
    ("a function", "include/htransformer.h", "HT_API const char *ht_version(void);",
     "HT_API const char *ht_version(void);\n" + NEW, None),
    ("a field at the end", "include/htransformer.h", "    int64_t open_peek;",
     "    int64_t open_peek;\n    int64_t more;", None),
    ("a constant at the end", "include/htransformer.h", "HT_LOCAL = 2", "HT_LOCAL = 2, HT_X", None),
    ("an argument", "include/htransformer.h", "ht_attention *plan, int64_t length);",
     "ht_attention *plan, int length);", "ht_attention_levels was int("),
    ("a result", "include/htransformer.h", "HT_API int ht_device_count(void);",
     "HT_API int64_t ht_device_count(void);", "ht_device_count was int(void), and is"),
    ("a function that goes", "include/htransformer.h", "HT_API const char *ht_version(void);", "",
     "ht_version was const char*(void), and is gone"),
    ("a function's version", "cmake/htransformer.map.in", "        ht_version;\n", "",
     "ht_version came with HTRANSFORMER_0.1, and is in no version"),
    ("a field in the middle", "include/htransformer.h", "    int causal;     /*",
     "    int more;\n    int causal;     /*", "ht_attention_desc: its field \"int causal\" is now"),
    ("a field's type", "include/htransformer.h", "    double dropout; ", "    float dropout; ",
     "ht_attention_desc: its field \"double dropout\" is now \"float dropout\""),
    ("a field that goes", "include/htransformer.h", "    double rotary_theta;", "    //",
     "ht_attention_desc: its field \"double rotary_theta\" is now"),
    ("a struct without a size", "include/htransformer.h", "    int64_t head_stride;",
     "    int64_t head_stride;\n    int64_t more;", "ht_tensor has no size, so it cannot grow"),
    ("a field behind two of four bytes", "include/htransformer.h", "    int chosen; /* this",
     "    int chosen;\n    int more; /* this", None),
    ("a field in the padding", "include/htransformer_models.h",
     "    int tired; /*", "    int tired;\n    int inside; /*",
     "ht_event: \"int inside\" lies in the padding"),
    ("an enum's number", "include/htransformer.h", "HT_FULL = 1,", "HT_FULL = 3,",
     "HT_FULL was 1, and is 3"),
    ("a status", "include/htransformer.h", "X(NOMEM, 3,", "X(NOMEM, 30,", "HT_NOMEM was 3, and"),
]


def run(tree, *words):
    done = subprocess.run([sys.executable, str(tree / "scripts/abi.py"), *words],
                          capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as room:
        tree = pathlib.Path(room)
        for folder in ("include", "cmake", "scripts"):
            (tree / folder).mkdir()
            for path in (ROOT / folder).iterdir():
                if path.suffix in (".h", ".in") or path.name == "abi.py":
                    shutil.copy(path, tree / folder)
        code, said = run(tree, "--release")
        if code or not (tree / "cmake/released.json").is_file():
            sys.exit("no release: " + said)
        for name, file, before, after, words in CASES:
            path = tree / file
            text = path.read_text()
            path.write_text(text.replace(before, after, 1) if before else text)
            changed = path.read_text() != text
            code, said = run(tree)
            good = code == 0 if words is None else code == 1 and words in said
            if before and not changed:
                good, said = False, "the header has no " + before
            print("%s: %s" % (name, "fine" if good else "WRONG: " + said))
            failed += not good
            path.write_text(text)
    sys.exit(1 if failed else 0)


main()
