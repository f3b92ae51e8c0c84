"""scaled_dot_product_attention(): PyTorch's layout and arguments, or a sentence."""
import numpy as np
import pytest

import htransformer


def test_layout_is_pytorchs(random):
    q, k, v = random(*[(2, 3, 40, 8)] * 3)  # (batch, heads, length, dim)
    for causal in (False, True):
        want = htransformer.attention(*[x.transpose(0, 2, 1, 3) for x in (q, k, v)], block=4,
                                      causal=causal, scale=0.3)
        found = htransformer.scaled_dot_product_attention(q, k, v, None, 0.0, causal, 0.3, block=4)
        assert np.array_equal(found.transpose(0, 2, 1, 3), want)


@pytest.mark.parametrize("causal", [False, True])
def test_equals_pytorch_where_it_is_exact(causal):
    """block >= length / 2: full attention, grouped heads and padding as well."""
    torch = pytest.importorskip("torch")
    theirs = torch.nn.functional.scaled_dot_product_attention
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 30, 8), torch.randn(2, 2, 30, 8), torch.randn(2, 2, 30, 8)
    mask = torch.ones(2, 1, 1, 30, dtype=torch.bool)
    mask[1, :, :, 21:] = False
    for options in ({}, {"attn_mask": mask}) if not causal else ({},):
        options.update(is_causal=causal, enable_gqa=True)
        wide = [x.double() for x in (q, k, v)]
        exact, plain = theirs(*wide, **options), theirs(q, k, v, **options)
        found = htransformer.scaled_dot_product_attention(q, k, v, block=16, **options)
        rows = mask[:, 0, 0, None, :, None] if "attn_mask" in options else torch.tensor(True)
        error, bound = ((x.double() - exact).abs().mul(rows).max() for x in (found, plain))
        assert error <= 2 * bound + 4 * torch.finfo(torch.float32).eps * exact.abs().max()
    if not causal:
        assert (found[1, :, 21:] == 0).all()


def test_masks_of_padding(random):
    q, k, v = random(*[(2, 3, 40, 8)] * 3)
    mask = np.ones((2, 40), bool)
    mask[1, 30:] = False
    sdpa = htransformer.scaled_dot_product_attention
    want = sdpa(q, k, v, block=4, key_mask=mask, query_mask=mask)
    four = mask[:, None, None]
    assert np.array_equal(sdpa(q, k, v, four, block=4), want)
    assert np.array_equal(sdpa(q, k, v, block=4, key_mask=four, query_mask=four), want)
    turned = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    found = htransformer.attention(*turned, block=4, key_mask=four, query_mask=mask)
    assert np.array_equal(found.transpose(0, 2, 1, 3), want)
    one = sdpa(q, k, v, four[1:], block=4)  # one mask for the whole batch
    assert np.array_equal(one[1], want[1]) and (one[0, :, 30:] == 0).all()
    torch = pytest.importorskip("torch")
    found = sdpa(*[torch.tensor(x) for x in (q, k, v)], torch.tensor(four[1:]), block=4)
    assert np.array_equal(found.numpy(), one)


X = np.zeros((1, 2, 8, 4), np.float32)
M = np.ones((1, 1, 1, 8), bool)
BAD = [
    ({"attn_mask": np.zeros((8, 8), bool)},
     r"attn_mask must be a boolean mask of padding, .*got bool of shape \(8, 8\): pass is_causal"),
    ({"attn_mask": M.astype(np.float32)}, "got float32 of shape .*key_mask, .*for padding"),
    ({"attn_mask": M, "key_mask": M}, "pass it or key_mask and query_mask, not both"),
    ({"key": X[:, :, :5], "value": X[:, :, :5]},
     "key must have the length 8 of query, got 5: .* use htransformer.Cache"),
    ({"key": X[:, :1], "value": X[:, :1]},
     "key must have the 2 heads of query, got 1: pass enable_gqa=True"),
    ({"query": X[0]}, r"query must be \(batch, heads, length, dim\), got shape \(2, 8, 4\)"),
]


@pytest.mark.parametrize("change, sentence", BAD)
def test_refusals_point_the_way(change, sentence):
    with pytest.raises(htransformer.InvalidError, match=sentence):
        htransformer.scaled_dot_product_attention(**dict({"query": X, "key": X, "value": X},
                                                         **change))
