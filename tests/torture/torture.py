"""Commands of the program of which one allocation, one write or one read fails, each in turn.

    python3 torture.py --program htransformer --shim libtorture.so [--most N] [--only WORD]
                       [--kinds malloc,write,read]

However it goes: no crash; what ends with 0 said and wrote what it does undisturbed; files from
before are whole, new ones are whole or not there, and nothing else lies around. --most: so many
failures of each kind and command, spread evenly; without it every one. Prints a line per command
and exits with 1 if anything was found.
"""
import json
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

KINDS = ("malloc", "write", "read")
TINY = ("--layers 1 --width 8 --heads 1 --hidden 8 --length 24 --block 4 --batch 2 --warmup 0 "
        "--threads 1 --quiet ")
LISTOPS = "--listops_min 6 --listops_max 24 --train_items 12 --valid_items 4 "
GENERATE = "generate prose --prompt ab --tokens 6 --threads 1 --json "

# name, command, as the program's words in a folder that make_template has filled
COMMANDS = [
    ("train", "train --run new --data mail.tsv --valid mail.tsv --steps 2 --eval_every 2 " + TINY),
    ("train made", "train --run new --steps 1 " + LISTOPS + TINY),
    ("train text", "train --run new --preset small-text --data prose.txt --steps 2 " + TINY),
    ("train csv", "train --run new --data mail.csv --valid mail.csv --steps 1 " + TINY),
    ("train folders", "train --run new --data shelf --holdout 0 --steps 1 " + TINY),
    ("train recall", "train --run new --preset recall --steps 1 --train_items 4 --valid_items 2 " +
     TINY.replace("--length 24", "--length 32")),
    ("train tokens", "train --run new --preset small-text --data prose.txt --steps 1 --tokenizer "
     "tokenizer.json " + TINY),
    ("train items", "train --run new --preset recall --data sets/recall-train.tokens.zst "
     "--holdout 0.5 --steps 1 " + TINY.replace("--length 24", "--length 32")),
    ("train init", "train --run new --init demo --steps 1 " + LISTOPS + TINY),
    ("resume", "train --run demo --resume --steps 6 --threads 1 --quiet"),
    ("eval", "eval demo --fresh 4 --threads 1 --json"),
    ("eval text", "eval prose --data prose.txt --threads 1 --json"),
    ("eval mail", "eval mail --data mail.tsv --threads 1 --json"),
    ("predict", "predict mail --data lines.txt --threads 1"),
    ("predict text", "predict prose --data lines.txt --threads 1 --json"),
    ("generate", GENERATE + "--save_state new.state"),
    ("generate on", GENERATE + "--load_state old.state --repeat_penalty 1.2 --last"),
    ("generate open", GENERATE + "--open 1 --load_state opened.state --save_state new.state"),
    ("generate words", GENERATE.replace("prose", "words")),
    ("generate many", "generate prose --prompts lines.txt --tokens 4 --threads 1 --logprobs"),
    ("export", "export demo --to old.safetensors"),
    ("data recall", "data make recall --out sets --train 2 --valid 1 --test 1 --length 32 --json"),
    ("data make", "data make pathfinder --out sets --train 2 --valid 1 --test 1 --json"),
    ("data import", "data import imdb reviews --out sets --unchecked --threads 1 --json"),
    ("data show", "data show text 1 --data mail.tsv.gz"),
    ("report", "report demo prose -o old.html --evaluate --items 4 --threads 1 --json"),
    ("results", "results runs.jsonl --best"),
    ("map", "map --length 64 --block 4 --out old.svg"),
    ("map png", "map --attention --run prose --text ab --out new.png --threads 1"),
    ("attend", "attend --q q.npy --k q.npy --v q.npy --out new.npy --threads 1"),
]

TIMES = re.compile(rb'[, ]*"(ms|tokens_per_s|seconds|resident_bytes)": ?[-0-9.e+]+')
STEP = re.compile(r"step-(\d+)\.safetensors$")


class Program:
    def __init__(self, path, shim):
        self.path, self.shim = path, shim

    def run(self, words, folder, torture=None, count=None, shell=""):
        env = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", LC_ALL="C",
                   OMP_WAIT_POLICY="passive")
        if torture or count:
            env["LD_PRELOAD"] = self.shim
        if torture:
            env["TORTURE"] = torture
        if count:
            env["TORTURE_COUNT"] = count
        return subprocess.run([self.path] + words.split(), cwd=folder, env=env, timeout=120,
                              stdin=subprocess.DEVNULL, capture_output=True)

    def must(self, words, folder):
        done = self.run(words, folder)
        if done.returncode:
            sys.exit("torture: %s: %s" % (words, done.stderr.decode()))


