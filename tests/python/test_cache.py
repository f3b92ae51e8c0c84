"""Decoding: every way of cutting a sequence gives the full pass; states are kept and copied."""
import numpy as np
import pytest

import htransformer
import oracle

LENGTH, SLOTS = 75, 3


def references(arrays, **options):
    """The full pass of the oracle, beyond float64 and in it."""
    return (oracle.attention(*[x.astype(np.longdouble) for x in arrays], causal=True, **options)[0],
            oracle.attention(*arrays, causal=True, **options)[0])


def close(found, exact, plain):
    assert oracle.error(found, exact) <= oracle.tolerance(plain, exact)


@pytest.fixture(params=["first", "fine"])
def query(request):
    return request.param


def decode(cache, arrays, cuts):
    """Feeds all sequences in pieces that end at the cuts."""
    outs, lses, begin = [], [], 0
    for end in cuts:
        z, lse = cache.extend(*[x[:, begin:end] for x in arrays], return_lse=True)
        outs.append(z)
        lses.append(lse)
        begin = end
    return np.concatenate(outs, 1), np.concatenate(lses, 2)


@pytest.mark.parametrize("kind", ["hierarchical", "full", "local"])
@pytest.mark.parametrize("cuts", [range(1, LENGTH + 1), [LENGTH], [7, 8, 40, LENGTH]])
def test_decode_equals_the_full_pass(random, query, kind, cuts):
    arrays = random((SLOTS, LENGTH, 4, 8), (SLOTS, LENGTH, 2, 8), (SLOTS, LENGTH, 2, 6))
    bias = random((15, 4))
    options = {"block": 4, "kind": kind, "mode": query, "scale": 0.5}
    exact = oracle.attention(*[x.astype(np.longdouble) for x in arrays], causal=True, bias=bias,
                             theta=1e4, **options)
    plain = oracle.attention(*arrays, causal=True, bias=bias, theta=1e4, **options)
    cache = htransformer.Cache(SLOTS, 4, 8, kv_heads=2, value_dim=6, dtype="float64", bias=bias,
                               rotary_theta=1e4, **options)
    oracle.check(decode(cache, arrays, cuts), exact, plain)
    assert [cache.position(slot) for slot in range(SLOTS)] == [LENGTH] * SLOTS


def test_slots_stand_at_their_own_positions(random, query):
    q, k, v = random(*[(2, 60, 2, 4)] * 3)
    exact, plain = references((q, k, v), block=4, mode=query)
    cache = htransformer.Cache(3, 2, 4, block=4, mode=query, dtype=np.float64)
    a = cache.extend(q[:1, :33], k[:1, :33], v[:1, :33], slots=[2])
    both = [np.stack([x[1, :10], x[0, 33:43]]) for x in (q, k, v)]
    b = cache.extend(*both, slots=[0, 2])
    assert [cache.position(s) for s in range(3)] == [10, 0, 43]
    close(a[0], exact[0, :33], plain[0, :33])
    close(b[0], exact[1, :10], plain[1, :10])
    close(b[1], exact[0, 33:43], plain[0, 33:43])


def test_packed_extend(random, query):
    q, k, v = random(*[(30, 2, 4)] * 3)
    cu = [0, 12, 12, 30]
    cache = htransformer.Cache(3, 2, 4, block=4, mode=query, dtype="float64")
    found = cache.extend(q, k, v, cu_seqlens=cu)
    for begin, end in ((0, 12), (12, 30)):
        exact, plain = references([x[None, begin:end] for x in (q, k, v)], block=4, mode=query)
        close(found[None, begin:end], exact, plain)
    assert [cache.position(s) for s in range(3)] == [12, 0, 18]


def test_state_does_not_grow_with_the_length():
    cache = htransformer.Cache(1, 1, 4, block=4)
    x = np.zeros((1, 4096, 1, 4), np.float32)
    cache.extend(x, x, x)
    assert cache.position() == 4096 and cache.rows() == 2 * 4 * 10  # levels: 4 * 2^10 >= 4096


def test_save_load_fork_reset(random, query):
    q, k, v = random(*[(1, 80, 2, 4)] * 3)
    options = {"block": 4, "mode": query, "dtype": "float64"}
    cache = htransformer.Cache(2, 2, 4, **options)
    cache.extend(q[:, :50], k[:, :50], v[:, :50])
    saved = cache.save(0)
    rest = [x[:, 50:] for x in (q, k, v)]
    want = cache.extend(*rest)
    other = htransformer.Cache(4, 2, 4, **options)  # another cache, another slot
    other.load(3, saved)
    assert other.position(3) == 50 and np.array_equal(other.extend(*rest, slots=[3]), want)
    other.load(1, bytearray(saved))
    other.fork(2, 1)
    assert np.array_equal(other.extend(*rest, slots=[2]), want)
    assert other.position(1) == 50 and other.position(2) == 80
    other.reset(1)
    assert [other.position(s) for s in range(4)] == [0, 0, 80, 80]
    other.reset()
    again = other.extend(q, k, v, slots=[3])
    assert np.array_equal(again[:, 50:], want)


