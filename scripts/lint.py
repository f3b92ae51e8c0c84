"""The mechanical part of CONTRIBUTING.md: includes point downward, line, function and file lengths,
files per folder, no call in the library that prints or ends the program. Prints one line per fault,
exits 1 if any.

    python3 scripts/lint.py [ROOT]
"""
import collections
import pathlib
import re
import sys

# rooms of src/, lowest first; a file may include its own room and those below it. Up to attention
# they are libhtransformer, all others and the kernels in folders named model libhtransformer_models
ROOMS = ["core", "", "cpu", "cuda", "attention"]
ROOMS += ["common", "dist", "config", "layer", "model", "data", "linear", "train"]
KERNELS = {"cpu", "cuda"}  # reached through op.h only: nobody outside includes them
PUBLIC_ONLY = {"cli", "examples", "python", "bench"}  # these see the public headers and themselves
TESTS_MAY_SEE = {"core", "", "common", "dist"}  # of src/; and the public headers, parts of cli/
TESTS_MAY_ALSO = {"cuda/families.h"}  # host code

COLUMNS, FILE_LINES, FUNCTION_LINES, FOLDER_FILES = 100, 900, 80, 20
C_FILES = {".c", ".h", ".cu", ".cuh", ".inc"}
TEXT_FILES = C_FILES | {".py", ".sh", ".cmake", ".txt", ".in", ".md"}
BANNED = re.compile(r"\b(v?f?printf|puts|putchar|perror|_?exit|_Exit|abort|assert)\s*\(")
LEFT_OPEN = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CUDA_HEADER = re.compile(r"cuda|cublas|cooperative_groups|mma\.h")
# with more than 14 of them glibc's printf takes memory, and prints nothing where there is none
CONVERSIONS = 12
LITERALS = re.compile(r'"(?:\\.|[^"\\\n])*"(?:\s*(?:PRI\w+\s*)?"(?:\\.|[^"\\\n])*")*')
CONVERSION = re.compile(r"%(?!%)[-+ #0]*[\d*]*(?:\.[\d*]+)?")
TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)


def strip(text):
    """The code without comments, strings and preprocessor lines, every newline kept."""
    def blank(match):
        word = match.group()
        return ("\n" * word.count("\n") or " ") if word[0] == "/" else word[0] * 2
    text = TOKEN.sub(blank, text)
    preprocessor = re.compile(r"^[ \t]*#(?:.*\\\n)*.*$", re.M)
    return preprocessor.sub(lambda match: "\n" * match.group().count("\n"), text)


def room_of(path):
    """Room of a path below src/: its folder, "" for op.h and device.c."""
    return path.split("/")[0] if "/" in path else ""


def of_models(name):
    """Is this header, as an include names it, of the models' library?"""
    return (name in ("htransformer_models.h", "model_op.h") or "model" in name.split("/")[:-1]
            or room_of(name) in ROOMS[ROOMS.index("attention") + 1:])


def of_attention(path):
    """Is this a file of the attention library, which knows nothing of models?"""
    return path.parts[0] == "src" and not of_models("/".join(path.parts[1:]))


def include_fault(root, path, name):
    """Why the file at path may not include "name", or None."""
    where = path.parts[0]
    inside = "/".join(path.parts[1:])
    if name == "htransformer.h":
        return None
    if of_attention(path) and of_models(name):
        return "belongs to the models, this is the attention"
    if name == "htransformer_models.h":
        return None
    if where == "src":
        own = room_of(inside)
        in_room = (root / path.parent / name).is_file() and not (root / "src" / name).is_file()
        target = own if in_room and "/" not in name else room_of(name)
        if own not in ROOMS or target not in ROOMS:
            return "is in no room that scripts/lint.py knows"
        if target in KERNELS and target != own:
            return "reaches into %s/, which only op.h's table may" % target
        if ROOMS.index(target) > ROOMS.index(own):
            return "points upward, from %s to %s" % (own or "src", target or "src")
        return None
    if ".." not in name and (root / path.parent / name).is_file():
        return None
    if where == "cli" and ".." not in name and (root / "cli" / name).is_file():
        return None
    if where == "tests" and (root / "src" / name).is_file():
        room = room_of(name)
        allowed = room in TESTS_MAY_SEE or name in TESTS_MAY_ALSO
        return None if allowed else "lets a test see %s/" % room
    if where == "tests" and (root / "cli" / name).is_file():
        return None
    if where == "tests" and (root / "tests" / "support" / name).is_file():
        return None
    if path.parts[:2] == ("tests", "fuzz") and (root / "tests" / "fuzz" / name).is_file():
        return None
    return "is no public header and not of this folder"


