"""The attention as operators of PyTorch's own (torch.ops.htransformer), for whatever looks into a
program: torch.compile, torch.export, fake tensors, dispatch modes, torch.func.

    attention, attention_backward                      q, k, v apart
    attention_qkvpacked, attention_qkvpacked_backward  as parts of one tensor

Each takes the arrays, then Options field by field, and gives (out, lse, saved), of which lse and
saved are empty unless wanted. With cu_seqlens the calls are packed. Seeds are tensors: a number
drawn while a program is traced would be the same for ever.
"""
from typing import Optional, Tuple

import torch
from torch import Tensor

from . import _call, _plan
from ._attention import prepare, row_mask
from ._call import Arrays, Options
from ._library import Error, InvalidError
from ._torch import (SECOND, TorchDoor, current_context, empty_fused, needs_grad, on_device,
                     run_backward, widen)

VMAP = ("htransformer's attention cannot be mapped by torch.vmap: it has a batch dimension; put "
        "the mapped one there")

_Maybe = Optional[Tensor]


# ---- what they do ------------------------------------------------------------------------------


def _prepare(tensors, seed, options, offset):
    """(arrays, call) of an operator's arguments; narrow tensors a CPU cannot take are widened."""
    q, k, v, *rest = tensors
    a = Arrays(widen(q), widen(k), widen(v), *rest)
    return prepare(TorchDoor, a, Options(*options), 0 if seed is None else int(seed), offset)


def _forward(tensors, seed, options, offset, want_lse, want_saved):
    a, call = _prepare(tensors, seed, options, offset)
    with on_device(a.q):
        out, lse, saved = _call.forward(TorchDoor, a, call, want_lse, want_saved)
    if lse is None:
        lse = TorchDoor.empty_real(a.q, (0,))
    if saved is None:
        saved = a.q.new_empty(0, dtype=torch.uint8)
    dtype = tensors[0].dtype
    return _like_fake(out.to(dtype), tensors[0]), lse, saved


def _like_fake(out, q):
    """Widened tensors were contiguous copies: the result lies in memory as the fake one does."""
    strides = _call.dense_strides(out.shape, q.stride())
    return out if out.stride() == strides else \
        out.new_empty_strided(out.shape, strides).copy_(out)


def _backward(dout, dlse, tensors, out, saved, seed, options, offset, grads_of):
    a, call = _prepare(tensors, seed, options, offset)
    grads = grads_of(a, call)
    run_backward(a, call, widen(out), saved, widen(dout), dlse, grads)
    return grads


@torch.library.custom_op("htransformer::attention", mutates_args=())
def attention(q: Tensor, k: Tensor, v: Tensor, bias: _Maybe, key_mask: _Maybe, query_mask: _Maybe,
              cu_seqlens: _Maybe, seed: _Maybe, kind: int, mode: int, causal: bool, block: int,
              scale: float, rotary_theta: float, dropout: float, open: int, open_leaf: int,
              open_peek: int, layout: str, offset: int, want_lse: bool, want_saved: bool
              ) -> Tuple[Tensor, Tensor, Tensor]:
    options = (kind, mode, causal, block, scale, rotary_theta, dropout, open, open_leaf, open_peek,
               layout)
    return _forward((q, k, v, bias, key_mask, query_mask, cu_seqlens), seed, options, offset,
                    want_lse, want_saved)


@torch.library.custom_op("htransformer::attention_backward", mutates_args=())
def attention_backward(dout: Tensor, dlse: _Maybe, q: Tensor, k: Tensor, v: Tensor, bias: _Maybe,
                       key_mask: _Maybe, query_mask: _Maybe, cu_seqlens: _Maybe, out: Tensor,
                       saved: Tensor, seed: _Maybe, kind: int, mode: int, causal: bool, block: int,
                       scale: float, rotary_theta: float, dropout: float, open: int,
                       open_leaf: int, open_peek: int, layout: str, offset: int, want_dbias: bool
                       ) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    options = (kind, mode, causal, block, scale, rotary_theta, dropout, open, open_leaf, open_peek,
               layout)
    dq, dk, dv, dbias = _backward(
        dout, dlse, (q, k, v, bias, key_mask, query_mask, cu_seqlens), out, saved, seed, options,
        offset, lambda a, call: _call.empty_grads(TorchDoor, a, call, want_dbias))
    found = [_like_fake(dx.to(q.dtype), x) for dx, x in ((dq, q), (dk, k), (dv, v))]
    return (*found, q.new_empty(0) if dbias is None else dbias)


