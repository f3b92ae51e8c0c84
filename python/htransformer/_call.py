"""One call of the attention, whatever the arrays are: check, describe, run.

A "door" (_numpy.py, _torch.py) knows one array library: it hands out pointers, strides and memory.
What is checked here is what the library cannot see: kinds of arrays, dtypes, shapes and devices.
The rest is checked by the library, whose sentence is raised.
"""
from ctypes import POINTER, byref, c_int32, c_uint8, cast, sizeof
from typing import Any, NamedTuple, Optional

from . import _library
from ._library import AttentionArgs, AttentionGrads, InvalidError, Tensor
from ._plan import keep_recipe, plan, recipes

# where batch, row and head are in an array of each layout; packed arrays have no batch
LAYOUTS = {"blhd": (0, 1, 2), "bhld": (0, 2, 1)}
PACKED_LAYOUTS = {"blhd": (0, 1), "bhld": (1, 0)}


class Options(NamedTuple):
    """What a user may choose, with defaults filled in."""
    kind: int
    query: int
    causal: int
    block: int
    scale: float
    rotary_theta: float
    dropout: float
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


def options(causal=None, is_causal=None, query=None, block=16, kind="hierarchical", scale=None,
            softmax_scale=None, rotary_theta=None, dropout_p=0.0, layout="blhd"):
    causal = bool(one_of(False, causal=causal, is_causal=is_causal))
    scale = one_of(None, scale=scale, softmax_scale=softmax_scale)
    if scale == 0:  # the C library's "default"; from a Python user it is a mistake
        raise InvalidError("scale must not be 0, got %r" % (scale,))
    choose("layout", layout, LAYOUTS)
    query = choose("query", "auto" if query is None else query, _library.QUERIES)
    return Options(choose("kind", kind, _library.KINDS), query, int(causal), _block(block),
                   float(scale or 0.0), float(rotary_theta or 0.0), float(dropout_p), layout)


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


def check_bias(door, bias, q, q_heads, block):
    want = (4 * block - 1, q_heads)
    if tuple(bias.shape) != want:
        raise InvalidError("bias must have shape %s (4*block - 1, heads of q), got %s"
                           % (want, tuple(bias.shape)))
    door.same("bias", bias, q, "float64" if door.dtype(q) == "float64" else "float32")
    if door.strides(bias) != (q_heads, 1) and min(want) > 1:
        raise InvalidError("bias must be contiguous; call .contiguous() first")


# ---- to C --------------------------------------------------------------------------------------


def place(door, name, x, layout, packed):
    """An array as the library sees it. Nothing is copied: strides go through."""
    return _tensor(door.pointer(x), name, x.shape, door.strides(x), layout, packed)


def _tensor(data, name, size, stride, layout, packed):
    if 0 in size:
        return Tensor(data or None, 0, 0, 0)
    if stride[-1] != 1 and size[-1] > 1:
        raise InvalidError("%s must be contiguous in its last dimension, got strides %s; call "
                           ".contiguous() first" % (name, stride))
    steps = []
    for axis in _axes(layout, packed):
        if stride[axis] == 0 and size[axis] > 1:
            raise InvalidError("%s is broadcast along dimension %d (stride 0); call .contiguous() "
                               "first, or give k and v fewer heads" % (name, axis))
        steps.append(stride[axis] if size[axis] > 1 else 0)  # 0: any, for a single entry
    return Tensor(data, *([0] * packed + steps))


def place_lse(door, lse, packed):
    """lse is (batch, heads, length), packed (heads, rows): the library's column is one number."""
    stride = [step if size > 1 else 0 for size, step in zip(lse.shape, door.strides(lse))]
    batch = 0 if packed else stride[0]
    return Tensor(door.pointer(lse), batch, stride[-1], stride[-2])


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


def plan_values(door, a, shape, o):
    """AttentionDesc's fields after `size`."""
    rows, length = max(1, shape.rows), max(1, shape.length)
    return (o.kind, o.query, _library.DTYPES[door.dtype(a.q)], o.causal, int(a.bias is not None),
            0, shape.q_heads, shape.kv_heads, shape.head_dim, shape.value_dim, o.block, rows,
            shape.batch, length, o.scale, o.rotary_theta, o.dropout)


def make_args(door, a, shape, layout):
    """The arguments, less out, lse, saved and scratch."""
    packed = a.cu_seqlens is not None
    args = AttentionArgs(size=sizeof(AttentionArgs), batch=shape.batch, length=shape.length)
    args.q = place(door, "q", a.q, layout, packed)
    args.k = place(door, "k", a.k, layout, packed)
    args.v = place(door, "v", a.v, layout, packed)
    _set_options(door, args, a)
    return args


def _set_options(door, args, a):
    """The arrays that a call may do without."""
    if a.cu_seqlens is not None:
        args.cu_seqlens = a.cu_seqlens.ctypes.data_as(POINTER(c_int32))
    if a.bias is not None:
        args.bias = door.pointer(a.bias)
    if a.key_mask is not None:
        args.key_mask = cast(door.pointer(a.key_mask), POINTER(c_uint8))
    if a.query_mask is not None:
        args.query_mask = cast(door.pointer(a.query_mask), POINTER(c_uint8))


# ---- recipes -----------------------------------------------------------------------------------


