"""The functions users call; each finds the door its arrays belong to."""
import sys
from typing import Any, Optional

import numpy

from . import _call
from ._call import Arrays, Call
from ._library import InvalidError

_doors = {}  # by type, once found


def door_of(name, x):
    """The array library of x. PyTorch is asked only if somebody has imported it."""
    if isinstance(x, numpy.ndarray) and not isinstance(x, numpy.ma.MaskedArray):
        from ._numpy import NumpyDoor as found
    elif "torch" in sys.modules and isinstance(x, sys.modules["torch"].Tensor):
        from ._torch import TorchDoor as found
    elif type(x).__module__.split(".")[0] in ("jax", "jaxlib"):
        raise TypeError("%s is a JAX array: call htransformer.jax.attention" % name)
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


def which_lengths(cu_seqlens, cu_seqlens_host):
    """The lengths to go by: of two copies the host's, without a look at the device's."""
    if cu_seqlens_host is None:
        return cu_seqlens
    if cu_seqlens is not None and len(cu_seqlens) != len(cu_seqlens_host):
        raise InvalidError("cu_seqlens_host must be a copy of cu_seqlens: they have %d and %d "
                           "entries" % (len(cu_seqlens_host), len(cu_seqlens)))
    return cu_seqlens_host


# ---- from arguments to a call ------------------------------------------------------------------


def row_mask(mask):
    """A mask of rows, (batch, length), of one that may be PyTorch's (batch, 1, 1, length)."""
    if mask is not None and mask.ndim == 4 and mask.shape[1] == 1 and mask.shape[2] == 1:
        return mask[:, 0, 0]
    return mask


def gather(door, a):
    """The arrays as the library reads them: of one kind, masks as bytes, lengths on the host."""
    for name, x in zip(Arrays._fields[1:6], a[1:6]):
        if not door.owns(x) and (x is not None or name in "kv"):
            raise TypeError("%s must be %s, as q is, got %s" % (name, door.name, type(x).__name__))
    masks = [None if x is None else door.mask(name, row_mask(x), a.q)
             for name, x in (("key_mask", a.key_mask), ("query_mask", a.query_mask))]
    cu = None if a.cu_seqlens is None else host_lengths(a.cu_seqlens)
    return a._replace(key_mask=masks[0], query_mask=masks[1], cu_seqlens=cu)


def prepare(door, a, o, seed, offset):
    """The arrays and the call, checked. What looks like an earlier call is not checked again."""
    if a.key_mask is None and a.query_mask is None and a.cu_seqlens is None:
        lengths = None
    else:
        a = gather(door, a)
        lengths = None if a.cu_seqlens is None else _call.lengths_of(a, o.layout)
    recipe = _call.kept(door, a, o, lengths)
    if recipe is None:
        door.check("q", a.q)
        recipe = _call.keep(door, gather(door, a), o, lengths)
    if not o.dropout:
        return a, Call(recipe, 0, 0)
    if not 0 <= offset < 2**32:
        raise InvalidError("offset must be 0 to 2^32 - 1, got %r" % (offset,))
    seed = door.seed() if seed is None else seed
    return a, Call(recipe, int(seed) % 2**64, int(offset))


def refuse_words(others):
    """Words of PyTorch's function, whose tensors are laid out otherwise: to take them would be to
    compute something else without a word."""
    for name in ("is_causal", "attn_mask", "enable_gqa"):
        if name in others:
            hint = {"is_causal": "causal", "attn_mask": "key_mask"}.get(name)
            raise TypeError(
                "attention() has no %s: it takes (batch, length, heads, dim)%s. For PyTorch's "
                "arguments and its (batch, heads, length, dim) call "
                "htransformer.scaled_dot_product_attention"
                % (name, " and %s" % hint if hint else ", and any kv_heads that divide heads"))


