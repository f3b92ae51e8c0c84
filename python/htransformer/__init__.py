"""htransformer: attention whose cost is linear in the length of the sequence.

    import numpy as np, htransformer
    z = htransformer.attention(q, k, v, causal=True)  # each (batch, length, heads, dim)

docs/python.md has the whole story. PyTorch, JAX and Transformers are optional and only used if
asked for: HAttention (a torch.nn.Module), htransformer.jax, htransformer.transformers, and load and
train (models, which need htransformer-models) are made when they are first asked for.
"""
import importlib as _importlib

from ._attention import (attention, attention_qkvpacked, attention_vjp,
                         scaled_dot_product_attention)
from ._cache import Cache
from ._library import (DeviceError, DivergedError, Error, FileError, FormatError, InvalidError,
                       LibraryError, OutOfMemoryError, UnsupportedError, devices, library_path,
                       version)
from ._plan import clear_plans, set_num_threads

__version__ = "0.1.0"

__all__ = ["Cache", "DeviceError", "DivergedError", "Error", "FileError", "FormatError",
           "HAttention", "InvalidError", "LibraryError", "Model", "OutOfMemoryError", "Progress",
           "UnsupportedError", "attention", "attention_qkvpacked", "attention_vjp", "clear_plans",
           "devices", "library_path", "load", "scaled_dot_product_attention", "set_num_threads",
           "train", "version"]

_later = {"HAttention": "_module", "Model": "_model", "load": "_model", "Progress": "_train",
          "train": "_train"}
_modules = ("jax", "transformers")


def __getattr__(name):
    try:
        if name in _later:
            return getattr(_importlib.import_module("htransformer." + _later[name]), name)
        if name in _modules:
            return _importlib.import_module("htransformer." + name)
    except ModuleNotFoundError as error:  # help() goes on without it
        raise AttributeError("htransformer.%s cannot be used here: %s" % (name, error)) from error
    raise AttributeError("module 'htransformer' has no attribute %r" % name)


def __dir__():
    return sorted({*globals(), *__all__, *_modules})