def check_includes(root, path, text):
    for number, line in enumerate(text.split("\n"), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        kind, name = match.groups()
        ours = any((root / room / name).is_file() for room in ("src", "cli"))
        if kind == '"' or ours:  # <> is no way around
            fault = include_fault(root, path, name)
            if fault:
                yield number, "include of %s %s" % (name, fault)
        elif CUDA_HEADER.match(name) and path.parts[:2] != ("src", "cuda"):
            yield number, "CUDA headers belong into src/cuda"


def check_functions(text):
    """Lengths of functions, by braces: a top-level { that follows a closing parenthesis."""
    depth, start, head, line, previous = 0, 0, "", 1, "\n"
    for char in text:
        if char == "{":
            # extern "C" and namespaces are no level of their own
            wrapper = re.search(r'(extern\s*""|namespace(\s+\w+)?)\s*$', head) and depth == 0
            if depth == 0 and not wrapper:
                start = line if re.search(r"\)\s*(\w+\s*(\([^()]*\))?\s*)*$", head) else 0
            depth += 0 if wrapper else 1
            head = ""
        elif char == "}":
            # one in the first column ends it all, whatever #if did to the count
            depth = 0 if previous == "\n" else max(depth - 1, 0)
            if depth == 0:
                if start and line - start + 1 > FUNCTION_LINES:
                    yield start, "function of %d lines" % (line - start + 1)
                start, head = 0, ""
        elif char == ";":
            head = ""
        else:
            head += char
        line += char == "\n"
        previous = char


def check_formats(text):
    """Formats of printf and its like that are too long."""
    code = re.sub(r"/\*.*?\*/", lambda match: "\n" * match.group().count("\n"), text, flags=re.S)
    for match in LITERALS.finditer(code):
        count = len(CONVERSION.findall(match.group().replace("%%", "")))
        if count > CONVERSIONS:
            yield code.count("\n", 0, match.start()) + 1, "%d conversions in one format" % count


def check_file(root, path):
    text = (root / path).read_text(encoding="utf-8", errors="replace")
    lines = text.split("\n")
    code = path.suffix in C_FILES
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS and path.suffix != ".md":
            yield number, "%d columns" % len(line)
        if "\t" in line:
            yield number, "a tab"
        if line != line.rstrip():
            yield number, "space at the end of the line"
        left = LEFT_OPEN.search(line)
        if left:
            yield number, "left open: %s" % left.group()
    if text and not text.endswith("\n"):
        yield len(lines), "no newline at the end of the file"
    if path.suffix in C_FILES | {".py", ".sh"} and len(lines) - 1 > FILE_LINES:
        yield len(lines) - 1, "file of more than %d lines" % FILE_LINES
    if not code:
        return
    if not text.startswith(("/*", "//")):
        yield 1, "does not open with a comment of its purpose"
    yield from check_includes(root, path, text)
    bare = strip(text)
    if path.suffix == ".c" and path.parts[0] in ("src", "cli"):
        yield from check_formats(text)
    if path.parts[0] == "src":
        for number, line in enumerate(bare.split("\n"), 1):
            call = BANNED.search(line)
            if call:
                yield number, "%s: the library never prints, exits or aborts" % call.group(1)
    if path.parts[:1] != ("src",) or path.parts[1] not in KERNELS:
        yield from check_functions(bare)


def check_folders(paths):
    """Folders of src/, cli/ and tests/ that hold too many files."""
    rooms = ("src", "cli", "tests")
    count = collections.Counter(path.parent for path in paths if path.parts[0] in rooms)
    for folder, files in sorted(count.items()):
        if files > FOLDER_FILES:
            yield folder, "%d files in one folder" % files


def sources(root):
    """Every text file of the tree; nothing built, hidden, of data or made by Python and pip."""
    for full in sorted(root.rglob("*")):
        path = full.relative_to(root)
        hidden = any(part.startswith((".", "__pycache__")) for part in path.parts)
        built = path.parts[0].startswith(("build", "data", "runs"))
        built = built or path.parts[:2] == ("python", "build")
        built = built or any(part.endswith(".egg-info") for part in path.parts)
        if full.suffix in TEXT_FILES and full.is_file() and not hidden and not built:
            yield path


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    faults = files = 0
    paths = list(sources(root))
    for path in paths:
        files += 1
        for number, fault in check_file(root, path):
            print("%s:%d: %s" % (path, number, fault))
            faults += 1
    for folder, fault in check_folders(paths):
        print("%s:1: %s" % (folder, fault))
        faults += 1
    print("lint: %d files, %s" % (files, "%d faults" % faults if faults else "no fault"))
    sys.exit(1 if faults or not files else 0)


main()
