#!/usr/bin/env python3
"""What the way through Python costs: on a GPU beside PyTorch's own attention.

    host       microseconds until a call comes back to Python (the GPU works on behind it): query
               `mean`, one sequence of 1,024 rows, 8 heads of 64, bf16; beside SDPA with flash,
               in turns. `forward` without gradients, `recorded` the same call where they are
               wanted, `both` with the backward pass
    compile    milliseconds of a training step (forward, backward, AdamW) of an encoder of 4
               layers at length 4,096, by torch.compile(fullgraph=True) and eager, with our
               operator in both
    jax        our call under jax.jit, on JAX's first device, against the same arrays in PyTorch

Times are medians of interleaved samples. On a CPU (--device cpu) sizes are small and flash is what
SDPA takes; that says whether the script works, not how fast anything is.

    bench/python_vs_pytorch.py [--device cpu] [--cases host,compile,jax] [--json FILE]

Returns 0, 1 if a part failed or a bar was missed on a GPU, 77 without PyTorch.
"""
import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import sys
import time
import traceback

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("numpy") is None:
    print("skipped: %s has no PyTorch or no NumPy" % sys.executable)
    sys.exit(77)

# before JAX is imported: it must leave memory to PyTorch
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import torch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "python")]
import htransformer

BARS = {"forward": 25.0, "recorded": 45.0, "compiled / eager": 1.0}


def line(*words):
    print("  ".join(str(word) for word in words), flush=True)


def in_turns(contenders, samples, sample):
    """{name: median of sample(work)} of contenders {name: work}, one after the other each time."""
    times = {name: [] for name in contenders}
    for round_ in range(samples + 2):
        for name, work in contenders.items():
            spent = sample(work)
            if round_ >= 2:  # the first rounds warm up
                times[name].append(spent)
    return {name: statistics.median(found) for name, found in times.items()}


# ---- host ---------------------------------------------------------------------------------------


def host_sample(device, calls):
    """Microseconds per call as the host sees it; the device never falls so far behind that the
    host must wait for room in its queue."""
    def sample(work):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        return 1e6 * (time.perf_counter() - begin) / calls
    return sample


def flash(device):
    if device != "cuda":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel
    return sdpa_kernel(SDPBackend.FLASH_ATTENTION)


def case_host(device):
    length, dtype = (1024, torch.bfloat16) if device == "cuda" else (64, torch.float32)
    q, k, v = (torch.randn(1, 8, length, 64, device=device, dtype=dtype) for _ in range(3))
    flat = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    theirs = torch.nn.functional.scaled_dot_product_attention

    def works(grad):
        a, b = ([x.detach().requires_grad_(grad) for x in xs] for xs in ((q, k, v), flat))
        dz, dflat = torch.randn_like(q), torch.randn_like(flat[0])
        return {
            "ours": lambda: htransformer.attention(*b, mode="mean"),
            "ours, SDPA's layout": lambda: htransformer.scaled_dot_product_attention(*a),
            "flash": lambda: theirs(*a),
        }, {
            "ours": lambda: torch.autograd.grad(htransformer.attention(*b, mode="mean"), b, dflat),
            "ours, SDPA's layout": lambda: torch.autograd.grad(
                htransformer.scaled_dot_product_attention(*a), a, dz),
            "flash": lambda: torch.autograd.grad(theirs(*a), a, dz),
        }

    sample, found = host_sample(device, 50), {}
    with flash(device):
        found["forward"] = in_turns(works(False)[0], 40, sample)
        found["recorded"], found["both"] = (in_turns(w, 40, sample) for w in works(True))
    names = list(found["forward"])
    line("host, us ", *("%-20s" % name for name in names), "bar")
    for what, times in found.items():
        line("%-9s" % what, *("%-20.1f" % times[name] for name in names), BARS.get(what, ""))
    missed = [what for what in found if what in BARS and found[what]["ours"] > BARS[what]]
    return {what: found[what] for what in found}, missed


# ---- compile ------------------------------------------------------------------------------------