def test_masks(random, query):
    q, k, v = random(*[(1, 40, 2, 4)] * 3)
    mask = np.ones((1, 40), bool)
    mask[0, 3:9] = mask[0, 30] = False
    exact, plain = references((q, k, v), block=4, mode=query, key_mask=mask, query_mask=mask)
    cache = htransformer.Cache(1, 2, 4, block=4, mode=query, dtype="float64")
    parts = [cache.extend(*[x[:, t:t + 1] for x in (q, k, v)], key_mask=mask[:, t:t + 1],
                          query_mask=mask[:, t:t + 1]) for t in range(40)]
    close(np.concatenate(parts, 1), exact, plain)


def test_torch_tensors_and_layout(random, query):
    """The same state and the same bits as with NumPy arrays."""
    torch = pytest.importorskip("torch")
    arrays = random(*[(2, 40, 3, 4)] * 3)
    options = {"block": 4, "mode": query}
    cache = htransformer.Cache(2, 3, 4, dtype=np.float64, **options)
    want = [cache.extend(*[x[:, t:t + 8] for x in arrays]) for t in range(0, 40, 8)]
    q, k, v = (torch.tensor(x).transpose(1, 2) for x in arrays)
    cache = htransformer.Cache(2, 3, 4, dtype=torch.float64, device=torch.device("cpu"),
                               layout="bhld", **options)
    found = [cache.extend(*[x[:, :, t:t + 8] for x in (q, k, v)]) for t in range(0, 40, 8)]
    assert all(np.array_equal(a.transpose(1, 2).numpy(), b) for a, b in zip(found, want))


@pytest.mark.parametrize("name, eps", [("bfloat16", 2.0**-7), ("float16", 2.0**-10)])
def test_tensors_of_16_bits(random, name, eps):
    """Inputs and outputs are rounded, the state is not."""
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    q, k, v = [torch.from_numpy(random((SLOTS, LENGTH, 2, 8))).to(dtype) for _ in range(3)]
    cache = htransformer.Cache(SLOTS, 2, 8, block=4, dtype=dtype)
    found = torch.cat([cache.extend(q[:, a:b], k[:, a:b], v[:, a:b])
                       for a, b in ((0, 30), (30, 31), (31, LENGTH))], 1)
    exact = htransformer.attention(q.double(), k.double(), v.double(), causal=True, block=4)
    assert found.dtype == dtype
    assert (found.double() - exact).abs().max() <= 2 * eps * exact.abs().max()


def test_errors():
    x = np.zeros((1, 5, 2, 4), np.float32)
    cache = htransformer.Cache(2, 2, 4, block=4)
    bad = [
        (lambda: htransformer.Cache(0, 2, 4), "slots must be at least 1 and fit in memory, got 0"),
        (lambda: htransformer.Cache(1, 2, 4, kv_heads=3),
         r"kv_heads must divide q_heads \(2\), got 3"),
        (lambda: htransformer.Cache(1, 2, 4, dtype="int8"), "dtype must be one of"),
        (lambda: htransformer.Cache(1, 2, 4, device="tpu"),
         'device must be "cpu", "cuda" or "cuda:N"'),
        (lambda: htransformer.Cache(1, 2, 4, mode="mean"), "query mean lets later rows"),
        (lambda: cache.extend(x, x, x, slots=[2]), r"slots\[0\] must be 0 to 1, got 2"),
        (lambda: cache.extend(x, x, x, slots=[0, 1]), "one slot for each of 1 sequences, got 2"),
        (lambda: cache.extend(*[np.concatenate([x, x])] * 3, slots=[1, 1]),
         "slot 1 is named twice"),
        (lambda: cache.extend(*[x.astype(np.float64)] * 3),
         "q must be float32 as the cache is, got float64"),
        (lambda: cache.extend(*[x[:, :, :1]] * 3), "the cache has heads 2, got 1"),
        (lambda: cache.position(2), "slot must be 0 to 1, got 2"),
        (lambda: cache.fork(0, 5), "slot must be 0 to 1, got 5"),
        (lambda: cache.load(0, b"not a state"), "a saved slot has at least"),
        (lambda: cache.load(0, bytes(1000)), "wrong magic"),
    ]
    for call, sentence in bad:
        with pytest.raises(ValueError, match=sentence):
            call()
    assert [cache.position(s) for s in range(2)] == [0, 0]


def test_state_of_another_plan_is_refused():
    x = np.zeros((1, 5, 2, 4), np.float32)
    cache = htransformer.Cache(1, 2, 4, block=4)
    cache.extend(x, x, x)
    with pytest.raises(htransformer.FormatError, match="the saved slot is of another plan"):
        htransformer.Cache(1, 2, 4, block=8).load(0, cache.save())
