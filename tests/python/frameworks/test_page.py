"""Every piece of Python on docs/python.md and README.md runs as it stands there, on the CPU, with
small things of the names that the page uses. Lines of a shell are tests/docs/commands.py's."""
import contextlib
import io
import os
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import htransformer  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
HERE = {"device": "cpu", "threads": 1}
TINY = {"layers": 1, "width": 16, "heads": 2, "hidden": 16, "length": 64, "batch": 4, **HERE}


def blocks():
    """{section: [lines of its code]} of the page."""
    found, code = {}, []
    with open(os.path.join(ROOT, "docs", "python.md")) as page:
        for line in page:
            if line.startswith("## "):
                code = found[line[3:].strip()] = []
            elif line.startswith("    ") and not line.startswith("    >>>"):
                code.append(line[4:])
    return {name: "".join(lines) for name, lines in found.items() if lines}


def run(section, dtype="bfloat16", **names):
    """The section's code, for the CPU; the names that it has then."""
    code = blocks()[section].replace('"cuda"', '"cpu"').replace("torch.bfloat16", "torch." + dtype)
    exec(compile(code, section, "exec"), names)
    return names


SECTIONS = {"One call", "Gradients", "Compiled, exported, nested", "JAX", "Transformers", "Models",
            "A layer", "Decoding"}
SHELL = {"Install", "Speed", "Tests", "Errors"}


def test_no_other_section_has_code():
    assert set(blocks()) == SECTIONS | SHELL


def test_one_call():
    names = run("One call", htransformer=htransformer)
    assert names["z"].shape == names["q"].shape == (2, 8, 8192, 64)  # PyTorch's layout, by then


def test_gradients():
    batch, length, heads, dim = 2, 40, 2, 8
    names = run("Gradients", htransformer=htransformer, batch=batch, length=length, heads=heads,
                dim=dim, x=torch.randn(batch, length, 16), projection=torch.nn.Linear(16, 48),
                **{name: np.ones((1, 24, 2, 8)) for name in ("q", "k", "v", "dz")})
    assert names["dq"].shape == (1, 24, 2, 8)


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.projection = torch.nn.Linear(16, 48)

    def forward(self, x):
        fused = self.projection(x).view(x.shape[0], x.shape[1], 3, 2, 8)
        return htransformer.attention_qkvpacked(fused, causal=True).flatten(2)


def test_compiled():
    if not hasattr(torch, "export") or not hasattr(torch.nested, "nested_tensor"):
        pytest.skip("a PyTorch without torch.export")
    x, model = torch.randn(2, 33, 16), Small()
    names = run("Compiled, exported, nested", htransformer=htransformer, torch=torch, model=model,
                attention=htransformer.attention, x=x,
                **{name: torch.randn(1, 40, 2, 8) for name in "qkv"})
    other = torch.randn(2, 50, 16)
    assert torch.allclose(names["program"].module()(other), model(other), atol=1e-6)
    assert torch.allclose(names["step"](other), model(other), atol=1e-6)
    assert names["z"].is_nested


def test_jax():
    jax = pytest.importorskip("jax")
    q, k, v = (jax.random.normal(jax.random.key(i), (1, 40, 2, 8)) for i in range(3))
    names = run("JAX", htransformer=htransformer, q=q, k=k, v=v)
    dq, dk, dv = names["gradient"](q, k, v)
    assert dq.shape == q.shape and dv.shape == v.shape
    assert names["many"](q[None], k[None], v[None]).shape == (1, *q.shape)


def test_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig

    def small(**words):
        return config(hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                      num_attention_heads=2, eos_token_id=None, **words)

    small_transformers = type("transformers", (), {
        "LlamaConfig": staticmethod(small),
        "AutoModelForCausalLM": transformers.AutoModelForCausalLM})
    run("Transformers", htransformer=htransformer, transformers=small_transformers,
        tokens=torch.ones(1, 5, dtype=torch.long))


def test_models(tmp_path, monkeypatch):
    pytest.importorskip("numpy")
    try:
        train = htransformer.train
        from htransformer import _models_library
        _models_library.models()
    except htransformer.LibraryError:
        pytest.skip("no library of models")
    monkeypatch.chdir(tmp_path)
    rows = "label,text\n" + "".join("%s,%s\n" % (("ham", "hello there"), ("spam", "buy now"))[i % 2]
                                    for i in range(60))
    for name in ("mail.csv", "more.csv"):
        (tmp_path / name).write_text(rows)
    train("mail.csv", run="run", steps=4, **TINY).close()
    monkeypatch.setenv("HTRANSFORMER_DEVICE", "cpu")
    monkeypatch.setattr(htransformer, "train",
                        lambda *data, **words: train(*data, **{
                            **words, **({} if words.get("resume") else TINY),
                            "steps": words["steps"] // 100}))
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        names = run("Models", htransformer=htransformer)
    assert names["rows"].shape[0] == 2 and len(said.getvalue()) > 200
    assert names["model"].labels == ["ham", "spam"]


def test_a_layer():
    multihead = torch.nn.MultiheadAttention(512, 8, batch_first=True)
    names = run("A layer", htransformer=htransformer, multihead_attention=multihead,
                x=torch.randn(1, 40, 512))
    assert names["y"].shape == (1, 40, 512)


def test_decoding():
    slots, heads, head_dim = 4, 4, 16

    def rows(batch, length, count):
        return torch.randn(batch, length, count, head_dim)

    names = {name + turn: (batch, length, 4 if name == "q" else 2) for name in "qkv"
             for turn, batch, length in (("", 4, 9), ("1", 4, 1), ("2", 1, 1))}
    done = run("Decoding", "float32", htransformer=htransformer, torch=torch, slots=slots,
               heads=heads, head_dim=head_dim,
               **{name: rows(*shape) for name, shape in names.items()})
    assert done["z"].shape == (1, 1, 4, 16) and done["cache"].position(3) == 11


def test_error():
    q = np.ones((1, 24, 2, 8), np.float32)
    with pytest.raises(htransformer.InvalidError, match="block must be even, got 7"):
        htransformer.attention(q, q, q, block=7)
    with open(os.path.join(ROOT, "docs", "python.md")) as page:
        assert re.search(r">>> htransformer.attention\(q, k, v, block=7\)\n.*InvalidError: block "
                         "must be even, got 7", page.read())
