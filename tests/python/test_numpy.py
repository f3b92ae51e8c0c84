"""attention() on NumPy arrays against the dense oracle."""
import threading

import numpy as np
import pytest

import htransformer
import oracle
from conftest import MODES

LENGTHS = [1, 2, 7, 16, 33, 64, 77, 130]


def both(arrays, dtype, **options):
    """Oracle in a precision beyond the one under test (float64 is tested too) and in that one, on
    the very inputs of the test."""
    made = [x.astype(dtype) for x in arrays]
    exact = oracle.attention(*[x.astype(np.longdouble) for x in made], **options)
    return made, exact, oracle.attention(*made, **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("query, causal", MODES)
def test_modes(random, query, causal, length, dtype):
    arrays = random(*[(2, length, 2, 8)] * 3)
    options = {"block": 4, "mode": query, "causal": causal}
    made, exact, plain = both(arrays, dtype, **options)
    oracle.check(htransformer.attention(*made, return_lse=True, **options), exact, plain)


@pytest.mark.parametrize("kind", ["full", "local"])
@pytest.mark.parametrize("causal", [False, True])
def test_kinds(random, kind, causal):
    arrays = random(*[(1, 61, 2, 8)] * 3)
    options = {"block": 8, "mode": "first", "causal": causal, "kind": kind}
    made, exact, plain = both(arrays, np.float32, **options)
    oracle.check(htransformer.attention(*made, return_lse=True, **options), exact, plain)


@pytest.mark.parametrize("query, causal", MODES)
def test_everything_at_once(random, query, causal):
    """Grouped heads, another value dimension, bias, masks, rotary positions and a scale."""
    arrays = random((2, 53, 6, 8), (2, 53, 2, 8), (2, 53, 2, 5))
    table, draws = random((4 * 4 - 1, 6), (2, 2, 53))
    masks = {"key_mask": draws[0] > -0.7, "query_mask": draws[1] > -0.7}
    options = {"block": 4, "mode": query, "causal": causal, "scale": 0.3}
    made, exact, plain = both(arrays, np.float32, bias=table.astype(np.float32), theta=1000.0,
                              **masks, **options)
    found = htransformer.attention(*made, bias=table.astype(np.float32), rotary_theta=1000.0,
                                   **masks, return_lse=True, **options)
    oracle.check(found, exact, plain)


@pytest.mark.parametrize("causal", [False, True])
def test_open(random, causal):
    """With all clusters opened it is full attention; with a few it lies between."""
    arrays = random(*[(2, 90, 2, 8)] * 3)
    made, exact, plain = both(arrays, np.float32, block=90, mode="fine", causal=causal)
    options = {"block": 4, "causal": causal, "return_lse": True}
    oracle.check(htransformer.attention(*made, open=64, open_leaf=1, **options), exact, plain)
    far = [np.abs(htransformer.attention(*made, mode="fine", open=k, **options)[0] - exact[0])
           .mean() for k in (0, 2, 8)]
    assert far[0] > far[1] > far[2] > 0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("open, leaf, peek", [(1, 1, 1), (2, 4, 2), (3, 8, 0), (5, 2, 3)])
@pytest.mark.parametrize("length", [9, 77, 130])
def test_opened(random, length, open, leaf, peek, causal):
    q, k, v = (x.astype(float) for x in random(*[(1, length, 1, 6)] * 3))
    mask = np.arange(length)[None] % 5 != 3
    want = oracle.opened(q[0, :, 0], k[0, :, 0], v[0, :, 0], block=4, open=open, leaf=leaf,
                         peek=peek, causal=causal, k_valid=mask[0])
    found = htransformer.attention(q, k, v, block=4, mode="fine", causal=causal, open=open,
                                   open_leaf=leaf, open_peek=peek, key_mask=mask)
    assert np.abs(found[0, :, 0] - want).max() < 1e-13


def test_mean_alone(random):
    """A peek of 0 is -1 to the library."""
    x = random(*[(1, 90, 2, 8)] * 3)
    how = {"block": 4, "mode": "fine", "open": 2}
    none = htransformer.attention(*x, open_peek=0, **how)
    assert np.array_equal(none, htransformer.attention(*x, open_peek=-1, **how))
    assert not np.array_equal(none, htransformer.attention(*x, open_peek=1, **how))


def test_masked_entries_are_never_looked_at(random):
    q, k, v = random(*[(1, 40, 1, 4)] * 3)
    mask = np.ones((1, 40), bool)
    mask[0, 25:] = False
    clean = htransformer.attention(q, k, v, block=4, key_mask=mask, query_mask=mask)
    for x in (q, k, v):
        x[0, 25:] = np.nan
    z, lse = htransformer.attention(q, k, v, block=4, key_mask=mask, query_mask=mask,
                                    return_lse=True)
    assert np.array_equal(z, clean) and (z[0, 25:] == 0).all() and (lse[0, 0, 25:] == -np.inf).all()


def test_default_query_follows_causal(random):
    q, k, v = random(*[(1, 50, 2, 4)] * 3)
    for causal, query in ((False, "mean"), (True, "fine")):
        assert np.array_equal(htransformer.attention(q, k, v, block=4, causal=causal),
                              htransformer.attention(q, k, v, block=4, causal=causal, mode=query))


def test_two_names_of_one_thing(random):
    q, k, v = random(*[(1, 50, 2, 4)] * 3)
    a = htransformer.attention(q, k, v, block=4, softmax_scale=0.7)
    assert np.array_equal(a, htransformer.attention(q, k, v, block=4, scale=0.7))
    with pytest.raises(ValueError, match="scale is 0.7, but softmax_scale is 0.6"):
        htransformer.attention(q, k, v, scale=0.7, softmax_scale=0.6)


def test_old_word_for_mode(random):
    q, k, v = random(*[(1, 50, 2, 4)] * 3)
    want = htransformer.attention(q, k, v, block=4, mode="fine")
    for call in (lambda: htransformer.attention(q, k, v, block=4, query="fine"),
                 lambda: htransformer.attention_vjp(q, k, v, block=4, query="fine")[0]):
        with pytest.warns(DeprecationWarning, match="query is now called mode"):
            assert np.array_equal(call(), want)
    with pytest.warns(DeprecationWarning), \
            pytest.raises(ValueError, match="mode is 'mean', but query is 'fine'"):
        htransformer.attention(q, k, v, mode="mean", query="fine")


@pytest.mark.parametrize("word, hint", [("is_causal", "causal"), ("attn_mask", "key_mask"),
                                        ("enable_gqa", "kv_heads that divide heads")])
def test_words_of_the_other_function_are_refused(word, hint):
    x = np.zeros((1, 8, 2, 4), np.float32)
    for call in (htransformer.attention, htransformer.attention_vjp):
        with pytest.raises(TypeError, match=hint + ".* call htransformer.scaled_dot_product_att"):
            call(x, x, x, **{word: None})
    with pytest.raises(TypeError, match="unexpected argument 'cuasal'"):
        htransformer.attention(x, x, x, cuasal=True)


def test_lengths_of_the_host_go_before(random):
    q, k, v = random(*[(20, 2, 4)] * 3)
    want = htransformer.attention(q, k, v, cu_seqlens=[0, 7, 20], causal=True)
    found = htransformer.attention(q, k, v, cu_seqlens=np.zeros(3, np.int32), causal=True,
                                   cu_seqlens_host=[0, 7, 20])  # the first is not looked at
    assert np.array_equal(found, want)
    with pytest.raises(ValueError, match="a copy of cu_seqlens: they have 2 and 3 entries"):
        htransformer.attention(q, k, v, cu_seqlens=[0, 7, 20], cu_seqlens_host=[0, 20])


def test_packed_calls_of_other_lengths(random):
    """What is kept of a packed call serves another one only where the lengths allow it."""
    q, k, v = random(*[(20, 2, 4)] * 3)
    for cu in ([0, 7, 20], [0, 13, 20], [0, 10, 20], [0, 7, 20], [0, 20], [0, 1, 2, 20]):
        found = htransformer.attention(q, k, v, cu_seqlens=cu, block=2)
        for begin, end in zip(cu, cu[1:]):
            one = htransformer.attention(*[x[None, begin:end] for x in (q, k, v)], block=2)
            assert np.array_equal(found[begin:end], one[0])
    with pytest.raises(ValueError, match="cu_seqlens must end with the 20 rows of q, got 21"):
        htransformer.attention(q, k, v, cu_seqlens=[0, 7, 21], block=2)


def test_layouts_and_strides(random):
    """A view gives the bits of its copy, and what comes out lies in memory as q does."""
    fused = random((2, 45, 3, 3, 8))  # (batch, length, q k v, heads, dim), of one projection
    q, k, v = (fused[:, :, i] for i in range(3))
    want = htransformer.attention(*[x.copy() for x in (q, k, v)], block=4)
    assert np.array_equal(htransformer.attention(q, k, v, block=4), want)
    turned = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    found = htransformer.attention(*turned, block=4, layout="bhld")
    assert np.array_equal(found.transpose(0, 2, 1, 3), want)
    assert found.transpose(0, 2, 1, 3).flags.c_contiguous
    copied = htransformer.attention(*[x.copy() for x in turned], block=4, layout="bhld")
    assert np.array_equal(copied, found) and copied.flags.c_contiguous


def test_packed(random):
    cu = np.array([0, 5, 5, 38, 60], np.int32)
    q, k, v = random((60, 4, 8), (60, 2, 8), (60, 2, 8))
    z, lse = htransformer.attention(q, k, v, block=4, causal=True, cu_seqlens=cu, return_lse=True)
    assert z.shape == (60, 4, 8) and lse.shape == (4, 60)
    for first, last in zip(cu[:-1], cu[1:]):
        if last > first:
            one = [x[None, first:last] for x in (q, k, v)]
            part, part_lse = htransformer.attention(*one, block=4, causal=True, return_lse=True)
            assert np.array_equal(z[first:last], part[0])
            assert np.array_equal(lse[:, first:last], part_lse[0])
    turned = [x.transpose(1, 0, 2) for x in (q, k, v)]
    other = htransformer.attention(*turned, block=4, causal=True, cu_seqlens=list(cu),
                                   layout="bhld")
    assert np.array_equal(other.transpose(1, 0, 2), z)


def test_packed_without_rows():
    empty = np.empty((0, 2, 4), np.float32)
    assert htransformer.attention(empty, empty, empty, cu_seqlens=[0, 0, 0]).shape == (0, 2, 4)


@pytest.mark.parametrize("query, causal", MODES)
def test_vjp_against_differences(random, query, causal):
    """<dz, z> and <dlse, lse> in a random direction, by central differences."""
    arrays = random((2, 37, 4, 6), (2, 37, 2, 6), (2, 37, 2, 6), (15, 4))
    steps = random((2, 37, 4, 6), (2, 37, 2, 6), (2, 37, 2, 6), (15, 4))
    dz, dlse = random((2, 37, 4, 6), (2, 4, 37))
    options = {"block": 4, "mode": query, "causal": causal, "return_lse": True}

    def loss(t):
        *qkv, bias = [x + t * step for x, step in zip(arrays, steps)]
        z, lse = htransformer.attention(*qkv, bias=bias, **options)
        return (dz * z).sum() + (dlse * lse).sum()

    (z, lse), backward = htransformer.attention_vjp(*arrays[:3], bias=arrays[3], **options)
    assert np.array_equal(z, htransformer.attention(*arrays[:3], bias=arrays[3], **options)[0])
    grads = backward(dz, dlse)
    slope = sum((g * step).sum() for g, step in zip(grads, steps))
    h = 1e-4
    near, far = ((loss(t) - loss(-t)) / (2 * t) for t in (h, 2 * h))
    size = np.abs(dz * z).sum() + np.abs(dlse * lse).sum()
    # truncation is (far - near) / 3, rounding eps of the terms of the loss over h
    assert abs(slope - near) <= abs(far - near) + 4 * np.finfo(float).eps * size / h


def test_same_bits_on_any_number_of_threads(random):
    arrays = random(*[(3, 70, 4, 8)] * 3)
    found = []
    try:
        for threads in (0, 1, 2, 3):
            htransformer.set_num_threads(threads)
            z, backward = htransformer.attention_vjp(*arrays, block=4, bias=np.ones((15, 4)))
            found.append((z, *backward(arrays[0])))
    finally:
        htransformer.set_num_threads(1)
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other))


