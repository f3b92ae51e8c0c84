"""From a wheel to a first result in an empty virtual environment, in one step.

    wheel.py ROOT BUILD        # 0 passed, 1 failed, 77 skipped

Packs what BUILD has in its folder `python` and installs it under the oldest and the newest Python
at hand (from 3.9 on; those of pyenv, too). NumPy comes from the package index: without that,
nothing can be installed.
"""
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

SKIPPED = 77
MOST = {"htransformer": (5e6, 30e6), "htransformer_models": (30e6, 30e6)}  # without, with CUDA

ATTENTION = """
import numpy, htransformer
x = numpy.ones((1, 4096, 8, 64), numpy.float32)
assert htransformer.attention(x, x, x, causal=True).mean() == 1
assert "site-packages" in htransformer.library_path(), htransformer.library_path()
"""

MODELS = """
import htransformer
assert len("".join(htransformer.load(device="cpu").generate("ROMEO:", 20, endless=True))) == 20
data = [("sun", "good"), ("rain", "bad")] * 20
model = htransformer.train(data, run="run", steps=2, length=32, batch=4, device="cpu")
assert model.predict(["sun"])[0] in model.labels == ["bad", "good"]
"""


def pythons():
    """The oldest and the newest: {version: program}."""
    roots = [os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")]
    found = {sys.version_info[:2]: sys.executable}
    programs = [path for root in roots for path in glob.glob(root + "/versions/*/bin/python3")]
    programs += [path for n in range(9, 30) for path in [shutil.which("python3.%d" % n)] if path]
    code = "import sys, ensurepip; print(*sys.version_info[:2])"
    for program in programs:
        done = subprocess.run([program, "-c", code], capture_output=True, text=True)
        version = tuple(map(int, done.stdout.split()))
        if done.returncode == 0 and version >= (3, 9):
            found.setdefault(version, program)
    return {version: found[version] for version in (min(found), max(found))}


def environment():
    """Nothing of this tree's settings."""
    hidden = ("PYTHONPATH", "HTRANSFORMER_LIBRARY", "HTRANSFORMER_MODELS_LIBRARY", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def run(*words, **more):
    return subprocess.run(words, capture_output=True, text=True, env=environment(), **more)


def pack(project, prebuilt, to):
    made = run(sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check",
               "--no-build-isolation", "--no-deps", "-w", to,
               "--config-settings=cmake.define.HT_PYTHON_PREBUILT=" + prebuilt, project)
    if made.returncode:
        sys.exit("no wheel of %s:\n%s%s" % (project, made.stdout, made.stderr))


def check_sizes(wheels, cuda):
    for path in wheels:
        name, size = os.path.basename(path).split("-")[0], os.path.getsize(path)
        print("%s: %.2f MB" % (os.path.basename(path), size / 1e6))
        if "-py3-none-" not in path or size > MOST[name][cuda]:
            sys.exit("%s: it must be py3-none and of at most %d bytes" % (path, MOST[name][cuda]))


def check_box(wheels, root):
    """The weights of models/ are in the second wheel."""
    with zipfile.ZipFile(wheels[1]) as box:
        names = {name.split("/")[-1]: box.getinfo(name).file_size for name in box.namelist()}
    for path in glob.glob(os.path.join(root, "models", "*.safetensors")):
        if names.get(os.path.basename(path)) != os.path.getsize(path):
            sys.exit("%s is not in %s" % (path, wheels[1]))


def try_in(program, wheels, room, codes):
    """One step: pip install. None: no package index."""
    venv = os.path.join(room, "venv")
    made = run(program, "-m", "venv", "--clear", venv)
    if made.returncode:
        sys.exit("%s makes no virtual environment: %s" % (program, made.stderr))
    python = os.path.join(venv, "bin", "python")
    done = run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *wheels)
    if done.returncode:
        if "No matching distribution" in done.stderr or "onnection" in done.stderr:
            return None
        sys.exit("pip install: " + done.stderr)
    shutil.rmtree(os.path.join(room, "run"), ignore_errors=True)  # of the Python before
    for code in codes:
        done = run(python, "-W", "error", "-c", code, cwd=room)
        if done.returncode:
            sys.exit("%s: %s%s" % (program, done.stdout, done.stderr))
    return True


def main(root, build):
    prebuilt = os.path.join(build, "python")
    try:
        import scikit_build_core  # noqa: F401
        with open(os.path.join(build, "CMakeCache.txt")) as cache:
            cuda = "CMAKE_CUDA_COMPILER:" in cache.read()
    except ImportError:
        print("skipped: %s has no scikit-build-core (scripts/python.sh fetches it)"
              % sys.executable)
        return SKIPPED
    with tempfile.TemporaryDirectory() as room:
        pack(root, prebuilt, room)
        pack(os.path.join(root, "python", "models"), prebuilt, room)
        wheels = sorted(glob.glob(room + "/*.whl"))
        assert len(wheels) == 2, wheels
        check_sizes(wheels, cuda)
        check_box(wheels, root)
        for version, program in pythons().items():
            if not try_in(program, wheels, room, (ATTENTION, MODELS)):
                print("skipped: the package index cannot be reached")
                return SKIPPED
            print("Python %d.%d: fine" % version)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
