"""The examples run, each for a few steps."""
import importlib.util
import os
import subprocess
import sys

import pytest

import htransformer

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
NEEDS = {"torch_layer": "torch", "jax_attention": "jax", "transformers_llama": "transformers",
         "classify": "numpy"}


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_example(name):
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip("no " + NEEDS[name])
    path = os.path.dirname(os.path.dirname(htransformer.__file__))
    done = subprocess.run(
        [sys.executable, os.path.join(ROOT, "examples", name + ".py"), "3"], capture_output=True,
        text=True, env=dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1", JAX_PLATFORMS="cpu",
                            HTRANSFORMER_DEVICE="cpu"), timeout=240)
    assert done.returncode == 0 and "loss" in done.stdout, done.stderr
