"""attention() on PyTorch tensors: autograd, layouts, errors."""
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import htransformer
import oracle
import oracle_torch
from conftest import MODES


def tensors(arrays, dtype=torch.float64, grad=True):
    return [torch.tensor(x, dtype=dtype).requires_grad_(grad) for x in arrays]


@pytest.mark.parametrize("length", [1, 9, 29])
@pytest.mark.parametrize("query, causal", MODES)
def test_gradcheck(random, query, causal, length):
    inputs = tensors(random(*[(1, length, 2, 3)] * 3))
    assert torch.autograd.gradcheck(
        lambda q, k, v: htransformer.attention(q, k, v, block=2, mode=query, causal=causal),
        inputs)


@pytest.mark.parametrize("query, causal", MODES)
def test_gradcheck_bias_lse_groups_masks_rotary(random, query, causal):
    inputs = tensors(random((2, 19, 4, 4), (2, 19, 2, 4), (2, 19, 2, 3), (7, 4)))
    mask = torch.ones(2, 19, dtype=torch.bool)
    mask[0, 13:] = False
    mask[1, ::5] = False

    def both(q, k, v, bias):
        z, lse = htransformer.attention(q, k, v, bias=bias, block=2, mode=query, causal=causal,
                                        key_mask=mask, query_mask=mask, rotary_theta=100.0,
                                        scale=0.4, return_lse=True)
        return z, torch.where(mask[:, None], lse, torch.zeros_like(lse))  # masked rows have -inf

    assert torch.autograd.gradcheck(both, inputs)


@pytest.mark.parametrize("query, causal", MODES)
def test_gradcheck_dropout(random, query, causal):
    inputs = tensors(random(*[(1, 21, 2, 3)] * 3))
    assert torch.autograd.gradcheck(
        lambda q, k, v: htransformer.attention(q, k, v, block=2, mode=query, causal=causal,
                                               dropout_p=0.4, seed=3), inputs)


@pytest.mark.parametrize("kind", ["full", "local"])
def test_gradcheck_kinds(random, kind):
    inputs = tensors(random((1, 15, 2, 3), (1, 15, 2, 3), (1, 15, 2, 3), (7, 2)))
    assert torch.autograd.gradcheck(
        lambda q, k, v, bias: htransformer.attention(q, k, v, bias=bias, block=2, kind=kind,
                                                     causal=True, return_lse=True), inputs)


def test_gradcheck_packed(random):
    inputs = tensors(random(*[(23, 2, 3)] * 3))
    cu = torch.tensor([0, 4, 4, 17, 23], dtype=torch.int32)
    assert torch.autograd.gradcheck(
        lambda q, k, v: htransformer.attention(q, k, v, block=2, causal=True, cu_seqlens=cu),
        inputs)


def test_gradcheck_qkvpacked(random):
    qkv, bias = tensors(random((2, 11, 3, 2, 3), (7, 2)))
    assert torch.autograd.gradcheck(
        lambda x, b: htransformer.attention_qkvpacked(x, bias=b, block=2, return_lse=True),
        [qkv, bias])
    rows = tensors([random((13, 3, 2, 3))])
    assert torch.autograd.gradcheck(
        lambda x: htransformer.attention_qkvpacked(x, block=2, causal=True, cu_seqlens=[0, 9, 13]),
        rows)


def test_oracles_agree(random):
    rows = np.array([0, 3, 40, 74])
    for query, causal in MODES:
        arrays, bias = random(*[(75, 6)] * 3), random((15,))
        options = {"block": 4, "mode": query, "causal": causal}
        exact = oracle.one_head(*[x.astype(np.longdouble) for x in arrays], bias=bias, **options)
        plain = oracle.one_head(*arrays, bias=bias, **options)
        found = oracle_torch.rows_of_head(*tensors(arrays), torch.tensor(rows),
                                          bias=torch.tensor(bias), **options)
        oracle.check([x.detach().numpy() for x in found], [x[rows] for x in exact],
                     [x[rows] for x in plain])


