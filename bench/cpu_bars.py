#!/usr/bin/env python3
"""The numbers that the CPU kernels are held to, each beside its bar.

Runs `htransformer bench` (rates against the best sgemm of the run, scaling, threads, decoding),
reads workspace sizes from plans, and times the hierarchical attention written in PyTorch operations
in this process, interleaved with ours on the same tensors and threads. Ratios are taken inside one
run each and the median of --rounds runs is printed, with all of them behind it.

    bench/cpu_bars.py [--rounds 5] [--parts rate,full,...] [--build build] [--device cpu]

Shape: 8 heads, head_dim 64, block 16, float32, 2 threads. Returns 0, 1 if a bar was not met.
"""
import argparse
import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PARTS = ["rate", "full", "eager", "scaling", "threads", "memory", "decode", "open"]
HEADS, DIM, BLOCK, THREADS, MILLION = 8, 64, 16, 2, 1 << 20


class Bars:
    """Prints lines and remembers whether all were met."""

    def __init__(self, options):
        self.o, self.failed = options, 0
        self.program = os.path.join(ROOT, options.build, "htransformer")
        print("%-52s %9s %9s  %s" % ("what", "bar", "measured", "met   (all runs)"))

    def line(self, what, found, bar, at_least):
        value = statistics.median(found)
        met = value >= bar if at_least else value <= bar
        self.failed += not met
        runs = " ".join("%.4g" % x for x in found) if len(found) > 1 else ""
        print("%-52s %2s %6.4g %9.4g  %-4s  %s" % (what, ">=" if at_least else "<=", bar, value,
                                                  "yes" if met else "NO", runs), flush=True)

    def bench(self, what, *arguments):
        """The lines of one benchmark: {(what, length): members}."""
        command = [self.program, "bench", what, "--json", "--device", self.o.device, *arguments]
        if "--threads" not in arguments:
            command += ["--threads", str(THREADS)]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = [json.loads(line) for line in lines.splitlines()]
        return {(x["what"], x["length"]): x for x in found}

    def rounds(self, what, *arguments):
        return [self.bench(what, *arguments) for _ in range(self.o.rounds)]

    # ---- the parts ----

    def rate(self):
        runs = self.rounds("attention", "--query", "mean", "--length", "16384")
        for what, bar in (("forward", 0.45), ("backward", 0.35)):
            found = [x[what, 16384]["ratio_to_sgemm"] for x in runs]
            self.line("%s, mean, L 16,384, over sgemm" % what, found, bar, True)

    def full(self):
        runs = self.rounds("attention", "--kind", "full", "--length", "4096")
        found = [x["forward", 4096]["ratio_to_sgemm"] for x in runs]
        self.line("forward, full, L 4,096, over sgemm", found, 0.5, True)

    def scaling(self):
        for query, more in (("mean", []), ("first", ["--causal"])):
            runs = self.rounds("attention", "--query", query, "--length", "16384,131072",
                               "--repeat", "5", *more)
            for what in ("forward", "backward"):
                found = [x[what, 131072]["ms"] / x[what, 16384]["ms"] for x in runs]
                self.line("%s, %s, L 131,072 over L 16,384" % (what, query), found, 9.5, False)

    def threads(self):
        found = []
        for _ in range(self.o.rounds):
            one, two = (self.bench("attention", "--query", "mean", "--length", "16384",
                                   "--threads", str(n)) for n in (1, 2))
            found.append(one["forward", 16384]["ms"] / two["forward", 16384]["ms"])
        self.line("forward, mean, L 16,384: one thread over two", found, 1.8, True)

    def memory(self):
        plan = library().plan_module
        for query, causal in (("mean", 0), ("first", 1), ("fine", 1)):
            need = plan_need(plan, self.o.device, query, causal, MILLION)
            inputs = 3 * MILLION * HEADS * DIM * 4
            for what, scratch in (("forward", need.scratch_forward),
                                  ("backward", need.scratch_backward)):
                self.line("%s, %s, L 1,048,576: saved + scratch over qkv" % (what, query),
                          [(need.saved + scratch) / inputs], 3, False)

    def decode(self):
        for query, bar in (("first", 1.3), ("fine", 2.0)):
            found = []
            for _ in range(min(self.o.rounds, 3)):
                x = self.bench("decode", "--query", query, "--length", "4096,1048576")
                long, short = x["decode", MILLION], x["decode", 4096]
                found.append(long["us_per_token"] / short["us_per_token"])
            self.line("decode, %s, context 1,048,576 over 4,096" % query, found, bar, False)
            print("%-52s %.3g us, %.3g us" % ("    per token, the last run",
                                              short["us_per_token"], long["us_per_token"]))
        self.line("decode, rows of state at context 1,048,576", [long["state_rows"]],
                  2 * BLOCK * 16, False)

    def open(self):
        """Rows are random, so that neighbours choose different clusters: the slowest case."""
        faster, longer, later = [], [], []
        for _ in range(self.o.rounds):
            full = self.bench("attention", "--kind", "full", "--causal", "--length", "16384",
                              "--repeat", "1")
            x = self.bench("attention", "--causal", "--open", "8", "--length", "16384,65536",
                           "--repeat", "1")
            faster.append(full["forward", 16384]["ms"] / x["forward", 16384]["ms"])
            longer.append(x["forward", 65536]["ms"] / x["forward", 16384]["ms"] / 4)
        for _ in range(min(self.o.rounds, 3)):  # two heads: a context of a million takes 6 GiB
            x = self.bench("decode", "--open", "8", "--heads", "2", "--length", "4096,1048576",
                           "--threads", "1")
            later.append(x["decode", 4096]["us_per_token"] / x["decode", MILLION]["us_per_token"])
        self.line("full over open 8, causal, forward, L 16,384", faster, 8, True)
        self.line("open 8, a row at L 65,536 over one at 16,384", longer, 1.3, False)
        self.line("decode, open 8, tokens/s at 1,048,576 over 4,096", later, 0.4, True)

    def eager(self):
        if importlib.util.find_spec("torch") is None:
            print("eager left out: %s has no PyTorch" % sys.executable)
            return
        import torch
        torch.set_num_threads(THREADS)
        length = 16384
        q, k, v = (torch.randn(1, length, HEADS, DIM) for _ in range(3))
        ours = library().attention
        peer = eager_mean(torch)
        found, spent = [], {}
        for _ in range(self.o.rounds):
            for name, work in (("ours", ours), ("eager", peer)):
                samples = []
                for _ in range(5):
                    begin = time.perf_counter()
                    z = work(q, k, v)
                    samples.append(time.perf_counter() - begin)
                spent[name] = statistics.median(samples), z
            found.append(spent["eager"][0] / spent["ours"][0])
        apart = (spent["eager"][1] - spent["ours"][1]).abs().max().item()
        self.line("PyTorch %s eager over ours, forward, L 16,384" % torch.__version__, found, 6,
                  True)
        print("%-52s %.4g ms, %.4g ms; results differ by %.1e" %
              ("    eager, ours, the last run", 1e3 * spent["eager"][0], 1e3 * spent["ours"][0],
               apart))
        self.failed += not apart < 1e-4


