"""The shared library: where it is found, its structs and functions, its errors as exceptions.

Everything here mirrors include/htransformer.h; tests/python/test_library.py compares the two field
by field. The library is loaded at the first call, so that importing the package needs nothing.
"""
import ctypes
import os
import sys
import threading
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int, c_int64
from ctypes import c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, List

from . import _openmp

# ---- errors ------------------------------------------------------------------------------------


class Error(Exception):
    """Any failure of this package; the subclasses are also Python's own kinds."""


class InvalidError(Error, ValueError):
    """An argument is wrong: the sentence names it and its value."""


class OutOfMemoryError(Error, MemoryError):
    """The device or the host has too little memory."""


class FormatError(Error, ValueError):
    """Saved bytes are not what they claim."""


class UnsupportedError(Error, RuntimeError):
    """This build or device cannot do it."""


class DeviceError(Error, RuntimeError):
    """The device failed."""


class FileError(Error, OSError):
    """A file could not be read or written."""


class DivergedError(Error, ArithmeticError):
    """Training found no finite loss any more."""


class LibraryError(Error, ImportError):
    """The shared library was not found, or is another version's."""


for _kind in [Error] + Error.__subclasses__():
    _kind.__module__ = "htransformer"  # where users find them

_ERROR_OF_STATUS = {2: InvalidError, 3: OutOfMemoryError, 4: FileError, 5: FormatError,
                    6: UnsupportedError, 7: DeviceError, 8: DivergedError}

# ---- structs and numbers of htransformer.h -------------------------------------------------------

KINDS = {"hierarchical": 0, "full": 1, "local": 2}
MODES = {"auto": 0, "mean": 1, "first": 2, "fine": 3}
DTYPES = {"float32": 0, "bfloat16": 1, "float64": 2, "float16": 3}


class Allocator(Structure):
    _fields_ = [("alloc", c_void_p), ("release", c_void_p), ("user", c_void_p)]


class ContextDesc(Structure):
    _fields_ = [("size", c_size_t), ("device", c_char_p), ("threads", c_int), ("stream", c_void_p),
                ("allocator", Allocator)]


class DeviceInfo(Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("about", c_char_p), ("available", c_int),
                ("chosen", c_int)]


class AttentionDesc(Structure):
    _fields_ = [("size", c_size_t), ("kind", c_int), ("query", c_int), ("dtype", c_int),
                ("causal", c_int), ("has_bias", c_int), ("cross", c_int), ("q_heads", c_int64),
                ("kv_heads", c_int64), ("head_dim", c_int64), ("value_dim", c_int64),
                ("block", c_int64), ("max_rows", c_int64), ("max_sequences", c_int64),
                ("max_length", c_int64), ("scale", c_double), ("rotary_theta", c_double),
                ("dropout", c_double), ("open", c_int64), ("open_leaf", c_int64),
                ("open_peek", c_int64)]


class AttentionNeed(Structure):
    _fields_ = [("size", c_size_t), ("saved", c_size_t), ("scratch_forward", c_size_t),
                ("scratch_backward", c_size_t)]


class Tensor(Structure):
    _fields_ = [("data", c_void_p), ("batch_stride", c_int64), ("row_stride", c_int64),
                ("head_stride", c_int64)]


class AttentionArgs(Structure):
    _fields_ = [("size", c_size_t), ("batch", c_int64), ("length", c_int64),
                ("cu_seqlens", c_void_p), ("q", Tensor), ("k", Tensor), ("v", Tensor),
                ("out", Tensor), ("bias", c_void_p), ("key_mask", c_void_p),
                ("query_mask", c_void_p), ("lse", Tensor), ("seed", c_uint64),
                ("offset", c_uint32), ("saved", c_void_p), ("scratch", c_void_p)]


class AttentionGrads(Structure):
    _fields_ = [("size", c_size_t), ("dout", Tensor), ("dlse", Tensor), ("dq", Tensor),
                ("dk", Tensor), ("dv", Tensor), ("dbias", c_void_p)]


