"""The same door on a GPU. Skipped where PyTorch sees none, or the library has no CUDA."""
import pytest

torch = pytest.importorskip("torch")

import htransformer
import oracle_torch
from conftest import MODES
from test_torch import check_gradients


def usable():
    return torch.cuda.is_available() and any(
        device["name"].startswith("cuda") and device["available"]
        for device in htransformer.devices())


pytestmark = pytest.mark.skipif(not usable(), reason="no GPU, or a library without CUDA kernels")

DTYPES = [torch.float32, torch.bfloat16]


def make(*shape, dtype=torch.float32, count=3):
    torch.manual_seed(0)
    return [torch.randn(*shape, device="cuda").to(dtype) for _ in range(count)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [2, 100, 777])
@pytest.mark.parametrize("query, causal", MODES)
def test_values_and_gradients(dtype, length, query, causal):
    check_gradients("cuda", dtype, length, query, causal)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_row_sees_itself(dtype):
    q, k, v = make(3, 1, 2, 64, dtype=dtype)
    for query, causal in MODES:
        assert torch.equal(htransformer.attention(q, k, v, mode=query, causal=causal), v)


@pytest.mark.parametrize("query, causal", MODES)
def test_agrees_with_cpu(query, causal):
    """Grouped heads, bias, masks and packed rows against float64 on the CPU."""
    torch.manual_seed(0)
    q, k, v = torch.randn(300, 4, 32), torch.randn(300, 2, 32), torch.randn(300, 2, 32)
    bias, mask = torch.randn(63, 4), torch.rand(300) > 0.2
    options = {"mode": query, "causal": causal, "cu_seqlens": [0, 120, 120, 300]}
    results = []
    for device, dtype in (("cpu", torch.float64), ("cpu", torch.float32), ("cuda", torch.float32)):
        inputs = [x.clone().to(device, dtype).requires_grad_() for x in (q, k, v, bias)]
        z = htransformer.attention(*inputs[:3], bias=inputs[3], key_mask=mask.to(device),
                                   query_mask=mask.to(device), **options)
        z.square().sum().backward()
        results.append([z] + [x.grad for x in inputs])
    for name, exact, plain, found in zip(("z", "dq", "dk", "dv", "dbias"), *results):
        oracle_torch.check(found.detach().cpu(), exact.detach(), plain.detach(), name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_every_time(dtype):
    q, k, v = (x.requires_grad_() for x in make(2, 500, 4, 64, dtype=dtype))
    for query, causal in MODES:
        runs = []
        for _ in range(3):
            z = htransformer.attention(q, k, v, mode=query, causal=causal, dropout_p=0.1, seed=1)
            runs.append((z, *torch.autograd.grad(z.float().square().sum(), (q, k, v))))
        assert all(torch.equal(a, b) for other in runs[1:] for a, b in zip(runs[0], other))


def test_dropout_mask_is_the_cpus():
    q, k, v = make(1, 300, 2, 32)
    found = htransformer.attention(q, k, v, dropout_p=0.5, seed=7)
    plain = [x.cpu() for x in (q, k, v)]
    exact = htransformer.attention(*[x.double() for x in plain], dropout_p=0.5, seed=7)
    plain = htransformer.attention(*plain, dropout_p=0.5, seed=7)
    oracle_torch.check(found.cpu(), exact, plain)  # another mask would be off by the whole


def test_views_of_a_fused_projection():
    (fused,) = make(2, 300, 3, 4, 64, dtype=torch.bfloat16, count=1)
    views = fused.unbind(2)
    want = htransformer.attention(*[x.contiguous() for x in views], causal=True)
    assert torch.equal(htransformer.attention(*views, causal=True), want)
    turned = htransformer.attention(*[x.transpose(1, 2) for x in views], causal=True, layout="bhld")
    assert torch.equal(turned.transpose(1, 2), want)


def test_fused_gradient_is_the_slices():
    fused, dz = make(2, 300, 3, 4, 64, dtype=torch.bfloat16, count=2)
    fused.requires_grad_()
    dz = dz[:, :, 0]
    a = htransformer.attention(*fused.unbind(2), causal=True)
    b = htransformer.attention_qkvpacked(fused, causal=True)
    assert torch.equal(a, b)
    (da,), (db,) = torch.autograd.grad(a, fused, dz), torch.autograd.grad(b, fused, dz)
    assert torch.equal(da, db)


def test_lengths_may_lie_on_the_device():
    q, k, v = make(60, 2, 32)
    cu = torch.tensor([0, 20, 60], dtype=torch.int32)
    want = htransformer.attention(q, k, v, causal=True, cu_seqlens=cu)
    assert torch.equal(htransformer.attention(q, k, v, causal=True, cu_seqlens=cu.cuda()), want)


def test_follows_the_current_stream():
    """Work goes behind what the current stream has to do, with no wait of the host."""
    q, k, v = make(1, 1000, 4, 64)
    want = htransformer.attention(q, k, v)
    torch.cuda.synchronize()
    for stream in (torch.cuda.Stream(), torch.cuda.default_stream()):
        with torch.cuda.stream(stream):
            late = torch.zeros_like(q)
            torch.cuda._sleep(50_000_000)
            late.copy_(q)  # happens after the sleep
            found = htransformer.attention(late, k, v)
        stream.synchronize()
        assert torch.equal(found, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_decode_equals_the_full_pass(dtype):
    q, k, v = make(3, 200, 4, 64, dtype=dtype)
    for query in ("first", "fine"):
        exact = htransformer.attention(*[x.cpu().double() for x in (q, k, v)], causal=True,
                                       mode=query)
        plain = htransformer.attention(q, k, v, causal=True, mode=query)
        cache = htransformer.Cache(3, 4, 64, mode=query, dtype=dtype, device="cuda")
        parts = [cache.extend(q[:, :150], k[:, :150], v[:, :150])]
        parts += [cache.extend(*[x[:, t:t + 1] for x in (q, k, v)]) for t in range(150, 200)]
        oracle_torch.check(torch.cat(parts, 1).cpu(), exact, plain.cpu())


def test_cache_on_another_stream():
    q, k, v = make(1, 64, 2, 32)
    cache = htransformer.Cache(2, 2, 32, device="cuda")
    want = cache.extend(q, k, v)
    saved = cache.save(0)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        found = cache.extend(q, k, v, slots=[1])
        assert torch.equal(found, want)
    cache.load(1, saved)
    cache.fork(0, 1)
    assert cache.position(0) == 64 and cache.device == "cuda:0"


def test_other_devices_are_named():
    q, k, v = make(1, 8, 2, 4)
    with pytest.raises(ValueError, match="k must be on cuda:0 as q is, got cpu"):
        htransformer.attention(q, k.cpu(), v)
    cache = htransformer.Cache(1, 2, 4)
    with pytest.raises(ValueError, match="q must be on cpu as the cache is, got cuda:0"):
        cache.extend(q, k, v)


def test_module_in_autocast():
    layer = htransformer.HAttention(128, 4, batch_first=True, causal=True,
                                    relative_bias=True).cuda()
    x = torch.randn(2, 300, 128, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = layer(x)[0]
    y.float().square().sum().backward()
    assert y.dtype == torch.bfloat16 and layer.relative_bias.grad.abs().max() > 0


def test_memory_is_linear_in_the_length():
    """Nothing of the size of length * length or length * block is kept."""
    peaks = []
    for length in (16384, 32768):
        inputs = [x.requires_grad_() for x in make(1, length, 4, 64, dtype=torch.bfloat16)]
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        htransformer.attention(*inputs, causal=True).sum().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] <= 2.1 * peaks[0]


def test_host_lengths_spare_a_wait():
    """With a copy of the lengths on the host, nothing makes the host wait."""
    q, k, v = make(60, 2, 32)
    cu = torch.tensor([0, 20, 60], dtype=torch.int32)
    on_device = cu.cuda()
    want = htransformer.attention(q, k, v, causal=True, cu_seqlens=cu)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = htransformer.attention(q, k, v, causal=True, cu_seqlens=on_device,
                                       cu_seqlens_host=cu)
        with pytest.raises(RuntimeError, match="synchroniz"):
            htransformer.attention(q, k, v, causal=True, cu_seqlens=on_device)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cuda_graph(dtype):
    """Forward and backward captured once, replayed on other numbers."""
    inputs = [x.requires_grad_() for x in make(2, 500, 4, 64, dtype=dtype)]
    dz, fresh = make(2, 500, 4, 64, dtype=dtype, count=1)[0], make(2, 500, 4, 64, dtype=dtype)[1:]

    def step():
        z = htransformer.attention(*inputs, causal=True)
        return (z, *torch.autograd.grad(z, inputs, dz))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        kept = step()
    with torch.no_grad():
        inputs[0].copy_(fresh[0])
    graph.replay()
    torch.cuda.synchronize()
    found = [x.clone() for x in kept]
    assert all(torch.equal(a, b) for a, b in zip(found, step()))
    with pytest.raises(ValueError, match="dropout inside a CUDA graph"):
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
            htransformer.attention(*inputs, dropout_p=0.1)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_compiled_layers(mode):
    """Inductor and, in the second case, its CUDA graphs: what eager gives, in float32's bounds."""
    from test_compile import Layer, gradients, same
    import copy
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = torch.nn.Sequential(*[Layer(causal=True) for _ in range(2)]).cuda()
    compiled = torch.compile(copy.deepcopy(plain), fullgraph=True, mode=mode)
    for length in (128, 96, 128, 128, 128):
        x = torch.randn(2, length, 16, device="cuda")
        same(gradients(compiled, x), gradients(plain, x), exactly=False)


def test_autocast_casts_as_sdpa_does():
    q, k, v = (x.requires_grad_() for x in make(2, 300, 4, 64))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        z = htransformer.attention(q, k, v, causal=True)
    narrow = htransformer.attention(*[x.detach().bfloat16() for x in (q, k, v)], causal=True)
    assert torch.equal(z, narrow)
    assert all(x.dtype == torch.float32 for x in torch.autograd.grad(z.float().sum(), (q, k, v)))


def test_nested_tensors_wait_once():
    parts = [torch.randn(n, 4, 64, device="cuda") for n in (50, 1, 170)]
    q = torch.nested.nested_tensor(parts, layout=torch.jagged)
    z = htransformer.attention(q, q, q, causal=True)
    want = htransformer.attention(*[q.values()] * 3, causal=True, cu_seqlens=[0, 50, 51, 221])
    assert torch.equal(z.values(), want)
    torch.cuda.set_sync_debug_mode("error")
    try:
        htransformer.attention(z, q, z, causal=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_opcheck_on_cuda():
    pytest.importorskip("torch", minversion="2.4")
    from htransformer import _call, _ops
    x = [y.requires_grad_() for y in make(2, 100, 2, 32)]
    o = _call.options(causal=True)
    torch.library.opcheck(_ops.attention, (*x, None, None, None, None, None, *o, 0, True, True))