def library():
    """The Python package of this tree on the library of the build."""
    sys.path[:0] = [os.path.join(ROOT, "python")]
    import htransformer
    from htransformer import _plan
    htransformer.plan_module = _plan
    return htransformer


def plan_need(module, device, query, causal, length):
    from ctypes import byref, c_void_p, sizeof
    lib = module._library.library()
    context = module.context(device, 0, THREADS)
    desc = module.AttentionDesc(size=sizeof(module.AttentionDesc),
                                query=("auto", "mean", "first", "fine").index(query), causal=causal,
                                q_heads=HEADS, head_dim=DIM, block=BLOCK, max_rows=length,
                                max_sequences=1)
    need = module.AttentionNeed(size=sizeof(module.AttentionNeed))
    plan = c_void_p()
    context.call(lib.ht_attention_create, byref(plan), context.handle, byref(desc))
    context.call(lib.ht_attention_get_need, plan, byref(need))
    lib.ht_attention_destroy(plan)
    return need


def eager_mean(torch):
    """Mode mean in plain PyTorch operations, for lengths BLOCK * 2^m: blocks against their
    neighbours level by level, one softmax over all."""

    def neighbours(x, own):
        """[H, blocks, n, d] beside its left and right blocks, zeros at the ends."""
        none = torch.zeros_like(x[:, :1])
        left, right = torch.cat([none, x[:, :-1]], 1), torch.cat([x[:, 1:], none], 1)
        return torch.cat([left, x, right] if own else [left, right], 2)

    @functools.lru_cache(None)
    def mask(blocks, own):
        seen = torch.ones(blocks, BLOCK, (3 if own else 2) * BLOCK, dtype=torch.bool)
        seen[0, :, :BLOCK] = False
        seen[-1, :, -BLOCK:] = False
        if not own:  # the quarters that the level below has covered
            half = BLOCK // 2
            seen[:, :half, half:BLOCK] = False
            seen[:, half:, BLOCK:BLOCK + half] = False
        return torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)

    def level(q, k, v, log_n, own):
        """Maximum, sum and numerator of every row of a level; q, k, v: [H, rows, d]."""
        heads, rows, dim = q.shape
        blocks = rows // BLOCK
        q, k, v = (x.view(heads, blocks, BLOCK, dim) for x in (q, k, v))
        s = q @ neighbours(k, own).transpose(-1, -2) + mask(blocks, own)
        top = s.amax(-1, keepdim=True).clamp_min_(-1e30)
        p = torch.exp_(s.sub_(top))
        z = p @ neighbours(v, own)
        total = p.sum(-1, keepdim=True)
        return [x.reshape(heads, rows, -1) for x in (top + log_n, total, z)]

    def run(q, k, v):
        with torch.no_grad():
            q, k, v = (x[0].transpose(0, 1).contiguous() for x in (q, k, v))
            q = q * DIM**-0.5
            states, own = [], True
            while True:
                states.append(level(q, k, v, float(len(states)) * 0.6931471805599453, own))
                if q.shape[1] <= 2 * BLOCK:
                    break
                q, k, v = (x.view(x.shape[0], -1, 2, x.shape[2]).mean(2) for x in (q, k, v))
                own = False
            top, total, z = states.pop()
            while states:
                top, total, z = (x.repeat_interleave(2, 1) for x in (top, total, z))
                fine_top, fine_total, fine_z = states.pop()
                both = torch.maximum(top, fine_top)
                a, b = torch.exp(top - both), torch.exp(fine_top - both)
                top, total, z = both, total * a + fine_total * b, z * a + fine_z * b
            return (z / total).transpose(0, 1)[None]

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument("--build", default="build", help="folder with the built program")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    os.environ.setdefault("HTRANSFORMER_LIBRARY",
                          os.path.join(ROOT, options.build, "libhtransformer.so"))
    os.environ["HTRANSFORMER_DEVICE"] = options.device
    bars = Bars(options)
    for part in options.parts.split(","):
        if part not in PARTS:
            parser.error("no part %r" % part)
        getattr(bars, part)()
    return 1 if bars.failed else 0


if __name__ == "__main__":
    sys.exit(main())
