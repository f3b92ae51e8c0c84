"""htransformer in Hugging Face's models, built from their configs: against `eager`, trained,
sampled with a cache and without."""
import os

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from transformers import (AutoModelForCausalLM, BertConfig, BertModel, DynamicCache, GPT2Config,
                          GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, T5Config, T5ForConditionalGeneration)

import htransformer
import htransformer.transformers as ours

torch.set_num_threads(1)
ours.register()
ours.register("htransformer-wide", block=64)
transformers.logging.set_verbosity_error()
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
LLAMA = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
         "pad_token_id": 0, "eos_token_id": None, "bos_token_id": 1}


def llama(implementation="htransformer", dtype=torch.float32, **more):
    torch.manual_seed(0)
    return LlamaForCausalLM._from_config(LlamaConfig(**{**LLAMA, **more}),
                                         attn_implementation=implementation).to(dtype)


def text():
    with open(os.path.join(ROOT, "docs", "attention.md"), "rb") as file:
        return torch.tensor([b for b in file.read() if b < 128])


def windows(steps, batch, length):
    torch.manual_seed(1)
    data = text()
    for _ in range(steps):
        at = torch.randint(0, len(data) - length, (batch,))
        yield torch.stack([data[i:i + length] for i in at])


def train(model, steps, batch, length, rate=3e-3):
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=rate), []
    for x in windows(steps, batch, length):
        optimizer.zero_grad()
        loss = model(x, labels=x, use_cache=False).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


# ---- against eager -----------------------------------------------------------------------------


def test_training_is_eagers_where_the_block_is_large():
    """Losses of 20 steps: not further from eager in float64 than eager in float32 is, twice."""
    found = train(llama("htransformer-wide"), 20, 4, 120)
    plain, exact = (train(llama("eager", dtype), 20, 4, 120)
                    for dtype in (torch.float32, torch.float64))
    bound = 2 * (plain - exact).abs().max() + 4 * torch.finfo(torch.float32).eps * exact.max()
    assert (found - exact).abs().max() <= bound


def close(found, want):
    assert torch.allclose(found, want, rtol=1e-4, atol=1e-5)


def test_other_models():
    x = torch.randint(1, 128, (2, 50))
    torch.manual_seed(0)
    gpt = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=64, n_embd=32, n_layer=2,
                                     n_head=2)).eval()
    bert = BertModel(BertConfig(vocab_size=128, hidden_size=32, num_hidden_layers=2,
                                num_attention_heads=2, intermediate_size=64)).eval()
    mask = torch.ones_like(x)
    mask[0, 30:] = 0  # of an encoder, on the right
    for model, more in ((gpt, {}), (bert, {"attention_mask": mask})):
        results = []
        for name in ("eager", "htransformer-wide"):
            model.set_attn_implementation(name)
            results.append(model(x, **more)[0])
        close(results[1][mask.bool()], results[0][mask.bool()])


# ---- trained and sampled -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained():
    model = llama(htransformer={"block": 16})
    losses = train(model, 200, 2, 128, 5e-3)
    return model.eval(), losses


def test_loss_falls(trained):
    _, losses = trained
    assert losses[-20:].mean() < 0.75 * losses[:5].mean() and losses.isfinite().all()


def generate(model, x, tokens=48, **more):
    return model.generate(x, max_new_tokens=tokens, do_sample=False, **more)[:, x.shape[1]:]


def test_sampling_with_a_cache_is_sampling_without(trained):
    """No cache, ours, Transformers' own: the same tokens at temperature 0."""
    model, _ = trained
    x = text()[100:260].view(2, 80)
    mask = torch.ones_like(x)
    want = generate(model, x, attention_mask=mask, use_cache=False)
    cache = ours.Cache(model.config)
    assert torch.equal(generate(model, x, attention_mask=mask, past_key_values=cache), want)
    assert torch.equal(generate(model, x, attention_mask=mask), want)
    assert cache.get_seq_length() == 80 + 47 and len(cache) == 4
    state = cache.layers[0].state
    assert state.rows(0) < 128  # not one per token


def test_logits_in_chunks(trained):
    model, _ = trained
    x = text()[:150][None]
    want, cache, found, at = model(x).logits, ours.Cache(), [], 0
    for n in (70, 1, 1, 40, 38):
        with torch.no_grad():
            found.append(model(x[:, at:at + n], past_key_values=cache).logits)
        at += n
    close(torch.cat(found, 1), want)


def test_padding_on_either_side(trained):
    """Prompts of several lengths together give what each gives alone."""
    model, _ = trained
    rows = [text()[a:b] for a, b in ((0, 60), (200, 233), (400, 447))]
    x, mask = torch.zeros(3, 60, dtype=torch.long), torch.zeros(3, 60, dtype=torch.long)
    for b, row in enumerate(rows):
        x[b, 60 - len(row):], mask[b, 60 - len(row):] = row, 1
    want = torch.cat([generate(model, row[None], attention_mask=torch.ones_like(row[None]),
                               use_cache=False) for row in rows])
    for cache in (ours.Cache(), DynamicCache(), None):
        more = {"use_cache": False} if cache is None else {"past_key_values": cache}
        assert torch.equal(generate(model, x, attention_mask=mask, **more), want)