@torch.library.custom_op("htransformer::attention_qkvpacked", mutates_args=())
def attention_qkvpacked(qkv: Tensor, bias: _Maybe, key_mask: _Maybe, query_mask: _Maybe,
                        cu_seqlens: _Maybe, seed: _Maybe, kind: int, mode: int, causal: bool,
                        block: int, scale: float, rotary_theta: float, dropout: float, open: int,
                        open_leaf: int, open_peek: int, layout: str, offset: int, want_lse: bool,
                        want_saved: bool) -> Tuple[Tensor, Tensor, Tensor]:
    options = (kind, mode, causal, block, scale, rotary_theta, dropout, open, open_leaf, open_peek,
               layout)
    return _forward((*qkv.unbind(-3), bias, key_mask, query_mask, cu_seqlens), seed, options,
                    offset, want_lse, want_saved)


@torch.library.custom_op("htransformer::attention_qkvpacked_backward", mutates_args=())
def attention_qkvpacked_backward(
        dout: Tensor, dlse: _Maybe, qkv: Tensor, bias: _Maybe, key_mask: _Maybe, query_mask: _Maybe,
        cu_seqlens: _Maybe, out: Tensor, saved: Tensor, seed: _Maybe, kind: int, mode: int,
        causal: bool, block: int, scale: float, rotary_theta: float, dropout: float, open: int,
        open_leaf: int, open_peek: int, layout: str, offset: int, want_dbias: bool
        ) -> Tuple[Tensor, Tensor]:
    options = (kind, mode, causal, block, scale, rotary_theta, dropout, open, open_leaf, open_peek,
               layout)
    wide = widen(qkv)
    dqkv, grads = empty_fused(wide, torch.zeros_like(bias) if want_dbias else None)
    _backward(dout, dlse, (*wide.unbind(-3), bias, key_mask, query_mask, cu_seqlens), out, saved,
              seed, options, offset, lambda a, call: grads)
    dbias = qkv.new_empty(0) if grads.dbias is None else grads.dbias
    return _like_fake(dqkv.to(qkv.dtype), qkv), dbias


# ---- what they would give: shapes alone --------------------------------------------------------


def _fake_like(x, shape):
    return x.new_empty_strided(shape, _call.dense_strides(shape, x.stride()))


def _saved_bytes(q, k, v, bias, cu_seqlens, options):
    """What forward keeps: the plan says it if all lengths are known, else a number not yet
    known."""
    if cu_seqlens is None and all(isinstance(n, int) for x in (q, k, v) for n in x.shape):
        try:
            a, o = Arrays(widen(q), k, v, bias, None, None, None), Options(*options)
            values = _call.plan_values(TorchDoor, a, _call.shape_of(a, o.layout), o)
            return _plan.plan(current_context(q.device), values).saved
        except Error:
            pass  # a device that is not here; and what is wrong with a call, the call will say
    return torch.library.get_ctx().new_dynamic_size()


def _fake_forward(q, k, v, bias, cu_seqlens, options, want_lse, want_saved):
    packed, bhld = cu_seqlens is not None, options[-1] == "bhld"
    rows, heads = (q.shape[-2], q.shape[-3]) if bhld else (q.shape[-3], q.shape[-2])
    out = _fake_like(q, (*q.shape[:-1], v.shape[-1]))
    size = (heads, rows) if packed else (q.shape[0], heads, rows)
    lse = TorchDoor.empty_real(q, size if want_lse else (0,))
    bytes_ = _saved_bytes(q, k, v, bias, cu_seqlens, options) if want_saved else 0
    return out, lse, q.new_empty(bytes_, dtype=torch.uint8)


@attention.register_fake
def _(q, k, v, bias, key_mask, query_mask, cu_seqlens, seed, *rest):
    *options, _, want_lse, want_saved = rest
    return _fake_forward(q, k, v, bias, cu_seqlens, options, want_lse, want_saved)