def npy(path, numbers):
    import struct
    head = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, %d, 1, 4), }" % (numbers // 4)
    head += " " * (118 - len(head) - 1) + "\n"
    data = struct.pack("<%df" % numbers, *[(7 * i % 11) / 5 - 1 for i in range(numbers)])
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data)


def tokenizer(path):
    """A tokenizer.json: bytes, and one pair of them."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in seen]
    letters = dict(zip(seen + rest, map(chr, seen + list(range(256, 256 + len(rest))))))
    vocab = {letters[b]: b + 1 for b in range(256)}
    vocab["th"] = 257
    path.write_text(json.dumps({
        "added_tokens": [{"id": 0, "content": "<s>", "special": True}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["t h"]}}))


def make_template(program, folder):
    import gzip
    mail = "".join("%d\t%s\n" % (i % 2, "good words %d" % i) for i in range(9))
    (folder / "mail.tsv").write_text(mail)
    (folder / "mail.tsv.gz").write_bytes(gzip.compress(mail.encode(), mtime=0))
    (folder / "prose.txt").write_text("the cat sat on the mat. " * 12)
    (folder / "lines.txt").write_text("one line\nand another\nthe third\n")
    for part in ("train", "test"):
        for label in ("neg", "pos"):
            (folder / "reviews" / part / label).mkdir(parents=True)
            for i in range(2):
                (folder / "reviews" / part / label / ("%d.txt" % i)).write_text("words %d" % i)
    (folder / "mail.csv").write_text("label,text\n" + mail.replace("\t", ","))
    for label in ("ham", "spam", "more"):
        (folder / "shelf" / label).mkdir(parents=True)
        (folder / "shelf" / label / "1.txt").write_text("words of " + label)
    npy(folder / "q.npy", 48)
    program.must("train --run demo --steps 4 --save_every 2 " + LISTOPS + TINY, folder)
    program.must("train --run mail --data mail.tsv --valid mail.tsv --steps 2 " + TINY, folder)
    program.must("train --run prose --preset small-text --data prose.txt --steps 2 " + TINY, folder)
    tokenizer(folder / "tokenizer.json")
    program.must("train --run words --preset small-text --data prose.txt --steps 2 --tokenizer "
                 "tokenizer.json " + TINY, folder)
    program.must("data make recall --out sets --train 4 --valid 2 --test 1 --length 32", folder)
    program.must(GENERATE + "--save_state old.state", folder)
    program.must(GENERATE + "--open 1 --save_state opened.state", folder)
    (folder / "runs.jsonl").write_text("".join(
        '{"task": "text", "preset": "lra/text", "attention": "local", "commit": "0", "block": 16, '
        '"seed": %d, "steps": 9, "seconds": 3, "valid_accuracy": 0.5, "test_accuracy": 0.5, '
        '"test_error": 0.01}\n' % i for i in range(3)))
    for name in ("old.safetensors", "old.html", "old.svg"):
        (folder / name).write_text("from before\n")


def plain(data):
    return TIMES.sub(b"", data)


def files(folder):
    """Every file's bytes by its path; times in logs and pages left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = str(path.relative_to(folder))
            data = path.read_bytes()
            found[name] = plain(data) if name.endswith((".jsonl", ".json")) else data
    return found


def whole(data):
    """Is this a safetensors file from its first byte to its last?"""
    size = int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8:8 + size])
    tensors.pop("__metadata__", None)
    return len(data) == 8 + size + max(t["data_offsets"][1] for t in tensors.values())


def newest(found):
    steps = [int(m.group(1)) for m in map(STEP.search, found) if m]
    return max(steps) if steps else -1


