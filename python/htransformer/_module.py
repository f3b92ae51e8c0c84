"""HAttention: a torch.nn.Module that drops in for nn.MultiheadAttention in self-attention."""
from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn

from . import _attention, _call, _library
from ._cache import Cache
from ._library import InvalidError


def _refuse(condition, sentence, *values):
    if condition:
        raise InvalidError(sentence % values)


class HAttention(nn.Module):
    """Multi-head self-attention of linear cost, with the arguments, parameters and state_dict of
    nn.MultiheadAttention.

    Of its own: causal (the module is always causal; forward's is_causal asks for it per call),
    block, mode, kind, rotary_theta, scale and open as in htransformer.attention(), and
    relative_bias: a learned bias of relative positions, (4*block - 1, num_heads), zero at first.
    With block >= length/2 and no bias or rotary positions it computes what nn.MultiheadAttention
    does.
    """

    # nn.TransformerEncoderLayer's inference path takes the weights of a module that says True here
    # and computes full attention itself, without calling the module
    _qkv_same_embed_dim = False

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
                 add_bias_kv: bool = False, add_zero_attn: bool = False,
                 kdim: Optional[int] = None, vdim: Optional[int] = None, batch_first: bool = False,
                 device: Any = None, dtype: Any = None, *, causal: bool = False, block: int = 16,
                 mode: Optional[str] = None, kind: str = "hierarchical",
                 rotary_theta: Optional[float] = None, scale: Optional[float] = None,
                 open: int = 0, relative_bias: bool = False, **others: Any) -> None:
        super().__init__()
        _refuse(add_bias_kv, "add_bias_kv is not supported")
        _refuse(add_zero_attn, "add_zero_attn is not supported")
        for name, dim in (("kdim", kdim), ("vdim", vdim)):
            _refuse(dim not in (None, embed_dim),
                    "%s must be embed_dim (%d): self-attention only, got %s", name, embed_dim, dim)
        _refuse(num_heads < 1 or embed_dim < 1 or embed_dim % num_heads,
                "num_heads must divide embed_dim (%d), got %s", embed_dim, num_heads)
        _refuse(not 0 <= dropout < 1, "dropout must be in [0, 1), got %s", dropout)
        mode = _call.old_mode("HAttention()", mode, others)
        _call.options(causal=causal, mode=mode, block=block, kind=kind, rotary_theta=rotary_theta,
                      scale=scale, open=open)
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.dropout, self.batch_first, self.causal = dropout, batch_first, causal
        self.block, self.mode, self.kind, self.open = block, mode, kind, open
        self.rotary_theta, self.scale = rotary_theta, scale
        made = {"device": device, "dtype": dtype}
        self.in_proj_weight = nn.Parameter(torch.empty((3 * embed_dim, embed_dim), **made))
        self.register_parameter(
            "in_proj_bias", nn.Parameter(torch.empty(3 * embed_dim, **made)) if bias else None)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **made)
        table = torch.empty((4 * block - 1, num_heads), **made) if relative_bias else None
        self.register_parameter("relative_bias", nn.Parameter(table) if relative_bias else None)
        self.reset_parameters()

    def reset_parameters(self):
        """As nn.MultiheadAttention does."""
        nn.init.xavier_uniform_(self.in_proj_weight)
        for parameter in (self.in_proj_bias, self.out_proj.bias, self.relative_bias):
            if parameter is not None:
                nn.init.zeros_(parameter)

    def extra_repr(self):
        return "%d, num_heads=%d, block=%d, mode=%s, kind=%s, causal=%s" % (
            self.embed_dim, self.num_heads, self.block, self.mode, self.kind, self.causal)

    def forward(self, query: Tensor, key: Optional[Tensor] = None, value: Optional[Tensor] = None,
                key_padding_mask: Optional[Tensor] = None, need_weights: bool = False,
                attn_mask: Optional[Tensor] = None, average_attn_weights: bool = True,
                is_causal: bool = False, cache: Optional[Cache] = None) -> Tuple[Tensor, None]:
        """(output, None), as nn.MultiheadAttention returns with need_weights=False.

        query is (length, batch, embed_dim), with batch_first (batch, length, embed_dim), or
        (length, embed_dim); key and value are None or query itself. key_padding_mask is True (or
        -inf) where a row is padding: such rows take no part and their attention is zero. cache:
        one of new_cache(); the rows continue its sequences, without gradients."""
        _refuse((key is not None and key is not query)
                or (value is not None and value is not query),
                "key and value must be None or the query itself: HAttention is self-attention")
        _refuse(need_weights,
                "need_weights must be False: the weights are never computed as a matrix")
        _refuse(attn_mask is not None, "attn_mask is not supported; for a causal mask pass "
                "is_causal=True alone, for padding key_padding_mask")
        _refuse(query.is_nested, "query must be an ordinary tensor, got a nested one (build "
                "nn.TransformerEncoder with enable_nested_tensor=False)")
        _refuse(query.dim() not in (2, 3) or query.shape[-1] != self.embed_dim,
                "query must be %s with embed_dim %d, got shape %s",
                "(batch, length, embed_dim)" if self.batch_first else "(length, batch, embed_dim)",
                self.embed_dim, tuple(query.shape))
        batched = query.dim() == 3
        x = query if batched else query.unsqueeze(0 if self.batch_first else 1)
        rows = x.shape[:2] if self.batch_first else (x.shape[1], x.shape[0])
        mask = self._row_mask(key_padding_mask, tuple(rows) if batched else tuple(rows)[1:])
        causal = bool(self.causal or is_causal or cache is not None)

        qkv = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias)
        qkv = qkv.view(*x.shape[:2], 3, self.num_heads, self.head_dim)
        if not self.batch_first:
            qkv = qkv.transpose(0, 1)
        out = self._attend(qkv, mask, causal) if cache is None else self._extend(qkv, mask, cache)
        # out lies in memory as qkv does, so that both of these are views
        out = out if self.batch_first else out.transpose(0, 1)
        out = self.out_proj(out.reshape(x.shape))
        return (out if batched else out.squeeze(0 if self.batch_first else 1)), None

    def _bias(self, dtype):
        """The table as the kernels want it: float32 unless all is float64."""
        if self.relative_bias is None:
            return None
        return self.relative_bias.to(torch.float64 if dtype == torch.float64 else torch.float32)

    def _attend(self, qkv, mask, causal):
        return _attention.attention_qkvpacked(
            qkv, bias=self._bias(qkv.dtype), key_mask=mask, query_mask=mask, causal=causal,
            mode=self.mode, block=self.block, kind=self.kind, scale=self.scale, open=self.open,
            rotary_theta=self.rotary_theta, dropout_p=self.dropout if self.training else 0.0)

    def _extend(self, qkv, mask, cache):
        with torch.no_grad():
            return cache.extend(*qkv.unbind(2), key_mask=mask, query_mask=mask)

    def _row_mask(self, padding, rows):
        """nn.MultiheadAttention's convention (True: ignore) to ours (True: takes part)."""
        if padding is None:
            return None
        _refuse(tuple(padding.shape) != rows, "key_padding_mask must have shape %s, got %s", rows,
                tuple(padding.shape))
        if padding.dtype == torch.bool:
            mask = ~padding
        else:  # what nn.TransformerEncoder makes of a bool mask: 0 or -inf, to be added to scores
            _refuse(not padding.is_floating_point(),
                    "key_padding_mask must be bool or float, got %s", padding.dtype)
            mask = padding == 0
            _refuse(bool((~mask & (padding != float("-inf"))).any()),
                    "key_padding_mask, where it is float, must be 0 or -inf")
        return mask if mask.dim() == 2 else mask.unsqueeze(0)

    def new_cache(self, slots: int, dtype: Any = None) -> Cache:
        """A decode cache for this module's attention, for `slots` sequences; the learned bias is
        the one of now. Pass it to forward; rows of sequence b continue slot b. dtype: of the
        activations, if not the weights' (autocast)."""
        weight = self.in_proj_weight
        dtype = dtype or weight.dtype
        bias = None if self.relative_bias is None else self._bias(dtype).detach().clone()
        return Cache(slots, self.num_heads, self.head_dim, block=self.block, kind=self.kind,
                     mode=self.mode, open=self.open, scale=self.scale, bias=bias,
                     rotary_theta=self.rotary_theta, dtype=dtype, device=weight.device)