def gradients(q, k, v, dz, dtype, **options):
    """z, dq, dk, dv of the dense oracle, one head, computed in dtype."""
    q, k, v = (x.to(dtype).detach().requires_grad_() for x in (q, k, v))
    z, _ = oracle_torch.rows_of_head(q, k, v, torch.arange(len(q), device=q.device), **options)
    return (z.detach(), *torch.autograd.grad(z, (q, k, v), dz.to(dtype)))


def check_gradients(device, dtype, length, query, causal, block=16, seed=0):
    """Ours against float64, with the plain algorithm in the same precision as the measure."""
    torch.manual_seed(seed)
    made = [torch.randn(1, length, 2, 32, device=device).to(dtype) for _ in range(4)]
    q, k, v = (x.requires_grad_() for x in made[:3])
    dz = made[3]
    options = {"block": block, "mode": query, "causal": causal}
    z = htransformer.attention(q, k, v, **options)
    found = (z.detach(), *torch.autograd.grad(z, (q, k, v), dz))
    for head in range(2):
        one = [x.detach()[0, :, head] for x in (q, k, v, dz)]
        exact = gradients(*one, torch.float64, **options)
        plain = gradients(*one, dtype, **options)
        for name, x, reference, rough in zip(("z", "dq", "dk", "dv"), found, exact, plain):
            oracle_torch.check(x[0, :, head], reference, rough, name)


@pytest.mark.parametrize("query, causal", MODES)
def test_float32_gradients(query, causal):
    check_gradients("cpu", torch.float32, 300, query, causal)


def test_views_of_a_fused_projection_are_not_copied(random):
    """The library gets the view's own memory and strides, and the bits are those of the copy."""
    fused = torch.tensor(random((2, 40, 3, 4, 8)), dtype=torch.float32)
    views = fused.unbind(2)
    want = htransformer.attention(*[x.contiguous() for x in views], block=4, causal=True)
    seen = []
    from htransformer import _call
    place = _call.place

    def spy(door, name, x, layout, packed):
        made = place(door, name, x, layout, packed)
        seen.append((name, made.data, made.batch_stride, made.row_stride, made.head_stride))
        return made

    _call.place = spy
    try:
        found = htransformer.attention(*views, block=4, causal=True)
    finally:
        _call.place = place
    assert torch.equal(found, want)
    for (name, data, *strides), view in zip(seen, views):
        assert data == view.data_ptr() and tuple(strides) == (40 * 96, 96, 8), name


@pytest.mark.parametrize("turn", [False, True])
def test_gradients_of_views(random, turn):
    """(B, H, L, D) views of a fused tensor: the same gradient as contiguous (B, L, H, D) copies."""
    fused, dz = tensors(random((2, 33, 3, 2, 4), (2, 33, 2, 4)))
    copies = [x.detach().clone().requires_grad_() for x in fused.unbind(2)]
    want = torch.autograd.grad(htransformer.attention(*copies, block=4), copies, dz)
    views = fused.unbind(2)
    if turn:
        views = [x.transpose(1, 2) for x in views]
        z = htransformer.attention(*views, block=4, layout="bhld").transpose(1, 2)
        assert z.is_contiguous()  # (batch, length, heads * dim) is a view of it
    else:
        z = htransformer.attention(*views, block=4)
    (found,) = torch.autograd.grad(z, fused, dz)
    assert torch.equal(found, torch.stack(want, 2))


def test_calls_that_look_alike(random):
    """What is kept of a call serves the next one: other numbers, seeds and masks, not options."""
    first, second = (tensors(random(*[(2, 21, 2, 4)] * 3)) for _ in range(2))
    mask = torch.arange(42).reshape(2, 21) % 5 > 0
    calls = [(inputs, options) for inputs in (first, second)
             for options in ({}, {"key_mask": mask}, {"key_mask": ~mask}, {"causal": True},
                             {"dropout_p": 0.5, "seed": 1}, {"dropout_p": 0.5, "seed": 2})]
    kept = [htransformer.attention(*inputs, block=4, **options) for inputs, options in calls]
    for (inputs, options), z in zip(calls, kept):
        htransformer.clear_plans()
        assert torch.equal(htransformer.attention(*inputs, block=4, **options), z)
    for block in (4.0, [4]):
        with pytest.raises(htransformer.InvalidError):
            htransformer.attention(*first, block=block)