def test_beams_and_repeats(trained):
    model, _ = trained
    x = text()[100:180].view(2, 40)
    mask = torch.ones_like(x)
    more = {"attention_mask": mask, "num_beams": 4, "num_return_sequences": 3}
    want = generate(model, x, 20, use_cache=False, **more)
    assert torch.equal(generate(model, x, 20, past_key_values=ours.Cache(), **more), want)
    cache = ours.Cache()
    with torch.no_grad():
        model(x[:, :30], past_key_values=cache)
        cache.batch_repeat_interleave(2)
        twice = model(x[:, 30:].repeat_interleave(2, 0), past_key_values=cache).logits
        assert torch.equal(twice[0], twice[1])
        close(twice[::2], model(x).logits[:, 30:])
        cache.batch_select_indices(torch.tensor([2, 0]))
        assert cache.batch_size == 2
        cache.reset()
        close(model(x, past_key_values=cache).logits, model(x).logits)


def test_open_goes_through():
    """With all clusters opened it is full attention."""
    x = text()[:120][None]
    want = llama("eager")(x).logits
    close(llama(htransformer={"block": 4, "open": 100, "open_leaf": 4})(x).logits, want)
    assert not torch.allclose(llama(htransformer={"block": 4})(x).logits, want, atol=1e-4)


def test_packed_sequences():
    model = llama(htransformer={"block": 4})
    parts = [text()[:23], text()[50:90]]
    cu = torch.tensor([0, 23, 63], dtype=torch.int32)
    position = torch.cat([torch.arange(len(part)) for part in parts])[None]
    found = model(torch.cat(parts)[None], position_ids=position, cu_seq_lens_q=cu, cu_seq_lens_k=cu,
                  max_length_q=40, max_length_k=40, use_cache=False).logits[0]
    close(found, torch.cat([model(part[None]).logits[0] for part in parts]))
    with pytest.raises(htransformer.UnsupportedError, match="position_ids of several packed"):
        model(torch.cat(parts)[None], position_ids=position, use_cache=False)


def test_saved_with_the_config(tmp_path):
    model, x = llama(htransformer={"block": 6}), text()[:60][None]
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="htransformer")
    assert again.config.htransformer == {"block": 6}
    assert torch.equal(again(x).logits, model(x).logits)


def test_compiled():
    torch._dynamo.reset()
    model = llama(htransformer={"block": 4})
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (40, 53):
        x = text()[:2 * length].view(2, length)
        close(compiled(x, use_cache=False).logits, model(x, use_cache=False).logits)
    several = torch.cat([torch.arange(30), torch.arange(23)]).expand(2, 53)
    with pytest.raises(RuntimeError, match="several packed sequences"):
        compiled(x, position_ids=several, use_cache=False)


def test_gradient_checkpointing():
    x, grads = text()[:80].view(2, 40), []
    for on in (False, True):
        model = llama(htransformer={"block": 4}).train()
        if on:
            model.gradient_checkpointing_enable()
        model(x, labels=x, use_cache=False).loss.backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads))


# ---- refusals ----------------------------------------------------------------------------------


def test_refusals(trained):
    model, _ = trained
    x = text()[:40][None]
    with pytest.raises(htransformer.InvalidError, match="no option 'blocks'"):
        ours.register("other", blocks=3)
    with pytest.raises(htransformer.InvalidError, match="block must be"):
        ours.register("other", block=0)
    with pytest.raises(htransformer.UnsupportedError, match="no gradients"):
        model(x, past_key_values=ours.Cache())
    with pytest.raises(htransformer.UnsupportedError, match="output_attentions"):
        model(x, output_attentions=True)
    with pytest.raises(htransformer.UnsupportedError, match="a mask of its own"):
        model(x, attention_mask=torch.ones(1, 1, 40, 40, dtype=torch.bool))
    with torch.no_grad():
        cache = ours.Cache()
        model(x, past_key_values=cache)
        with pytest.raises(htransformer.UnsupportedError, match="cannot be taken back by 3"):
            cache.crop(3)
        cache, other = ours.Cache(), llama("eager")
        other(x, past_key_values=cache)
        with pytest.raises(htransformer.UnsupportedError, match="no attention took them"):
            other(x, past_key_values=cache)
        with pytest.raises(htransformer.UnsupportedError, match="cache of fixed size"):
            generate(model, x, attention_mask=torch.ones_like(x), cache_implementation="static")


def test_other_models_refusals():
    x = text()[:40][None]
    small = {**LLAMA, "sliding_window": 16}
    mistral = MistralForCausalLM._from_config(MistralConfig(**small),
                                              attn_implementation="htransformer")
    with pytest.raises(htransformer.UnsupportedError, match="sliding window of 16|mask of its own"):
        mistral(x)
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=128, d_model=32, d_kv=8, d_ff=32,
                                             num_layers=1, num_heads=4))
    want = t5.eval()(input_ids=x, decoder_input_ids=x).logits
    try:
        t5.set_attn_implementation("htransformer")
        found = t5(input_ids=x, decoder_input_ids=x).logits
    except (htransformer.UnsupportedError, ValueError):
        return
    assert torch.equal(found, want)  # T5 of 5.17 keeps its own attention, whatever it is told
