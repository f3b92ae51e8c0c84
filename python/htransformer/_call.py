"""One call of the attention, whatever the arrays are: check, describe, run.

A "door" (_numpy.py, _torch.py) knows one array library: it hands out pointers, strides and memory.
What is checked here is what the library cannot see: kinds of arrays, dtypes, shapes and devices.
The rest is checked by the library, whose sentence is raised.
"""
import warnings
from ctypes import addressof, c_uint64, sizeof
from typing import Any, NamedTuple, Optional

from . import _library
from ._library import AttentionArgs, AttentionGrads, InvalidError, Tensor
from ._plan import MAX_RECIPES, keep_recipe, plan, recipes

# where batch, row and head are in an array of each layout; packed arrays have no batch
LAYOUTS = {"blhd": (0, 1, 2), "bhld": (0, 2, 1)}
PACKED_LAYOUTS = {"blhd": (0, 1), "bhld": (1, 0)}


class Options(NamedTuple):
    """What a user may choose, with defaults filled in."""
    kind: int
    mode: int
    causal: bool
    block: int
    scale: float
    rotary_theta: float
    dropout: float
    open: int
    open_leaf: int
    open_peek: int
    layout: str


class Arrays(NamedTuple):
    """The arrays of one call, checked. cu_seqlens is host memory: a NumPy int32 array."""
    q: Any
    k: Any
    v: Any
    bias: Any
    key_mask: Any
    query_mask: Any
    cu_seqlens: Any


class Shape(NamedTuple):
    batch: int
    length: int  # packed: of the longest sequence
    rows: int
    q_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int


# ---- choices -----------------------------------------------------------------------------------


def choose(name, value, table):
    try:
        return table[value]
    except (KeyError, TypeError):
        known = ", ".join(repr(key) for key in table)
        raise InvalidError("%s must be one of %s, got %r" % (name, known, value)) from None


def one_of(default, **given):
    """The value of an argument that has two names: both may be given if they agree."""
    found = [(name, value) for name, value in given.items() if value is not None]
    if len(found) == 2 and found[0][1] != found[1][1]:
        raise InvalidError("%s is %r, but %s is %r: they are two names of one thing"
                           % (*found[0], *found[1]))
    return found[0][1] if found else default


def old_mode(function, mode, others):
    """The mode of a call that may still say `query`, its name in version 0.1. No other name may be
    left over."""
    if "query" in others:
        warnings.warn("%s: query is now called mode; the old word will not be understood by the "
                      "next version" % function, DeprecationWarning, stacklevel=3)
        mode = one_of(None, mode=mode, query=others.pop("query"))
    for name in others:
        raise TypeError("%s got an unexpected argument %r" % (function, name))
    return mode


def options(causal=False, mode=None, block=16, kind="hierarchical", scale=None, softmax_scale=None,
            rotary_theta=None, dropout_p=0.0, open=0, open_leaf=8, open_peek=2, layout="blhd"):
    scale = one_of(None, scale=scale, softmax_scale=softmax_scale)
    if scale == 0:  # the C library's "default"; from a Python user it is a mistake
        raise InvalidError("scale must not be 0, got %r" % (scale,))
    choose("layout", layout, LAYOUTS)
    mode = choose("mode", "auto" if mode is None else mode, _library.MODES)
    return Options(choose("kind", kind, _library.KINDS), mode, bool(causal), _block(block),
                   float(scale or 0.0), float(rotary_theta or 0.0), float(dropout_p),
                   *_opening(open, open_leaf, open_peek), layout)


