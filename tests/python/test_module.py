"""HAttention in the place of nn.MultiheadAttention."""
import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn

import htransformer
import oracle_torch


def pair(batch_first=True, bias=True, **options):
    """Ours with the weights of PyTorch's, in float32."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(24, 4, bias=bias, batch_first=batch_first)
    ours = htransformer.HAttention(24, 4, bias=bias, batch_first=batch_first, **options)
    nn.init.normal_(theirs.in_proj_weight, std=0.3)
    if bias:
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def as_theirs(ours, theirs, x, valid=slice(None), call=None, **their_options):
    """Ours in float32 is as close to theirs in float64 as theirs in float32 is (or twice that)."""
    found = ours(x, **(call or {}))[0]
    plain = theirs(x, x, x, need_weights=False, **their_options)[0]
    wide = x.double()
    exact = copy.deepcopy(theirs).double()(wide, wide, wide, need_weights=False, **their_options)[0]
    assert found.shape == plain.shape
    oracle_torch.check(found[valid], exact[valid], plain[valid])
    return found


def gradients(module, x, dz):
    x = x.detach().clone().requires_grad_()
    module.zero_grad()
    module(x, x, x, need_weights=False)[0].backward(dz)
    return {"x": x.grad, **{name: p.grad for name, p in module.named_parameters()}}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_one_block_equals_multihead_attention(batch_first, bias):
    ours, theirs = pair(batch_first, bias)
    x, dz = torch.randn(2, *((3, 31, 24) if batch_first else (31, 3, 24)))
    as_theirs(ours, theirs, x)
    assert ours(x)[1] is None
    found, plain = gradients(ours, x, dz), gradients(theirs, x, dz)
    exact = gradients(copy.deepcopy(theirs).double(), x.double(), dz.double())
    assert set(found) == set(exact)
    for name in exact:
        oracle_torch.check(found[name], exact[name], plain[name], name)


def test_unbatched():
    ours, theirs = pair()
    x = torch.randn(20, 24)
    as_theirs(ours, theirs, x)
    padding = torch.zeros(20, dtype=torch.bool)
    padding[15:] = True
    as_theirs(ours, theirs, x, slice(0, 15), {"key_padding_mask": padding},
              key_padding_mask=padding)


def test_causal():
    x = torch.randn(2, 30, 24)
    future = torch.triu(torch.ones(30, 30, dtype=torch.bool), 1)
    ours, theirs = pair()
    found = as_theirs(ours, theirs, x, call={"is_causal": True}, attn_mask=future)
    assert torch.equal(pair(causal=True)[0](x)[0], found)


def test_key_padding_mask():
    """True means ignore; padded rows get no attention, only the output's bias."""
    ours, theirs = pair()
    x = torch.randn(2, 30, 24)
    padding = torch.zeros(2, 30, dtype=torch.bool)
    padding[0, 22:] = True
    found = as_theirs(ours, theirs, x, ~padding, {"key_padding_mask": padding},
                      key_padding_mask=padding)
    assert torch.equal(found[padding], ours.out_proj.bias.expand(8, 24))
    added = torch.zeros(2, 30).masked_fill(padding, float("-inf"))
    assert torch.equal(ours(x, key_padding_mask=added)[0], found)


