"""Every function of the public headers as a row of a table that test_api.c goes over; and every
struct with a size that one takes or fills, for test_sizes.c.

    python3 calls.py CALLS.h TAKEN.h HEADER...
"""
import re
import sys

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
FUNCTION = re.compile(r"HT_API\s+([\w\s]+?[\s*]+)(ht_\w+)\s*\(([^;]*?)\)\s*;", re.S)
STRUCT = re.compile(r"typedef struct (ht_\w+) \{\s*size_t size;")
BODY = re.compile(r"typedef struct (ht_\w+) \{\s*size_t size;(.*?)\} \1;", re.S)
NUMBER = re.compile(r"^\s*(u?int64_t|uint32_t|size_t|int|double|ht_\w+)\s+(\w+)(?:\[\d+\])?;", re.M)
HANDLE = re.compile(r"typedef struct (ht_\w+) \1;")


def split(parameter):
    """"const char *path" as type and name."""
    kind, name = re.match(r"(.*?[\s*])(\w+)$", " ".join(parameter.split())).groups()
    return kind.strip(), name


def argument(index, kind):
    if "*" in kind:
        return "(%s)v[%d].p" % (kind, index)
    return "(%s)v[%d].%s" % (kind, index, "d" if kind == "double" else "i")


def main():
    out, taken, headers = sys.argv[1], sys.argv[2], sys.argv[3:]
    text = "\n".join(COMMENT.sub(" ", open(header).read()) for header in headers)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    functions = FUNCTION.findall(text)
    lines, rows, structs = [], [], STRUCT.findall(text)
    for result, name, parameters in functions:
        pairs = [] if parameters.strip() == "void" else [split(p) for p in parameters.split(",")]
        call = "%s(%s)" % (name, ", ".join(argument(i, k) for i, (k, _) in enumerate(pairs)))
        status = result.strip() == "ht_status"
        lines.append("static int call_%s(const value *v) {\n    (void)v;\n    %s%s;\n%s}\n" % (
            name, "return " if status else "(void)" if result.strip() != "void" else "", call,
            "" if status else "    return -1;\n"))
        rows.append('    {"%s", call_%s, %d, {%s}},\n' % (name, name, len(pairs), ", ".join(
            '{"%s", "%s"}' % pair for pair in pairs) or "{NULL, NULL}"))
    for name in structs:
        lines.append("static %s sized_%s = {.size = sizeof(%s)};\n" % (name, name, name))
    sized = ['    {"%s *", &sized_%s},\n' % (n, n) for n in structs]
    handles = ['"%s *", ' % n for n in HANDLE.findall(text)]
    fields = ['    {"%s *", "%s", offsetof(%s, %s), sizeof(sized_%s.%s), %d},\n' % (
        struct, name, struct, name, struct, name, kind == "double")
        for struct, body in BODY.findall(text) for kind, name in NUMBER.findall(body)
        if kind not in ("ht_tensor", "ht_allocator")]
    with open(out, "w") as f:
        f.write("/* written by calls.py */\n" + "\n".join(lines))
        f.write("\nstatic const call calls[] = {\n%s};\n" % "".join(rows))
        f.write("\nstatic const struct {\n    const char *type;\n    void *at;\n} sized[] = {\n")
        f.write("%s};\n" % "".join(sized))
        f.write("\nstatic const field fields[] = {\n%s};\n" % "".join(fields))
        f.write("\nstatic const char *const handles[] = {%s};\n" % "".join(handles))
    with open(taken, "w") as f:
        for _, name, parameters in functions:
            kinds = re.findall(r"\b(ht_\w+) \*", parameters)
            f.write("".join('{"%s", "%s"},\n' % (name, k) for k in kinds if k in structs))
    if len(functions) != len(re.findall(r"^HT_API|\nHT_API", text)):
        sys.exit("calls.py: %d functions found, %d declared" % (
            len(functions), len(re.findall(r"\bHT_API\b", text))))


main()
