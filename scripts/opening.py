#!/usr/bin/env python3
"""The experiments of docs/lab/opening.md as named runs; each adds a line to results/opening.jsonl.

    python3 scripts/opening.py list [PATTERN ...]    names that the page speaks of
    python3 scripts/opening.py run NAME|PATTERN ...  these, but for those that have a line already
    python3 scripts/opening.py tables [--markdown]   what the lines say

A name is TASK-LENGTH-WAY[-OPTION ...]. TASK: copy, recall, or lm (Wikipedia's bytes). WAY: full,
local, first (the paper's causal queries), fine (each row its own), kN (fine, and N clusters
opened). OPTION: peekP (0: the mean alone), leafW, bB (block; 8 up to a length of 256, else 16), sS
(seed), warmP (everything is opened for the first P per cent of the steps), turn (rotary positions
on all levels, as full and local have them; else on level 0), small (2 layers of width 128, as up to
a length of 256; else 4 of 256).

Settings, as variables: DEVICE (cpu), PROGRAM (build/htransformer), THREADS (of a run: 0, all), JOBS
(runs at once: 1), STEPS (2500; lm 3000), TIME (seconds of a run's training, instead of STEPS),
LIMIT (seconds after which a run is saved and stopped; the next call goes on with it),
BATCH (65,536 tokens, at most 16 windows), POINTS (evaluations on the way: 10), FRESH (items of the
final evaluation: 500), OPENS (numbers of clusters that runs with fine queries are evaluated with
besides: "0 4 8 16 64 all"; "" for none), DATA (of lm: a folder with
wikipedia-2015/wikipedia-en-2015-100M.txt, plain or .zst), WORK (run folders: build/opening), OUT
(results/opening.jsonl), COMMIT (what is written where there is no git).

A run that was stopped goes on where it was; a line is written when it is complete. Several calls
may share WORK and OUT if their names differ.
"""
import argparse
import concurrent.futures
import fcntl
import fnmatch
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

os.chdir(pathlib.Path(__file__).resolve().parent.parent)
SET = os.environ.get
DEVICE, PROGRAM = SET("DEVICE", "cpu"), SET("PROGRAM", "build/htransformer")
WORK = pathlib.Path(SET("WORK", "build/opening"))
OUT = pathlib.Path(SET("OUT", "results/opening.jsonl"))
ALL, FAR = 1 << 20, 1024  # clusters: every one; rows: an answer further back than this is far
BEGUN = 5.5  # bits of a token: copying and recall have begun; guessing takes 6
NAME = re.compile(r"(copy|recall|lm)-(\d+)-(full|local|first|fine|k\d+)((?:-\w+)*)")


def names():
    """What the page asks, in the order of its tables."""
    for task in ("copy", "recall"):
        for way in ("full", "fine", "first", "local", "k4", "k8", "k16"):
            yield from ("%s-256-%s-s%d" % (task, way, seed) for seed in (1, 2, 3))
        for option in ("turn", "peek0", "peek1", "leaf16", "warm20", "warm40"):
            yield from ("%s-256-k8-%s-s%d" % (task, option, seed) for seed in (1, 2, 3))
        for length in (512, 1024, 4096, 16384, 65536):
            for way in ("full", "fine", "first", "local", "k4", "k8", "k16"):
                yield "%s-%d-%s" % (task, length, way)
            yield from ("%s-%d-k8-%s" % (task, length, x)
                        for x in ("turn", "peek0", "peek1", "leaf16"))
    for block in (16, 32, 64):
        yield from ("lm-4096-%s-b%d" % (way, block) for way in ("fine", "k8", "k16", "local"))
    yield "lm-4096-full"


