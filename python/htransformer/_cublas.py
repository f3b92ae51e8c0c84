"""Where PyTorch's and NVIDIA's packages put cuBLASLt.

Models on a GPU need it. The library asks the system's loader, which does not look into Python's
packages, but takes what the process has loaded already. So, where there is none yet, that of a
package is loaded before a model is made.
"""
import ctypes
import glob
import importlib.util
import os
from typing import List

_NAME = "libcublasLt.so."
_PLACES = (("nvidia", "cu*/lib"), ("torch", "lib"))  # nvidia/cublas/lib, nvidia/cu13/lib, ...


def _folders(package: str) -> List[str]:
    """Without importing it: PyTorch's import takes seconds."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return list(spec.submodule_search_locations or []) if spec else []


def _loaded() -> bool:
    try:
        with open("/proc/self/maps", errors="replace") as maps:
            return any(_NAME in line for line in maps)
    except OSError:
        return False  # no such file on this system


def provide() -> List[str]:
    """Loads those of the packages, of each version one, if the process has none; their files."""
    found = {}
    for package, place in _PLACES if not _loaded() else ():
        for folder in _folders(package):
            for path in sorted(glob.glob(os.path.join(folder, place, _NAME + "*"))):
                name = os.path.basename(path)
                if name in found:
                    continue
                try:
                    found[name] = ctypes.CDLL(path)
                except OSError:
                    pass  # of another system, or without what it needs
    return [library._name for library in found.values()]