@attention_qkvpacked.register_fake
def _(qkv, bias, key_mask, query_mask, cu_seqlens, seed, *rest):
    *options, _, want_lse, want_saved = rest
    return _fake_forward(*qkv.unbind(-3), bias, cu_seqlens, options, want_lse, want_saved)


def _fake_dbias(q, bias, want):
    return torch.empty_like(bias, memory_format=torch.contiguous_format) if want else q.new_empty(0)


@attention_backward.register_fake
def _(dout, dlse, q, k, v, bias, key_mask, query_mask, cu_seqlens, out, saved, seed, *rest):
    return (*[_fake_like(x, x.shape) for x in (q, k, v)], _fake_dbias(q, bias, rest[-1]))


@attention_qkvpacked_backward.register_fake
def _(dout, dlse, qkv, bias, key_mask, query_mask, cu_seqlens, out, saved, seed, *rest):
    return _fake_like(qkv, qkv.shape), _fake_dbias(qkv, bias, rest[-1])


# ---- gradients ---------------------------------------------------------------------------------


def _autograd(forward, backward, count):
    """Registers backward as the gradient of forward, whose first `count` inputs are those tensors
    that are neither bias nor mask."""
    def setup_context(ctx, inputs, output):
        out, _, saved = output
        ctx.save_for_backward(*inputs[:count + 5], out, saved)  # bias, two masks, lengths, seed
        ctx.options = inputs[count + 5:-2]  # with the offset
        ctx.wants = inputs[-2:]
        ctx.mark_non_differentiable(saved)
        ctx.set_materialize_grads(False)

    def gradient(ctx, dout, dlse, _):
        want_lse, want_saved = ctx.wants
        if not want_saved:
            raise InvalidError("the operator was called with want_saved=False: it has no gradient")
        *inputs, seed, out, saved = ctx.saved_tensors
        want = inputs[count] is not None and ctx.needs_input_grad[count]
        dout = torch.zeros_like(out) if dout is None else dout
        *grads, dbias = backward(dout, dlse if want_lse else None, *inputs, out, saved, seed,
                                 *ctx.options, want)
        return (*grads, dbias if want else None, *[None] * (4 + len(ctx.options) + 2))

    def twice(ctx, *grads):
        raise InvalidError(SECOND)

    forward.register_autograd(gradient, setup_context=setup_context)
    backward.register_autograd(twice, setup_context=lambda ctx, inputs, output: None)


def _no_vmap(info, in_dims, *args):
    raise InvalidError(VMAP)


_autograd(attention, attention_backward, 3)
_autograd(attention_qkvpacked, attention_qkvpacked_backward, 1)
for _op in (attention, attention_backward, attention_qkvpacked, attention_qkvpacked_backward):
    _op.register_vmap(_no_vmap)


# ---- calls -------------------------------------------------------------------------------------


def _check(a, o):
    """What the library cannot see, said while a program is traced."""
    TorchDoor.check("q", a.q)
    shape = _call.shape_of(a._replace(cu_seqlens=None), o.layout) if a.cu_seqlens is None else None
    if shape is not None:
        _call.check_arrays(TorchDoor, a, shape, o.block)


def call(a, o, seed, offset, return_lse, qkv=None):
    """attention() through the operators."""
    a = a._replace(key_mask=row_mask(a.key_mask), query_mask=row_mask(a.query_mask))
    _check(a, o)
    cu = a.cu_seqlens
    if cu is not None and not isinstance(cu, Tensor):
        cu = torch.as_tensor(cu, dtype=torch.int32)
    if not o.dropout:
        seed = None
    elif seed is None:
        seed = torch.randint(0, 2**63 - 1, (), dtype=torch.int64)
    elif not isinstance(seed, Tensor):
        seed = torch.tensor((seed + 2**63) % 2**64 - 2**63, dtype=torch.int64)
    first = (a.q, a.k, a.v) if qkv is None else (qkv,)
    run = attention if qkv is None else attention_qkvpacked
    out, lse, _ = run(*first, a.bias, a.key_mask, a.query_mask, cu, seed, *o, offset,
                      bool(return_lse), needs_grad(*first, a.bias))
    return (out, lse) if return_lse else out