def parse(name):
    """A run's settings by its name."""
    match = NAME.fullmatch(name)
    if not match:
        sys.exit("opening: no run is called '%s'; scripts/opening.py list" % name)
    task, length, way, options = match.groups()
    run = dict(run=name, task=task, length=int(length), way=way, open=0, peek=2, leaf=8, seed=1,
               warm=0, turn=False, small=int(length) <= 256, block=8 if int(length) <= 256 else 16)
    if way[0] == "k":
        run["open"] = int(way[1:])
    for option in filter(None, options.split("-")):
        word, number = re.fullmatch(r"([a-z]+)(\d*)", option).groups()
        key = {"b": "block", "s": "seed"}.get(word, word)
        if key not in ("peek", "leaf", "block", "seed", "warm", "turn", "small"):
            sys.exit("opening: '%s' in '%s' is no option" % (option, name))
        run[key] = int(number) if number else True
    return run


def flags(run):
    """Of train, but for folder, device, steps and what is opened."""
    kind = {"full": ["full"], "local": ["local"], "first": ["hierarchical", "--query", "first"]}
    kind = kind.get(run["way"], ["hierarchical", "--query", "fine"])
    rotary = "all" if run["turn"] or run["way"] in ("full", "local") else "level0"
    batch = SET("BATCH", str(max(1, min(16, 65536 // run["length"]))))
    out = ["--attention", *kind, "--block", run["block"], "--rotary", rotary, "--length",
           run["length"], "--batch", batch, "--seed", run["seed"], "--threads", SET("THREADS", "0")]
    if run["task"] == "lm":
        return ["--preset", "lm/small", "--across", 1, "--data", wikipedia("train"), "--valid",
                wikipedia("valid"), *out]
    if not run["small"]:
        out += ["--layers", 4, "--width", 256, "--hidden", 1024]
    return ["--preset", run["task"], *out]


def wikipedia(part):
    """A part of the corpus, 90 / 5 / 5 MB."""
    wanted, source = WORK / ("wiki." + part), pathlib.Path(SET("DATA", "data"))
    if not wanted.exists():
        source = source / "wikipedia-2015/wikipedia-en-2015-100M.txt"
        packed = pathlib.Path(str(source) + ".zst")
        text = subprocess.run(["zstd", "-dcq", packed], check=True, stdout=subprocess.PIPE).stdout \
            if packed.exists() else source.read_bytes()
        cuts = dict(train=(0, 90), valid=(90, 95), test=(95, 100))[part]
        whole = WORK / ("wiki.%s.%d" % (part, os.getpid()))
        whole.write_bytes(text[cuts[0] * 1000000:cuts[1] * 1000000])
        whole.rename(wanted)
    return wanted


# Training

def call(*words):
    """What the program prints."""
    words = [PROGRAM, *map(str, words)]
    return subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE).stdout


class Stopped(Exception):
    """A run took longer than LIMIT."""


def call_train(*words):
    words, limit = [PROGRAM, "train", *map(str, words)], SET("LIMIT")
    process = subprocess.Popen(words, stdout=2)
    try:
        code = process.wait(float(limit) if limit else None)
    except subprocess.TimeoutExpired:
        process.terminate()  # saves after the step at work
        process.wait()
        raise Stopped from None
    if code:
        raise subprocess.CalledProcessError(code, words)


def train(run, folder):
    """The folder's run, from where it stands."""
    steps = int(SET("STEPS", "3000" if run["task"] == "lm" else "2500"))
    warm = steps * run["warm"] // 100
    parts = [(steps, run["open"], ["--schedule", "cosine"])]
    if warm:
        parts.insert(0, (warm, ALL, ["--schedule", "constant"]))
    for number, (until, clusters, schedule) in enumerate(parts):
        begun = any(folder.glob("step-*.safetensors"))
        if begun and last_step(folder) >= until:
            continue
        how = ["--resume"] if begun else flags(run)
        how += ["--open", clusters]
        if clusters:
            how += ["--open_leaf", run["leaf"], "--open_peek", run["peek"] or -1]
        every = max(1, steps // int(SET("POINTS", "10")))
        how += ["--steps", until, "--eval_every", every, "--eval_items", 64 if run["task"] == "lm"
                else 128]
        if SET("TIME"):
            how += ["--minutes", float(SET("TIME")) / 60]
        call_train("--run", folder, "--device", DEVICE, "--quiet", *how, *schedule)


def last_step(folder):
    return max(int(path.name[5:].split(".")[0]) for path in folder.glob("step-*.safetensors"))


def log_of(folder):
    with open(folder / "log.jsonl") as log:
        return [json.loads(line) for line in log]


# Evaluating

def evaluate(run, folder, clusters, items):
    """Members of the line; clusters None: as in training."""
    words = ["eval", folder, "--device", DEVICE, "--json", "--threads", SET("THREADS", "0")]
    if clusters is not None:
        words += ["--open", clusters]
    if run["task"] == "lm":
        line = json.loads(call(*words, "--data", wikipedia("test")))
        return {key: line[key] for key in ("bits_per_byte", "bits_per_byte_error")}
    line = json.loads(call(*words, "--fresh", items))
    far = [x for x in line["by_distance"] if x["from"] >= FAR]
    count = sum(x["targets"] for x in far)
    out = {key: line[key] for key in ("items", "accuracy", "accuracy_error", "bits_per_token")}
    if count:
        out["far_accuracy"] = sum(x["accuracy"] * x["targets"] for x in far) / count
    return dict(out, by_distance=[[x["from"], x["accuracy"], x["targets"]]
                                  for x in line["by_distance"]])


def machine():
    if DEVICE.startswith("cuda"):
        words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    else:
        words = ["sed", "-n", r"s/^model name\s*: //p", "/proc/cpuinfo"]
    try:
        return subprocess.run(words, capture_output=True, text=True).stdout.splitlines()[0]
    except (OSError, IndexError):
        return "unknown"


def commit():
    found = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True,
                           text=True) if pathlib.Path(".git").exists() else None
    return SET("COMMIT") or (found.stdout.strip() if found else None)


def line_of(run, folder):
    config = json.load(open(folder / "config.json"))
    log, fresh = log_of(folder), int(SET("FRESH", "500"))
    keys = ("attention", "query", "rotary", "layers", "width", "batch", "dtype", "optimizer",
            "rate")
    steps = [x["ms"] for x in log if "ms" in x]
    out = dict(run, commit=commit(), device=DEVICE, machine=machine(),
               **{key: config[key] for key in keys}, steps=last_step(folder),
               ms_per_step=statistics.median(steps[min(10, len(steps) // 2):]),
               **evaluate(run, folder, None, fresh))
    # of the log: step, bits per token, accuracy
    out["curve"] = [[x["step"], round(x["valid_loss"] / math.log(2), 4),
                     round(x.get("valid_accuracy", 0), 4)] for x in log if "valid_loss" in x]
    opens = SET("OPENS", "0 4 8 16 64 all" if run["length"] <= 4096 else "0 4 8 16").split()
    if config["attention"] == "hierarchical" and config["query"] == "fine" and opens:
        key = "bits_per_byte" if run["task"] == "lm" else "bits_per_token"
        found = {k: evaluate(run, folder, ALL if k == "all" else int(k), max(1, fresh // 4))
                 for k in opens}
        out["opens"] = {k: [x[key], x.get("accuracy")] for k, x in found.items()}
    return out


def do(name):
    run, folder = parse(name), WORK / name
    try:
        train(run, folder)
        line = line_of(run, folder)
    except Stopped:
        print("== %s: stopped after %s s, to be continued" % (name, SET("LIMIT")), flush=True)
        return 0
    except subprocess.CalledProcessError as fault:
        print("== %s: %s" % (name, fault), file=sys.stderr)
        return 1
    OUT.parent.mkdir(parents=True, exist_ok=True)
    with open(OUT, "a") as out:
        fcntl.flock(out, fcntl.LOCK_EX)
        out.write(json.dumps(line) + "\n")
    print("== " + " ".join("%s %s" % (key, line[key]) for key in (
        "run", "steps", "ms_per_step", "bits_per_token", "accuracy", "bits_per_byte")
        if key in line), flush=True)
    if not SET("KEEP"):
        for path in folder.glob("step-*.safetensors"):
            path.unlink()
    return 0


def lines():
    return [json.loads(x) for x in OUT.read_text().splitlines()] if OUT.exists() else []


def chosen(patterns):
    for pattern in patterns:
        found = [name for name in names() if fnmatch.fnmatch(name, pattern)]
        if not found and not NAME.fullmatch(pattern):
            sys.exit("opening: no run is called '%s'; scripts/opening.py list" % pattern)
        yield from found or [pattern]


def run_all(patterns):
    done = {(x["run"], x["device"]) for x in lines()}
    wanted = [name for name in dict.fromkeys(chosen(patterns)) if (name, DEVICE) not in done]
    for name in wanted:
        parse(name)
    if not shutil.which(PROGRAM):
        sys.exit("opening: there is no %s: run scripts/build.sh, or set PROGRAM" % PROGRAM)
    WORK.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(int(SET("JOBS", "1"))) as pool:
        return max(pool.map(do, wanted), default=0)


# Tables

def seeds(group, key):
    """Mean over seeds, and the smallest and largest of several."""
    found = [x[key] for x in group if x.get(key) is not None]
    if not found:
        return ""
    mean = "%.3f" % statistics.mean(found)
    return mean if len(found) == 1 else "%s (%.3f to %.3f)" % (mean, min(found), max(found))


def starts(group):
    """The step of the first evaluation below BEGUN, per seed."""
    found = [next((str(point[0]) for point in x["curve"] if point[1] < BEGUN), "never")
             for x in group]
    return ", ".join(found)


def print_table(head, rows, markdown):
    rows = [[str(cell) for cell in row] for row in rows]
    if markdown:
        print("| %s |\n|%s" % (" | ".join(head), "---|" * len(head)))
        for row in rows:
            print("| %s |" % " | ".join(row))
    else:
        wide = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        for row in [head, *rows]:
            print("  ".join(cell.ljust(n) for cell, n in zip(row, wide)).rstrip())


def tables(markdown):
    groups = {}
    for x in {(x["run"], x["device"]): x for x in lines()}.values():
        same = re.sub(r"-s\d+\b", "", x["run"])
        groups.setdefault((x["task"], x["length"], x["device"]), {}).setdefault(same, []).append(x)
    for (task, length, device), runs in groups.items():
        one = next(iter(runs.values()))[0]
        print("\n%s, length %d, %s (%s), %d layers of %d, %d windows a step" % (
            task, length, device, one["machine"], one["layers"], one["width"], one["batch"]))
        lm = task == "lm"
        head = ["run", "seeds", "steps", "bits", "ms per step"] if lm else \
            ["run", "seeds", "steps", "bits", "accuracy", "beyond %d" % FAR, "begins at step",
             "ms per step"]
        rows = []
        for name, group in runs.items():
            row = [name, len(group), "/".join(sorted({str(x["steps"]) for x in group})),
                   seeds(group, "bits_per_byte" if lm else "bits_per_token")]
            row += [] if lm else [seeds(group, "accuracy"), seeds(group, "far_accuracy")]
            row += [] if lm else [starts(group)]
            rows.append(row + ["%.1f" % statistics.median(x["ms_per_step"] for x in group)])
        print_table(head, rows, markdown)
        opened = {name: [x for x in group if "opens" in x] for name, group in runs.items()}
        keys = [k for x in opened.values() for y in x for k in y["opens"]]
        keys = sorted(set(keys), key=lambda k: ALL if k == "all" else int(k))
        rows = [[name] + [seeds([dict(bits=x["opens"].get(k, [None])[0]) for x in group], "bits")
                          for k in keys] for name, group in opened.items() if group]
        if rows:
            print("\nthe same, evaluated with K clusters opened: bits")
            print_table(["run", *("K " + k for k in keys)], rows, markdown)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("list", "run", "tables"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    if args.what == "tables":
        return tables(args.markdown)
    if args.what == "run":
        return run_all(args.names)
    for name in chosen(args.names or ["*"]):
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
