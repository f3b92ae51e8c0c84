"""The registered operators, and whatever looks into a program: torch.compile, export, transforms,
autocast, checkpointing, nested tensors."""
import contextlib
import copy
import os
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")
if not hasattr(torch.library, "custom_op"):
    pytest.skip("torch.library.custom_op came with PyTorch 2.4", allow_module_level=True)

import htransformer
from htransformer import _call, _ops

OPTIONS = _call.options(block=4, causal=True)
CU = torch.tensor([0, 4, 4, 17, 23], dtype=torch.int32)


def make(*shape, count=3, dtype=torch.float64, grad=True):
    torch.manual_seed(3)
    return [torch.randn(*shape, dtype=dtype).requires_grad_(grad) for _ in range(count)]


# name: (inputs that autograd works on, bias, key_mask, query_mask, cu_seqlens, seed, options)
MASK = torch.arange(46).reshape(2, 23) % 5 > 0
CASES = {
    "plain": (make(2, 23, 2, 4), None, None, None, None, None, OPTIONS),
    "all": (make(2, 23, 2, 4), make(15, 2, count=1)[0], MASK, MASK, None, torch.tensor(7),
            OPTIONS._replace(dropout=0.3, rotary_theta=100.0)),
    "turned": ([x.detach().transpose(1, 2).requires_grad_() for x in make(2, 23, 2, 4)], None, None,
               None, None, None, OPTIONS._replace(layout="bhld")),
    "opened": (make(2, 23, 2, 4), None, MASK, MASK, None, None,
               OPTIONS._replace(open=1, open_leaf=2, open_peek=1)),
    "packed": (make(23, 2, 4), None, None, None, CU, None, OPTIONS),
    "fused": (make(2, 23, 3, 2, 4, count=1), make(15, 2, count=1)[0], None, None, None, None,
              OPTIONS),
    "fused packed": (make(23, 3, 2, 4, count=1), None, None, None, CU, None, OPTIONS),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_opcheck(name):
    first, bias, key_mask, query_mask, cu, seed, o = CASES[name]
    forward, backward = (_ops.attention, _ops.attention_backward) if len(first) == 3 else \
        (_ops.attention_qkvpacked, _ops.attention_qkvpacked_backward)
    rest = (bias, key_mask, query_mask, cu)
    torch.library.opcheck(forward, (*first, *rest, seed, *o, 0, True, True))
    with torch.no_grad():
        out, lse, saved = forward(*first, *rest, seed, *o, 0, True, True)
    fixed = [x.detach() for x in first]
    table = None if bias is None else bias.detach()
    torch.library.opcheck(
        backward, (torch.ones_like(out), torch.zeros_like(lse), *fixed, table, *rest[1:], out,
                   saved, seed, *o, 0, bias is not None))


@pytest.mark.parametrize("name", sorted(CASES))
def test_gradcheck_of_the_operators(name):
    first, bias, key_mask, query_mask, cu, seed, o = CASES[name]
    forward = _ops.attention if len(first) == 3 else _ops.attention_qkvpacked
    inputs = [*first, *([] if bias is None else [bias])]

    def run(*x):
        table = x[len(first)] if bias is not None else None
        out, lse, _ = forward(*x[:len(first)], table, key_mask, query_mask, cu, seed, *o, 0, True,
                              True)
        return out, torch.where(torch.isinf(lse), torch.zeros_like(lse), lse)

    assert torch.autograd.gradcheck(run, inputs)


# ---- torch.compile -----------------------------------------------------------------------------


class Layer(torch.nn.Module):
    """A layer of an encoder, with our attention in it."""

    def __init__(self, **options):
        super().__init__()
        self.attention = htransformer.HAttention(16, 2, batch_first=True, block=4, **options)
        self.rest = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(),
                                        torch.nn.Linear(32, 16))

    def forward(self, x, padding=None):
        x = x + self.attention(x, key_padding_mask=padding)[0]
        return x + self.rest(x)


@contextlib.contextmanager
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def gradients(model, x, **more):
    model.zero_grad()
    loss = model(x, **more).square().sum()
    loss.backward()
    return [loss.detach()] + [p.grad.clone() for p in model.parameters()]


def same(found, want, exactly=True):
    for a, b in zip(found, want):
        assert torch.equal(a, b) if exactly else torch.allclose(a, b, rtol=1e-4, atol=1e-5)
    assert len(found) == len(want)


@pytest.mark.parametrize("options", [{}, {"causal": True, "relative_bias": True}])
def test_compile_trains_with_lengths_that_change(options):
    """One graph, no break and, after the first two lengths, no new compilation."""
    torch._dynamo.reset()
    plain = torch.nn.Sequential(Layer(**options), Layer(**options))
    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(copy.deepcopy(plain), fullgraph=True, backend=counted)
    with no_warnings():
        for length in (40, 33, 64, 7, 90):
            x = torch.randn(2, length, 16)
            same(gradients(compiled, x), gradients(plain, x))
    assert counted.frame_count <= 2


