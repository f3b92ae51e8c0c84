"""htransformer as an attention implementation of Hugging Face's Transformers, and a cache for it.

    import htransformer.transformers
    htransformer.transformers.register(block=16)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="htransformer")
    cache = htransformer.transformers.Cache()
    model.generate(**inputs, past_key_values=cache)

For models that are built and trained with it. Weights trained with full attention expect to see
every far row by itself: with this they need training, or `open` (which looks inside far clusters),
or a block of at least half the length, with which the result is that of full attention.
"""
from typing import Any, Dict, Optional, Tuple

import torch
import transformers
from torch import Tensor
from transformers import cache_utils, masking_utils
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from . import _attention, _call
from ._cache import Cache as _State
from ._library import InvalidError, UnsupportedError
from ._torch import is_compiling

__all__ = ["Cache", "register"]

_OWN = ("block", "mode", "kind", "open", "open_leaf", "open_peek")
# what models pass to say that they want something else than plain attention
_UNKNOWN = ("softcap", "position_bias", "s_aux", "sinks", "head_mask")
_PLAIN = tuple(getattr(masking_utils, name) for name in (
    "causal_mask_function", "bidirectional_mask_function") if hasattr(masking_utils, name))


def register(name: str = "htransformer", **options: Any) -> None:
    """Makes attn_implementation=name known to Transformers. Options are those of attention():
    block, mode, kind, open, open_leaf, open_peek; several names may have different ones. A model
    whose config has a dict `htransformer` goes by that first, and keeps it in its config.json:
    LlamaConfig(..., htransformer={"block": 32, "open": 8})."""
    _check(options)
    ALL_ATTENTION_FUNCTIONS.register(name, _implementation(dict(options)))
    transformers.AttentionMaskInterface.register(name, _mask)


def _check(options: Dict[str, Any]) -> None:
    for word in options:
        if word not in _OWN:
            raise InvalidError("htransformer has no option %r for Transformers; there are %s"
                               % (word, ", ".join(_OWN)))
    _call.options(**options)


# ---- masks -------------------------------------------------------------------------------------

# what _mask() says instead of a mask of rows, by its number of entries
_PACKED, _OTHER, _STATIC = 1, 2, 3
_SEVERAL = ("position_ids of several packed sequences without cu_seq_lens_q "
            "(DataCollatorWithFlattening(return_flash_attn_kwargs=True) gives them; for one "
            "sequence each pass an attention_mask)")


def _mask(batch_size: int, q_length: int, kv_length: int, q_offset: int = 0, kv_offset: int = 0,
          mask_function: Any = None, attention_mask: Optional[Tensor] = None, device: Any = None,
          use_vmap: bool = False, local_size: Optional[int] = None, **_: Any) -> Optional[Tensor]:
    """What models get as their mask: None, or padding as (batch, kv_length), True takes part. Any
    other wish is noted, for the call to look at. use_vmap says that the model has a function of its
    own in it, local_size that it has windows; packed sequences are "and" without these."""
    if mask_function is not None and mask_function not in _PLAIN:
        packed = not use_vmap and local_size is None and mask_function.__qualname__.startswith(
            "and_masks")
        return torch.empty(_PACKED if packed else _OTHER, dtype=torch.bool, device=device)
    if not isinstance(q_offset, int) or kv_offset + kv_length > q_offset + q_length:
        return torch.empty(_STATIC, dtype=torch.bool, device=device)
    if attention_mask is None:
        return None
    mask = attention_mask[:, -kv_length:].to(torch.bool)
    if not is_compiling() and bool(mask.all()):
        return None
    return mask


def _rows(mask: Tensor) -> Tuple[Tensor, Any]:
    """The numbers of the rows that take part, and their cu_seqlens; kept with the mask, which all
    layers share."""
    found = getattr(mask, "_htransformer_rows", None)
    if found is None:
        counts = torch.nn.functional.pad(mask.sum(1), (1, 0)).cumsum(0)
        found = mask.flatten().nonzero().flatten(), counts.to("cpu", torch.int32).numpy()
        mask._htransformer_rows = found
    return found


def _without_padding(x: Tensor, at: Tensor) -> Tensor:
    """(rows, heads, dim) of (batch, heads, length, dim)."""
    return x.transpose(1, 2).flatten(0, 1).index_select(0, at)


def _with_padding(z: Tensor, at: Tensor, like: Tensor) -> Tensor:
    batch, heads, length, _ = like.shape
    out = z.new_zeros(batch * length, heads, z.shape[-1]).index_copy(0, at, z)
    return out.view(batch, length, heads, z.shape[-1])


# ---- the call ----------------------------------------------------------------------------------


