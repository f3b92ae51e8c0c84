"""Contexts and plans, kept for reuse.

A context belongs to one thread at a time: each has a lock, held for the length of a call and for
reading its error. (PyTorch runs backward on threads of its own, and calls leave Python's lock.)
Plans are small; both lists are bounded, the longest unused goes first, and an object that somebody
still holds lives on. The recipes of calls (_call.py) are kept here too: the oldest goes first.
"""
import os
import threading
import weakref
from collections import OrderedDict
from ctypes import byref, c_void_p, sizeof

from . import _library
from ._library import AttentionDesc, AttentionNeed, ContextDesc, check

MAX_CONTEXTS = 32
MAX_PLANS = 256
MAX_RECIPES = 256

_contexts = OrderedDict()  # (device, stream, threads): Context
_plans = OrderedDict()     # (context key, descriptor): Plan
recipes = {}               # what a call looks like: Recipe
_guard = threading.Lock()
_threads = 0


def set_num_threads(threads: int) -> None:
    """CPU threads of the calls to come; 0: PyTorch's number for tensors, OpenMP's for arrays.
    Results do not depend on it, to the last bit."""
    global _threads
    if not isinstance(threads, int) or threads < 0:
        raise _library.InvalidError("threads must be a number >= 0, got %r" % (threads,))
    _threads = threads


def threads():
    """What set_num_threads() was told; 0: nothing."""
    return _threads


def cpu_context(threads=0):
    """The context of CPU memory. HTRANSFORMER_DEVICE may name one of the CPU's kernels."""
    device = os.environ.get("HTRANSFORMER_DEVICE", "")
    return context(device if device.startswith("cpu") else "cpu", 0, _threads or threads)


def context(device, stream, threads):
    key = (device, stream, threads)
    with _guard:
        found = _contexts.get(key)
        if found is None:
            found = _contexts[key] = Context(key)
            if len(_contexts) > MAX_CONTEXTS:
                _contexts.popitem(last=False)
        else:
            _contexts.move_to_end(key)
    return found


class Context:
    """A device and a stream."""

    def __init__(self, key):
        device, stream, threads = self.key = key
        lib = _library.library()
        desc = ContextDesc(size=sizeof(ContextDesc), device=device.encode(), threads=threads,
                           stream=stream or None)
        handle = c_void_p()
        check(lib.ht_context_create(byref(handle), byref(desc)))
        self.handle, self.stream, self.lock = handle, stream, threading.RLock()
        # not at the interpreter's exit: the device's driver may be gone by then
        weakref.finalize(self, lib.ht_context_destroy, handle).atexit = False

    def call(self, function, *arguments):
        with self.lock:
            status = function(*arguments)
            if status:
                check(status, self.handle)


def _destroy(function, handle, context):
    with context.lock:  # the finalizer's reference also keeps the context alive until now
        function(handle)


def own(owner, function, handle, context):
    """Destroys a handle made from a context when its owner goes."""
    weakref.finalize(owner, _destroy, function, handle, context).atexit = False


class Plan:
    """An ht_attention and what it needs."""

    def __init__(self, context, values):
        lib = _library.library()
        desc, handle = AttentionDesc(sizeof(AttentionDesc), *values), c_void_p()
        need = AttentionNeed(size=sizeof(AttentionNeed))
        context.call(lib.ht_attention_create, byref(handle), context.handle, byref(desc))
        context.call(lib.ht_attention_get_need, handle, byref(need))
        self.handle, self.context = handle, context
        self.saved = need.saved
        self.scratch_forward = need.scratch_forward
        self.scratch_backward = need.scratch_backward
        own(self, lib.ht_attention_destroy, handle, context)

    def levels(self, length):
        return _library.library().ht_attention_levels(self.handle, length)


def plan(context, values):
    """The plan of a descriptor: `values` are AttentionDesc's fields after `size`."""
    key = (context.key, values)
    with _guard:
        found = _plans.get(key)
        if found is not None and found.context is context:
            _plans.move_to_end(key)
            return found
    made = Plan(context, values)
    with _guard:
        _plans[key] = made
        if len(_plans) > MAX_PLANS:
            _plans.popitem(last=False)
    return made


def probe(dtype):
    """Raises UnsupportedError if the CPU's kernels do not take a dtype."""
    values = {"kind": 0, "dtype": _library.DTYPES[dtype], "q_heads": 1, "head_dim": 8,
              "block": 16, "max_rows": 1}
    names = [name for name, _ in AttentionDesc._fields_[1:]]
    Plan(cpu_context(), tuple(values.get(name, 0) for name in names))


def keep_recipe(key, made):
    with _guard:
        recipes[key] = made
        if len(recipes) > MAX_RECIPES:
            del recipes[next(iter(recipes))]


def clear_plans() -> None:
    """Forgets all plans and contexts; a device's memory goes back when nothing uses it."""
    with _guard:
        recipes.clear()
        _plans.clear()
        _contexts.clear()