def test_saved_tensors_of_other_strides(random):
    """Hooks may hand backward copies of what forward saw."""
    (fused, dz), grads = tensors(random((2, 33, 3, 2, 4), (2, 33, 2, 4))), []
    hooks = torch.autograd.graph.saved_tensors_hooks
    for copy in (lambda x: x, lambda x: x.contiguous().clone()):
        with hooks(lambda x: x, copy):
            grads += torch.autograd.grad(htransformer.attention(*fused.unbind(2), block=4), fused,
                                         dz)
    assert torch.equal(*grads)


def test_qkvpacked_equals_attention(random):
    fused, dz = tensors(random((2, 33, 3, 2, 4), (2, 33, 2, 4)))
    a = htransformer.attention(*fused.unbind(2), block=4, causal=True)
    b = htransformer.attention_qkvpacked(fused, block=4, causal=True)
    assert torch.equal(a, b)
    assert torch.equal(torch.autograd.grad(a, fused, dz)[0], torch.autograd.grad(b, fused, dz)[0])
    with torch.no_grad():
        assert torch.equal(htransformer.attention_qkvpacked(fused, block=4, causal=True), b)


def test_broadcast_gradients(random):
    """The gradient of a sum has stride 0: it is copied, not refused."""
    q, k, v = tensors(random(*[(2, 20, 2, 4)] * 3))
    z, lse = htransformer.attention(q, k, v, block=4, return_lse=True)
    found = torch.autograd.grad(z.sum() + lse.sum(), (q, k, v))
    z, lse = htransformer.attention(q, k, v, block=4, return_lse=True)
    want = torch.autograd.grad((z, lse), (q, k, v), (torch.ones_like(z), torch.ones_like(lse)))
    assert all(torch.equal(a, b) for a, b in zip(found, want))


def test_lse_alone_has_a_gradient(random):
    q, k, v = tensors(random(*[(1, 20, 2, 4)] * 3))
    _, lse = htransformer.attention(q, k, v, block=4, return_lse=True)
    dq, dk, dv = torch.autograd.grad(lse.sum(), (q, k, v))
    assert dq.abs().max() > 0 and dk.abs().max() > 0 and dv.abs().max() == 0


def test_equals_numpy(random):
    arrays = [x.astype(np.float32) for x in random(*[(2, 50, 2, 8)] * 3)]
    want = htransformer.attention(*arrays, block=4, causal=True)
    found = htransformer.attention(*[torch.from_numpy(x) for x in arrays], block=4, causal=True)
    assert np.array_equal(found.numpy(), want)


def test_same_bits_every_time(random):
    q, k, v, bias, dz = tensors(random(*[(2, 90, 4, 8)] * 3, (15, 4), (2, 90, 4, 8)), torch.float32)
    for query, causal in MODES:
        runs = []
        for _ in range(3):
            z = htransformer.attention(q, k, v, bias=bias, block=4, mode=query, causal=causal,
                                       dropout_p=0.1, seed=9)
            runs.append((z, *torch.autograd.grad(z, (q, k, v, bias), dz)))
        assert all(torch.equal(a, b) for other in runs[1:] for a, b in zip(runs[0], other))


def test_dropout_follows_manual_seed(random):
    q, k, v = tensors(random(*[(1, 64, 2, 8)] * 3), grad=False)
    torch.manual_seed(4)
    a = htransformer.attention(q, k, v, dropout_p=0.5)
    b = htransformer.attention(q, k, v, dropout_p=0.5)
    torch.manual_seed(4)
    assert torch.equal(a, htransformer.attention(q, k, v, dropout_p=0.5)) and not torch.equal(a, b)