def test_dropout_mask_follows_seed_and_offset(random):
    q, k, v = random(*[(1, 64, 2, 8)] * 3)
    options = {"block": 8, "dropout_p": 0.3}
    a = htransformer.attention(q, k, v, seed=5, **options)
    assert np.array_equal(a, htransformer.attention(q, k, v, seed=5, **options))
    assert not np.array_equal(a, htransformer.attention(q, k, v, seed=6, **options))
    assert not np.array_equal(a, htransformer.attention(q, k, v, seed=5, offset=1, **options))
    np.random.seed(1)
    b = htransformer.attention(q, k, v, **options)
    np.random.seed(1)
    assert np.array_equal(b, htransformer.attention(q, k, v, **options))


def test_dropout_keeps_the_mean(random):
    """Every weight is kept with 1 - p and then scaled: the average over seeds is the plain
    output."""
    q, k, v = random(*[(1, 32, 1, 4)] * 3)
    plain = htransformer.attention(q, k, v, block=4)
    draws = np.stack([htransformer.attention(q, k, v, block=4, dropout_p=0.25, seed=s)
                      for s in range(2000)])
    spread = draws.std(0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(0) - plain) <= 6 * spread).all()  # 128 numbers: 6 sigma is never


def test_many_threads_share_a_context(random):
    arrays = random(*[(1, 200, 2, 8)] * 3)
    want = htransformer.attention(*arrays, block=4)
    wrong = []

    def work():
        for _ in range(20):
            if not np.array_equal(htransformer.attention(*arrays, block=4), want):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_plans_are_bounded(random):
    from htransformer import _plan
    htransformer.clear_plans()
    for length in range(1, _plan.MAX_PLANS + 40):
        x = np.zeros((1, length, 1, 2), np.float32)
        htransformer.attention(x, x, x, block=2)
    assert len(_plan._plans) == _plan.MAX_PLANS


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def bad(sentence, kind=ValueError, **change):
    return change, kind, sentence