class Recipe:
    """All of a call that follows from its options and its arrays' sizes, strides, dtypes and
    device: checked and worked out once, then kept for calls that look the same. The structs hold
    strides; a call copies them and fills in pointers."""

    def __init__(self, door, a, o):
        shape = shape_of(a, o.layout)
        check_arrays(door, a, shape, o.block)
        packed = a.cu_seqlens is not None
        self.options, self.shape, self.packed = o, shape, packed
        self.values = plan_values(door, a, shape, o)
        self.plans = {}  # by what door.where() says
        self.out_size = out_shape(a, shape, o.layout)
        self.out_strides = dense_strides(self.out_size, door.strides(a.q))
        self.strides = [tuple(door.strides(x)) for x in a[:3]]
        self.grad_strides = [dense_strides(x.shape, door.strides(x)) for x in a[:3]]
        self.args = make_args(door, a, shape, o.layout)
        self.args.out = self.tensor("out", self.out_size, self.out_strides)
        self.grads = AttentionGrads(size=sizeof(AttentionGrads))
        self.grads.dout = self.args.out
        self.grads.dq, self.grads.dk, self.grads.dv = (
            self.tensor(name, x.shape, strides)
            for name, x, strides in zip(("dq", "dk", "dv"), a, self.grad_strides))

    def tensor(self, name, size, strides):
        return _tensor(None, name, size, strides, self.options.layout, self.packed)

    def plan(self, door, like):
        where = door.where(like)
        found = self.plans.get(where)
        if found is None:
            found = self.plans[where] = plan(door.context(like), self.values)
        return found

    def point(self, door, field, name, x, strides):
        """A field that was made for arrays of these strides shows x."""
        if tuple(door.strides(x)) == strides:
            field.data = door.pointer(x)
            return
        made = place(door, name, x, self.options.layout, self.packed)
        field.data, field.batch_stride = made.data, made.batch_stride
        field.row_stride, field.head_stride = made.row_stride, made.head_stride


def recipe(door, a, **given):
    """The recipe of a call with options as options() takes them. Packed ones are not kept: they
    depend on the lengths."""
    key = found = None
    if a.cu_seqlens is None:
        try:
            key = (*[x is not None and door.look(x) for x in a[:6]], *given.items(),
                   type(given.get("block")))
            found = recipes.get(key)
        except (TypeError, RuntimeError):
            key = None  # an option that is no key, an array without strides: the checks complain
    if found is None:
        found = Recipe(door, a, options(**given))
        if key is not None:
            keep_recipe(key, found)
    return found


# ---- running -----------------------------------------------------------------------------------


class Call(NamedTuple):
    """A checked call: all that backward needs besides the arrays."""
    recipe: Recipe
    seed: int
    offset: int


def _fill(door, a, call):
    """The arguments, less out, lse, saved and scratch."""
    args = AttentionArgs.from_buffer_copy(call.recipe.args)
    for field, name, x, strides in zip((args.q, args.k, args.v), "qkv", a, call.recipe.strides):
        call.recipe.point(door, field, name, x, strides)
    args.seed, args.offset = call.seed, call.offset
    _set_options(door, args, a)
    return args


def forward(door, a, call, want_lse, want_saved):
    """(out, lse or None, saved or None)"""
    r = call.recipe
    p, args = r.plan(door, a.q), _fill(door, a, call)
    out = door.empty(a.q, r.out_size, r.out_strides)
    args.out.data = door.pointer(out)
    lse = saved = None
    if want_lse:
        lse = door.empty_real(a.q, lse_shape(a, r.shape))
        args.lse = place_lse(door, lse, r.packed)
    if want_saved:
        saved = door.workspace(a.q, p.saved)
        args.saved = door.pointer(saved)
    scratch = door.scratch(a.q, p.scratch_forward)
    if scratch is not None:
        args.scratch = door.pointer(scratch)
    p.context.call(_library.library().ht_attention_forward, p.handle, byref(args))
    return out, lse, saved


class Grads(NamedTuple):
    """Arrays that backward writes."""
    dq: Any
    dk: Any
    dv: Any
    dbias: Optional[Any]


def empty_grads(door, a, call, want_bias):
    made = [door.empty(x, x.shape, strides) for x, strides in zip(a, call.recipe.grad_strides)]
    return Grads(*made, door.zeros_like(a.bias) if want_bias else None)


def backward(door, a, call, out, saved, dout, dlse, grads):
    """Fills grads. dout and dlse have the shapes of out and lse; dlse may be None."""
    r = call.recipe
    p, args = r.plan(door, a.q), _fill(door, a, call)
    r.point(door, args.out, "out", out, r.out_strides)
    args.saved = door.pointer(saved)
    scratch = door.scratch(a.q, p.scratch_backward)
    if scratch is not None:
        args.scratch = door.pointer(scratch)
    g = AttentionGrads.from_buffer_copy(r.grads)
    r.point(door, g.dout, "dout", dout, r.out_strides)
    if dlse is not None:
        g.dlse = place_lse(door, dlse, r.packed)
    r.point(door, g.dq, "dq", grads.dq, r.grad_strides[0])
    r.point(door, g.dk, "dk", grads.dk, r.grad_strides[1])
    r.point(door, g.dv, "dv", grads.dv, r.grad_strides[2])
    if grads.dbias is not None:
        g.dbias = door.pointer(grads.dbias)
    p.context.call(_library.library().ht_attention_backward, p.handle, byref(args), byref(g))
