"""README's table of speeds has the numbers of docs/cuda.md, where they were measured.

    numbers.py ROOT
"""
import pathlib
import sys


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def main():
    root = pathlib.Path(sys.argv[1])
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
    sys.exit(1 if wrong or not rows else 0)


main()