def _refuse(module: Any, mask: Optional[Tensor], key_length: int, more: Dict[str, Any]) -> None:
    for word in _UNKNOWN:
        if more.get(word) is not None:
            raise UnsupportedError("htransformer's attention has no %s, which this model needs"
                                   % word)
    if more.get("output_attentions"):
        raise UnsupportedError("output_attentions must be False: htransformer never computes the "
                               "weights as a matrix")
    if getattr(module.config, "is_encoder_decoder", False):
        raise UnsupportedError("htransformer's attention is self-attention: models with an encoder "
                               "and a decoder are not supported")
    window = more.get("sliding_window")
    if window is not None and key_length > window:
        raise UnsupportedError(
            "the model wants a sliding window of %d rows, the sequence has %d: set "
            "config.sliding_window to None; attn_implementation with kind=\"local\" has windows of "
            "its own" % (window, key_length))
    if mask is None or mask.dim() == 2:
        return
    if mask.dim() == 1 and mask.shape[0] == _PACKED:
        if more.get("cu_seq_lens_q") is not None:
            return
        if is_compiling() and more.get("position_ids") is not None:
            # what compiles cannot look whether there are several: it is looked at when it runs
            steps = more["position_ids"].diff(dim=-1)
            torch._assert_async((steps == 1).all(), _SEVERAL)
            return
    raise UnsupportedError("the model or its caller wants %s; htransformer's attention has causal "
                           "and padding masks, (batch, length)" % {
                               _PACKED: _SEVERAL,
                               _STATIC: "a cache of fixed size: pass past_key_values="
                                        "htransformer.transformers.Cache()",
                               _OTHER: "a mask of its own for pairs of rows",
                           }.get(mask.shape[0] if mask.dim() == 1 else _OTHER))


def _implementation(defaults: Dict[str, Any]) -> Any:
    def htransformer_attention_forward(
            module: Any, query: Tensor, key: Tensor, value: Tensor,
            attention_mask: Optional[Tensor], dropout: float = 0.0,
            scaling: Optional[float] = None, is_causal: Optional[bool] = None,
            **more: Any) -> Tuple[Tensor, None]:
        """query (batch, heads, length, dim), key and value of their heads; gives (batch, length,
        heads, dim), as Transformers wants it."""
        _refuse(module, attention_mask, key.shape[2], more)
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        own = getattr(module.config, "htransformer", None)
        if own is not None:
            _check(own)
        options = {**defaults, **(own or {}), "causal": bool(causal), "scale": scaling}
        layer = getattr(key, "_htransformer_layer", None)
        if layer is not None:
            return layer.extend(query, key, value, attention_mask, options), None
        options["dropout_p"] = dropout
        if attention_mask is not None and attention_mask.dim() == 1:
            if more.get("cu_seq_lens_q") is not None:
                return _packed(query, key, value, more, options), None
            attention_mask = None
        rows = query.shape[2]
        if key.shape[2] != rows:
            query = _continued(query, key, options)
        z = _attend(query, key, value, attention_mask, options)
        return (z if z.shape[1] == rows else z[:, -rows:]), None
    return htransformer_attention_forward


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor],
            options: Dict[str, Any]) -> Tensor:
    """(batch, length, heads, dim). Padding is left out of the rows, so that it does not matter on
    which side it is; compiled, where lengths must not depend on data, it is masked."""
    if mask is None or is_compiling():
        z = _attention.attention(query, key, value, key_mask=mask, query_mask=mask, layout="bhld",
                                 **options)
        return z.transpose(1, 2).contiguous()
    at, cu = _rows(mask)
    parts = [_without_padding(x, at) for x in (query, key, value)]
    return _with_padding(_attention.attention(*parts, cu_seqlens=cu, **options), at, query)


def _packed(query: Tensor, key: Tensor, value: Tensor, more: Dict[str, Any],
            options: Dict[str, Any]) -> Tensor:
    """Sequences one after the other in a batch of one."""
    if query.shape[0] != 1:
        raise InvalidError("packed sequences must be a batch of 1, got %d" % query.shape[0])
    z = _attention.attention(*(x[0].transpose(0, 1) for x in (query, key, value)),
                             cu_seqlens=more["cu_seq_lens_q"], **options)
    return z[None]


def _continued(query: Tensor, key: Tensor, options: Dict[str, Any]) -> Tensor:
    """The last rows of a sequence whose keys are all there (a cache of Transformers' own): rows
    are aligned to the end. What stands in front of them is computed for nothing: Cache below does
    not."""
    if not options["causal"] or key.shape[2] < query.shape[2]:
        raise UnsupportedError(
            "query has %d rows, key %d: htransformer's attention is self-attention, "
            "cross-attention is not supported" % (query.shape[2], key.shape[2]))
    if options.get("mode") not in (None, "auto", "fine"):
        raise UnsupportedError("mode %r needs all queries: pass past_key_values="
                               "htransformer.transformers.Cache()" % options["mode"])
    return torch.nn.functional.pad(query, (0, 0, key.shape[2] - query.shape[2], 0))


# ---- the cache ---------------------------------------------------------------------------------