def _opening(clusters, leaf, peek):
    """As the library counts: its peek of 0 is the default, and none is -1 (as on the command
    line); here 0 is none, too."""
    for name, value, least in (("open", clusters, 0), ("open_leaf", leaf, 0),
                               ("open_peek", peek, -1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidError("%s must be a whole number >= %d, got %r" % (name, least, value))
    return (clusters, leaf, peek or -1) if clusters else (0, 0, 0)


_options_kept = {}


def options_of(door, *given):
    """options(), of what earlier calls have asked for without working it out again."""
    if door.tracing():
        return options(*given)
    key = (given, type(given[2]))  # a block of 16.0 is none of 16
    try:
        found = _options_kept.get(key)
    except TypeError:
        return options(*given)  # it complains
    if found is None:
        if len(_options_kept) >= MAX_RECIPES:
            _options_kept.clear()
        found = _options_kept[key] = options(*given)
    return found


def _block(block):
    if not isinstance(block, int) or isinstance(block, bool) or block == 0:
        raise InvalidError("block must be an even number >= 2, got %r" % (block,))
    return block


# ---- shapes ------------------------------------------------------------------------------------


def _axes(layout, packed):
    return PACKED_LAYOUTS[layout] if packed else LAYOUTS[layout]


def _sizes(name, x, layout, packed):
    """(batch, length, heads, dim); packed: batch 1, length = all rows."""
    size = tuple(x.shape)
    if packed:
        names = "(rows, heads, dim)" if layout == "blhd" else "(heads, rows, dim)"
    else:
        names = "(batch, length, heads, dim)" if layout == "blhd" else "(batch, heads, length, dim)"
    if len(size) != (3 if packed else 4):
        raise InvalidError("%s must be %s%s, got shape %s"
                           % (name, names, " with cu_seqlens" if packed else "", size))
    at = _axes(layout, packed)
    outer = tuple(size[axis] for axis in at)
    return ((1,) if packed else ()) + outer + (size[-1],)


def shape_of(a, layout):
    packed = a.cu_seqlens is not None
    q, k, v = (_sizes(name, x, layout, packed) for name, x in zip("qkv", a[:3]))
    for name, x in (("k", k), ("v", v)):
        if x[:2] != q[:2]:
            what = "%d rows" % q[1] if packed else "batch %d and length %d" % q[:2]
            raise InvalidError("%s must have the %s of q, got shape %s"
                               % (name, what, tuple(getattr(a, name).shape)))
    if k[3] != q[3]:
        raise InvalidError("k must have the head dimension %d of q, got %d" % (q[3], k[3]))
    if v[2] != k[2]:
        raise InvalidError("v must have the %d heads of k, got %d" % (k[2], v[2]))
    batch, length, rows = q[0], q[1], q[0] * q[1]
    if packed:
        batch, length = _check_cu_seqlens(a.cu_seqlens, rows)
    return Shape(batch, length, rows, q[2], k[2], q[3], v[3])


def _check_cu_seqlens(cu, rows):
    """Number of sequences and the longest length; their order is checked by the library."""
    if cu.ndim != 1 or len(cu) < 2:
        raise InvalidError("cu_seqlens must be one-dimensional with at least two entries, got "
                           "shape %s" % (cu.shape,))
    if int(cu[-1]) != rows:
        raise InvalidError("cu_seqlens must end with the %d rows of q, got %d" %
                           (rows, int(cu[-1])))
    return len(cu) - 1, max(0, int((cu[1:] - cu[:-1]).max()))


def lengths_of(a, layout):
    """(sequences, the longest length) of a packed call, None if q is no packed array."""
    if len(a.q.shape) != 3:
        return None
    return _check_cu_seqlens(a.cu_seqlens, a.q.shape[PACKED_LAYOUTS[layout][0]])


def check_arrays(door, a, shape, block):
    """dtypes, devices and the shapes of masks and bias."""
    for name, x in (("k", a.k), ("v", a.v)):
        door.same(name, x, a.q)
    rows = (shape.rows,) if a.cu_seqlens is not None else (shape.batch, shape.length)
    for name, mask in (("key_mask", a.key_mask), ("query_mask", a.query_mask)):
        if mask is not None and tuple(mask.shape) != rows:
            raise InvalidError("%s must have shape %s, got %s" % (name, rows, tuple(mask.shape)))
    if a.bias is not None:
        check_bias(door, a.bias, a.q, shape.q_heads, block)


DENSE = "call .contiguous() first (of NumPy: numpy.ascontiguousarray)"


def check_bias(door, bias, q, q_heads, block):
    want = (4 * block - 1, q_heads)
    if tuple(bias.shape) != want:
        raise InvalidError("bias must have shape %s (4*block - 1, heads of q), got %s"
                           % (want, tuple(bias.shape)))
    door.same("bias", bias, q, "float64" if door.dtype(q) == "float64" else "float32")
    if door.strides(bias) != (q_heads, 1) and min(want) > 1:
        raise InvalidError("bias must be contiguous; " + DENSE)


# ---- to C --------------------------------------------------------------------------------------


def place(door, name, x, layout, packed):
    """An array as the library sees it. Nothing is copied: strides go through."""
    return _tensor(door.pointer(x), name, x.shape, door.strides(x), layout, packed)


def _tensor(data, name, size, stride, layout, packed):
    if 0 in size:
        return Tensor(data or None, 0, 0, 0)
    if stride[-1] != 1 and size[-1] > 1:
        raise InvalidError("%s must be contiguous in its last dimension, got strides %s; %s"
                           % (name, stride, DENSE))
    steps = []
    for axis in _axes(layout, packed):
        if stride[axis] == 0 and size[axis] > 1:
            raise InvalidError("%s is broadcast along dimension %d (stride 0); %s, or give k and "
                               "v fewer heads" % (name, axis, DENSE))
        steps.append(stride[axis] if size[axis] > 1 else 0)  # 0: any, for a single entry
    return Tensor(data, *([0] * packed + steps))


def dense_strides(shape, like):
    """Strides of a dense array whose dimensions lie in the order of an array with strides `like`,
    the last one innermost: what comes out of a transposed view is a transposed view."""
    order = sorted(range(len(shape) - 1), key=lambda i: like[i]) if len(shape) > 1 else []
    strides, step = [1] * len(shape), shape[-1]
    for i in order:
        strides[i] = step
        step *= shape[i]
    return tuple(strides)


def out_shape(a, shape, layout):
    """The array of outputs: q's shape with the values' dimension."""
    return tuple(a.q.shape[:-1]) + (shape.value_dim,)


def lse_shape(a, shape):
    if a.cu_seqlens is not None:
        return (shape.q_heads, shape.rows)
    return (shape.batch, shape.q_heads, shape.length)


def lse_tensor(data, size, packed):
    """lse is (batch, heads, length), packed (heads, rows), dense: a row's step is 1."""
    length, heads = size[-1], size[-2]
    return Tensor(data, 0 if packed else heads * length, 1, length)


def plan_values(door, a, shape, o):
    """AttentionDesc's fields after `size`."""
    if shape.batch < 1:
        raise InvalidError("batch must be at least 1, got %d" % shape.batch)
    rows, length = max(1, shape.rows), max(1, shape.length)
    return (o.kind, o.mode, _library.DTYPES[door.dtype(a.q)], int(o.causal),
            int(a.bias is not None), 0, shape.q_heads, shape.kv_heads, shape.head_dim,
            shape.value_dim, o.block, rows, shape.batch, length, o.scale, o.rotary_theta,
            o.dropout, o.open, o.open_leaf, o.open_peek)


def make_args(door, a, shape, layout):
    """The arguments, less out, lse, saved and scratch."""
    packed = a.cu_seqlens is not None
    args = AttentionArgs(size=sizeof(AttentionArgs), batch=shape.batch, length=shape.length)
    args.q = place(door, "q", a.q, layout, packed)
    args.k = place(door, "k", a.k, layout, packed)
    args.v = place(door, "v", a.v, layout, packed)
    if packed:
        args.cu_seqlens = a.cu_seqlens.ctypes.data
    for name in ("bias", "key_mask", "query_mask"):
        if getattr(a, name) is not None:
            setattr(args, name, door.pointer(getattr(a, name)))
    return args


# ---- recipes -----------------------------------------------------------------------------------


class Recipe:
    """All of a call that follows from its options and its arrays' sizes, strides, dtypes and
    device: checked and worked out once, then kept for calls that look the same."""

    def __init__(self, door, a, o):
        shape = shape_of(a, o.layout)
        check_arrays(door, a, shape, o.block)
        self.options, self.shape, self.packed = o, shape, a.cu_seqlens is not None
        self.values = plan_values(door, a, shape, o)
        self.ready = {}  # by what door.where() says
        self.out_size, self.lse_size = out_shape(a, shape, o.layout), lse_shape(a, shape)
        self.out_strides = dense_strides(self.out_size, door.strides(a.q))
        self.strides = [tuple(door.strides(x)) for x in a[:3]]
        self.sizes = [tuple(x.shape) for x in a[:3]]
        self.grad_strides = [dense_strides(x.shape, door.strides(x)) for x in a[:3]]
        self.args = make_args(door, a, shape, o.layout)
        self.args.out = self.tensor("out", self.out_size, self.out_strides)
        self.args.lse = lse_tensor(None, self.lse_size, self.packed)
        self.grads = AttentionGrads(size=sizeof(AttentionGrads), dout=self.args.out,
                                    dlse=self.args.lse)
        self.grads.dq, self.grads.dk, self.grads.dv = (
            self.tensor(name, size, strides)
            for name, size, strides in zip(("dq", "dk", "dv"), self.sizes, self.grad_strides))
        self.optional = [(at, i) for at, i in ((BIAS, 3), (KEY_MASK, 4), (QUERY_MASK, 5))
                         if a[i] is not None]

    def tensor(self, name, size, strides):
        return _tensor(None, name, size, strides, self.options.layout, self.packed)

    def at(self, door, like):
        """The call made ready on the device and stream of `like`."""
        where = door.where(like)
        found = self.ready.get(where)
        if found is None:
            found = self.ready[where] = Ready(self, plan(door.context(like), self.values))
        return found


# where the pointers are in the structs, counted in words of 8 bytes
def _word(struct, name):
    return getattr(struct, name).offset // 8


CU, Q, K, V, OUT, BIAS, KEY_MASK, QUERY_MASK, LSE, SEED, SAVED, SCRATCH = (
    _word(AttentionArgs, name) for name in ("cu_seqlens", "q", "k", "v", "out", "bias", "key_mask",
                                            "query_mask", "lse", "seed", "saved", "scratch"))
DOUT, DLSE, DQ, DK, DV, DBIAS = (
    _word(AttentionGrads, name) for name in ("dout", "dlse", "dq", "dk", "dv", "dbias"))


class Ready:
    """A recipe's plan and structs on one device and stream. A call writes its pointers into them,
    word by word (ctypes' named fields take several times as long), while it holds the lock of the
    context."""

    def __init__(self, recipe, made):
        self.plan, self.lock, self.handle = made, made.context.lock, made.handle.value
        self.args = AttentionArgs.from_buffer_copy(recipe.args)
        self.grads = AttentionGrads.from_buffer_copy(recipe.grads)
        self.words = (c_uint64 * (sizeof(AttentionArgs) // 8)).from_buffer(self.args)
        self.grad_words = (c_uint64 * (sizeof(AttentionGrads) // 8)).from_buffer(self.grads)
        self.at_args, self.at_grads = addressof(self.args), addressof(self.grads)
        self.run_forward = _library.library().ht_attention_forward
        self.run_backward = _library.library().ht_attention_backward

    def fill(self, door, a, call):
        """The arguments that forward and backward share, less out."""
        words, pointer = self.words, door.pointer
        words[Q], words[K], words[V] = pointer(a.q), pointer(a.k), pointer(a.v)
        for at, i in call.recipe.optional:
            words[at] = pointer(a[i])
        if a.cu_seqlens is not None:
            words[CU] = a.cu_seqlens.ctypes.data
        if call.recipe.options.dropout:
            words[SEED], self.args.offset = call.seed, call.offset
        return words

    def check(self, status):
        if status:
            _library.check(status, self.plan.context.handle)


def kept(door, a, o, lengths):
    """The recipe of an earlier call that looked the same, or None."""
    try:
        return recipes.get((door.looks(a), o, lengths))
    except (AttributeError, TypeError, RuntimeError):
        return None  # no array, or one without strides: the checks complain


def keep(door, a, o, lengths):
    made = Recipe(door, a, o)
    keep_recipe((door.looks(a), o, lengths), made)
    return made


# ---- running -----------------------------------------------------------------------------------


class Call(NamedTuple):
    """A checked call: all that backward needs besides the arrays."""
    recipe: Recipe
    seed: int
    offset: int


def forward(door, a, call, want_lse, want_saved):
    """(out, lse or None, saved or None)"""
    r = call.recipe
    ready = r.at(door, a.q)
    out = door.empty(a.q, r.out_size, r.out_strides)
    lse = door.empty_real(a.q, r.lse_size) if want_lse else None
    saved = door.workspace(a.q, ready.plan.saved) if want_saved else None
    scratch = door.scratch(a.q, ready.plan.scratch_forward)
    with ready.lock:
        words = ready.fill(door, a, call)
        words[OUT] = door.pointer(out)
        words[LSE] = door.pointer(lse) if want_lse else 0
        words[SAVED] = door.pointer(saved) if want_saved else 0
        words[SCRATCH] = 0 if scratch is None else door.pointer(scratch)
        ready.check(ready.run_forward(ready.handle, ready.at_args))
    return out, lse, saved


class Grads(NamedTuple):
    """Arrays that backward writes."""
    dq: Any
    dk: Any
    dv: Any
    dbias: Optional[Any]


def empty_grads(door, a, call, want_bias):
    made = [door.empty(x, size, strides)
            for x, size, strides in zip(a, call.recipe.sizes, call.recipe.grad_strides)]
    return Grads(*made, door.zeros_like(a.bias) if want_bias else None)


def _show(words, at, door, name, x, r):
    """Four words show the array x, whatever its strides."""
    made = place(door, name, x, r.options.layout, r.packed)
    words[at:at + 4] = (made.data or 0, made.batch_stride, made.row_stride, made.head_stride)


def backward(door, a, call, out, saved, dout, dlse, grads):
    """Fills grads. dout and dlse have the shapes of out and lse; dlse may be None, or dense."""
    r = call.recipe
    ready = r.at(door, a.q)
    scratch = door.scratch(a.q, ready.plan.scratch_backward)
    with ready.lock:
        words, g = ready.fill(door, a, call), ready.grad_words
        words[OUT], words[SAVED], words[LSE] = door.pointer(out), door.pointer(saved), 0
        words[SCRATCH] = 0 if scratch is None else door.pointer(scratch)
        _show(g, DOUT, door, "dout", dout, r)
        g[DLSE] = 0 if dlse is None else door.pointer(dlse)
        for at, name, dx in ((DQ, "dq", grads.dq), (DK, "dk", grads.dk), (DV, "dv", grads.dv)):
            _show(g, at, door, name, dx, r)
        g[DBIAS] = 0 if grads.dbias is None else door.pointer(grads.dbias)
        ready.check(ready.run_backward(ready.handle, ready.at_args, ready.at_grads))
