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
            "skipped: %s has no %s (Debian: python3-pytest, python3-numpy, python3-torch)"
            % (sys.executable, " and no ".join(missing))
        )
        return SKIPPED
    if importlib.util.find_spec("torch") is None:
        print("without PyTorch (Debian: python3-torch): its tests are skipped")
    import pytest

    # leave nothing in the source tree
    sys.dont_write_bytecode = True
    return 1 if pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", HERE, HERE]) else 0


if __name__ == "__main__":
    sys.exit(main())
