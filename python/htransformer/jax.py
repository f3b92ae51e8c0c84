"""htransformer.jax.attention: the attention for JAX arrays, on the CPU and on NVIDIA GPUs.

    import htransformer.jax
    z = htransformer.jax.attention(q, k, v, causal=True)    # each (batch, length, heads, dim)

It works under jax.jit, jax.grad, jax.value_and_grad and jax.vmap. The calls go through jax.ffi to
libhtransformer_jax.so (python/native/jax.c), which lies beside the library.
"""
import ctypes
import functools
import os
import struct
import threading
from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np

from . import _attention, _call, _library, _plan
from ._library import InvalidError, LibraryError, UnsupportedError

__all__ = ["attention"]

_BIAS, _KEY_MASK, _QUERY_MASK = 1, 2, 4  # of `has` in python/native/jax.c
_DTYPES = {"cpu": {"float32", "float64"}, "cuda": {"float32", "float64", "bfloat16", "float16"}}
_targets = {"forward": "ht_jax_forward", "backward": "ht_jax_backward"}
_loading = threading.Lock()
_shim = None


def _load():
    """Registers the two calls with JAX, once."""
    global _shim
    with _loading:
        if _shim is not None:
            return _shim
        _library.library()
        folder = os.path.dirname(_library.library_path())
        tried = [os.path.join(folder, name) for name in
                 ("libhtransformer_jax.so", os.path.join("python", "libhtransformer_jax.so"))]
        found = next((path for path in tried if os.path.exists(path)), None)
        if found is None:
            raise LibraryError("the part for JAX was not found beside the library. Tried: %s"
                               % ", ".join(tried))
        shim = ctypes.CDLL(found)
        for name in _targets.values():
            for platform, ending in (("cpu", ""), ("CUDA", "_cuda")):
                jax.ffi.register_ffi_target(
                    name, jax.ffi.pycapsule(getattr(shim, name + ending)), platform=platform)
        _shim = shim
    return _shim


# ---- one call, described ------------------------------------------------------------------------


class _Spec(tuple):
    """(Options, Shape, dtype name, has, offset, where): all that is known while JAX traces."""


def _values(spec):
    """AttentionDesc's fields after `size`."""
    o, s, dtype, has = spec[:4]
    if s.batch < 1:
        raise InvalidError("batch must be at least 1, got %d" % s.batch)
    rows, length = max(1, s.rows), max(1, s.length)
    return (o.kind, o.mode, _library.DTYPES[dtype], int(o.causal), int(bool(has & _BIAS)), 0,
            s.q_heads, s.kv_heads, s.head_dim, s.value_dim, o.block, rows, s.batch, length,
            o.scale, o.rotary_theta, o.dropout, o.open, o.open_leaf, o.open_peek)


def _words(spec):
    """The attribute `call` of python/native/jax.c."""
    o, s, dtype, has, offset, where = spec
    real = [struct.unpack("q", struct.pack("d", x))[0] for x in (o.scale, o.rotary_theta,
                                                                 o.dropout)]
    return np.array([o.kind, o.mode, _library.DTYPES[dtype], int(o.causal), s.q_heads, s.kv_heads,
                     s.head_dim, s.value_dim, o.block, s.batch, s.length, o.open, o.open_leaf,
                     o.open_peek, *real, int(o.layout == "bhld"), has, _plan.threads(),
                     int(where == "cuda"), offset], np.int64)


def _of_batch(spec, batch):
    o, s = spec[:2]
    return _Spec((o, s._replace(batch=batch, rows=batch * s.length), *spec[2:]))


def _sizes(spec):
    """Shapes of (q, k, v, out, lse)."""
    o, s = spec[:2]

    def size(heads, dim):
        middle = (heads, s.length) if o.layout == "bhld" else (s.length, heads)
        return (s.batch, *middle, dim)

    return (size(s.q_heads, s.head_dim), size(s.kv_heads, s.head_dim),
            size(s.kv_heads, s.value_dim), size(s.q_heads, s.value_dim),
            (s.batch, s.q_heads, s.length))


def _real(spec):
    """The dtype of log-sum-exp and bias."""
    return jnp.dtype("float64" if spec[2] == "float64" else "float32")


def _plan_of(spec):
    """The plan, for what it needs. On a GPU the calls have plans of their own, one per stream."""
    if spec[5] == "cuda":
        return _plan.plan(_plan.context("cuda:0", 0, 0), _values(spec))
    return _plan.plan(_plan.cpu_context(), _values(spec))


def _ffi(name, spec, results, scratch, arrays, **more):
    """On a GPU the last result is scratch, which is nobody's; on the CPU the library has its own.
    """
    if spec[5] == "cuda":
        results = (*results, jax.ShapeDtypeStruct((scratch,), jnp.uint8))
    found = jax.ffi.ffi_call(_targets[name], results, **more)(*arrays, call=_words(spec))
    return tuple(found[:-1] if spec[5] == "cuda" else found)


