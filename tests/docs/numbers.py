"""Numbers that stand in more than one place agree: README's table of speeds with docs/cuda.md,
where they were measured, docs/lm.md's with docs/lab/lm.md; README's and docs/lra.md's accuracies
with results/lra.jsonl, of several runs the one that validates best, or that with the same flags,
and the flags of scripts/lra.sh with those of that run; accuracies at a step with the logs; the
version of CHANGELOG and of the Python package with the header's. And the logs are thin.

    numbers.py ROOT
"""
import gzip
import json
import pathlib
import re
import subprocess
import sys


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def check_version(root):
    """Where another version stands than in the header."""
    header = (root / "include/htransformer.h").read_text()
    version = ".".join(re.findall(r"#define HT_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))
    places = {"CHANGELOG.md": r"^## (\S+?),? ", "python/htransformer/__init__.py":
              r'^__version__ = "(.*)"', "python/htransformer/_library.py": r'^VERSION = "(.*?)"',
              "python/models/pyproject.toml": r'^version = "(.*)"'}
    for name, pattern in places.items():
        found = re.search(pattern, (root / name).read_text(), re.M)
        if not found or found.group(1) != version:
            yield "%s: version %s, the header has %s" % (name, found and found.group(1), version)


def best_runs(root):
    """(preset, kind): the run with the best validation."""
    best = {}
    for line in (root / "results/lra.jsonl").read_text().splitlines():
        run = json.loads(line)
        key = run["preset"], run["attention"]
        if key not in best or run["valid_accuracy"] > best[key]["valid_accuracy"]:
            best[key] = run
    return best


def check_kinds(root, best):
    """Accuracies of other attention that are not those of the run with the same flags."""
    runs = [json.loads(line) for line in (root / "results/lra.jsonl").read_text().splitlines()]
    table = re.search(r"^\| task \| `hierarchical` \| `local` \| `full` \|\n.*?\n\n",
                      (root / "docs/lra.md").read_text(), re.M | re.S)[0].strip().splitlines()
    for row in map(cells, table[2:]):
        like = best["lra/" + row[0].lower(), "hierarchical"]
        for kind, cell in zip(("hierarchical", "local", "full"), row[1:]):
            run = [r for r in runs if r["preset"] == like["preset"] and r["attention"] == kind
                   and r["steps"] == like["steps"] and words(r["args"]) == words(like["args"])]
            fresh = re.search(r"fresh ([\d.]+)", cell)
            said = [("test_accuracy", re.match(r"[\d.]+", cell)[0])]
            said += [("fresh_accuracy", fresh[1])] if fresh else []
            for what, here in said:
                if len(run) != 1 or abs(100 * run[0][what] - float(here)) > 0.0501:
                    yield "docs/lra.md: %s, %s has %s, its run %s" % (
                        row[0], kind, here, ["%.2f" % (100 * r[what]) for r in run])
    if len(table) != 7:
        yield "docs/lra.md: %d tasks with three kinds of attention, not 5" % (len(table) - 2)


def check_logs(root):
    """Rows of "at equal steps" that are not what the log says."""
    text = (root / "docs/lab/lra.md").read_text()
    table = re.search(r"^\| task, steps \|.*?\n\n", text, re.M | re.S)[0].strip().splitlines()
    step = None
    for task, _, said, name in map(cells, table[2:]):
        if task:
            step = int(task.split(", ", 1)[1].replace(",", ""))
        with gzip.open(root / ("results/logs/%s.jsonl.gz" % name.strip("`")), "rt") as log:
            found = [row["valid_accuracy"] for row in map(json.loads, log)
                     if row["step"] == step and "valid_accuracy" in row]
        if not found or abs(100 * found[-1] - float(said)) > 0.0501:
            yield "docs/lab/lra.md: %s has %s at step %d, its log %s" % (name, said, step, found)
    if len(table) < 10:
        yield "docs/lab/lra.md: %d rows at equal steps" % (len(table) - 2)


def check_accuracies(root):
    """Accuracies that are not those of results/lra.jsonl."""
    best, found = best_runs(root), 0
    said = []  # file, preset, percent, on fresh items
    for line in (root / "docs/lra.md").read_text().splitlines():
        row = cells(line)
        task = row[0].split(" ")[0].lower().replace("-", "")
        if len(row) != 6 or ("lra/" + task, "hierarchical") not in best:
            continue
        for preset, cell in (("lra/" + task, row[4]), ("best/" + task, row[5])):
            fresh = re.search(r"fresh items ([\d.]+)", cell)
            said.append(("docs/lra.md", preset, float(re.match(r"[\d.]+", cell)[0]),
                         fresh and float(fresh[1])))
    readme = (root / "README.md").read_text()
    table = re.search(r"^\| task \| H-Transformer-1D.*?\n\n", readme, re.M | re.S)[0]
    for row in map(cells, table.strip().splitlines()[2:]):
        task = row[0].split(" ")[0].lower().replace("-", "")
        for preset, cell in (("lra/" + task, row[2]), ("best/" + task, row[3])):
            if re.match(r"\d", cell):
                said.append(("README.md", preset, float(re.match(r"[\d.]+", cell)[0]), None))
    yield from check_kinds(root, best)
    yield from check_logs(root)
    for name, preset, percent, fresh in said:
        run, found = best[preset, "hierarchical"], found + 1
        for what, here in (("test_accuracy", percent), ("fresh_accuracy", fresh)):
            if here is not None and abs(100 * run[what] - here) > 0.0501:  # one digit
                yield "%s: %s has %g, its best run %.2f" % (name, preset, here, 100 * run[what])
    if found != 23:
        yield "found %d accuracies, not 12 of docs/lra.md and 11 of README.md" % found


def check_size(root):
    """Logs that are longer than curves need, and all results together."""
    all_bytes = sum(path.stat().st_size for path in (root / "results").rglob("*") if path.is_file())
    if all_bytes >= 2e6:
        yield "results/ has %d bytes, more than 2 MB" % all_bytes
    for path in sorted((root / "results/logs").glob("*.jsonl.gz")):
        with gzip.open(path) as log:
            lines = sum(1 for _ in log)
        if lines > 150:
            yield "%s has %d lines, more than 150: scripts/thin_log.sh" % (path.name, lines)


def words(flags):
    """"--a 1 --b 2": {"--a": "1", "--b": "2"}"""
    flags = flags.split()
    return dict(zip(flags[::2], flags[1::2]))


def check_recipes(root):
    """Tasks for which scripts/lra.sh has other flags than the best run of lra/."""
    script = (root / "scripts/lra.sh").read_text()
    function = re.search(r"^tuned\(\) \{.*?^\}", script, re.M | re.S)[0]
    best = best_runs(root)
    for task in ("listops", "text", "retrieval", "image", "pathfinder"):
        said = subprocess.run(["sh", "-euc", function + '\nbatch=""\ntuned "$0"\n'
                               'echo "--steps $steps ${batch:+--batch $batch} $args"', task],
                              check=True, capture_output=True, text=True).stdout
        run = best["lra/" + task, "hierarchical"]
        here, there = words(said), dict(words(run["args"]), **{"--steps": str(run["steps"])})
        if "--batch" in here:
            there["--batch"] = str(run["batch"])
        there.pop("--dtype")  # bf16, on a GPU
        if here != there:
            yield "scripts/lra.sh: %s has %s, its best run %s" % (
                task, sorted(here.items() - there.items()), sorted(there.items() - here.items()))


def check_models(root):
    """Rows of docs/lm.md that its experiments do not have."""
    text = (root / "docs/lm.md").read_text()
    table = re.search(r"^\| attention \| bits per byte.*?\n\n", text, re.M | re.S)[0]
    lab = [cells(line) for line in (root / "docs/lab/lm.md").read_text().splitlines()]
    measured = [(row[1].split(" ")[0], row[4]) for row in lab if len(row) == 5]
    for row in map(cells, table.strip().splitlines()[2:]):
        if (row[1], row[2]) not in measured:
            yield "docs/lm.md: not in docs/lab/lm.md: " + " | ".join(row)


def main():
    root = pathlib.Path(sys.argv[1])
    versions = [fault for check in (check_version, check_accuracies, check_recipes, check_models,
                                             check_size)
                for fault in check(root)]
    print("\n".join(versions + ["versions, accuracies and recipes compared"]))
    readme = (root / "README.md").read_text().split("\n")
    start = readme.index("| length | ours, ms | cuDNN, ms | cuDNN / ours |")
    rows = []
    for line in readme[start + 2:]:
        if not line.startswith("|"):
            break
        rows.append(cells(line))
    # docs/cuda.md: case | L | ours | floor | x floor | cuDNN | cuDNN / ours; a case stands once
    measured, case = [], ""
    for line in (root / "docs/cuda.md").read_text().split("\n"):
        row = cells(line)
        if line.startswith("|") and len(row) == 7:
            case = row[0] or case
            if case == "forward `mean`":
                measured.append([row[1], row[2], row[5], row[6]])
    wrong = [row for row in rows if row not in measured]
    for row in wrong:
        print("README.md: not in docs/cuda.md: " + " | ".join(row))
    print("%d rows of README's table, %d of docs/cuda.md" % (len(rows), len(measured)))
    sys.exit(1 if wrong or versions or not rows else 0)


main()