_H = c_void_p  # a handle: ht_context *, ht_attention *, ht_cache *
_FUNCTIONS = {  # name: (result, arguments); results of c_int are ht_status
    "ht_version": (c_char_p, []),
    "ht_status_text": (c_char_p, [c_int]),
    "ht_context_create": (c_int, [POINTER(_H), POINTER(ContextDesc)]),
    "ht_context_destroy": (None, [_H]),
    "ht_context_error": (c_char_p, [_H]),
    "ht_context_device": (c_char_p, [_H]),
    "ht_context_threads": (c_int, [_H]),
    "ht_device_count": (c_int, []),
    "ht_device_get": (c_int, [c_int, POINTER(DeviceInfo)]),
    "ht_attention_create": (c_int, [POINTER(_H), _H, POINTER(AttentionDesc)]),
    "ht_attention_destroy": (None, [_H]),
    "ht_attention_get_need": (c_int, [_H, POINTER(AttentionNeed)]),
    "ht_attention_levels": (c_int, [_H, c_int64]),
    # addresses as plain numbers: ctypes is quicker with them
    "ht_attention_forward": (c_int, [_H, c_void_p]),
    "ht_attention_backward": (c_int, [_H, c_void_p, c_void_p]),
    "ht_cache_create": (c_int, [POINTER(_H), _H, c_int64]),
    "ht_cache_destroy": (None, [_H]),
    "ht_cache_extend": (c_int, [_H, POINTER(c_int64), POINTER(AttentionArgs)]),
    "ht_cache_position": (c_int64, [_H, c_int64]),
    "ht_cache_rows": (c_int64, [_H, c_int64]),
    "ht_cache_reset": (c_int, [_H, c_int64]),
    "ht_cache_fork": (c_int, [_H, c_int64, c_int64]),
    "ht_cache_save_bytes": (c_int, [_H, c_int64, POINTER(c_size_t)]),
    "ht_cache_save": (c_int, [_H, c_int64, c_void_p, c_size_t]),
    "ht_cache_load": (c_int, [_H, c_int64, c_void_p, c_size_t]),
}

# ---- finding and loading -------------------------------------------------------------------------

VERSION = "0.1.0"  # the header this file mirrors
_library = None
_loading = threading.Lock()


def _candidates():
    """(path, where it was looked for), in the order in which they are tried."""
    name = "libhtransformer.dylib" if sys.platform == "darwin" else "libhtransformer.so"
    wheel = name if name.endswith("dylib") else name + ".1"
    package = os.path.dirname(os.path.abspath(__file__))
    build = os.path.join(os.path.dirname(os.path.dirname(package)), "build")
    return [(os.path.join(package, wheel), "beside the package"),
            (os.path.join(build, name), "the source tree's build folder"),
            (wheel, "the system's loader"), (name, "the system's loader")]


def _open():
    named = os.environ.get("HTRANSFORMER_LIBRARY")
    if named:
        try:
            return ctypes.CDLL(named)
        except OSError as error:
            raise LibraryError("HTRANSFORMER_LIBRARY is %r, which cannot be loaded: %s"
                               % (named, error)) from None
    tried = []
    for path, where in _candidates():
        if os.path.isabs(path) and not os.path.exists(path):
            tried.append("%s (%s): no such file" % (path, where))
            continue
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append("%s (%s): %s" % (path, where, error))
    raise LibraryError("the htransformer library was not found; build it, then set "
                       "HTRANSFORMER_LIBRARY to its libhtransformer.so. Tried:\n  "
                       + "\n  ".join(tried))


def library():
    """The loaded library, its functions typed."""
    global _library
    if _library is None:
        with _loading:
            if _library is None:
                _openmp.provide()
                _library = _prepare(_open())
    return _library


def _prepare(lib):
    try:
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(lib, name)
            function.restype = result
            function.argtypes = arguments
    except AttributeError as error:
        raise LibraryError("%s is not the htransformer library: %s" % (lib._name, error)) from None
    version = lib.ht_version().decode()
    if version.split(".")[:2] != VERSION.split(".")[:2]:
        raise LibraryError("%s is version %s, this package needs %s" %
                           (lib._name, version, VERSION))
    return lib


def check(status, context=None):
    """Raises the exception of a failed call, with the library's sentence."""
    if status == 0:
        return
    lib = library()
    sentence = lib.ht_context_error(context).decode(errors="replace")
    raise _ERROR_OF_STATUS.get(status, Error)(sentence or lib.ht_status_text(status).decode())


def version() -> str:
    """The library's version, "0.1.0"."""
    return library().ht_version().decode()


def library_path() -> str:
    """The file that was loaded."""
    return library()._name


def devices() -> List[Dict[str, Any]]:
    """What the library knows and this machine has: a list of dicts with the keys name, about,
    available (can it run here?) and chosen (this is what "cpu" means here)."""
    lib, found = library(), []
    for index in range(lib.ht_device_count()):
        info = DeviceInfo(size=ctypes.sizeof(DeviceInfo))
        check(lib.ht_device_get(index, byref(info)))
        found.append({"name": info.name.decode(), "about": info.about.decode(),
                      "available": bool(info.available), "chosen": bool(info.chosen)})
    return found
