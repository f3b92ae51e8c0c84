"""Every command on the pages is run, or is listed in listed.txt with who runs it.

    commands.py PROGRAM ROOT

A command is a line of a code block (four spaces, or between ```) that begins with one of the words
below. Those of htransformer are run here, in a folder with small files of the names that the pages
use, and made short by options at their end; all must end with 0. The others must be listed: a line
`command  # why it is not run here, or what runs it`; a command that ends in ... stands for all that
begin so. Settings of the environment in front of a command do not count.
"""
import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile

FIRST = re.compile(r"^([A-Z0-9_]+=\S* )*((build/)?htransformer( [a-z]|$)|(scripts|bench)/|\. <"
                   r"|(cmake|ctest|cc|python3|pip|sudo|export|dpkg|apt-get|ninja) )")
TINY = ("--layers 2 --width 16 --heads 2 --hidden 16 --head_hidden 8 --length 64 --batch 4 "
        "--steps 4 --quiet --threads 1")
LISTOPS = "--train_items 60 --valid_items 12 --listops_min 4 --listops_max 60"
SHORT = {"bench": "--repeat 1 --threads 1"}


def blocks(text):
    """Lines of code of a page; a backslash at the end joins two."""
    fenced = False
    for line in re.sub(r"\\\n\s*", "", text).split("\n"):
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield line.strip()


def commands(root):
    """(command, page) of all pages, each command once."""
    seen = {}
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md")),
                 root / "python/README.md"]:
        for line in blocks(page.read_text()):
            line = re.split(r"\s{2,}#|\s#\s", line)[0].strip()
            if FIRST.match(line) and not re.search(r"\bCOMMAND\b|\[options\]", line):
                seen.setdefault(line, page.name)
    return seen


def listed(path):
    out = {}
    for line in path.read_text().split("\n"):
        if line and not line.startswith("#"):
            command, _, why = line.rpartition("  # ")
            if not command or not why.strip():
                sys.exit("listed.txt: no reason in: " + line)
            out[command.strip()] = why
    return out


def listed_as(command, known):
    """The line of listed.txt that the command falls under, or None."""
    command = re.sub(r"^([A-Z0-9_]+=\S* )*", "", command)
    for line in known:
        if command == line or (line.endswith("...") and command.startswith(line[:-3])):
            return line
    return None


def write_npy(path, shape, numbers, kind="<f4"):
    text = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (kind, shape)
    text = text.ljust(117) + "\n"
    data = struct.pack("<%d%s" % (len(numbers), kind[1].replace("8", "")), *numbers)
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data)


def prepare(work, root):
    """The files that the pages speak of."""
    lines = ["%d\t%s" % (i % 2, ["good", "bad"][i % 2] * 3) for i in range(80)]
    for name in ("mail.tsv", "more.tsv", "imdb-train.tsv"):
        (work / name).write_text("\n".join(lines) + "\n")
    for name in ("mail.csv", "more.csv"):
        (work / name).write_text("label,text\n" + "\n".join(lines).replace("\t", ",") + "\n")
    shutil.copy(root / "tests/fuzz/seeds/bpe/a_bytes", work / "tokenizer.json")
    (work / "sites.tsv").write_text("".join("%d\t%s\n" % (i % 2, "ACGT"[i % 4:] * 9)
                                            for i in range(80)))
    (work / "genes.fasta").write_text("".join(">gene %d\n%s\n" % (i, "ACGGT" * 40)
                                              for i in range(9)))
    (work / "long.jsonl").write_text("".join('{"label": %d, "text": "%s"}\n' % (i % 2, "a b " * 90)
                                             for i in range(80)))
    (work / "books").mkdir()
    for name in ("books/one.txt", "more.txt"):
        (work / name).write_text("the cat sat on the mat. " * 120)
    numbers = [((i * 2654435761) % 1000) / 500 - 1 for i in range(64 * 2 * 8)]
    for name in "qkv":
        write_npy(work / (name + ".npy"), (1, 64, 2, 8), numbers)
    matrix = [1 / (1 + abs(i - j)) for i in range(16) for j in range(16)]
    write_npy(work / "A.npy", (16, 16), matrix)


def shorten(words):
    if words[0] == "train":
        tail = TINY if {"--data", "--resume"} & set(words) else TINY + " " + LISTOPS
        return words + shlex.split(tail)
    return words + shlex.split(SHORT.get(words[0], ""))


def run(program, root, work, command):
    """Exit status and what it said."""
    words = shlex.split(command)
    environment = dict(os.environ)
    if words[0] == "python3":
        words[0] = sys.executable
        environment["PYTHONPATH"] = str(root / "python")
        environment["HTRANSFORMER_LIBRARY"] = str(program.parent / "libhtransformer.so")
    else:
        words = [str(program), *shorten(words[1:])]
    if " train " in command and "--run" in words and "--resume" not in words:
        shutil.rmtree(work / words[words.index("--run") + 1], ignore_errors=True)
    done = subprocess.run(words, cwd=work, capture_output=True, env=environment, timeout=300,
                          stdin=subprocess.DEVNULL)
    return done.returncode, done.stderr.decode(errors="replace").strip()


def runs_here(command):
    """Of the program itself, or one line of Python where NumPy is there."""
    if re.match(r"(build/)?htransformer ", command):
        return True
    return command.startswith("python3 -c ") and importlib.util.find_spec("numpy") is not None


def order(command):
    """Runs before what uses them."""
    return (not command.startswith("htransformer train"), 0)


def main():
    program, root = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    found, known = commands(root), listed(pathlib.Path(__file__).parent / "listed.txt")
    faults = ran = 0
    used = set()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        prepare(work, root)
        # runs that the pages name without making them
        for name in ("demo", "other"):
            run(program, root, work, "htransformer train --run " + name)
        for command in sorted(found, key=order):
            if listed_as(command, known):
                used.add(listed_as(command, known))
                continue
            if command.startswith("python3 -c ") and not runs_here(command):
                print("no NumPy here: not run: " + command)
                continue
            if not runs_here(command):
                print("%s: neither run nor listed: %s" % (found[command], command))
                faults += 1
                continue
            code, said = run(program, root, work, command)
            ran += 1
            if code != 0:
                print("%s: ended with %d: %s\n    %s" % (found[command], code, command, said))
                faults += 1
    for line in sorted(set(known) - used):
        print("listed.txt: on no page any more: " + line)
    print("%d commands: %d run, %d faults" % (len(found), ran, faults))
    sys.exit(1 if faults or not ran else 0)


main()
