"""docs/api.md from include/*.h: every function, struct and setting with the headers' own words, in
their order. And new functions into cmake/*.map.in, what the shared libraries offer.

    python3 scripts/api.py            writes docs/api.md and the lists
    python3 scripts/api.py --check    exits 1 and says so if they are not what the headers give
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

INTRO = """# The library

Every function of [include/htransformer.h](../include/htransformer.h) (attention) and
[include/htransformer_models.h](../include/htransformer_models.h) (models, data, training), made
from the headers by `scripts/api.py`; a test compares them. A whole program is
[examples/attend.c](../examples/attend.c).

| I want to | calls |
|---|---|
| compute attention | `ht_context_create`, `ht_attention_create`, `ht_attention_forward` |
| and its gradients | `ht_attention_get_need`, forward with `saved`, `ht_attention_backward` |
| decode token by token | `ht_cache_create`, `ht_cache_extend` |
| train a model from files | `ht_config_create`, `ht_data_open`, `ht_model_create`, `ht_train` |
| train with a loop of my own | the same, then `ht_data_draw` and `ht_trainer_step` |
| use a trained model | `ht_model_load`, `ht_trainer_create`, `ht_trainer_predict` |
| look inside | `ht_model_read`, `ht_trainer_read_qkv`, `ht_trainer_read_gradient` |

Link with `pkg-config --cflags --libs htransformer`, or CMake's `find_package(htransformer)` and
`htransformer::htransformer`; for models `htransformer-models`, `COMPONENTS models` and
`htransformer::models` ([packages.md](packages.md)).
"""

# what the ABI promises: no header says it, and src/core/sized.h carries it out
PROMISE = """## Older and newer programs

A program keeps running with a newer library of the same soname, without being compiled again.

### Structs

Those that may grow begin with their size, the one that the program was compiled with; the `_INIT`
macros set it. What the library makes of a size that is not its own:

- Smaller, an older program: missing fields take their defaults. A struct that the library fills is
  filled as far as it goes, never beyond.
- Larger, a newer program: refused (`UNSUPPORTED`) only if something is set that this library does
  not know. In a struct that it fills, what it does not know becomes 0.
- Smaller than the fields that no call can do without, or above 4,096 bytes: refused (`INVALID`).

The sentence names the struct and the sizes. Structs in an array (the batches of
`ht_trainer_step`) lie as far apart as the first one's size says. `ht_event` and the reports in it
are the library's own: a program reads nothing of them beyond their `size`.

### What may change with the same soname

- May come: functions; fields at the end of a struct with a size, behind its old size and not in its
  padding, which change nothing where they are 0; values at the end of an enum; keys of the
  configuration; devices, kernels, speed, rounding.
- Never changes: a function's arguments; a field's place, type and meaning; an enum's numbers;
  structs without a size (`ht_allocator`, `ht_tensor`); what 0 means; that files and states of
  earlier releases can be read.
- Is no promise: the words of an error, the names of kernels, anything that begins with `hti_`.