class Case:
    """A command: what it does undisturbed, and what it does when something fails."""

    def __init__(self, program, template, name, words):
        self.program, self.template, self.name, self.words = program, template, name, words
        self.folder = template.parent / "work"
        self.before = files(template)

    def restore(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.template, self.folder)

    def calm(self):
        """Undisturbed, twice: the results, and how many calls there are of each kind."""
        count = str(self.template.parent / "count")
        self.restore()
        done = self.program.run(self.words, self.folder, count=count)
        if done.returncode:
            sys.exit("torture: %s: %d %s" % (self.words, done.returncode, done.stderr.decode()))
        self.out, self.after = plain(done.stdout), files(self.folder)
        self.restore()
        again = self.program.run(self.words, self.folder)
        if plain(again.stdout) != self.out or files(self.folder) != self.after:
            sys.exit("torture: %s is not the same twice" % self.words)
        return [int(n) for n in open(count).read().split()]

    def faults(self, kind, number):
        self.restore()
        try:
            done = self.program.run(self.words, self.folder, torture="%s:%d" % (kind, number))
        except subprocess.TimeoutExpired:
            return ["it does not end"]
        now, found = files(self.folder), []
        said = done.stderr.decode(errors="replace").strip().split("\n")
        if done.returncode not in (0, 1, 2):
            found.append("it ended with %d" % done.returncode)
        if done.returncode and len(said) < 2:
            found.append("it failed without a word")
        if kind == "read" and done.returncode == 0 and any("htransformer" in line for line in said):
            return found  # it went on without what it could not read, and said so
        if done.returncode == 0 and plain(done.stdout) != self.out:
            found.append("it ended with 0 and said something else")
        if done.returncode == 0 and not self.same_files(now, said):
            found.append("it ended with 0, but its files differ: %s" % self.differing(now))
        found += self.wrong_files(now, said)
        return ["%s (%s)" % (f, "; ".join(said)[-300:]) for f in found]

    def same_files(self, now, said):
        """What could not be removed may still be there: nothing is lost by it."""
        unlinked = any("torture: unlink" in line for line in said)
        more = {name: data for name, data in now.items() if name not in self.after}
        less = {name: data for name, data in now.items() if name in self.after}
        return less == self.after and all(
            unlinked or self.before.get(name) == data for name, data in more.items())

    def differing(self, now):
        names = set(now) | set(self.after)
        return ", ".join(sorted(n for n in names if now.get(n) != self.after.get(n)))[:200]

    def wrong_files(self, now, said):
        unlinked = any("torture: unlink" in line for line in said)
        for name, data in now.items():
            known = [side[name] for side in (self.before, self.after) if name in side]
            if name.endswith("log.jsonl"):  # grows: any beginning of it will do
                if not self.after.get(name, self.before.get(name, b"")).startswith(
                        data[:data.rfind(b"\n") + 1]):
                    yield "%s is another log" % name
            elif ".httmp-" in name:
                if not unlinked:
                    yield "%s was left over" % name
            elif not known and not (unlinked and STEP.search(name)):
                yield "%s should not be there" % name
            elif name.endswith("linear.safetensors") and whole(data):
                continue  # written twice: when it is fitted, when it is weighed
            elif known and data not in known:
                yield "%s is neither the old nor the new one" % name
        for name in self.before:
            if name not in now and (name in self.after or newest(now) < newest(self.before)):
                yield "%s is gone" % name


def spread(count, most):
    """Numbers 1 ... count, at most `most` of them, the first and the last ones among them."""
    if not most or count <= most:
        return range(1, count + 1)
    return sorted({1 + i * (count - 1) // max(1, most - 1) for i in range(most)})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--shim", required=True)
    parser.add_argument("--most", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--kinds", default=",".join(KINDS))
    args = parser.parse_args()
    room = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # files there need no disk
    top = pathlib.Path(tempfile.mkdtemp(prefix="ht-torture-", dir=room))
    program = Program(os.path.abspath(args.program), os.path.abspath(args.shim))
    try:
        probe = program.run("--version", top, torture="write:1000000")
        if probe.returncode == 125:
            print("torture: no seccomp filter may be installed here: skipped")
            return 77
        (top / "template").mkdir()
        make_template(program, top / "template")
        return torture(program, top / "template", args)
    finally:
        shutil.rmtree(top, ignore_errors=True)


def torture(program, template, args):
    runs = found = 0
    for name, words in COMMANDS:
        if args.only and args.only not in name:
            continue
        case = Case(program, template, name, words)
        counts, tried, wrong = dict(zip(KINDS, case.calm())), [], 0
        for kind in args.kinds.split(","):
            numbers = spread(counts[kind], args.most)
            tried.append("%s %d of %d" % (kind, len(numbers), counts[kind]))
            for number in numbers:
                runs += 1
                for fault in case.faults(kind, number):
                    wrong += 1
                    if wrong <= 40:
                        print("  %s, %s %d: %s" % (name, kind, number, fault))
        found += wrong
        print("%-14s %s: %s" % (name, ", ".join(tried), "%d FOUND" % wrong if wrong else "good"),
              flush=True)
    print("torture: %d runs, %d findings" % (runs, found))
    return 1 if found or not runs else 0


sys.exit(main())