@pytest.mark.parametrize("training", [True, False])
def test_inside_encoder_layer(training):
    """nn.TransformerEncoderLayer calls the module, in its inference path too (which would take the
    weights and compute full attention)."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, batch_first=True)
    ours = htransformer.HAttention(24, 4, batch_first=True, block=4)
    ours.load_state_dict(layer.self_attn.state_dict())
    x = torch.randn(2, 40, 24)
    padding = torch.zeros(2, 40, dtype=torch.bool)
    padding[1, 30:] = True
    layer.self_attn = ours
    layer.train(training)
    with torch.no_grad():
        for options, call in (({}, {}), ({"src_key_padding_mask": padding},
                                         {"key_padding_mask": padding})):
            y = layer.norm1(x + ours(x, **call)[0])
            want = layer.norm2(y + layer.linear2(torch.relu(layer.linear1(y))))
            assert torch.equal(layer(x, **options), want)


def test_linear_cost_options_reach_the_attention():
    x = torch.randn(1, 64, 24)
    outs = [pair(block=4, **options)[0](x)[0] for options in
            ({}, {"mode": "fine"}, {"kind": "local"}, {"kind": "full"}, {"rotary_theta": 100.0},
             {"scale": 0.1})]
    for i, a in enumerate(outs):
        for b in outs[:i]:
            assert not torch.allclose(a, b)
    as_theirs(*pair(block=4, kind="full"), x)


def test_relative_bias_is_learned():
    torch.manual_seed(0)
    ours = htransformer.HAttention(24, 4, batch_first=True, block=4, relative_bias=True)
    assert ours.relative_bias.shape == (15, 4)
    x = torch.randn(1, 40, 24)
    ours(x)[0].square().sum().backward()
    assert ours.relative_bias.grad.abs().max() > 0
    plain = htransformer.HAttention(24, 4, batch_first=True, block=4)
    plain.load_state_dict(ours.state_dict(), strict=False)
    assert torch.equal(plain(x)[0], ours(x)[0])  # the table is zero at first
    nn.init.normal_(ours.relative_bias)
    assert not torch.allclose(plain(x)[0], ours(x)[0])


def test_dropout_only_in_training():
    torch.manual_seed(0)
    ours = htransformer.HAttention(24, 4, dropout=0.4, batch_first=True)
    x = torch.randn(1, 40, 24)
    assert not torch.equal(ours(x)[0], ours(x)[0])
    ours.eval()
    assert torch.equal(ours(x)[0], ours(x)[0])


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("query", ["first", "fine"])
def test_decoding(batch_first, query):
    """Chunk by chunk in float32 is as close to float64 as the full pass is (or twice that)."""
    torch.manual_seed(0)
    ours = htransformer.HAttention(24, 4, batch_first=batch_first, block=4, causal=True,
                                   mode=query, rotary_theta=1e4, relative_bias=True).eval()
    nn.init.normal_(ours.relative_bias)
    x = torch.randn((2, 50, 24) if batch_first else (50, 2, 24))
    cache = ours.new_cache(2)
    dim = 1 if batch_first else 0
    parts = [ours(x.narrow(dim, 0, 37), cache=cache)[0]]
    parts += [ours(x.narrow(dim, t, 1), cache=cache)[0] for t in range(37, 50)]
    exact = copy.deepcopy(ours).double()(x.double())[0]
    oracle_torch.check(torch.cat(parts, dim), exact, ours(x)[0])
    assert cache.position(1) == 50


def test_copies_and_state():
    ours, _ = pair(block=4)
    x = torch.randn(1, 30, 24)
    assert torch.equal(copy.deepcopy(ours)(x)[0], ours(x)[0])
    assert "block=4" in repr(ours)
    names = set(ours.state_dict())
    assert names == set(nn.MultiheadAttention(24, 4).state_dict())


def test_bad_arguments():
    make = htransformer.HAttention
    ours, x = make(24, 4), torch.zeros(5, 2, 24)
    bad = [
        (lambda: make(24, 5), r"num_heads must divide embed_dim \(24\), got 5"),
        (lambda: make(24, 4, add_bias_kv=True), "add_bias_kv is not supported"),
        (lambda: make(24, 4, kdim=12), r"kdim must be embed_dim \(24\)"),
        (lambda: make(24, 4, dropout=1.0), r"dropout must be in \[0, 1\), got 1.0"),
        (lambda: make(24, 4, mode="last"), "mode must be one of"),
        (lambda: ours(x, x, x, need_weights=True), "need_weights must be False"),
        (lambda: ours(x, x, x, attn_mask=torch.zeros(5, 5)), "attn_mask is not supported"),
        (lambda: ours(x, x + 1, x), "key and value must be None or the query itself"),
        (lambda: ours(torch.zeros(5, 2, 23)), "with embed_dim 24, got shape"),
        (lambda: ours(x, key_padding_mask=torch.zeros(5, 2, dtype=torch.bool)),
         r"key_padding_mask must have shape \(2, 5\), got \(5, 2\)"),
        (lambda: ours(x, key_padding_mask=torch.ones(2, 5)), "must be 0 or -inf"),
        (lambda: ours(x, key_padding_mask=torch.ones(2, 5, dtype=torch.long)),
         "must be bool or float"),
    ]
    for call, sentence in bad:
        with pytest.raises(ValueError, match=sentence):
            call()