def test_compile_with_masks():
    torch._dynamo.reset()
    plain = Layer()
    compiled = torch.compile(copy.deepcopy(plain), fullgraph=True, backend="aot_eager")
    x, padding = torch.randn(2, 30, 16), torch.arange(30).expand(2, 30) > 20
    same(gradients(compiled, x, padding=padding), gradients(plain, x, padding=padding))


INDUCTOR = """
import sys, warnings
sys.path.insert(0, sys.argv[1])
import torch
from test_compile import Layer, gradients, same
import copy
torch.manual_seed(0)
plain = Layer(causal=True)
compiled = torch.compile(copy.deepcopy(plain), fullgraph=True, dynamic=True)
with warnings.catch_warnings():
    warnings.filterwarnings("error", message=".*htransformer.*")
    for length in (40, 33):
        x = torch.randn(2, length, 16)
        same(gradients(compiled, x), gradients(plain, x), exactly=False)
print("fine")
"""


def test_compile_to_code():
    """Inductor's own code around our operator; in a process of its own, it leaves threads."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.path.dirname(os.path.dirname(htransformer.__file__))
    done = subprocess.run([sys.executable, "-c", INDUCTOR, here], capture_output=True, text=True,
                          env=dict(os.environ, PYTHONPATH=path), timeout=300)
    if "InvalidCxxCompiler" in done.stderr:
        pytest.skip("inductor finds no C++ compiler")
    assert done.stdout == "fine\n", done.stderr


def test_compiled_functions():
    """Both functions, packed rows, log-sum-exp, grouped heads; the same numbers as without."""
    torch._dynamo.reset()
    q, k, v = make(2, 30, 4, 8, count=1) + make(2, 30, 2, 8, count=2)
    rows = make(23, 2, 4)

    def run(q, k, v, rows, cu):
        z, lse = htransformer.attention(q, k, v, block=4, return_lse=True)
        turned = htransformer.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
            enable_gqa=True, block=4, mode="fine")
        packed = htransformer.attention(*rows, cu_seqlens=cu, block=4, causal=True)
        return z, lse, turned, packed

    want = run(q, k, v, rows, CU)
    found = torch.compile(run, fullgraph=True, backend="aot_eager")(q, k, v, rows, CU)
    same(found, want)
    inputs = (q, k, v, *rows)
    same(torch.autograd.grad(sum(x.sum() for x in found), inputs),
         torch.autograd.grad(sum(x.sum() for x in want), inputs))


def test_compiled_dropout_draws_anew():
    torch._dynamo.reset()
    q, k, v = make(1, 64, 2, 8, grad=False)
    run = torch.compile(lambda: htransformer.attention(q, k, v, block=8, dropout_p=0.5),
                        fullgraph=True, backend="aot_eager")
    torch.manual_seed(5)
    a, b = run(), run()
    torch.manual_seed(5)
    assert not torch.equal(a, b) and torch.equal(run(), a)

    def seeded():
        return htransformer.attention(q, k, v, block=8, dropout_p=0.5, seed=2**63)

    fixed = torch.compile(seeded, fullgraph=True, backend="aot_eager")
    assert torch.equal(fixed(), seeded())


def test_errors_of_a_compiled_call():
    torch._dynamo.reset()
    x = torch.zeros(1, 8, 2, 4)
    run = torch.compile(lambda k: htransformer.attention(x, k, x), fullgraph=True,
                        backend="aot_eager")
    with pytest.raises(Exception, match="k must have the head dimension 4 of q, got 3"):
        run(torch.zeros(1, 8, 2, 3))


def test_export():
    plain = Layer(causal=True).eval()
    length = torch.export.Dim("length", min=2, max=512)
    made = torch.export.export(plain, (torch.randn(2, 40, 16),), dynamic_shapes={
        "x": {1: length}})
    assert any("htransformer.attention_qkvpacked" in str(node.target) for node in made.graph.nodes)
    for n in (40, 17):
        x = torch.randn(2, n, 16)
        assert torch.equal(made.module()(x), plain(x))


# ---- transforms, modes, autocast ---------------------------------------------------------------


def test_transforms_are_refused():
    q = torch.randn(3, 1, 8, 2, 4)

    def run(x):
        return htransformer.attention(x, x, x).sum()

    for transform in (torch.vmap, torch.func.grad, torch.func.jacrev):
        with pytest.raises(htransformer.InvalidError, match="for torch.vmap use its batch dimen"):
            transform(run)(q)
    with pytest.raises(htransformer.InvalidError, match="cannot be mapped by torch.vmap"):
        torch.vmap(lambda x: _ops.call(_call.Arrays(x, x, x, None, None, None, None), OPTIONS, None,
                                       0, False))(q)


def test_second_derivatives_are_refused():
    q, k, v = make(1, 20, 2, 4)
    (dq,) = torch.autograd.grad(htransformer.attention(q, k, v, block=4).sum(), q,
                                create_graph=True)
    with pytest.raises(htransformer.InvalidError, match="no second derivative"):
        torch.autograd.grad((dq.square() + q).sum(), q)  # it must not be left out unseen
    fused = make(1, 20, 3, 2, 4, count=1)[0]
    (dfused,) = torch.autograd.grad(htransformer.attention_qkvpacked(fused, block=4).sum(), fused,
                                    create_graph=True)
    with pytest.raises(htransformer.InvalidError, match="no second derivative"):
        dfused.sum().backward()
    first = _ops.attention(q, k, v, None, None, None, None, None, *OPTIONS, 0, False, True)[0]
    (dq,) = torch.autograd.grad(first.sum(), q, create_graph=True)
    with pytest.raises(htransformer.InvalidError, match="no second derivative"):
        dq.sum().backward()


def test_dispatch_modes_see_the_operator():
    from torch.utils._python_dispatch import TorchDispatchMode
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    q, k, v = make(1, 20, 2, 4)
    want = htransformer.attention(q, k, v, block=4)
    with Mode():
        assert torch.equal(htransformer.attention(q, k, v, block=4), want)
    assert "htransformer.attention.default" in seen


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        x = torch.empty(2, 50, 4, 8)
        z, lse = htransformer.attention(x, x, x, return_lse=True)
        assert z.shape == x.shape and lse.shape == (2, 4, 50)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    """What SDPA does: inputs become narrow, the output is."""
    q, k, v = make(2, 30, 2, 8, dtype=torch.float32)
    fused = torch.stack([x.detach() for x in (q, k, v)], 2).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        z = htransformer.attention(q, k.to(dtype), v, block=4)
        packed = htransformer.attention_qkvpacked(fused, block=4)
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        exact = htransformer.attention(*[x.double() for x in (q, k, v)], block=4)
    assert z.dtype == packed.dtype == theirs.dtype == dtype and exact.dtype == torch.float64
    narrow = [x.detach().to(dtype) for x in (q, k, v)]
    assert torch.equal(z, packed) and torch.equal(z, htransformer.attention(*narrow, block=4))
    dq, dk, dv = torch.autograd.grad(z.float().square().sum(), (q, k, v))
    (dfused,) = torch.autograd.grad(packed.float().square().sum(), fused)
    assert dq.dtype == torch.float32 and torch.equal(torch.stack((dq, dk, dv), 2), dfused)


def test_autocast_compiled():
    torch._dynamo.reset()
    layer = Layer(causal=True)

    def run(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(x)

    x = torch.randn(2, 30, 16)
    assert torch.equal(torch.compile(run, fullgraph=True, backend="aot_eager")(x), run(x))


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant):
    from torch.utils.checkpoint import checkpoint
    layer, x = Layer(causal=True, dropout=0.2), torch.randn(2, 30, 16, requires_grad=True)
    grads = []
    for wrapped in (False, True):
        torch.manual_seed(1)
        y = checkpoint(layer, x, use_reentrant=reentrant) if wrapped else layer(x)
        layer.zero_grad()
        y.square().sum().backward()
        grads.append([p.grad.clone() for p in layer.parameters()])
    same(*grads)


def test_selective_checkpointing():
    """A policy may keep our operator's results: they are the operator's, so it can name it."""
    from torch.utils.checkpoint import (CheckpointPolicy, checkpoint,
                                        create_selective_checkpoint_contexts)

    def policy(ctx, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if "htransformer" in str(op) else \
            CheckpointPolicy.PREFER_RECOMPUTE

    layer, x = Layer(causal=True), torch.randn(2, 30, 16, requires_grad=True)
    want = gradients(layer, x)
    layer.zero_grad()
    y = checkpoint(layer, x, use_reentrant=False,
                   context_fn=lambda: create_selective_checkpoint_contexts(policy))
    y.square().sum().backward()
    same([p.grad for p in layer.parameters()], want[1:])


# ---- nested tensors ----------------------------------------------------------------------------


def jagged(lengths, *shape):
    torch.manual_seed(0)
    parts = [torch.randn(n, *shape) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


def test_nested_tensors_are_packed_calls():
    lengths = [5, 1, 17]
    q = jagged(lengths, 4, 8)
    k = torch.nested.nested_tensor_from_jagged(torch.randn(23, 2, 8), q.offsets())
    z = htransformer.attention(q, k, k, block=4, causal=True)
    want = htransformer.attention(q.values(), k.values(), k.values(), block=4, causal=True,
                                  cu_seqlens=[0, 5, 6, 23])
    assert z.is_nested and torch.equal(z.values(), want)
    turned = htransformer.scaled_dot_product_attention(
        *[x.transpose(1, 2) for x in (q, k, k)], is_causal=True, enable_gqa=True, block=4)
    assert torch.equal(turned.transpose(1, 2).values(), want)
    z.values().sum().backward()
    assert q.grad.is_nested and q.grad.values().abs().max() > 0


def test_nested_refusals():
    q = jagged([5, 3], 2, 4)
    with pytest.raises(ValueError, match="k must have the lengths of q"):
        htransformer.attention(q, jagged([4, 4], 2, 4), q)
    with pytest.raises(ValueError, match="k must be a nested tensor with layout=torch.jagged"):
        htransformer.attention(q, torch.zeros(2, 5, 2, 4), q)
    with pytest.raises(ValueError, match="nested tensors have lengths of their own"):
        htransformer.attention(q, q, q, key_mask=torch.ones(2, 5, dtype=torch.bool))
