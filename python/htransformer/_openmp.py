"""One OpenMP runtime per process.

The libraries of the wheels do not say which runtime they want: two of them in one process fight for
the cores, and PyTorch brings its own. Before a library is loaded, one is made visible to it: what
the process has already, else PyTorch's if that is installed (it may be imported later), else the
system's. Where there is none, the wheel has one of a single thread.
"""
import ctypes
import glob
import importlib.util
import os
import re
import sys
import warnings

_RUNTIME = re.compile(r"lib(gomp|iomp5|omp)\b[^/]*\.so[^/]*$")
_SYSTEM = "libgomp.so.1"
_SERIAL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libhtransformer_serial.so")
_provided = None


def loaded():
    """Files of the runtimes that this process has."""
    try:
        with open("/proc/self/maps", errors="replace") as maps:
            paths = (line.rstrip("\n").split(None, 5)[5:] for line in maps)
            return sorted({path[0] for path in paths if path and _RUNTIME.search(path[0])})
    except OSError:
        return []  # no such file on this system


def _of_torch():
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.origin:
        return []
    folder = os.path.dirname(spec.origin)
    return sorted(glob.glob(os.path.join(folder, "lib", "libgomp*.so*"))
                  + glob.glob(os.path.join(os.path.dirname(folder), "torch.libs", "libgomp*.so*")))


def _try(path):
    try:
        return hasattr(ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL), "GOMP_parallel")
    except OSError:
        return False


def provide():
    """Makes a runtime visible to the libraries that are loaded from now on; returns its file."""
    global _provided
    if _provided is None and sys.platform == "linux":
        names = loaded() + _of_torch() + [_SYSTEM]
        _provided = next((name for name in names if _try(name)), None)
        if _provided is None and os.path.exists(_SERIAL) and _try(_SERIAL):
            _provided = _SERIAL
            warnings.warn("no OpenMP runtime was found: htransformer computes on one thread "
                          "(Debian, Ubuntu: apt-get install libgomp1)", RuntimeWarning,
                          stacklevel=4)
    return _provided