class _Layer(cache_utils.CacheLayerMixin):
    """One layer: an htransformer.Cache with a slot for each sequence of the batch. update() only
    marks the new keys; the call of the attention, which has the queries, takes them in."""

    is_compileable = is_croppable = False
    supports_early_init = False

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.state, self.length, self.waits = None, 0, False

    def lazy_initialization(self, key_states: Tensor, value_states: Any = None) -> None:
        self.batch_size = key_states.shape[0]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
               ) -> Tuple[Tensor, Tensor]:
        if self.waits:
            raise UnsupportedError(
                "keys were given to htransformer.transformers.Cache, but no attention took them: "
                "it goes with models whose attn_implementation is \"htransformer\" alone")
        if not self.is_initialized:
            self.lazy_initialization(key_states)
            self.is_initialized = True
        key_states = key_states.detach()
        key_states._htransformer_layer = self
        self.waits = True
        self.length += key_states.shape[2]
        return key_states, value_states

    def _open(self, query: Tensor, key: Tensor, value: Tensor, options: Dict[str, Any]) -> None:
        given = {name: x for name, x in options.items() if name != "causal"}
        self.made = lambda slots: _State(
            slots, query.shape[1], query.shape[3], kv_heads=key.shape[1],
            value_dim=value.shape[3], dtype=_dtype(query), device=query.device, **given)
        self.options, self.state = options, self.made(query.shape[0])
        self.slots = list(range(query.shape[0]))

    def extend(self, query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor],
               options: Dict[str, Any]) -> Tensor:
        if not options["causal"]:
            raise UnsupportedError("a cache goes with causal attention; this model's is not")
        if torch.is_grad_enabled() and (query.requires_grad or value.requires_grad):
            raise UnsupportedError("htransformer.transformers.Cache has no gradients: train with "
                                   "use_cache=False, generate under torch.no_grad()")
        self.waits = False
        if self.state is None:
            self._open(query, key, value, options)
        elif options != self.options:
            raise InvalidError("the cache was made with %s, the model now has %s"
                               % (self.options, options))
        dtype = query.dtype
        query, key, value = (x.to(_dtype(x)) for x in (query, key, value))
        if mask is None:
            parts = [x.transpose(1, 2) for x in (query, key, value)]
            return self.state.extend(*parts, slots=self.slots).contiguous().to(dtype)
        at, cu = _rows(mask)
        parts = [_without_padding(x, at) for x in (query, key, value)]
        z = self.state.extend(*parts, slots=self.slots, cu_seqlens=cu)
        return _with_padding(z, at, query).to(dtype)

    def get_mask_sizes(self, query_length: Any) -> Tuple[int, int]:
        """Of masks the columns of the new rows are looked at alone."""
        if not isinstance(query_length, int):  # before Transformers 5 a tensor of positions
            query_length = query_length.shape[0]
        return query_length, self.length

    def get_seq_length(self, *_: Any) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name before Transformers 5

    def reset(self) -> None:
        self.length, self.waits = 0, False
        if self.state is not None:
            self.state.reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Beam search: sequence b goes on from the state of beam_idx[b]. The first that wants a
        state keeps its slot, others get a copy in a slot that nobody wants."""
        if self.state is None:
            return
        wanted = [self.slots[i] for i in beam_idx.tolist()]
        free = [slot for slot in self.slots if slot not in wanted]
        seen, found = set(), []
        for slot in wanted:
            if slot in seen:
                self.state.fork(free[-1], slot)
                slot = free.pop()
            seen.add(slot)
            found.append(slot)
        self.slots = found

    def _take(self, sequences: Any) -> None:
        """A new state of some sequences of the old one."""
        if self.state is None:
            return
        old, self.state = self.state, self.made(len(sequences))
        for slot, sequence in enumerate(sequences):
            self.state.load(slot, old.save(self.slots[sequence]))
        self.slots, self.batch_size = list(range(len(sequences))), len(sequences)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._take([b for b in range(len(self.slots) if self.state else 0)
                    for _ in range(repeats)])

    def batch_select_indices(self, indices: Tensor) -> None:
        self._take(torch.arange(len(self.slots))[indices.cpu()].tolist() if self.state else [])

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise UnsupportedError("the state of hierarchical attention cannot be taken back by %d "
                                   "tokens: keep htransformer.Cache.save() of before"
                                   % abs(tokens_to_remove))

    def offload(self) -> None:
        raise UnsupportedError("htransformer.transformers.Cache cannot be offloaded: its state is "
                               "small and stays on its device")

    prefetch = offload


def _dtype(x: Tensor) -> torch.dtype:
    """What a cache on the device of x takes: the CPU's kernels compute narrow ones in float32."""
    from ._torch import widen
    return widen(x[:0]).dtype


class Cache(cache_utils.Cache):
    """past_key_values of a model with attn_implementation="htransformer": 2*block rows of keys and
    values per level and key head, whatever the length of the text; with `open` all rows. Prompts,
    chunks, padding on either side and beam search work; what was taken in cannot be taken back
    (crop, assisted generation). Without gradients."""

    def __init__(self, config: Any = None) -> None:
        """config: not needed; Transformers' own caches take it."""
        super().__init__(layer_class_to_replicate=_Layer)
