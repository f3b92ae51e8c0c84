"""The door for PyTorch tensors: CPU and CUDA, with autograd.

Nothing is copied on the way in: strides go to the library as they are. On CUDA the calls go to
PyTorch's current stream and take their memory from its allocator. Plain tensors are served here,
by an autograd function, with as little Python as can be; whatever PyTorch traces or transforms
(torch.compile, export, vmap, subclasses) goes through the registered operators of _ops.py.
"""
import contextlib

import torch

from . import _call, _plan
from ._attention import prepare
from ._library import InvalidError, UnsupportedError

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float64: "float64",
           torch.float16: "float16"}
_NARROW = {torch.bfloat16, torch.float16}

# cudaStreamLegacy. PyTorch's default stream has the handle 0, which the library takes for "a
# stream of your own"; this is the other name of the same stream.
_LEGACY_STREAM = 1

_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def _current_stream(device):
    """Its handle. The first way is the one of compiled code: no object is made."""
    if _raw_stream is not None:
        return _raw_stream(device.index)
    return torch.cuda.current_stream(device).cuda_stream


def current_context(device):
    """The library's context for what PyTorch would do now on a device."""
    if device.type == "cpu":
        return _plan.cpu_context(torch.get_num_threads())
    return _plan.context("cuda:%d" % device.index, _current_stream(device) or _LEGACY_STREAM, 0)


def stream_of(context, device):
    """PyTorch's name for the stream of a context."""
    if context.stream == _LEGACY_STREAM:
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(context.stream, device=device)


_here = contextlib.nullcontext()


def on_device(x):
    """PyTorch's idea of the current device stays right while the library works on x's."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return _here
    return torch.cuda.device(x.device)


def _readable(x):
    """Can the library read this layout?"""
    if x.is_contiguous():
        return True
    steps = zip(x.shape[:-1], x.stride()[:-1])
    return (x.stride(-1) == 1 or x.shape[-1] == 1) and all(n == 1 or step > 0 for n, step in steps)


# ---- what PyTorch is doing ---------------------------------------------------------------------


def _nothing():
    return False


_compiler = getattr(torch, "compiler", None)
is_compiling = getattr(_compiler, "is_compiling", _nothing)
_transforms = getattr(torch._C, "_are_functorch_transforms_active", _nothing)
_modes = getattr(torch._C, "_len_torch_dispatch_stack", _nothing)
_any_autocast = getattr(torch._C, "_is_any_autocast_enabled", torch.is_autocast_enabled)


def _is_plain(x):
    """An ordinary tensor, and nobody looks on: the quick way may be taken."""
    return (not is_compiling() and (type(x) is torch.Tensor or type(x) is torch.nn.Parameter)
            and not _transforms() and not _modes() and not _any_autocast())


def _is_traced(x):
    """Somebody looks on, or x is not a tensor the library could read: the operators."""
    return (is_compiling() or _transforms() or _modes()
            or not (type(x) is torch.Tensor or type(x) is torch.nn.Parameter))


def autocast_dtype(x):
    """What autocast makes of attention's inputs on the device of x, or None."""
    kind = x.device.type
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    if kind == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


def needs_grad(*tensors):
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


_takes = {}


def widen(x):
    """x, or if it is of a narrow dtype on a CPU whose kernels lack that, a float32 copy."""
    if x is None or x.dtype not in _NARROW or x.device.type != "cpu":
        return x
    if x.dtype not in _takes:
        try:
            _plan.probe(_DTYPES[x.dtype])
            _takes[x.dtype] = True
        except UnsupportedError:
            _takes[x.dtype] = False
    return x if _takes[x.dtype] else x.float()


# ---- the door ----------------------------------------------------------------------------------


