"""cuBLASLt is found in Python's packages; the libraries here are made for that."""
import os
import subprocess
import sys

import pytest

import htransformer

TRY = """
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
from htransformer import _cublas
def there():
    try:
        return ctypes.CDLL("libcublasLt.so.98").which()
    except OSError:
        return 0
before = there()
found = _cublas.provide()
print(before, there(), len(found), _cublas.provide() == [])
"""


def put(folder, place, number, version="98"):
    """A library with the name of the real one, which says a number."""
    at = folder / place
    at.mkdir(parents=True, exist_ok=True)
    (folder / "which.c").write_text("int which(void) { return %d; }" % number)
    name = "libcublasLt.so." + version
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(at / name), "-Wl,-soname," + name,
                        str(folder / "which.c")], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no C compiler")


def run(folder):
    """[loadable before, after, files, nothing more to do]"""
    path = os.path.dirname(os.path.dirname(htransformer.__file__))
    done = subprocess.run([sys.executable, "-S", "-c", TRY, str(folder)], capture_output=True,
                          text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(
                              [path, *filter(None, sys.path)])})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("place", ["nvidia/cublas/lib", "nvidia/cu13/lib", "torch/lib"])
def test_found_in_a_package(tmp_path, place):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('it was imported')")
    put(tmp_path, place, 7)
    before, after, files, again = run(tmp_path)
    assert (before, after, again) == ("0", "7", "True") and int(files) >= 1


def test_nvidias_goes_before_and_what_is_broken_is_passed_over(tmp_path):
    put(tmp_path, "nvidia/cublas/lib", 1)
    put(tmp_path, "torch/lib", 2)
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "nvidia" / "cublas" / "lib" / "libcublasLt.so.97").write_text("no library")
    assert run(tmp_path)[1] == "1"


def test_none(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    assert run(tmp_path)[1] == "0"


def test_asked_for_where_models_need_it(monkeypatch):
    """On a GPU, before a model is made; not on the CPU."""
    try:
        from htransformer import _cublas, _models_library
        _models_library.models()
    except htransformer.LibraryError:
        pytest.skip("no library of models")
    asked = []
    monkeypatch.setattr(_cublas, "provide", lambda: asked.append(1))
    _models_library.Owner("cpu", 1).close()
    assert not asked
    monkeypatch.setattr(_models_library.Owner, "device", "cuda:0")
    _models_library.Owner("cpu", 1).close()
    assert asked == [1]