def _call_forward(spec, *arrays):
    """arrays: q, k, v, seed, then bias, key_mask, query_mask as far as there are."""
    need = _plan_of(spec)
    *_, out, lse = _sizes(spec)
    results = (jax.ShapeDtypeStruct(out, jnp.dtype(spec[2])),
               jax.ShapeDtypeStruct(lse, _real(spec)),
               jax.ShapeDtypeStruct((need.saved,), jnp.uint8))
    return _ffi("forward", spec, results, need.scratch_forward, arrays)


def _call_backward(spec, *arrays):
    """arrays: dout, dlse, q, k, v, out, saved, then the seed and the rest. The gradient of a bias
    is added to zeros."""
    o, s, dtype, has = spec[:4]
    results = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in _sizes(spec)[:3]]
    aliases = {}
    if has & _BIAS:
        zeros = jnp.zeros((4 * o.block - 1, s.q_heads), _real(spec))
        aliases = {len(arrays): len(results)}
        arrays, results = (*arrays, zeros), [*results, jax.ShapeDtypeStruct(zeros.shape,
                                                                            zeros.dtype)]
    return _ffi("backward", spec, tuple(results), _plan_of(spec).scratch_backward, arrays,
                input_output_aliases=aliases)


# ---- vmap: a mapped axis becomes part of the batch -----------------------------------------------


def _merge(x, mapped, n):
    """(n, batch, ...) as (n * batch, ...); what is not mapped is repeated."""
    x = x if mapped else jnp.broadcast_to(x, (n, *x.shape))
    return x.reshape(n * x.shape[1], *x.shape[2:])


def _one_by_one(call, mapped, arrays):
    """One call after the other, for what cannot be merged."""
    given = tuple(x for x, m in zip(arrays, mapped) if m)

    def one(values):
        values = iter(values)
        return call(*[next(values) if m else x for x, m in zip(arrays, mapped)])

    return jax.lax.map(one, given)


