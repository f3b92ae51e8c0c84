"""One OpenMP runtime per process, whoever is imported first; and a library of the wheels does with
any."""
import os
import subprocess
import sys

import numpy as np
import pytest

import htransformer

FOLDER = os.path.join(os.path.dirname(os.path.realpath(htransformer.library_path())), "python")
OF_WHEEL = os.path.join(FOLDER, "libhtransformer.so.1")
SERIAL = os.path.join(FOLDER, "libhtransformer_serial.so")
pytestmark = pytest.mark.skipif(sys.platform != "linux" or not os.path.exists(OF_WHEEL),
                                reason="no libraries of the wheels beside this one")

ATTEND = """
import numpy as np, htransformer
from htransformer import _openmp
def ours():
    x = np.linspace(-1, 1, 6400, dtype=np.float32).reshape(1, 100, 8, 8)
    print(htransformer.attention(x, x, x, causal=True, block=8).tobytes().hex()[:4000])
"""
TORCH = """
def theirs():
    import torch
    torch.ones(700, 700) @ torch.ones(700, 700)
"""


def run(code, library):
    path = os.path.dirname(os.path.dirname(htransformer.__file__))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env=dict(os.environ, PYTHONPATH=path, HTRANSFORMER_LIBRARY=library,
                                   OMP_NUM_THREADS="2"))
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def wanted():
    x = np.linspace(-1, 1, 6400, dtype=np.float32).reshape(1, 100, 8, 8)
    return htransformer.attention(x, x, x, causal=True, block=8).tobytes().hex()[:4000]


@pytest.mark.parametrize("calls", ["ours(); theirs()", "theirs(); ours()"])
def test_one_runtime_beside_pytorch(calls):
    pytest.importorskip("torch")
    (found, *runtimes), _ = run(ATTEND + TORCH + calls + "\nprint(*_openmp.loaded())", OF_WHEEL)
    assert found == wanted() and len(runtimes) == 1, runtimes


def test_system_runtime_without_pytorch():
    hide = "\n_openmp._of_torch = lambda: []\n"
    (found, *runtimes), _ = run(ATTEND + hide + "ours()\nprint(*_openmp.loaded())", OF_WHEEL)
    assert found == wanted() and len(runtimes) == 1 and "torch" not in runtimes[0], runtimes


def test_one_thread_where_there_is_no_runtime():
    """With the same bits, and a word about it."""
    hide = ("\n_openmp._of_torch = lambda: []\n_openmp._SYSTEM = 'libnone.so'\n"
            "_openmp._SERIAL = %r\nours()\nprint(*_openmp.loaded())" % SERIAL)
    found, said = run(ATTEND + hide, OF_WHEEL)
    assert found == [wanted()] and "no OpenMP runtime was found" in said
