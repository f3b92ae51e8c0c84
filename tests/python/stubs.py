"""Makes PyTorch from the package index load without NVIDIA's packages, which are gigabytes that
tests on a CPU never call.

    python stubs.py          # with the Python whose PyTorch is meant

For each of NVIDIA's libraries that PyTorch's own ask for and that is not there, a small one is
compiled beside them: every function of it says "no such device" (100). Nothing is done if PyTorch
loads already.
"""
import collections
import importlib.util
import os
import re
import subprocess
import sys
import tempfile


def read(option, path):
    return subprocess.run(["readelf", "-W", option, path], capture_output=True, text=True,
                          check=True).stdout


def undefined_and_defined(path):
    """{(symbol, version)} that a library asks for, and the symbols it has."""
    wanted, has = set(), set()
    for line in read("--dyn-syms", path).splitlines():
        word = line.split()
        if len(word) < 8 or not word[0].endswith(":") or word[4] == "LOCAL":
            continue
        name, _, version = word[7].replace("@@", "@").partition("@")
        if word[6] != "UND":
            has.add(name)
        elif word[4] != "WEAK":
            wanted.add((name, version))
    return wanted, has


def versions(path):
    """{version: library} of what a library asks for."""
    found, library = {}, None
    for line in read("-V", path).splitlines():
        if "File:" in line:
            library = re.search(r"File: (\S+)", line).group(1)
        elif library and "Name:" in line:
            found[re.search(r"Name: (\S+)", line).group(1)] = library
    return found


def loads(soname):
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    return subprocess.run([sys.executable, "-c", code, soname], capture_output=True).returncode == 0


def compile_stub(target, soname, symbols):
    """symbols: {version: names}; the version "" is none."""
    names = sorted(name for group in symbols.values() for name in group)
    with tempfile.TemporaryDirectory() as folder:
        source, script = os.path.join(folder, "stub.c"), os.path.join(folder, "stub.map")
        with open(source, "w") as file:
            file.writelines("int %s(void) { return 100; }\n" % name for name in names)
        with open(script, "w") as file:
            for version, group in symbols.items():
                if version:
                    file.write("%s { %s };\n" % (version, " ".join(n + ";" for n in sorted(group))))
        versioned = ["-Wl,--version-script=" + script] if any(symbols) else []
        subprocess.run(["cc", "-shared", "-fPIC", "-fno-builtin", "-w", "-o", target,
                        "-Wl,-soname," + soname, source] + versioned, check=True)


def main():
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0:
        return 0
    folder = os.path.join(os.path.dirname(importlib.util.find_spec("torch").origin), "lib")
    libraries = [os.path.join(folder, name) for name in sorted(os.listdir(folder))
                 if re.match(r"lib(torch|c10|caffe2|shm)\w*\.so", name)]
    needed, wanted, has, owner = set(), set(), set(), {}
    for path in libraries:
        needed |= set(re.findall(r"NEEDED.*\[(\S+)\]", read("-d", path)))
        asks, defines = undefined_and_defined(path)
        wanted, has = wanted | asks, has | defines
        owner.update(versions(path))
    nvidia = re.compile(r"lib(cu|nccl|nv)")
    missing = sorted(name for name in needed if nvidia.match(name) and not loads(name))
    symbols = collections.defaultdict(lambda: collections.defaultdict(set))
    for name, version in wanted:
        if version and owner.get(version) in missing:
            symbols[owner[version]][version].add(name)
        elif not version and name not in has and re.match(r"_*(cu|nccl|nv)", name):
            for soname in missing:  # nobody says whose it is
                symbols[soname][""].add(name)
    for soname in missing:
        compile_stub(os.path.join(folder, soname), soname, symbols[soname])
    done = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
