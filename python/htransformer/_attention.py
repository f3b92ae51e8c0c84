"""The functions users call; each finds the door its arrays belong to."""
import sys

import numpy

from . import _call
from ._call import Arrays, Call
from ._library import InvalidError


_doors = {}  # by type, once found


def door_of(name, x):
    """The array library of x. PyTorch is asked only if somebody has imported it."""
    found = _doors.get(type(x))
    if found is not None:
        return found
    if isinstance(x, numpy.ndarray):
        from ._numpy import NumpyDoor as found
    elif "torch" in sys.modules and isinstance(x, sys.modules["torch"].Tensor):
        from ._torch import TorchDoor as found
    else:
        raise TypeError("%s must be a NumPy array or a PyTorch tensor, got %s" %
                        (name, type(x).__name__))
    _doors[type(x)] = found
    return found


def host_lengths(cu_seqlens):
    """cu_seqlens as the library wants it: int32 in host memory."""
    if hasattr(cu_seqlens, "detach"):  # a tensor; one on a GPU is fetched, which waits for it
        cu_seqlens = cu_seqlens.detach().cpu().numpy()
    cu = numpy.asarray(cu_seqlens)
    if cu.dtype.kind not in "iu":
        raise InvalidError("cu_seqlens must be whole numbers, got %s" % cu.dtype)
    if cu.size and (cu.max() > 2**31 - 1 or cu.min() < -2**31):
        raise InvalidError("cu_seqlens must fit in 32 bits, got %d" % cu[numpy.abs(cu).argmax()])
    return numpy.ascontiguousarray(cu, numpy.int32)


def gather(q, k, v, bias, key_mask, query_mask, cu_seqlens):
    """The door of q and all arrays, each of the same library, masks as the library reads them."""
    door = door_of("q", q)
    door.check("q", q)
    for name, x in (("k", k), ("v", v), ("bias", bias), ("key_mask", key_mask),
                    ("query_mask", query_mask)):
        if not door.owns(x) and (x is not None or name in "kv"):
            raise TypeError("%s must be %s, as q is, got %s" % (name, door.name, type(x).__name__))
    if key_mask is not None:
        key_mask = door.mask("key_mask", key_mask, q)
    if query_mask is not None:
        query_mask = door.mask("query_mask", query_mask, q)
    if cu_seqlens is not None:
        cu_seqlens = host_lengths(cu_seqlens)
    return door, Arrays(q, k, v, bias, key_mask, query_mask, cu_seqlens)


def make_call(door, recipe, seed, offset):
    if seed is None:
        seed = door.seed() if recipe.options.dropout > 0 else 0
    if not 0 <= offset < 2**32:
        raise InvalidError("offset must be 0 to 2^32 - 1, got %r" % (offset,))
    return Call(recipe, int(seed) % 2**64, int(offset))


def attention(q, k, v, *, causal=None, is_causal=None, query=None, block=16, kind="hierarchical",
              scale=None, softmax_scale=None, bias=None, key_mask=None, query_mask=None,
              rotary_theta=None, dropout_p=0.0, seed=None, offset=0, cu_seqlens=None,
              return_lse=False, layout="blhd"):
    """Attention whose cost is linear in the length of the sequence.

    q: (batch, length, heads, head_dim); k and v: (batch, length, kv_heads, ...), kv_heads a
    divisor of heads (grouped queries need no switch). NumPy arrays or PyTorch tensors; the result
    is of the same kind, with q's shape and the last dimension of v. PyTorch's autograd works on q,
    k, v and bias.

    causal          row i sees rows <= i; is_causal is the same
    query           query of a cluster of rows at the coarse levels: "mean" (not with causal),
                    "first" or "fine"; None or "auto": "fine" with causal, else "mean"
    block           rows of a block, even; the larger, the closer to exact attention
    kind            "hierarchical", "full" (exact, quadratic) or "local" (a block and its
                    neighbours)
    scale           of the scores; None: 1/sqrt(head_dim); softmax_scale is the same
    bias            relative positions: (4*block - 1, heads), float32 (float64 with float64)
    key_mask, query_mask  (batch, length), bool or uint8: True takes part; for padding pass both
    rotary_theta    rotary positions at the exact level with this base
    dropout_p       probability that a weight is dropped; seed and offset choose the mask, None
                    draws a seed from PyTorch's generator (NumPy's for arrays)
    cu_seqlens      packed sequences: q is (rows, heads, head_dim) and sequence b is the rows
                    cu_seqlens[b] ... cu_seqlens[b + 1] - 1, as in FlashAttention
    return_lse      also return log-sum-exp, (batch, heads, length); packed (heads, rows)
    layout          "blhd" as FlashAttention's, "bhld" as PyTorch's (batch, heads, length, dim)
    """
    door, a = gather(q, k, v, bias, key_mask, query_mask, cu_seqlens)
    r = _call.recipe(door, a, causal=causal, is_causal=is_causal, query=query, block=block,
                     kind=kind, scale=scale, softmax_scale=softmax_scale,
                     rotary_theta=rotary_theta, dropout_p=dropout_p, layout=layout)
    return door.attention(a, make_call(door, r, seed, offset), bool(return_lse))


def attention_vjp(q, k, v, *, bias=None, key_mask=None, query_mask=None, cu_seqlens=None, seed=None,
                  offset=0, return_lse=False, **options):
    """attention() on NumPy arrays with its gradient: returns (result, backward), where
    backward(dout, dlse=None) gives (dq, dk, dv), and dbias as a fourth where there is a bias.
    Arguments as in attention(); nothing may be changed in between. (PyTorch tensors have
    autograd.)"""
    door, a = gather(q, k, v, bias, key_mask, query_mask, cu_seqlens)
    if not hasattr(door, "attention_vjp"):
        raise TypeError("attention_vjp takes NumPy arrays; PyTorch tensors have autograd")
    r = _call.recipe(door, a, **options)
    return door.attention_vjp(a, make_call(door, r, seed, offset), bool(return_lse))


def attention_qkvpacked(qkv, *, bias=None, key_mask=None, query_mask=None, cu_seqlens=None,
                        seed=None, offset=0, return_lse=False, **options):
    """attention() on one fused tensor (batch, length, 3, heads, dim), packed (rows, 3, heads,
    dim), as a projection to q, k and v leaves it; its gradient is one such tensor too. PyTorch
    only; arguments as in attention(), less layout."""
    if "layout" in options:
        raise TypeError("attention_qkvpacked has no layout: qkv is (batch, length, 3, heads, dim)")
    door = door_of("qkv", qkv)
    if not hasattr(door, "attention_qkvpacked"):
        raise TypeError("attention_qkvpacked takes PyTorch tensors, got %s" % type(qkv).__name__)
    want = 4 if cu_seqlens is not None else 5
    if qkv.ndim != want or qkv.shape[-3] != 3:
        names = "(rows, 3, heads, dim) with cu_seqlens" if want == 4 else \
            "(batch, length, 3, heads, dim)"
        raise InvalidError("qkv must be %s, got shape %s" % (names, tuple(qkv.shape)))
    door, a = gather(*qkv.unbind(-3), bias, key_mask, query_mask, cu_seqlens)
    r = _call.recipe(door, a, **options)
    return door.attention_qkvpacked(qkv, a, make_call(door, r, seed, offset), bool(return_lse))