def _batchable(call, seed, may_merge):
    """`call` with a rule for vmap; `seed` is the number of the array that is one. Arrays before it
    have a batch in front, after it a bias has none and masks have one. What forward keeps for
    backward is one thing for the whole batch, merged or not."""
    @functools.lru_cache(maxsize=256)
    def made(spec):
        run = jax.custom_batching.custom_vmap(lambda *arrays: call(spec, *arrays))
        whole = {seed} | ({6} if seed == 7 else set()) | ({seed + 1} if spec[3] & _BIAS else set())

        @run.def_vmap
        def rule(n, mapped, *arrays):
            if mapped[seed] or not may_merge(spec, mapped):
                found = _one_by_one(made(spec), mapped, arrays)
                return found, tuple(True for _ in found)
            merged = [x if i in whole else _merge(x, m, n)
                      for i, (x, m) in enumerate(zip(arrays, mapped))]
            found = made(_of_batch(spec, n * spec[1].batch))(*merged)
            split = tuple(x.ndim > 1 for x in found)
            return tuple(x.reshape(n, x.shape[0] // n, *x.shape[1:]) if s else x
                         for x, s in zip(found, split)), split

        return run
    return made


def _has_bias(spec):
    return bool(spec[3] & _BIAS)


_plain = _batchable(lambda spec, *x: _call_forward(spec, *x)[:2], 3,
                    lambda spec, mapped: not (_has_bias(spec) and mapped[4]))
# a bias has a gradient for each: backward cannot merge, so forward must not
_forward = _batchable(_call_forward, 3, lambda spec, mapped: not _has_bias(spec))
# merged if forward was: some of q, k, v are mapped, what it kept is not
_backward = _batchable(_call_backward, 7, lambda spec, mapped: not _has_bias(spec)
                       and any(mapped[2:5]) and not mapped[6])


# ---- gradients ----------------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(spec, reals, others):
    """reals: (q, k, v) and the bias if there is one; others: the seed and the masks."""
    return _plain(spec)(*reals[:3], others[0], *reals[3:], *others[1:])


def _attend_forward(spec, reals, others):
    out, lse, saved = _forward(spec)(*reals[:3], others[0], *reals[3:], *others[1:])
    return (out, lse), (reals, others, out, saved)


def _attend_backward(spec, kept, grads):
    reals, others, out, saved = kept
    found = _backward(spec)(*grads, *reals[:3], out, saved, others[0], *reals[3:], *others[1:])
    nothing = tuple(np.zeros(x.shape, jax.dtypes.float0) for x in others)
    return tuple(found), nothing


_attend.defvjp(_attend_forward, _attend_backward)


# ---- the function -------------------------------------------------------------------------------


class _JaxDoor:
    """What _call.py asks of an array library, as far as checks need it."""

    name = "a JAX array"

    @staticmethod
    def dtype(x):
        return str(x.dtype)

    @staticmethod
    def strides(x):
        return _call.dense_strides(x.shape, tuple(range(len(x.shape), 0, -1)))

    @staticmethod
    def check(name, x):
        if str(x.dtype) not in _library.DTYPES:
            raise InvalidError("%s must be float32, bfloat16, float16 or float64, got %s"
                               % (name, x.dtype))

    @classmethod
    def same(cls, name, x, q, dtype=None):
        want = dtype or str(q.dtype)
        if str(x.dtype) != want:
            raise InvalidError("%s must be %s with q of %s, got %s"
                               % (name, want, q.dtype, x.dtype))


def _where(arrays):
    """"cpu" or "cuda": of arrays that are bound to a device, else JAX's default."""
    for x in arrays:
        if not isinstance(x, jax.core.Tracer) and getattr(x, "committed", False):
            platform = next(iter(x.devices())).platform
            break
    else:
        chosen = jax.config.jax_default_device
        platform = jax.default_backend() if chosen is None else getattr(chosen, "platform", chosen)
    where = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda"}.get(platform)
    if where is None:
        raise UnsupportedError("htransformer.jax computes on CPUs and NVIDIA's GPUs, but JAX's "
                               "device is %s: set JAX_PLATFORMS=cpu" % platform)
    return where


def _mask(name, x):
    if x is None:
        return None
    x = jnp.asarray(x)
    if x.dtype not in (jnp.bool_, jnp.uint8):
        raise InvalidError("%s must be bool or uint8, got %s" % (name, x.dtype))
    return _attention.row_mask(x).astype(jnp.uint8)


def _seed_words(seed, dropout):
    """Two uint32 of a number, an array of two uint32 or a key of jax.random."""
    if not dropout:
        return jnp.zeros(2, jnp.uint32)
    if seed is None:
        raise InvalidError("dropout_p needs a seed: a number, or a key of jax.random")
    if isinstance(seed, int):
        return jnp.array([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF], jnp.uint32)
    if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        seed = jax.random.key_data(seed)
    seed = seed.astype(jnp.uint32).reshape(-1)
    if seed.size not in (1, 2):
        raise InvalidError("seed must be a number or a key of two words, got shape %s"
                           % (seed.shape,))
    return seed if seed.size == 2 else jnp.concatenate([seed, jnp.zeros(1, jnp.uint32)])


def attention(q: Any, k: Any, v: Any, *, causal: bool = False, mode: Optional[str] = None,
              block: int = 16, kind: str = "hierarchical", scale: Optional[float] = None,
              bias: Any = None, key_mask: Any = None, query_mask: Any = None,
              rotary_theta: Optional[float] = None, dropout_p: float = 0.0, seed: Any = None,
              offset: int = 0, open: int = 0, open_leaf: int = 8, open_peek: int = 2,
              return_lse: bool = False, layout: str = "blhd") -> Any:
    """htransformer.attention for JAX arrays: (batch, length, heads, dim), or (length, heads, dim)
    under jax.vmap. The same arguments, less packed sequences. On the CPU float32 and float64, on a
    GPU float32, bfloat16 and float16; other narrow ones are computed in float32 and rounded.

    seed    with dropout_p: a number, or a key of jax.random, which may change from call to call of
            a compiled function; on a GPU the host waits for it
    vmap    a mapped axis becomes part of the batch; where a bias has gradients, and for a mapped
            bias or seed, one call follows the other
    """
    _load()
    arrays = [jnp.asarray(x) for x in (q, k, v)]
    where = _where(arrays)
    single = arrays[0].ndim == 3
    for name, x in zip("kv", arrays[1:]):
        _JaxDoor.same(name, x, arrays[0])
    narrow = arrays[0].dtype if arrays[0].dtype in (jnp.bfloat16, jnp.float16) and \
        str(arrays[0].dtype) not in _DTYPES[where] else None
    if narrow is not None:
        arrays = [x.astype(jnp.float32) for x in arrays]
    masks = [_mask("key_mask", key_mask), _mask("query_mask", query_mask)]
    if single:
        arrays = [x[None] for x in arrays]
        masks = [x[None] if x is not None and x.ndim == 1 else x for x in masks]
    o = _call.options(causal, mode, block, kind, scale, None, rotary_theta, dropout_p, open,
                      open_leaf, open_peek, layout)
    bias = None if bias is None else jnp.asarray(bias)
    a = _call.Arrays(*arrays, bias, *masks, None)
    _JaxDoor.check("q", a.q)
    shape = _call.shape_of(a, o.layout)
    _call.check_arrays(_JaxDoor, a, shape, o.block)
    if not 0 <= offset < 2**32:
        raise InvalidError("offset must be 0 to 2^32 - 1, got %r" % (offset,))
    has = sum(bit for bit, x in ((_BIAS, bias), (_KEY_MASK, masks[0]), (_QUERY_MASK, masks[1]))
              if x is not None)
    spec = _Spec((o, shape, str(a.q.dtype), has, int(offset), where))
    reals = tuple(arrays) + (() if bias is None else (bias,))
    others = (_seed_words(seed, o.dropout), *[x for x in masks if x is not None])
    out, lse = _attend(spec, reals, others)
    out = out if narrow is None else out.astype(narrow)
    if single:
        out, lse = out[0], lse[0]
    return (out, lse) if return_lse else out