Anything else needs a new soname. `scripts/abi.py` remembers what a release had, and a test
compares. Every function carries the version of the release that brought it: a program that needs
one which the library lacks is refused when it starts, with that version's name.
`libhtransformer_models` needs `libhtransformer` of exactly its own version.
"""

SETTINGS = """
`resume` says what `train --resume` and `ht_trainer_restore` make of a value that is not the one
that the run was begun with: `apply` it, or `keep` the old one and refuse another. Where 0 (`auto`)
lets the library decide, that happens once, when a run begins.
"""
RESUME = {"APPLY": "apply", "KEEP": "keep", "DECIDED": "keep", "CHOSEN": "apply"}


def plain(comment):
    """The words of a comment, without its stars, as one paragraph."""
    lines = [re.sub(r"^\s*/?\*+/?", "", line).strip() for line in comment.split("\n")]
    return " ".join(" ".join(lines).replace("*/", "").split())


def chunks(text):
    """Pieces of the header between empty lines; those inside braces stay together."""
    piece, depth = [], 0
    for line in text.split("\n") + [""]:
        depth += line.count("{") - line.count("}")
        if not line.strip() and depth <= 0:
            if piece:
                yield "\n".join(piece)
            piece, depth = [], 0
        else:
            piece.append(line)


def entries(chunk):
    """(comment, code) pairs: a comment on lines of its own starts a new entry."""
    comment, code, inside, depth = "", [], False, 0
    for line in chunk.split("\n"):
        starts = depth == 0 and line.startswith("/*")
        if starts and code:
            yield comment, "\n".join(code)
            comment, code = "", []
        if starts or inside:
            comment += ("\n" if inside else "") + line
            inside = "*/" not in line
            continue
        depth += line.count("{") - line.count("}")
        code.append(line)
    if code or comment:
        yield comment, "\n".join(code)


def functions(code):
    return re.findall(r"^HT_API [^;]*?\b(ht_[a-z0-9_]+)\(", code, re.M)


def words(literals):
    """Neighbouring string literals of C as one text."""
    return re.sub(r'"\s*\\?\s*"', "", literals.strip()[1:-1]).replace('\\"', '"')


def settings():
    """The tables of src/config: the keys, and the rules about them."""
    keys = (ROOT / "src/config/keys.h").read_text()
    literal = r'[\s\\]*((?:"(?:[^"\\]|\\.)*"[\s\\]*)+)'
    rows = re.findall(r"X\(" + r"([^,()]+), " * 6 + r"(\w+)," + literal + r"\)", keys)
    if len(rows) != len(re.findall(r"X\((?:INT|REAL|CHOICE),", keys)):
        sys.exit("scripts/api.py: some row of src/config/keys.h was not understood")
    names = {name: re.findall(r'"(\w+)"', rest)
             for name, rest in re.findall(r"X\((\w+), ((?:\"\w+\"(?:, )?)+)\)", keys)}
    yield "| setting | kind | default | values | of | resume | meaning |"
    yield "|---|---|---|---|---|---|---|"
    for kind, name, default, least, most, owner, resume, about in rows:
        about = words(about).replace("|", "\\|")
        limits = "%s to %s" % (least, most)
        if kind == "CHOICE":
            default, limits = names[name][int(default)], ", ".join(names[name])
        if resume == "CHOSEN":
            default = "auto"
        yield "| `%s` | %s | %s | %s | %s | %s | %s |" % (
            name, kind.lower(), default, limits, owner.lower(), RESUME[resume], about)
    rules = (ROOT / "src/config/rules.h").read_text()
    yield ""
    yield "Which values go together:"
    yield ""
    for says in re.findall(r'X\(\w+, [^"]*?,' + literal + ",", rules):
        yield "- " + words(says)


def title(code):
    names = functions(code)
    if names:
        return ", ".join("`%s`" % name for name in names)
    found = re.search(r"typedef (?:struct|enum) (ht_\w+)", code)
    if found:
        return "`%s`" % found.group(1)
    found = re.search(r"#define (HT_\w+)", code) or re.search(r"enum \{ (HT_[A-Z]+)_", code)
    return "`%s`" % found.group(1) if found else None


def entry(comment, code):
    if not code.strip():
        if comment:
            yield plain(comment)
        return
    name = title(code)
    if name:
        yield "### " + name
    if comment:
        yield plain(comment)
    yield "```c\n%s\n```" % code.replace("HT_API ", "")


def rules(header):
    """The header's opening words about errors, threads and memory."""
    opening = header[:header.index("*/")].split("\n *\n")
    for paragraph in opening:
        words = plain(paragraph)
        if words.startswith(("Every fallible", "Threads:", "Memory:")):
            yield words


def sections(header):
    parts = re.split(r"^/\* ---- (.*?) -+ \*/$", header, flags=re.M)
    for heading, body in zip(parts[1::2], parts[2::2]):
        body = body.split("#ifdef __cplusplus")[0]
        yield "## " + heading[0].upper() + heading[1:]
        for chunk in chunks(body):
            for comment, code in entries(chunk):
                yield from entry(comment, code)
        if heading == "configurations":
            yield "### Settings"
            yield SETTINGS.strip()
            yield "\n".join(settings())


def symbols(text, declared):
    """The list of a library with its newest version as the header has it."""
    nodes = r"^HTRANSFORMER_(?:MODELS_)?[0-9.]+ \{\n    global:\n((?: {8}ht_\w+;\n)*)"
    node = list(re.finditer(nodes, text, re.M))[-1]
    older = set(re.findall(r"\bht_\w+", text[:node.start()]))
    if older - declared:
        sys.exit("released and now gone: " + ", ".join(sorted(older - declared)))
    names = "".join("        %s;\n" % name for name in sorted(declared - older))
    return text[:node.start(1)] + names + text[node.end(1):]


def page(headers):
    out = [INTRO.strip(), "## Rules", *rules(headers[0]), PROMISE.strip()]
    for header in headers:
        out.extend(sections(header))
    return "\n\n".join(out) + "\n"


def main():
    libraries = ("htransformer", "htransformer_models")
    headers = [(ROOT / "include" / (name + ".h")).read_text() for name in libraries]
    text = page(headers)
    files = {ROOT / "docs/api.md": text}
    for name, header in zip(libraries, headers):
        target = ROOT / "cmake" / (name + ".map.in")
        files[target] = symbols(target.read_text(), set(functions(header)))
    # every function has a heading of its own, whatever the layout of the headers
    headed = set(re.findall(r"`(ht_[a-z0-9_]+)`", "\n".join(
        line for line in text.split("\n") if line.startswith("### "))))
    declared = set(re.findall(r"^HT_API [^;(]*?\b(ht_[a-z0-9_]+)\(", "".join(headers), re.M))
    if declared - headed:
        sys.exit("scripts/api.py: no entry for " + ", ".join(sorted(declared - headed)))
    for target, made in files.items():
        if "--check" not in sys.argv:
            target.write_text(made)
        elif not target.is_file() or target.read_text() != made:
            sys.exit("%s is not what the headers give: python3 scripts/api.py writes it anew"
                     % target.relative_to(ROOT))
    print("%d functions" % len(declared))


main()
