"""The door for PyTorch tensors: CPU and CUDA, with autograd.

Nothing is copied on the way in: strides go to the library as they are. On CUDA the calls go to
PyTorch's current stream and take their memory from its allocator.
"""
import contextlib
import sys

import torch

from . import _call, _plan
from ._library import InvalidError

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float64: "float64"}

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


class TorchDoor:
    """What _call.py asks of an array library."""

    name = "a PyTorch tensor"

    @staticmethod
    def owns(x):
        return isinstance(x, torch.Tensor)

    @staticmethod
    def pointer(x):
        return x.data_ptr()

    @staticmethod
    def strides(x):
        return x.stride()

    @staticmethod
    def dtype(x):
        return _DTYPES.get(x.dtype)

    @staticmethod
    def check(name, x):
        if x.dtype not in _DTYPES:
            raise InvalidError("%s must be float32, bfloat16 or float64, got %s"
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
    def look(x):
        """All that checks and strides depend on."""
        return x.shape, x.stride(), x.dtype, x.device

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
        return torch.empty(shape, dtype=dtype, device=like.device)

    @staticmethod
    def zeros_like(x):
        return torch.zeros_like(x)

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
    def gradient(x):
        """A gradient that comes in has the layout autograd gave it (a sum's is broadcast); one
        that the library cannot read is copied."""
        return x if _readable(x) else x.contiguous()

    @staticmethod
    def seed():
        return int(torch.randint(0, 2**63 - 1, (1,)))

    @staticmethod
    def attention(a, call, return_lse):
        inputs = [x for x in a[:4] if x is not None]
        if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
            return _Attention.apply(*a[:6], a.cu_seqlens, call, return_lse)
        with on_device(a.q):
            out, lse, _ = _call.forward(TorchDoor, a, call, return_lse, False)
        return (out, lse) if return_lse else out

    @staticmethod
    def attention_qkvpacked(qkv, a, call, return_lse):
        wanted = qkv.requires_grad or (a.bias is not None and a.bias.requires_grad)
        if torch.is_grad_enabled() and wanted:
            return _AttentionQkvPacked.apply(qkv, a.bias, a.key_mask, a.query_mask, a.cu_seqlens,
                                             call, return_lse)
        return TorchDoor.attention(a, call, return_lse)


# ---- autograd ----------------------------------------------------------------------------------


def _forward(ctx, first, a, call, return_lse):
    """first: the tensors that backward starts from, q, k, v or the fused one."""
    with on_device(a.q):
        out, lse, saved = _call.forward(TorchDoor, a, call, return_lse, True)
    ctx.save_for_backward(*first, a.bias, a.key_mask, a.query_mask, out, saved)
    ctx.cu_seqlens, ctx.call = a.cu_seqlens, call
    ctx.set_materialize_grads(False)
    return (out, lse) if return_lse else out


def _backward(ctx, a, out, saved, dout, dlse, grads):
    with on_device(a.q):
        dout = torch.zeros_like(out) if dout is None else TorchDoor.gradient(dout)
        dlse = None if dlse is None else TorchDoor.gradient(dlse)
        _call.backward(TorchDoor, a, ctx.call, out, saved, dout, dlse, grads)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, bias, key_mask, query_mask, cu_seqlens, call, return_lse):
        a = _call.Arrays(q, k, v, bias, key_mask, query_mask, cu_seqlens)
        return _forward(ctx, (q, k, v), a, call, return_lse)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout, dlse=None):
        *first, out, saved = ctx.saved_tensors
        a = _call.Arrays(*first, ctx.cu_seqlens)
        grads = _call.empty_grads(TorchDoor, a, ctx.call,
                                   a.bias is not None and ctx.needs_input_grad[3])
        _backward(ctx, a, out, saved, dout, dlse, grads)
        return (*grads, None, None, None, None, None)


class _AttentionQkvPacked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv, bias, key_mask, query_mask, cu_seqlens, call, return_lse):
        a = _call.Arrays(*qkv.unbind(-3), bias, key_mask, query_mask, cu_seqlens)
        return _forward(ctx, (qkv,), a, call, return_lse)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout, dlse=None):
        qkv, *rest, out, saved = ctx.saved_tensors
        a = _call.Arrays(*qkv.unbind(-3), *rest, ctx.cu_seqlens)
        strides = _call.dense_strides(qkv.shape, qkv.stride())
        dqkv = TorchDoor.empty(qkv, tuple(qkv.shape), strides)
        dbias = torch.zeros_like(a.bias) if a.bias is not None and ctx.needs_input_grad[1] else None
        grads = _call.Grads(*dqkv.unbind(-3), dbias)
        _backward(ctx, a, out, saved, dout, dlse, grads)
        return dqkv, dbias, None, None, None, None, None


# torch.compile cannot look into the library: tell it to leave these calls alone. Only where it is
# in use already (this file is read at the first call): loading it takes seconds, and without being
# told it comes to the same end, with warnings.
if "torch._dynamo" in sys.modules:
    for _name in ("attention", "attention_qkvpacked"):
        setattr(TorchDoor, _name, staticmethod(torch.compiler.disable(getattr(TorchDoor, _name))))