class Layer(torch.nn.Module):
    """Pre-norm, with our attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.one, self.two = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attention = htransformer.HAttention(width, heads, batch_first=True)
        self.rest = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(),
                                        torch.nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.one(x))[0]
        return x + self.rest(self.two(x))


def stepper(model, x, **how):
    """One training step of the model."""
    run = torch.compile(model, fullgraph=True, **how) if how else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=x.is_cuda)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            loss = run(x).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()
    return step


def step_sample(device):
    def sample(work):
        begin = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin)
    return sample


def case_compile(device):
    batch, length, width = (8, 4096, 512) if device == "cuda" else (1, 64, 32)
    made = {}
    for name, how in (("eager", {}), ("compiled", {"dynamic": False}),
                      ("any length", {"dynamic": True})):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[Layer(width, 8) for _ in range(4)]).to(device)
        made[name] = stepper(model, torch.randn(batch, length, width, device=device), **how)
    losses = {name: [step().item() for _ in range(3)] for name, step in made.items()}
    times = in_turns(made, 20 if device == "cuda" else 3, step_sample(device))
    for name, found in times.items():
        line("step, ms ", "%-12s" % name, "%8.3f" % found, " / eager %.3f" %
             (found / times["eager"]), " losses", *("%.5f" % x for x in losses[name]))
    ratio = times["compiled"] / times["eager"]
    for name in made:
        for a, b in zip(losses[name], losses["eager"]):
            assert abs(a - b) <= 0.02 * abs(b), (name, losses)
    return dict(times, losses=losses), ["compiled / eager"] * (ratio > BARS["compiled / eager"])


# ---- JAX ----------------------------------------------------------------------------------------


def case_jax(device):
    if importlib.util.find_spec("jax") is None:
        line("jax: not installed")
        return {}, []
    import jax
    import jax.numpy as jnp
    import numpy as np
    import htransformer.jax
    where = jax.devices("cpu" if device == "cpu" else None)[0]
    length = 4096 if where.platform != "cpu" else 256
    made = np.random.default_rng(1).standard_normal((4, 1, length, 8, 64), np.float32)

    def run(q, k, v):
        return htransformer.jax.attention(q, k, v, causal=True)

    def both(q, k, v, dz):
        z, vjp = jax.vjp(run, q, k, v)
        return (z, *vjp(dz))

    with jax.default_device(where):
        arrays = [jnp.asarray(x) for x in made]
        found = [np.asarray(x) for x in jax.jit(both)(*arrays)]
        q, k, v = (torch.tensor(x, device=device).requires_grad_() for x in made[:3])
        z = htransformer.attention(q, k, v, causal=True)
        grads = torch.autograd.grad(z, (q, k, v), torch.tensor(made[3], device=device))
        want = [x.detach().cpu().numpy() for x in (z, *grads)]
        off = [float(np.abs(a - b).max()) for a, b in zip(found, want)]
        forward, step, done = jax.jit(run), jax.jit(both), jax.block_until_ready
        narrow = [x.astype(jnp.bfloat16) for x in arrays]
        times = in_turns({"forward": lambda: done(forward(*narrow[:3])),
                          "both": lambda: done(step(*narrow))}, 20, step_sample("cpu"))
    line("jax on %s (%s): largest difference from PyTorch's z, dq, dk, dv:" %
         (where.platform, where.device_kind), *("%.1e" % x for x in off))
    line("jax, bf16, ms: forward %.3f, both %.3f" % (times["forward"], times["both"]))
    same = where.platform == "cpu" and device == "cpu" or where.platform != "cpu"
    assert max(off) == 0 or not same, off
    return dict(times, differences=off), []


# ---- all ----------------------------------------------------------------------------------------

CASES = {"host": case_host, "compile": case_compile, "jax": case_jax}


def main():
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu",
                       choices=["cuda", "cpu"])
    words.add_argument("--cases", default=",".join(CASES))
    words.add_argument("--json")
    given = words.parse_args()
    name = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    line("htransformer %s, PyTorch %s, %s" % (htransformer.version(), torch.__version__, name))
    results, failed = {}, 0
    for case in given.cases.split(","):
        try:
            results[case], missed = CASES[case](given.device)
            for bar in missed if given.device == "cuda" else []:
                line("%s: bar missed: %s" % (case, bar))
                failed = 1
        except Exception:
            traceback.print_exc()
            failed = 1
    if given.json:
        with open(given.json, "w") as file:
            json.dump(results, file, indent=1)
    return failed


if __name__ == "__main__":
    sys.exit(main())