class TorchDoor:
    """What _call.py asks of an array library."""

    name = "a PyTorch tensor"
    pointer = staticmethod(torch.Tensor.data_ptr)
    strides = staticmethod(torch.Tensor.stride)
    zeros_like = staticmethod(torch.zeros_like)
    tracing = staticmethod(is_compiling)

    @staticmethod
    def owns(x):
        return isinstance(x, torch.Tensor)

    @staticmethod
    def dtype(x):
        return _DTYPES.get(x.dtype)

    @staticmethod
    def check(name, x):
        if x.dtype not in _DTYPES:
            raise InvalidError("%s must be float32, bfloat16, float16 or float64, got %s"
                               % (name, str(x.dtype).replace("torch.", "")))
        if x.layout != torch.strided or x.device.type not in ("cpu", "cuda"):
            raise InvalidError(
                "%s must be an ordinary tensor on the CPU or a CUDA device, got %s on %s" %
                (name, x.layout, x.device))

    @classmethod
    def same(cls, name, x, q, dtype=None):
        """x lives where q does and has its dtype, or the one given."""
        cls.check(name, x)
        cls._same_device(name, x, q)
        want = dtype or _DTYPES[q.dtype]
        if _DTYPES[x.dtype] != want:
            raise InvalidError("%s must be %s with q of %s, got %s"
                               % (name, want, _DTYPES[q.dtype], _DTYPES[x.dtype]))

    @staticmethod
    def _same_device(name, x, q):
        if x.device != q.device:
            raise InvalidError("%s must be on %s as q is, got %s" % (name, q.device, x.device))

    @staticmethod
    def looks(a):
        """All that checks and strides depend on."""
        q, k, v, bias, key_mask, query_mask, _ = a
        found = (q.shape, q.stride(), q.dtype, q.device, k.shape, k.stride(), k.dtype, k.device,
                 v.shape, v.stride(), v.dtype, v.device)
        if bias is None and key_mask is None and query_mask is None:
            return found
        return found + tuple((x.shape, x.stride(), x.dtype, x.device) if x is not None else None
                             for x in (bias, key_mask, query_mask))

    @staticmethod
    def context(x):
        return current_context(x.device)

    @staticmethod
    def where(x):
        """Tells the contexts of a device apart."""
        return _current_stream(x.device) if x.is_cuda else current_context(x.device)

    @classmethod
    def mask(cls, name, x, q):
        if x.dtype not in (torch.bool, torch.uint8):
            raise InvalidError("%s must be bool or uint8, got %s"
                               % (name, str(x.dtype).replace("torch.", "")))
        cls._same_device(name, x, q)
        return x.detach().contiguous().view(torch.uint8)

    @staticmethod
    def empty(like, shape, strides):
        return like.new_empty_strided(shape, strides)

    @staticmethod
    def empty_real(like, shape):
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        return like.new_empty(shape, dtype=dtype)

    @staticmethod
    def workspace(like, size):
        return like.new_empty(size, dtype=torch.uint8)

    @staticmethod
    def scratch(like, size):
        """CUDA: from PyTorch's allocator, which hands it on in the order of the stream. CPU: the
        context's own."""
        if not like.is_cuda or size == 0:
            return None
        return like.new_empty(size, dtype=torch.uint8)

    @staticmethod
    def seed():
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise InvalidError("dropout inside a CUDA graph would drop the same weights in every "
                               "replay: capture with dropout_p=0, or pass a seed if that is meant")
        return int(torch.randint(0, 2**63 - 1, (1,)))

    @staticmethod
    def attention(a, o, seed, offset, return_lse):
        if not _is_plain(a.q):
            return _unusual(a, o, seed, offset, return_lse)
        return TorchDoor.run(a, o, seed, offset, return_lse)

    @staticmethod
    def run(a, o, seed, offset, return_lse):
        if a.q.dtype in _NARROW and widen(a.q) is not a.q:
            return _widened(a, o, seed, offset, return_lse)
        a, call = prepare(TorchDoor, a, o, seed, offset)
        if torch.is_grad_enabled() and (
                a.q.requires_grad or a.k.requires_grad or a.v.requires_grad
                or (a.bias is not None and a.bias.requires_grad)):
            return _Attention.apply(*a, call, return_lse)
        with on_device(a.q):
            out, lse, _ = _call.forward(TorchDoor, a, call, return_lse, False)
        return (out, lse) if return_lse else out

    @staticmethod
    def attention_qkvpacked(qkv, a, o, seed, offset, return_lse):
        if not _is_plain(qkv):
            return _unusual(a, o, seed, offset, return_lse, qkv)
        return TorchDoor.run_qkvpacked(qkv, a, o, seed, offset, return_lse)

    @staticmethod
    def run_qkvpacked(qkv, a, o, seed, offset, return_lse):
        if widen(qkv) is not qkv or not needs_grad(qkv, a.bias):
            return TorchDoor.run(a, o, seed, offset, return_lse)
        a, call = prepare(TorchDoor, a, o, seed, offset)
        return _AttentionQkvPacked.apply(qkv, *a[3:], call, return_lse)


def _widened(a, o, seed, offset, return_lse):
    """On a CPU without the dtype: computed in float32, rounded at the end."""
    wide = a._replace(q=widen(a.q), k=widen(a.k), v=widen(a.v))
    found = TorchDoor.run(wide, o, seed, offset, return_lse)
    return (found[0].to(a.q.dtype), found[1]) if return_lse else found.to(a.q.dtype)


def _unusual(a, o, seed, offset, return_lse, qkv=None):
    """What is no plain call: nested tensors, autocast, anything traced or transformed."""
    if not is_compiling() and _transforms():
        raise InvalidError(TRANSFORMS)
    if a.q.is_nested:
        from ._nested import attention as nested
        return nested(a, o, seed, offset, return_lse)
    dtype = autocast_dtype(a.q)
    if dtype is not None and a.q.dtype != torch.float64:
        with torch.autocast(a.q.device.type, enabled=False):
            if qkv is not None:
                qkv = qkv.to(dtype)
                q, k, v = qkv.unbind(-3)
            else:
                q, k, v = a.q.to(dtype), a.k.to(dtype), a.v.to(dtype)
            a = a._replace(q=q, k=k, v=v)
            return _cast(a, o, seed, offset, return_lse, qkv)
    return _cast(a, o, seed, offset, return_lse, qkv)


