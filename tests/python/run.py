"""Runs the Python tests under CTest: 0 passed, 1 failed, 77 skipped because something is
missing."""

import importlib.util
import os
import sys

SKIPPED = 77
HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    missing = [name for name in ("pytest", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            "skipped: %s has no %s (scripts/python.sh makes a Python that has)"
            % (sys.executable, " and no ".join(missing))
        )
        return SKIPPED
    for name in ("torch", "jax", "transformers"):
        if importlib.util.find_spec(name) is None:
            print("without %s: its tests are skipped (scripts/python.sh fetches it)" % name)
    import pytest

    # leave nothing in the source tree
    sys.dont_write_bytecode = True
    return 1 if pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", HERE, HERE]) else 0


if __name__ == "__main__":
    sys.exit(main())