def test_checkpointing_recomputes_the_same(random):
    from torch.utils.checkpoint import checkpoint
    q, k, v = tensors(random(*[(1, 40, 2, 4)] * 3))

    def run(*x):
        return htransformer.attention(*x, block=4, dropout_p=0.3)

    torch.manual_seed(1)
    want = torch.autograd.grad(run(q, k, v).sum(), (q, k, v))
    torch.manual_seed(1)
    found = torch.autograd.grad(checkpoint(run, q, k, v, use_reentrant=False).sum(), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(found, want))


def test_backward_on_many_threads(random):
    q, k, v = tensors(random(*[(1, 120, 2, 8)] * 3))
    want = torch.autograd.grad(htransformer.attention(q, k, v, block=4).sum(), q)[0]
    wrong = []

    def work():
        for _ in range(10):
            found = torch.autograd.grad(htransformer.attention(q, k, v, block=4).sum(), q)[0]
            if not torch.equal(found, want):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_changed_input_is_noticed(random):
    q, k, v = tensors(random(*[(1, 20, 2, 4)] * 3))
    used = q * 1
    z = htransformer.attention(used, k, v, block=4)
    used.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_no_graph_without_need(random):
    q, k, v = tensors(random(*[(1, 20, 2, 4)] * 3))
    with torch.no_grad():
        assert not htransformer.attention(q, k, v, block=4).requires_grad
    assert not htransformer.attention(q.detach(), k.detach(), v.detach(), block=4).requires_grad
    bias = torch.zeros(15, 2, dtype=torch.float64, requires_grad=True)
    z = htransformer.attention(q.detach(), k.detach(), v.detach(), bias=bias, block=4)
    assert torch.autograd.grad((z * z).sum(), bias)[0].abs().max() > 0


def bad(sentence, kind=ValueError, **change):
    return change, kind, sentence


X = torch.zeros(1, 8, 2, 4)
BAD = [
    bad("q must be float32, bfloat16, float16 or float64, got int64", q=X.long()),
    bad("q must be an ordinary tensor on the CPU", q=X.to("meta")),
    bad("k must be a PyTorch tensor, as q is, got ndarray", TypeError, k=X.numpy()),
    bad("v must be float32 with q of float32, got float64", v=X.double()),
    bad("k is broadcast along dimension 2", k=X[:, :, :1].expand(1, 8, 2, 4)),
    bad("v must be contiguous in its last dimension", v=X.view(1, 8, 4, 2).transpose(2, 3)),
    bad("key_mask must be bool or uint8, got float32", key_mask=torch.ones(1, 8)),
    bad(r"key_mask must have shape \(1, 8\)", key_mask=torch.ones(8, dtype=torch.bool)),
]


@pytest.mark.parametrize("change, kind, sentence", BAD)
def test_errors_name_the_argument(change, kind, sentence):
    arguments = dict({"q": X, "k": X, "v": X}, **change)
    with pytest.raises(kind, match=sentence):
        htransformer.attention(**arguments)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_on_the_cpu(dtype):
    """In the library or beside it: at least as good as the plain algorithm in that dtype."""
    check_gradients("cpu", dtype, 100, "first", True)
    fused = torch.randn(1, 50, 3, 2, 8).to(dtype).requires_grad_()
    z, lse = htransformer.attention_qkvpacked(fused, block=4, return_lse=True)
    (dfused,) = torch.autograd.grad(z.sum(), fused)
    assert z.dtype == dfused.dtype == dtype and lse.dtype == torch.float32


def test_qkvpacked_errors():
    with pytest.raises(ValueError,
                       match=r"qkv must be \(batch, length, 3, heads, dim\), got shape"):
        htransformer.attention_qkvpacked(torch.zeros(1, 8, 2, 2, 4))
    with pytest.raises(TypeError, match="attention_qkvpacked takes PyTorch tensors, got ndarray"):
        htransformer.attention_qkvpacked(np.zeros((1, 8, 3, 2, 4)))
    with pytest.raises(TypeError, match="attention_vjp takes NumPy arrays"):
        htransformer.attention_vjp(*[torch.zeros(1, 8, 2, 4)] * 3)