def _cast(a, o, seed, offset, return_lse, qkv):
    if _is_traced(a.q if qkv is None else qkv):
        from ._ops import call
        return call(a, o, seed, offset, return_lse, qkv)
    if qkv is not None:
        return TorchDoor.run_qkvpacked(qkv, a, o, seed, offset, return_lse)
    return TorchDoor.run(a, o, seed, offset, return_lse)


TRANSFORMS = ("torch.func's transforms cannot look into htransformer's attention: for torch.vmap "
              "use its batch dimension, for gradients torch.autograd")

# ---- autograd ----------------------------------------------------------------------------------

SECOND = ("htransformer's attention has no second derivative: it was differentiated with "
          "create_graph=True, or its gradient was differentiated again")


class _Second(torch.autograd.Function):
    """Gradients, tied to all they come from: who differentiates them reads SECOND."""

    @staticmethod
    def forward(ctx, count, *tensors):
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx, *_):
        raise InvalidError(SECOND)


def once(backward):
    """backward without a graph of its own."""
    def wrapped(ctx, *grads):
        with torch.no_grad():
            found = backward(ctx, *grads)
        if not torch.is_grad_enabled():
            return found
        there = [x for x in found if x is not None]
        sources = [x for x in (*ctx.saved_tensors, *grads) if x is not None]
        tied = iter(_Second.apply(len(there), *there, *sources))
        return tuple(x if x is None else next(tied) for x in found)
    return wrapped


def run_backward(a, call, out, saved, dout, dlse, grads):
    """Saved tensors that hooks have laid out otherwise are put back; gradients that the library
    cannot read (that of a sum is broadcast) are copied."""
    r = call.recipe
    same = [x if x.stride() == strides else _as_laid_out(x, strides)
            for x, strides in zip((a.q, a.k, a.v, out), (*r.strides, r.out_strides))]
    a, out = a._replace(q=same[0], k=same[1], v=same[2]), same[3]
    with on_device(a.q):
        dout = torch.zeros_like(out) if dout is None else dout if _readable(dout) else \
            dout.contiguous()
        _call.backward(TorchDoor, a, call, out, saved, dout,
                       None if dlse is None else dlse.contiguous(), grads)


def _as_laid_out(x, strides):
    return x.new_empty_strided(x.shape, strides).copy_(x)


def _forward(ctx, first, a, call, return_lse):
    """first: the tensors that backward starts from, q, k, v or the fused one."""
    with on_device(a.q):
        out, lse, saved = _call.forward(TorchDoor, a, call, return_lse, True)
    ctx.save_for_backward(*first, a.bias, a.key_mask, a.query_mask, out, saved)
    ctx.cu_seqlens, ctx.call = a.cu_seqlens, call
    ctx.set_materialize_grads(False)
    return (out, lse) if return_lse else out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, bias, key_mask, query_mask, cu_seqlens, call, return_lse):
        a = _call.Arrays(q, k, v, bias, key_mask, query_mask, cu_seqlens)
        return _forward(ctx, (q, k, v), a, call, return_lse)

    @staticmethod
    @once
    def backward(ctx, dout, dlse=None):
        *first, out, saved = ctx.saved_tensors
        a = _call.Arrays(*first, ctx.cu_seqlens)
        grads = _call.empty_grads(TorchDoor, a, ctx.call,
                                  a.bias is not None and ctx.needs_input_grad[3])
        run_backward(a, ctx.call, out, saved, dout, dlse, grads)
        return (*grads, None, None, None, None, None)


def empty_fused(qkv, dbias):
    """Gradients in one tensor like qkv: (it, Grads that are parts of it)."""
    strides = _call.dense_strides(qkv.shape, qkv.stride())
    dqkv = TorchDoor.empty(qkv, tuple(qkv.shape), strides)
    return dqkv, _call.Grads(*dqkv.unbind(-3), dbias)


class _AttentionQkvPacked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv, bias, key_mask, query_mask, cu_seqlens, call, return_lse):
        a = _call.Arrays(*qkv.unbind(-3), bias, key_mask, query_mask, cu_seqlens)
        return _forward(ctx, (qkv,), a, call, return_lse)

    @staticmethod
    @once
    def backward(ctx, dout, dlse=None):
        qkv, *rest, out, saved = ctx.saved_tensors
        a = _call.Arrays(*qkv.unbind(-3), *rest, ctx.cu_seqlens)
        dbias = torch.zeros_like(a.bias) if a.bias is not None and ctx.needs_input_grad[1] else None
        dqkv, grads = empty_fused(qkv, dbias)
        run_backward(a, ctx.call, out, saved, dout, dlse, grads)
        return dqkv, dbias, None, None, None, None, None
