#!/usr/bin/env python3
"""Single-stream generation, ours and PyTorch's: the same sizes, precision and cores.

    python3 bench/generate_vs_pytorch.py [--program build/htransformer] [--preset lm/tiny]
                                         [--context 4096] [--tokens 64] [--threads N] [--rounds 5]
                                         [--json]

PyTorch runs eagerly with a growing KV cache (torch.cat per layer and token) and rotary positions;
ours runs the preset as it is, hierarchical, and once with full attention, which is the same
arithmetic as PyTorch's. Rounds are interleaved; times are medians of tokens after a prompt of
--context bytes, greedy. Before that both go on with a short prompt from the same weights with full
attention: the log probabilities of what they say must agree.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import numpy
import torch
import torch.nn.functional as F


def weights_of(path):
    """Tensors and configuration of a safetensors file of ours."""
    raw = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    config = json.loads(header.pop("__metadata__")["htransformer"])
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + at for at in entry["data_offsets"])
        array = numpy.frombuffer(raw[begin:end], numpy.float32).reshape(entry["shape"]).copy()
        tensors[name] = torch.from_numpy(array)
    return tensors, config


def attention(q, k, v):
    """Causal attention of the last rows; by PyTorch's own function where it has one."""
    rows, keys = q.shape[1], k.shape[1]
    mask = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows) if rows > 1 else None
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)[0]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return torch.softmax(scores, -1) @ v


class Model:
    """A decoder with rotary positions and a KV cache, as one writes it in PyTorch."""

    def __init__(self, path):
        self.w, c = weights_of(path)
        self.layers, self.heads, self.width = int(c["layers"]), int(c["heads"]), int(c["width"])
        self.size = self.width // self.heads
        self.eps = c["norm_epsilon"]
        rates = c["rotary_theta"] ** (-torch.arange(0, self.size, 2).double() / self.size)
        self.rates = rates
        self.reset()

    def reset(self):
        self.cache = [None] * self.layers
        self.position = 0

    def turn(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def norm(self, x, name):
        return F.layer_norm(x, (self.width,), self.w[name + ".weight"], self.w[name + ".bias"],
                            self.eps)

    def attend(self, x, layer, cos, sin):
        rows = x.shape[0]
        qkv = x @ self.w[f"layers.{layer}.attention.qkv.weight"].T
        q, k, v = qkv.view(rows, 3, self.heads, self.size).permute(1, 2, 0, 3)
        q, k = self.turn(q, cos, sin), self.turn(k, cos, sin)
        if self.cache[layer] is not None:
            k = torch.cat([self.cache[layer][0], k], 1)
            v = torch.cat([self.cache[layer][1], v], 1)
        self.cache[layer] = (k, v)
        z = attention(q, k, v)
        z = z.transpose(0, 1).reshape(rows, self.width)
        return z @ self.w[f"layers.{layer}.attention.output.weight"].T

    def __call__(self, tokens):
        """Logits after the last of the tokens."""
        x = self.w["embed.tokens.weight"][tokens]
        t = torch.arange(self.position, self.position + len(tokens)).double()[:, None] * self.rates
        cos, sin = t.cos().float(), t.sin().float()
        for i in range(self.layers):
            x = x + self.attend(self.norm(x, f"layers.{i}.norm1"), i, cos, sin)
            h = self.norm(x, f"layers.{i}.norm2")
            h = h @ self.w[f"layers.{i}.mlp.up.weight"].T + self.w[f"layers.{i}.mlp.up.bias"]
            h = F.gelu(h, approximate="tanh") @ self.w[f"layers.{i}.mlp.down.weight"].T
            x = x + h + self.w[f"layers.{i}.mlp.down.bias"]
        self.position += len(tokens)
        out = self.w.get("output.weight", self.w["embed.tokens.weight"])
        return self.norm(x[-1], "norm") @ out.T


def torch_generate(model, prompt, count):
    """Tokens, their log probabilities, seconds per token after the prompt."""
    with torch.no_grad():
        model.reset()
        tokens = torch.tensor([0] + [b + 1 for b in prompt])
        for chunk in tokens.split(512):
            logits = model(chunk)
        said, logprobs, times = [], [], []
        for _ in range(count):
            start = time.perf_counter()
            token = int(logits.argmax())
            logprobs.append(float(logits.log_softmax(-1)[token]))
            logits = model(torch.tensor([token]))
            times.append(time.perf_counter() - start)
            said.append(token)
    return said, logprobs, times


def ours(options, run, prompt, count, *more):
    command = [options.program, "generate", str(run), "--prompt", prompt, "--tokens", str(count),
               "--temperature", "0", "--endless", "--threads", str(options.threads), *more]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def make_run(options, folder, name, *more):
    text = folder / "text"
    text.write_text("to be, or not to be: " * 200)
    subprocess.run([options.program, "train", "--run", str(folder / name), "--preset",
                    options.preset, "--data", str(text), "--steps", "0", "--embed_std", "0.5",
                    "--length", "64", "--batch", "1", "--quiet", *more], check=True)
    return folder / name / "step-000000000.safetensors"


def check(options, full, model):
    """The same weights, full attention: both say the same with the same log probabilities."""
    prompt = "the same words for both of them"
    said, want, _ = torch_generate(model, prompt.encode(), 40)
    lines = ours(options, full, prompt, 40, "--logprobs").splitlines()
    got = [(float(a), int(b)) for a, b, *_ in (line.split("\t") for line in lines)]
    for i, (token, logprob) in enumerate(zip(said, want)):
        if got[i][1] != token or abs(got[i][0] - logprob) > 2e-3:
            sys.exit(f"token {i}: PyTorch {token} {logprob:.4f}, ours {got[i][1]} {got[i][0]:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/htransformer")
    parser.add_argument("--preset", default="lm/tiny")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        tree = make_run(options, folder, "tree")
        full = make_run(options, folder, "full", "--attention", "full", "--rotary", "all")
        model = Model(full)
        check(options, full, model)
        prompt = ("all the world's a stage, and all the men and women merely players. "
                  * (options.context // 60 + 1))[: options.context - 1]
        rates = {"pytorch": [], "full": [], "hierarchical": []}
        for _ in range(options.rounds):
            _, _, times = torch_generate(model, prompt.encode(), options.tokens)
            rates["pytorch"].append(1 / statistics.median(times))
            for name, run in (("full", full), ("hierarchical", tree)):
                out = json.loads(ours(options, run, prompt, options.tokens, "--json"))
                rates[name].append(out["tokens_per_s"])
    median = {name: statistics.median(list_) for name, list_ in rates.items()}
    ratio = median["hierarchical"] / median["pytorch"]
    if options.json:
        print(json.dumps({"preset": options.preset, "context": options.context,
                          "threads": options.threads, "rounds": options.rounds,
                          **{name + "_tokens_per_s": rate for name, rate in median.items()},
                          "ratio": ratio}))
        return
    print(f"{options.preset}, context {options.context}, {options.threads} threads, medians of "
          f"{options.rounds} rounds")
    for name, rate in median.items():
        spread = (min(rates[name]), max(rates[name]))
        print(f"  {name:13} {rate:9.0f} tokens/s ({spread[0]:.0f} to {spread[1]:.0f})")
    print(f"  hierarchical / PyTorch eager: {ratio:.1f}")


if __name__ == "__main__":
    main()
