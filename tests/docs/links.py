"""Every link of a page leads somewhere, and every page can be reached.

    links.py ROOT

Relative links of all pages name a file of the tree, and what follows # a heading of it. Each page
of docs/ stands in docs/README.md, each of docs/lab in docs/lab/README.md. A page that a comment, a
help text or a script names is there, too.
"""
import pathlib
import re
import sys

# a page in the words of sources: "docs/api.md has the policy"
NAMED = re.compile(r"\bdocs/[\w/.-]+\.(?:md|svg|html)\b")
SOURCES = ("src", "cli", "include", "python", "scripts", "tests", "bench", "cmake", "examples")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(text):
    """A page without its code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return re.sub(r"^    .*$", "", text, flags=re.M)


def anchor(heading):
    """What a heading is called in a link."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def anchors(page):
    return {anchor(line.lstrip("#")) for line in page.read_text().split("\n")
            if re.match(r"#+ ", line)}


def links(page):
    """(target file, heading) of the links to files of the tree."""
    for target in LINK.findall(prose(page.read_text())):
        if "://" not in target:
            name, _, heading = target.partition("#")
            yield target, (page.parent / name).resolve() if name else page, heading


def dead(root, pages):
    for page in pages:
        for said, target, heading in links(page):
            if not target.exists():
                yield "%s: there is no %s" % (page.relative_to(root), said)
            elif heading and target.suffix == ".md" and heading not in anchors(target):
                yield "%s: no such heading: %s" % (page.relative_to(root), said)


def unlisted(root, pages):
    for page in pages:
        index = root / ("docs/lab/README.md" if page.parent.name == "lab" else "docs/README.md")
        if (root / "docs") in page.parents and page != index:
            if page.resolve() not in [target for _, target, _ in links(index)]:
                yield "%s does not name %s" % (index.relative_to(root), page.relative_to(root))


def unknown(root):
    """Pages that sources name and that are not there."""
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*")):
            if not path.is_file() or path.suffix in (".pyc", ".gz") or "seeds" in path.parts:
                continue
            for name in set(NAMED.findall(path.read_text(errors="replace"))):
                if not (root / name).exists():
                    yield "%s names %s, which is not there" % (path.relative_to(root), name)


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    pages = sorted(root.glob("*.md")) + sorted((root / "docs").rglob("*.md"))
    pages += sorted((root / "tests").rglob("*.md")) + sorted((root / "python").rglob("*.md"))
    faults = [*dead(root, pages), *unlisted(root, pages), *unknown(root)]
    print("\n".join(faults + ["%d pages, %d faults" % (len(pages), len(faults))]))
    sys.exit(1 if faults else 0)


main()
