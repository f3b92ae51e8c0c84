"""Numbers that stand in more than one place agree: README's table of speeds with docs/cuda.md,
where they were measured; the version of CHANGELOG and of the Python package with the header's.

    numbers.py ROOT
"""
import pathlib
import re
import sys


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def check_version(root):
    """Where another version stands than in the header."""
    header = (root / "include/htransformer.h").read_text()
    version = ".".join(re.findall(r"#define HT_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))
    places = {"CHANGELOG.md": r"^## (\S+?),? ", "python/htransformer/__init__.py":
              r'^__version__ = "(.*)"', "python/htransformer/_library.py": r'^VERSION = "(.*?)"'}
    for name, pattern in places.items():
        found = re.search(pattern, (root / name).read_text(), re.M)
        if not found or found.group(1) != version:
            yield "%s: version %s, the header has %s" % (name, found and found.group(1), version)


def main():
    root = pathlib.Path(sys.argv[1])
    versions = list(check_version(root))
    print("\n".join(versions + ["versions compared"]))
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
