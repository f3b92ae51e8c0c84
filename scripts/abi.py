"""Whether the public headers still keep what they promised to programs that were built with a
release (docs/api.md, "Older and newer programs").

    python3 scripts/abi.py             exits 1 and names what has changed since releases
    python3 scripts/abi.py --release   remembers the headers as they are, in cmake/released.json:
                                       a part of making a release
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RELEASED = ROOT / "cmake" / "released.json"
LIBRARIES = ("htransformer", "htransformer_models")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
SIZES = {"int": 4, "uint32_t": 4, "int32_t": 4, "float": 4, "char": 1, "unsigned char": 1,
         "uint8_t": 1}  # all others are pointers and numbers of 8 bytes


def plain(code):
    return re.sub(r" ?([*(),\[\]]) ?", r"\1", " ".join(code.split()))


def functions(text):
    """{name: declaration without the names of its parameters}"""
    found = {}
    each = re.compile(r"HT_API\s+([\w\s]+?[\s*]+)(ht_\w+)\s*\(([^;]*)\)\s*;")
    for result, name, rest in each.findall(text):
        types = [re.sub(r"\w+$", "", part.strip()) if part.strip() != "void" else part
                 for part in rest.split(",")]
        found[name] = plain("%s(%s)" % (result, ",".join(types)))
    return found


def fields(body):
    """Each with its type: "int64_t a, b;" is two."""
    for line in map(plain, body.split(";")):
        if not line or "(" in line:
            yield from [line] if line else []
            continue
        kind, names = re.match(r"((?:const |unsigned )*\w+[ *])(.*)$", line).groups()
        for name in names.split(","):
            yield (kind.strip() + " " + name).replace("* ", "*")


def structs(text):
    return {name: list(fields(body)) for name, body in
            re.findall(r"typedef struct (ht_\w+) \{(.*?)\} \1;", text, re.S)}


def enums(text):
    """{constant: number}"""
    found = {"HT_" + name: int(n) for name, n in re.findall(r"\bX\(([A-Z]+), (\d+), \"", text)}
    for body in re.findall(r"typedef enum ht_\w+ \{([^#}]*)\}", text):
        number = -1
        for name, given in re.findall(r"(HT_\w+)(?:\s*=\s*(\d+))?", body):
            number = int(given) if given else number + 1
            found[name] = number
    return found


def nodes(text):
    """{function: the version that it came with}"""
    return {name: node for node, body in re.findall(r"^(\w[\w.]*) \{\s*global:(.*?)\n\}", text,
                                                    re.M | re.S)
            for name in re.findall(r"\b(ht_\w+);", body)}


def read():
    headers = "\n".join((ROOT / "include" / (name + ".h")).read_text() for name in LIBRARIES)
    text = COMMENT.sub(" ", headers)
    maps = "\n".join((ROOT / "cmake" / (name + ".map.in")).read_text() for name in LIBRARIES)
    version = ".".join(re.findall(r"define HT_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", headers))
    now = {"version": version, "functions": functions(text), "structs": structs(text),
           "enums": enums(text), "nodes": nodes(maps)}
    if len(now["functions"]) != len(re.findall(r"\bHT_API [^#]", re.sub(r"#.*", "", text))):
        sys.exit("scripts/abi.py: some function of the headers was not understood")
    return now


def size_of(declared, known):
    """(bytes, alignment) of a field."""
    kind = declared.replace("const ", "").split(" ")[0]
    many = 1
    for n in re.findall(r"\[(\d+)\]", declared):
        many *= int(n)
    if "*" in declared:
        return 8 * many, 8
    if kind in known["structs"]:
        return many * end_of(known["structs"][kind], known), 8
    each = 4 if re.fullmatch(r"ht_\w+", kind) else SIZES.get(kind, 8)  # enums are ints
    return each * many, each


def unpadded(members, known):
    """Bytes up to the end of the last of these members."""
    at = 0
    for declared in members:
        size, align = size_of(declared, known)
        at = (at + align - 1) // align * align + size
    return at


def end_of(members, known):
    """Bytes of a struct with these members."""
    most = max(size_of(declared, known)[1] for declared in members)
    return (unpadded(members, known) + most - 1) // most * most


def struct_faults(name, old, new, known):
    if new[:len(old)] != old:
        at = next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), len(new))
        yield "%s: its field \"%s\" is now %s" % (
            name, old[at], "\"%s\"" % new[at] if at < len(new) else "gone")
    elif len(new) > len(old) and not old[0].startswith("size_t size"):
        yield "%s has no size, so it cannot grow: \"%s\"" % (name, new[len(old)])
    elif len(new) > len(old):
        at, (_, align) = unpadded(old, known), size_of(new[len(old)], known)
        if (at + align - 1) // align * align < end_of(old, known):
            yield "%s: \"%s\" lies in the padding of the released struct" % (name, new[len(old)])


def faults(old, new):
    for name, says in old["functions"].items():
        if new["functions"].get(name) != says:
            yield "%s was %s, and is %s" % (name, says, new["functions"].get(name, "gone"))
        elif new["nodes"].get(name) != old["nodes"][name]:
            yield "%s came with %s, and is in %s" % (name, old["nodes"][name],
                                                     new["nodes"].get(name, "no version"))
    for name, members in old["structs"].items():
        yield from struct_faults(name, members, new["structs"].get(name, []), new)
    for name, number in old["enums"].items():
        if new["enums"].get(name) != number:
            yield "%s was %d, and is %s" % (name, number, new["enums"].get(name, "gone"))
    minor = ".".join(new["version"].split(".")[:2])
    if minor != ".".join(old["version"].split(".")[:2]):
        for name in set(new["functions"]) - set(old["functions"]):
            if not new["nodes"].get(name, "").endswith("_" + minor):
                yield "%s is new in %s, but in version %s of the symbols" % (
                    name, minor, new["nodes"].get(name))


def main():
    now = read()
    if "--release" not in sys.argv and not RELEASED.is_file():
        print("nothing was released yet: %d functions, %d structs, %d constants" % tuple(
            len(now[kind]) for kind in ("functions", "structs", "enums")))
        return
    found = list(faults(json.loads(RELEASED.read_text()), now)) if RELEASED.is_file() else []
    for fault in sorted(found):
        print("since release: " + fault)
    if not found and "--release" in sys.argv:
        RELEASED.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
    print("version %s: %s" % (now["version"], "%d promises broken" % len(found) if found
                              else "all that releases promised"))
    sys.exit(1 if found else 0)


main()