def attention(q: Any, k: Any, v: Any, *, causal: bool = False, mode: Optional[str] = None,
              block: int = 16, kind: str = "hierarchical", scale: Optional[float] = None,
              softmax_scale: Optional[float] = None, bias: Any = None, key_mask: Any = None,
              query_mask: Any = None, rotary_theta: Optional[float] = None, dropout_p: float = 0.0,
              seed: Any = None, offset: int = 0, cu_seqlens: Any = None,
              cu_seqlens_host: Any = None, open: int = 0, open_leaf: int = 8, open_peek: int = 2,
              return_lse: bool = False, layout: str = "blhd", **others: Any) -> Any:
    """Attention whose cost is linear in the length of the sequence, in FlashAttention's layout.

    q: (batch, length, heads, head_dim); k and v: (batch, length, kv_heads, ...), kv_heads a
    divisor of heads (grouped queries need no switch). NumPy arrays or PyTorch tensors; the result
    is of the same kind, with q's shape and the last dimension of v. PyTorch's autograd works on q,
    k, v and bias. (PyTorch's layout and arguments: scaled_dot_product_attention().)

    causal          row i sees rows <= i
    mode            whose query a cluster of rows uses at the coarse levels: "mean" of them (not
                    with causal), "first" or "fine" (each row its own); None or "auto": "fine"
                    with causal or open, else "mean"
    block           rows of a block, even; the larger, the closer to exact attention
    kind            "hierarchical", "full" (exact, quadratic) or "local" (a block and its
                    neighbours)
    scale           of the scores; None: 1/sqrt(head_dim); softmax_scale is the same
    bias            relative positions: (4*block - 1, heads), float32 (float64 with float64)
    key_mask, query_mask  (batch, length) or PyTorch's (batch, 1, 1, length), bool or uint8: True
                    takes part; for padding pass both
    rotary_theta    rotary positions at the exact level with this base
    dropout_p       probability that a weight is dropped; seed and offset choose the mask, None
                    draws a seed from PyTorch's generator (NumPy's for arrays)
    cu_seqlens      packed sequences: q is (rows, heads, head_dim) and sequence b is the rows
                    cu_seqlens[b] ... cu_seqlens[b + 1] - 1, as in FlashAttention
    cu_seqlens_host a copy of cu_seqlens in host memory: with it a cu_seqlens on the GPU is not
                    fetched, so that the host does not wait
    open            clusters that every row opens per level, to look at what is inside (mode
                    "fine"): 0 none, 8 a good start; open_leaf: opened clusters of so many rows
                    take part row by row; open_peek: levels below that a score looks at
    return_lse      also return log-sum-exp, (batch, heads, length); packed (heads, rows)
    layout          "blhd", or "bhld" for PyTorch's (batch, heads, length, dim)
    """
    if others:
        refuse_words(others)
        mode = _call.old_mode("attention()", mode, others)
    door = _doors.get(type(q)) or door_of("q", q)
    o = _call.options_of(door, causal, mode, block, kind, scale, softmax_scale, rotary_theta,
                         dropout_p, open, open_leaf, open_peek, layout)
    if cu_seqlens_host is not None:
        cu_seqlens = which_lengths(cu_seqlens, cu_seqlens_host)
    a = Arrays(q, k, v, bias, key_mask, query_mask, cu_seqlens)
    return door.attention(a, o, seed, offset, return_lse)


def scaled_dot_product_attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False, *,
        mode: Optional[str] = None, block: int = 16, kind: str = "hierarchical", bias: Any = None,
        key_mask: Any = None, query_mask: Any = None, rotary_theta: Optional[float] = None,
        seed: Any = None, offset: int = 0, open: int = 0, open_leaf: int = 8, open_peek: int = 2,
        return_lse: bool = False) -> Any:
    """torch.nn.functional.scaled_dot_product_attention with a cost linear in the length: the same
    arguments and the same layout, (batch, heads, length, dim); PyTorch tensors or NumPy arrays.

    attn_mask    only a boolean mask of padding, (batch, 1, 1, length), True takes part. Padded rows
                 take no part as queries either: they give 0. A mask of (length, length) cannot be
                 had at linear cost: is_causal for causality, key_mask for padding
    enable_gqa   key and value may have fewer heads than query, any divisor
    the rest     as in attention(), which takes FlashAttention's layout
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        if getattr(x, "ndim", 4) != 4:
            raise InvalidError("%s must be (batch, heads, length, dim), got shape %s"
                               % (name, tuple(x.shape)))
    if attn_mask is not None:
        key_mask, query_mask = _padding(attn_mask, query, key_mask, query_mask)
    if getattr(query, "ndim", 0) == 4 == getattr(key, "ndim", 0):
        _check_like_torch(query, key, enable_gqa)
    return attention(query, key, value, causal=is_causal, mode=mode, block=block, kind=kind,
                     scale=scale, bias=bias, key_mask=key_mask, query_mask=query_mask,
                     rotary_theta=rotary_theta, dropout_p=dropout_p, seed=seed, offset=offset,
                     open=open, open_leaf=open_leaf, open_peek=open_peek, return_lse=return_lse,
                     layout="bhld")


def _padding(mask, query, key_mask, query_mask):
    """(key_mask, query_mask) of PyTorch's attn_mask, if it is one of padding."""
    shape = tuple(getattr(mask, "shape", ()))
    if str(getattr(mask, "dtype", "")).replace("torch.", "") != "bool" or len(shape) != 4 \
            or shape[1] != 1 or shape[2] != 1:
        raise InvalidError(
            "attn_mask must be a boolean mask of padding, (batch, 1, 1, length), got %s of shape "
            "%s: pass is_causal=True for causality and key_mask, (batch, length), for padding; a "
            "mask for each pair of rows cannot be had at linear cost"
            % (getattr(mask, "dtype", type(mask).__name__), shape))
    if key_mask is not None or query_mask is not None:
        raise InvalidError("attn_mask is a mask of padding: pass it or key_mask and query_mask, "
                           "not both")
    mask = mask[:, 0, 0]
    if mask.shape[0] == 1 != query.shape[0]:
        mask = mask.expand(query.shape[0], -1) if hasattr(mask, "expand") else \
            numpy.broadcast_to(mask, (query.shape[0], mask.shape[1]))
    return mask, mask


