"""docs/results.md and scripts/results.sh: every row of the page is a line of the list and its
commands exist; its numbers stand on the pages that its section names, and in results/*.jsonl with
their commits; README's accuracies are there, too. The script runs a list of its own.

    results.py ROOT
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.?\d*")
COLUMNS = ["name", "result", "seeds", "commit", "device", "command"]


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows(page):
    """(section's text, row) of every row of the page's tables."""
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        for line in section.split("\n"):
            row = cells(line)
            if line.startswith("|") and row != COLUMNS and set(row[0]) != {"-"}:
                yield section, row


def numbers(text):
    """Those that were measured: with a decimal point or a comma."""
    text = re.sub(r"`[^`]*`|\[[^]]*\]\([^)]*\)", " ", text)
    return [n for n in NUMBER.findall(text.replace(", ", "; ")) if re.search(r"[.,]\d", n)]


def script(root, *names, page=None):
    env = dict(os.environ, **({"PAGE": str(page)} if page else {}))
    return subprocess.run(["sh", str(root / "scripts/results.sh"), *names], env=env, text=True,
                          capture_output=True)


def check_list(root, table):
    """The list is the page's, and what it calls is there."""
    said = [tuple(line.split("\t")) for line in script(root).stdout.splitlines()]
    page = [(row[0].strip("`"), row[-1].strip("`")) for _, row in table]
    if said != page:
        yield "scripts/results.sh lists %s" % sorted(set(said) ^ set(page))
    for name in {name for name, _ in page if [n for n, _ in page].count(name) > 1}:
        yield "docs/results.md: two rows are called %s" % name
    for section, row in table:
        if len(row) != 6 or not row[2] and "no seeds" not in section and "speed" not in row[0]:
            yield "docs/results.md: a row without seeds: %s" % row
    for name, command in page:
        for file in re.findall(r"\b(?:scripts|bench)/[\w.]+", command):
            if not (root / file).is_file():
                yield "%s: there is no %s" % (name, file)
        if subprocess.run(["sh", "-nc", command], capture_output=True).returncode:
            yield "%s: not a command: %s" % (name, command)


def check_pages(root, table):
    """Numbers that do not stand on the pages that the section and the row link to."""
    for section, row in table:
        links = re.findall(r"\]\(([\w/]+\.md)", re.sub(r"^\|.*$", "", section, flags=re.M))
        links += re.findall(r"\]\(([\w/]+\.md)", row[1])
        said = " ".join((root / "docs" / link).read_text() for link in links)
        for number in numbers(row[1]):
            if not re.search(r"(?<![\d.,])%s(?![\d]|[.,]\d)" % re.escape(number), said):
                yield "docs/results.md: %s: %s is not in %s" % (row[0], number, links)


def runs(root):
    return [json.loads(line) for line in (root / "results/lra.jsonl").read_text().splitlines()]


def near(share, percent):
    return abs(100 * share - float(percent)) < 0.0501


def check_runs(root, table):
    """Rows of the Long Range Arena that no run of results/lra.jsonl with this commit gave."""
    found = 0
    for section, row in table:
        command = row[-1].strip("`")
        task = re.search(r"scripts/lra\.sh (\w+)$", command)
        if not task:
            continue
        found += 1
        preset = ("best/" if "SET=best" in command else "lra/") + task[1]
        kind = re.search(r"KINDS=(\w+)", command)[1]
        fresh = re.search(r"fresh (?:items )?([\d.]+)", row[1])
        like = [run for run in runs(root)
                if (run["preset"], run["attention"], run["commit"]) == (preset, kind, row[3])
                and str(run["seed"]) == row[2].split(",")[0]
                and near(run["test_accuracy"], row[1].split(" ")[0])
                and (not fresh or near(run["fresh_accuracy"], fresh[1]))]
        if len(like) != 1:
            yield "docs/results.md: %s: %d runs gave this" % (row[0], len(like))
        if len(row[2].split(",")) < 2 and "SEEDS" in command:
            yield "docs/results.md: %s: seeds %s, but %s" % (row[0], row[2], command)
    if found != 22:
        yield "docs/results.md: %d rows of the Long Range Arena, not 22" % found


def check_commits(root, table):
    known = set()
    for path in (root / "results").glob("*.jsonl"):
        known |= {json.loads(line).get("commit") for line in path.read_text().splitlines()}
    for _, row in table:
        for commit in re.findall(r"\b[0-9a-f]{7,10}\b\+?", row[3]):
            if commit not in known:
                yield "docs/results.md: %s: no run has commit %s" % (row[0], commit)


def check_readme(root, table):
    """README's accuracies by task: the same in the rows TASK and best-TASK."""
    by_name = {row[0].strip("`"): row[1] for _, row in table}
    readme = (root / "README.md").read_text()
    accuracies = re.search(r"^\| task \| H-Transformer-1D.*?\n\n", readme, re.M | re.S)[0]
    for row in map(cells, accuracies.strip().splitlines()[2:]):
        task = row[0].split(" ")[0].lower().replace("-", "")
        for name, cell in ((task, row[2]), ("best-" + task, row[3])):
            for number in re.findall(r"\d+\.\d", cell):
                if number not in numbers(by_name[name]):
                    yield "README.md: %s is not in the row %s" % (number, name)


def check_script(root):
    """A list of its own: runs in order, ends where a command fails, refuses what is not there."""
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "page.md"
        page.write_text("| name | command |\n|---|---|\n| `one` | x | `echo 'a  b' $((1 + 1))` |\n"
                        "| `bad` | x | `false` |\n| not code | `echo no` |\n")
        good = script(root, "one", "one", page=page)
        if good.returncode or good.stdout.count("\na  b 2\n") != 2:
            yield "results.sh one one: %s" % (good,)
        bad = script(root, "bad", "one", page=page)
        if not bad.returncode or "a  b 2" in bad.stdout:
            yield "results.sh went on after a failure: %s" % (bad,)
        none = script(root, "one", "three", page=page)
        if not none.returncode or "no result 'three'" not in none.stderr or none.stdout:
            yield "results.sh three: %s" % (none,)
        if script(root, page=page).stdout.count("\n") != 2:
            yield "results.sh: a list of two has %s" % script(root, page=page).stdout


def main():
    root = pathlib.Path(sys.argv[1])
    table = list(rows((root / "docs/results.md").read_text()))
    faults = [fault for check in (check_list, check_pages, check_runs, check_commits, check_readme)
              for fault in check(root, table)] + list(check_script(root))
    print("\n".join(faults + ["%d results compared" % len(table)]))
    sys.exit(1 if faults or len(table) < 40 else 0)


main()