BAD = [
    bad("q must be a NumPy array or a PyTorch tensor, got list", TypeError, q=[[1.0]]),
    bad("q must be a NumPy array or a PyTorch tensor, got MaskedArray", TypeError,
        q=np.ma.array(zeros(1, 8, 2, 4))),
    bad("k must be a NumPy array, as q is, got MaskedArray", TypeError,
        k=np.ma.array(zeros(1, 8, 2, 4))),
    bad("k must be a NumPy array, as q is, got NoneType", TypeError, k=None),
    bad("batch must be at least 1, got 0", **{x: zeros(0, 8, 2, 4) for x in "qkv"}),
    bad("q must be float32 or float64, got float16", q=zeros(1, 8, 2, 4, dtype=np.float16)),
    bad("v must be float32 with q of float32, got float64", v=zeros(1, 8, 2, 4, dtype=float)),
    bad(r"q must be \(batch, length, heads, dim\), got shape \(8, 2, 4\)", q=zeros(8, 2, 4)),
    bad("k must have the batch 1 and length 8 of q", k=zeros(1, 9, 2, 4)),
    bad("k must have the head dimension 4 of q, got 3", k=zeros(1, 8, 2, 3)),
    bad("v must have the 2 heads of k, got 1", v=zeros(1, 8, 1, 4)),
    bad("block must be even, got 7", block=7),
    bad("block must be an even number >= 2, got 0", block=0),
    bad("kind must be one of 'hierarchical', 'full', 'local', got 'sparse'", kind_="sparse"),
    bad("mode must be one of 'auto', 'mean', 'first', 'fine', got 'last'", mode="last"),
    bad("layout must be one of 'blhd', 'bhld', got 'lbhd'", layout="lbhd"),
    bad("query mean lets later rows steer earlier outputs", mode="mean", causal=True),
    bad("scale must not be 0", scale=0),
    bad(r"dropout must be in \[0, 1\), got 1", dropout_p=1.0),
    bad(r"bias must have shape \(63, 2\)", bias=zeros(15, 2)),
    bad("bias must be float32 with q of float32, got float64", bias=zeros(63, 2, dtype=float)),
    bad("bias must be contiguous", bias=zeros(2, 63).T),
    bad(r"key_mask must have shape \(1, 8\), got \(1, 7\)", key_mask=zeros(1, 7, dtype=bool)),
    bad("query_mask must be bool or uint8, got float32", query_mask=zeros(1, 8)),
    bad("q must be contiguous in its last dimension, .*numpy.ascontiguousarray",
        q=zeros(1, 8, 2, 8)[..., ::2]),
    bad(r"k is broadcast along dimension 2 \(stride 0\)",
        k=np.broadcast_to(zeros(1, 8, 1, 4), (1, 8, 2, 4))),
    bad("q: row stride must not be negative", q=zeros(1, 8, 2, 4)[:, ::-1]),
    bad(r"q must be \(rows, heads, dim\) with cu_seqlens", cu_seqlens=[0, 8]),
    bad("offset must be 0 to", offset=-1, dropout_p=0.1),
    bad("open must be a whole number >= 0, got -1", open=-1),
    bad("open_leaf must be a whole number >= 0, got 0.5", open=2, open_leaf=0.5),
]


