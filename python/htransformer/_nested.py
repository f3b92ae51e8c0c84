"""Nested tensors of the jagged layout: rows of all sequences one after the other, as packed calls
take them."""
import torch

from ._library import InvalidError


def _host(offsets):
    """The host's copy of a tensor of offsets, kept with it: nested tensors of one batch share
    theirs, so that the host waits for a GPU once a batch, not once a layer."""
    found = getattr(offsets, "_htransformer_host", None)
    if found is None:
        found = offsets._htransformer_host = offsets.detach().cpu().to(torch.int32).numpy()
    return found


def _check(name, x, like):
    if not x.is_nested or x.layout != torch.jagged:
        raise InvalidError("%s must be a nested tensor with layout=torch.jagged, as q is" % name)
    if x.lengths() is not None:
        raise InvalidError("%s must have no holes between its sequences: call .contiguous() first"
                           % name)
    if x.offsets() is not like.offsets() and not torch.equal(x.offsets(), like.offsets()):
        raise InvalidError("%s must have the lengths of q" % name)


def attention(a, o, seed, offset, return_lse):
    """attention() on nested (batch, length, heads, dim), with bhld (batch, heads, length, dim); the
    result is nested likewise. Log-sum-exp is (heads, rows), as of a packed call."""
    from ._torch import TorchDoor
    if a.key_mask is not None or a.query_mask is not None or a.cu_seqlens is not None:
        raise InvalidError("nested tensors have lengths of their own: pass no key_mask, query_mask "
                           "or cu_seqlens with them")
    turned = o.layout == "bhld"
    parts = []
    for name, x in (("q", a.q), ("k", a.k), ("v", a.v)):
        x = x.transpose(1, 2) if turned and x.is_nested else x
        _check(name, x, parts[0] if parts else x)
        parts.append(x)
    offsets = parts[0].offsets()
    packed = a._replace(q=parts[0].values(), k=parts[1].values(), v=parts[2].values(),
                        cu_seqlens=_host(offsets))
    found = TorchDoor.attention(packed, o._replace(layout="blhd"), seed, offset, return_lse)
    rows = found[0] if return_lse else found
    out = torch.nested.nested_tensor_from_jagged(rows, offsets)
    out = out.transpose(1, 2) if turned else out
    return (out, found[1]) if return_lse else out
