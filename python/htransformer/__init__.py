"""htransformer: attention whose cost is linear in the length of the sequence.

    import numpy as np, htransformer
    z = htransformer.attention(q, k, v, causal=True)  # each (batch, length, heads, dim)

docs/python.md has the whole story. PyTorch is optional and only used if its tensors come in;
HAttention (a torch.nn.Module) and htransformer.jax are made when they are first asked for.
"""
import importlib

from ._attention import (attention, attention_qkvpacked, attention_vjp,
                         scaled_dot_product_attention)
from ._cache import Cache
from ._library import (DeviceError, Error, FormatError, InvalidError, LibraryError,
                       OutOfMemoryError, UnsupportedError, devices, library_path, version)
from ._plan import clear_plans, set_num_threads

__version__ = "0.1.0"

__all__ = ["Cache", "DeviceError", "Error", "FormatError", "HAttention", "InvalidError",
           "LibraryError", "OutOfMemoryError", "UnsupportedError", "attention",
           "attention_qkvpacked", "attention_vjp", "clear_plans", "devices", "library_path",
           "scaled_dot_product_attention", "set_num_threads", "version"]


def __getattr__(name):
    if name == "HAttention":
        from ._module import HAttention
        return HAttention
    if name == "jax":
        return importlib.import_module("htransformer." + name)
    raise AttributeError("module 'htransformer' has no attribute %r" % name)


def __dir__():
    return sorted({*globals(), *__all__, "jax"})
