"""Decoding: the state of many sequences, extended by one token or by thousands at a time."""
import contextlib
import ctypes
import sys
from ctypes import POINTER, byref, c_int64, c_size_t, c_void_p
from typing import Any, Optional, Sequence

import numpy

from . import _call, _library, _plan
from ._attention import door_of, gather
from ._library import InvalidError


def _dtype_name(dtype):
    """"float32" of a string, a NumPy or a PyTorch dtype."""
    name = str(dtype)
    name = name[6:] if name.startswith("torch.") else name
    if name not in _library.DTYPES:
        name = "bfloat16" if name == "bf16" else numpy.dtype(dtype).name
    _call.choose("dtype", name, _library.DTYPES)
    return name


class Cache:
    """The decode state of `slots` sequences of one causal layer, each at its own position.

    Hierarchical attention keeps 2*block rows of keys and values per level and key head, whatever
    the length of the sequence: there is no maximum. Prefill, chunks and single tokens are the same
    call, extend(), and give what attention() gives for the whole sequence. No gradients.

    slots, heads, head_dim     sequences; query heads; their dimension
    kv_heads, value_dim        None: heads, head_dim
    block, mode, kind, scale, rotary_theta, bias, open, layout     as in attention(), causal
    dtype, device              of the tensors to come: "float32", torch.bfloat16; "cpu", "cuda:0"
    """

    def __init__(self, slots: int, heads: int, head_dim: int, *, kv_heads: Optional[int] = None,
                 value_dim: Optional[int] = None, block: int = 16, mode: Optional[str] = None,
                 kind: str = "hierarchical", scale: Optional[float] = None,
                 softmax_scale: Optional[float] = None, rotary_theta: Optional[float] = None,
                 bias: Any = None, open: int = 0, open_leaf: int = 8, open_peek: int = 2,
                 dtype: Any = "float32", device: Any = "cpu", layout: str = "blhd",
                 **others: Any) -> None:
        mode = _call.old_mode("Cache()", mode, others)
        o = _call.options(causal=True, mode=mode, block=block, kind=kind, scale=scale,
                          softmax_scale=softmax_scale, rotary_theta=rotary_theta, open=open,
                          open_leaf=open_leaf, open_peek=open_peek, layout=layout)
        self.slots, self.heads, self.head_dim = slots, heads, head_dim
        self.kv_heads = heads if kv_heads is None else kv_heads
        self.value_dim = head_dim if value_dim is None else value_dim
        self.dtype, self.layout, self.bias, self.block = _dtype_name(dtype), layout, bias, block
        self._device = self._open(str(device))
        self._lib = _library.library()
        values = (o.kind, o.mode, _library.DTYPES[self.dtype], 1, int(bias is not None), 0, heads,
                  self.kv_heads, head_dim, self.value_dim, o.block, 1, 1, 1, o.scale,
                  o.rotary_theta, 0.0, o.open, o.open_leaf, o.open_peek)
        plan, handle = _plan.plan(self._context, values), c_void_p()
        with self._on_device():
            self._context.call(self._lib.ht_cache_create, byref(handle), plan.handle, slots)
        self._handle = handle
        _plan.own(self, self._lib.ht_cache_destroy, handle, self._context)

    # ---- where the state lives ----

    def _open(self, device):
        """Finds the context; the state belongs to the stream that is current now."""
        if device == "cpu":
            torch = sys.modules.get("torch")
            self._context = _plan.cpu_context(torch.get_num_threads() if torch else 0)
            return None
        if not device.startswith("cuda"):
            raise InvalidError("device must be \"cpu\", \"cuda\" or \"cuda:N\", got %r" % device)
        import torch
        from ._torch import current_context
        found = torch.device(device)
        if found.index is None:
            found = torch.device("cuda", torch.cuda.current_device())
        with torch.cuda.device(found):
            self._context = current_context(found)
        return found

    @property
    def device(self) -> str:
        """Where the state lives."""
        return "cpu" if self._device is None else str(self._device)

    @contextlib.contextmanager
    def _on_device(self):
        """CUDA: the device is current, and work of the current stream, if it is not the state's
        own, is ordered before and after."""
        if self._device is None:
            yield
            return
        import torch
        from ._torch import current_context, stream_of
        with torch.cuda.device(self._device):
            now = torch.cuda.current_stream()
            if current_context(self._device) is self._context:
                yield
                return
            own = stream_of(self._context, self._device)
            own.wait_stream(now)
            yield
            now.wait_stream(own)

    # ---- extending ----

    def extend(self, q: Any, k: Any, v: Any, *, slots: Optional[Sequence[int]] = None,
               key_mask: Any = None, query_mask: Any = None, cu_seqlens: Any = None,
               return_lse: bool = False) -> Any:
        """Appends rows to sequences and attends with them: row t sees itself and all before it.

        q, k and v as in attention(), NumPy arrays or tensors on the cache's device; the sequence b
        goes to slot slots[b] (None: slot b). Returns the outputs, and log-sum-exp if wanted."""
        door = door_of("q", q)
        door.check("q", q)
        a = gather(door, _call.Arrays(q, k, v, self.bias, key_mask, query_mask, cu_seqlens))
        shape = _call.shape_of(a, self.layout)
        _call.check_arrays(door, a, shape, self.block)
        self._check(door, q, shape)
        order = None if slots is None else self._order(slots, shape.batch)
        packed = a.cu_seqlens is not None
        with self._on_device():
            args = _call.make_args(door, a, shape, self.layout)
            size = _call.out_shape(a, shape, self.layout)
            out = door.empty(q, size, _call.dense_strides(size, door.strides(q)))
            args.out = _call.place(door, "out", out, self.layout, packed)
            lse = door.empty_real(q, _call.lse_shape(a, shape)) if return_lse else None
            if return_lse:
                args.lse = _call.lse_tensor(door.pointer(lse), lse.shape, packed)
            self._context.call(self._lib.ht_cache_extend, self._handle, order, byref(args))
        return (out, lse) if return_lse else out

    def _check(self, door, q, shape):
        where = str(getattr(q, "device", "cpu"))  # NumPy 2 says "cpu", NumPy 1 nothing
        if where != self.device:
            raise InvalidError("q must be on %s as the cache is, got %s" % (self.device, where))
        if door.dtype(q) != self.dtype:
            raise InvalidError("q must be %s as the cache is, got %s" % (self.dtype, door.dtype(q)))
        for name, got in (("heads", shape.q_heads), ("kv_heads", shape.kv_heads),
                          ("head_dim", shape.head_dim), ("value_dim", shape.value_dim)):
            if got != getattr(self, name):
                raise InvalidError("the cache has %s %d, got %d" % (name, getattr(self, name), got))

    @staticmethod
    def _order(slots, batch):
        order = [int(slot) for slot in slots]
        if len(order) != batch:
            raise InvalidError("slots must name one slot for each of %d sequences, got %d"
                               % (batch, len(order)))
        return (c_int64 * batch)(*order)

    # ---- slots ----

    def _slot(self, slot):
        if not 0 <= slot < self.slots:
            raise InvalidError("slot must be 0 to %d, got %r" % (self.slots - 1, slot))
        return slot

    def position(self, slot: int = 0) -> int:
        """Rows the slot has seen."""
        return self._lib.ht_cache_position(self._handle, self._slot(slot))

    def rows(self, slot: int = 0) -> int:
        """Rows of keys the slot holds per key head."""
        return self._lib.ht_cache_rows(self._handle, self._slot(slot))

    def reset(self, slot: Optional[int] = None) -> None:
        """Back to position 0; None: all slots."""
        with self._on_device():
            for s in range(self.slots) if slot is None else [slot]:
                self._context.call(self._lib.ht_cache_reset, self._handle, s)

    def fork(self, to: int, source: int) -> None:
        """Slot `to` becomes a copy of slot `source`."""
        with self._on_device():
            self._context.call(self._lib.ht_cache_fork, self._handle, to, source)

    def save(self, slot: int = 0) -> bytes:
        """The slot's state as bytes, for load() here or in a cache with the same options."""
        size = c_size_t()
        with self._on_device():
            self._context.call(self._lib.ht_cache_save_bytes, self._handle, slot, byref(size))
            room = ctypes.create_string_buffer(size.value)
            self._context.call(self._lib.ht_cache_save, self._handle, slot, room, size.value)
        return room.raw

    def load(self, slot: int, saved: bytes) -> None:
        """The slot takes on a saved state."""
        saved = bytes(saved)
        with self._on_device():
            self._context.call(self._lib.ht_cache_load, self._handle, slot, saved, len(saved))

    def __repr__(self):
        return "htransformer.Cache(slots=%d, heads=%d, head_dim=%d, dtype=%s, device=%s)" % (
            self.slots, self.heads, self.head_dim, self.dtype, self.device)