@pytest.mark.parametrize("change, kind, sentence", BAD)
def test_errors_name_the_argument(change, kind, sentence):
    x = zeros(1, 8, 2, 4)
    arguments = dict({"q": x, "k": x, "v": x}, **change)
    if "kind_" in arguments:
        arguments["kind"] = arguments.pop("kind_")
    with pytest.raises(kind, match=sentence):
        htransformer.attention(**arguments)


@pytest.mark.parametrize("cu, sentence", [
    ([0, 3, 2, 8], "cu_seqlens must not decrease"),
    ([1, 8], r"cu_seqlens\[0\] must be 0, got 1"),
    ([0, 7], "cu_seqlens must end with the 8 rows of q, got 7"),
    ([0.0, 8.0], "cu_seqlens must be whole numbers"),
    ([8], "cu_seqlens must be one-dimensional with at least two entries"),
    ([0, 2**40], "cu_seqlens must fit in 32 bits"),
])
def test_bad_cu_seqlens(cu, sentence):
    x = np.zeros((8, 2, 4), np.float32)
    with pytest.raises(ValueError, match=sentence):
        htransformer.attention(x, x, x, cu_seqlens=cu)


def test_failure_leaves_the_next_call_unharmed(random):
    arrays = random(*[(1, 20, 2, 4)] * 3)
    want = htransformer.attention(*arrays)
    with pytest.raises(htransformer.InvalidError):
        htransformer.attention(*arrays, block=6, mode="mean", causal=True)
    assert np.array_equal(htransformer.attention(*arrays), want)