def _check_like_torch(query, key, enable_gqa):
    nested = getattr(query, "is_nested", False) or getattr(key, "is_nested", False)
    if not nested and query.shape[2] != key.shape[2]:
        raise InvalidError(
            "key must have the length %d of query, got %d: for queries that continue a sequence "
            "use htransformer.Cache" % (query.shape[2], key.shape[2]))
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise InvalidError("key must have the %d heads of query, got %d: pass enable_gqa=True for "
                           "grouped queries" % (query.shape[1], key.shape[1]))


def attention_vjp(q: Any, k: Any, v: Any, *, bias: Any = None, key_mask: Any = None,
                  query_mask: Any = None, cu_seqlens: Any = None, seed: Optional[int] = None,
                  offset: int = 0, return_lse: bool = False, **options: Any) -> Any:
    """attention() on NumPy arrays with its gradient: returns (result, backward), where
    backward(dout, dlse=None) gives (dq, dk, dv), and dbias as a fourth where there is a bias.
    Arguments as in attention(); nothing may be changed in between. (PyTorch tensors have
    autograd.)"""
    door = _doors.get(type(q)) or door_of("q", q)
    if not hasattr(door, "attention_vjp"):
        raise TypeError("attention_vjp takes NumPy arrays; PyTorch tensors have autograd")
    o = _options("attention_vjp()", options)
    a = Arrays(q, k, v, bias, key_mask, query_mask, cu_seqlens)
    return door.attention_vjp(*prepare(door, a, o, seed, offset), bool(return_lse))


def attention_qkvpacked(qkv: Any, *, bias: Any = None, key_mask: Any = None, query_mask: Any = None,
                        cu_seqlens: Any = None, cu_seqlens_host: Any = None, seed: Any = None,
                        offset: int = 0, return_lse: bool = False, **options: Any) -> Any:
    """attention() on one fused tensor (batch, length, 3, heads, dim), packed (rows, 3, heads,
    dim), as a projection to q, k and v leaves it; its gradient is one such tensor too. PyTorch
    only; arguments as in attention(), less layout."""
    if "layout" in options:
        raise TypeError("attention_qkvpacked has no layout: qkv is (batch, length, 3, heads, dim)")
    door = _doors.get(type(qkv)) or door_of("qkv", qkv)
    if not hasattr(door, "attention_qkvpacked"):
        raise TypeError("attention_qkvpacked takes PyTorch tensors, got %s" % type(qkv).__name__)
    o = _options("attention_qkvpacked()", options)
    cu_seqlens = which_lengths(cu_seqlens, cu_seqlens_host)
    want = 4 if cu_seqlens is not None else 5
    if qkv.ndim != want or qkv.shape[-3] != 3:
        names = "(rows, 3, heads, dim) with cu_seqlens" if want == 4 else \
            "(batch, length, 3, heads, dim)"
        raise InvalidError("qkv must be %s, got shape %s" % (names, tuple(qkv.shape)))
    return door.attention_qkvpacked(qkv, Arrays(*qkv.unbind(-3), bias, key_mask, query_mask,
                                                cu_seqlens), o, seed, offset, return_lse)


def _options(function, given):
    """Options of **options: attention()'s words less those of arrays, the old one too."""
    refuse_words(given)
    known = _call.options.__code__.co_varnames[:_call.options.__code__.co_argcount]
    others = {name: given.pop(name) for name in list(given) if name not in known}
    mode = _call.old_mode(function, given.pop("mode", None), others)
    return _call.options(mode=mode, **given)
