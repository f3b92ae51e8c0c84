"""The CUDA cases of train_vs_pytorch.py: the same model, batch, precision and optimiser in PyTorch
(torch.compile, flash attention, fused AdamW, bf16 autocast) and here, in one process on one GPU.

PyTorch's attention is full, ours hierarchical: that is what is compared. Both sides get the batch
from host memory in every step; ours also waits for every step's loss, PyTorch's steps run ahead.
Times are medians over rounds that alternate between the two. Memory: ours is all that the library
holds on the device; PyTorch's is max_memory_allocated, without what its allocator keeps in reserve.
"""
import ctypes as c
import json
import math
import pathlib
import statistics
import time

import torch
import torch.nn.functional as F

# name: task, layers, width, heads, hidden, batch, length, vocabulary, largest allowed ratio
CASES = {
    "encoder-2k": ("classify", 6, 512, 8, 2048, 32, 2048, 256, 0.6),
    "encoder-4k": ("classify", 4, 256, 4, 1024, 32, 4096, 256, 0.4),
    "encoder-16k": ("classify", 4, 128, 4, 128, 16, 16384, 256, 0.1),
    "decoder-256": ("language", 6, 512, 8, 2048, 128, 256, 32768, 0.7),
    "decoder-16k": ("language", 6, 512, 8, 2048, 2, 16384, 32768, 0.4),
}


# ---- PyTorch -------------------------------------------------------------------------------------

class Block(torch.nn.Module):
    def __init__(self, width, heads, hidden, causal, drop):
        super().__init__()
        self.heads, self.causal, self.drop = heads, causal, drop
        self.norm1 = torch.nn.LayerNorm(width, eps=1e-6)
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.norm2 = torch.nn.LayerNorm(width, eps=1e-6)
        self.up = torch.nn.Linear(width, hidden)
        self.down = torch.nn.Linear(hidden, width)

    def forward(self, x):
        b, n, e = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, e // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + F.dropout(self.out(z.transpose(1, 2).reshape(b, n, e)), self.drop)
        y = F.dropout(F.gelu(self.up(self.norm2(x)), approximate="tanh"), self.drop)
        return x + F.dropout(self.down(y), self.drop)


class Network(torch.nn.Module):
    def __init__(self, case, drop):
        super().__init__()
        task, layers, width, heads, hidden, _, length, vocab, _ = case
        self.language, self.drop = task == "language", drop
        self.embed = torch.nn.Embedding(vocab, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads, hidden, self.language, drop)
                                          for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width, eps=1e-6)
        self.output = torch.nn.Linear(width, vocab if self.language else 10,
                                      bias=not self.language)
        t = torch.arange(length, dtype=torch.float64)[:, None]
        i = torch.arange(width)[None, :]
        angle = t * torch.pow(10000.0, -(i // 2 * 2).double() / width)
        table = torch.where(i % 2 == 0, angle.sin(), angle.cos()).float()
        self.register_buffer("positions", table)

    def forward(self, tokens, targets):
        x = F.dropout(self.embed(tokens) + self.positions, self.drop)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        logits = self.output(x if self.language else x.mean(1))
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


class Theirs:
    def __init__(self, case, tokens, targets, drop, compiled):
        torch.cuda.reset_peak_memory_stats()
        self.before = torch.cuda.memory_allocated()
        self.model = Network(case, drop).cuda()
        self.loss_of = torch.compile(self.model) if compiled else self.model
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-4, betas=(0.9, 0.98),
                                           eps=1e-9, weight_decay=0.1, fused=True)
        self.tokens, self.targets = tokens.pin_memory(), targets.pin_memory()

    def step(self):
        tokens = self.tokens.cuda(non_blocking=True)
        targets = self.targets.cuda(non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.loss_of(tokens, targets)
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return loss

    def run(self, steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start) / steps

    def bytes(self):
        return torch.cuda.max_memory_allocated() - self.before


# ---- ours: the C library by ctypes ---------------------------------------------------------------

class ContextDesc(c.Structure):
    _fields_ = [("size", c.c_size_t), ("device", c.c_char_p), ("threads", c.c_int),
                ("stream", c.c_void_p), ("allocator", c.c_void_p * 3)]


class TrainerDesc(c.Structure):
    _fields_ = [("size", c.c_size_t), ("config", c.c_void_p), ("inference", c.c_int)]


class Batch(c.Structure):
    _fields_ = [("size", c.c_size_t), ("sequences", c.c_int64), ("tokens", c.c_void_p),
                ("cu_seqlens", c.c_void_p), ("targets", c.c_void_p)]


class Report(c.Structure):
    _fields_ = [("size", c.c_size_t), ("loss", c.c_double), ("accuracy", c.c_double),
                ("targets", c.c_int64), ("correct", c.c_int64), ("tokens", c.c_int64),
                ("rate", c.c_double), ("gradient_norm", c.c_double), ("applied", c.c_int)]


class Ours:
    def __init__(self, library, device, case, tokens, targets, drop, kind="hierarchical"):
        task, layers, width, heads, hidden, batch, length, vocab, _ = case
        self.lib = library
        self.lib.ht_context_error.restype = c.c_char_p
        free, self.memory = torch.cuda.mem_get_info()[0], 0
        self.ctx, self.model, self.trainer = c.c_void_p(), c.c_void_p(), c.c_void_p()
        desc = ContextDesc(c.sizeof(ContextDesc), device.encode())
        self.check(self.lib.ht_context_create(c.byref(self.ctx), c.byref(desc)))
        self.config = c.c_void_p()
        self.check(self.lib.ht_config_create(c.byref(self.config), self.ctx, None))
        keys = {"task": task, "layers": layers, "width": width, "heads": heads, "hidden": hidden,
                "batch": batch, "length": length, "vocab": vocab, "dropout": drop,
                "attention": kind, "dtype": "bf16", "classes": 10, "pool": "mean", "rate": 1e-4,
                "schedule": "constant", "warmup": 0, "weight_decay": 0.1, "decay": "all",
                "sinusoidal": 1}
        self.check(self.lib.ht_config_read_json(self.config, json.dumps(keys).encode()))
        self.check(self.lib.ht_model_create(c.byref(self.model), self.ctx, self.config))
        self.check(self.lib.ht_trainer_create(c.byref(self.trainer), self.model, None))
        self.tokens = tokens.to(torch.int32).contiguous()
        self.targets = targets.to(torch.int32).contiguous()
        self.starts = torch.arange(0, batch * length + 1, length, dtype=torch.int32)
        self.batch = Batch(c.sizeof(Batch), batch, self.tokens.data_ptr(), self.starts.data_ptr(),
                           self.targets.data_ptr())
        self.report = Report(c.sizeof(Report))
        self.run(2)
        self.memory = free - torch.cuda.mem_get_info()[0]

    def check(self, status):
        if status:
            raise RuntimeError(self.lib.ht_context_error(self.ctx).decode())

    def run(self, steps):
        start = time.perf_counter()
        for _ in range(steps):
            self.check(self.lib.ht_trainer_step(self.trainer, c.byref(self.batch), c.c_int64(1),
                                                c.byref(self.report)))
        return 1e3 * (time.perf_counter() - start) / steps

    def close(self):
        self.lib.ht_trainer_destroy(self.trainer)
        self.lib.ht_model_destroy(self.model)
        self.lib.ht_context_destroy(self.ctx)


# ---- measuring -----------------------------------------------------------------------------------

def profile(run, steps):
    """Device time by kernel."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
        run(steps)
        torch.cuda.synchronize()
    rows = sorted(p.key_averages(), key=lambda e: -e.self_device_time_total)
    print("      us/step  calls  kernel")
    for e in rows[:40]:
        print("%13.1f %6.1f  %s" % (e.self_device_time_total / steps, e.count / steps, e.key[:90]))


def measure(name, args, library):
    case = CASES[name]
    batch, length, vocab = case[5:8]
    torch.manual_seed(0)
    tokens = torch.randint(1, vocab, (batch, length))
    targets = (torch.randint(1, vocab, (batch, length)) if case[0] == "language"
               else torch.randint(0, 10, (batch,)))
    times = {"ours": [], "pytorch": []}
    ours = Ours(library, args.device, case, tokens, targets, args.dropout)
    theirs = None
    if not args.ours_only:
        theirs = Theirs(case, tokens, targets, args.dropout, not args.eager)
        theirs.run(5)
    for _ in range(args.rounds):
        times["ours"].append(ours.run(args.steps))
        if theirs:
            times["pytorch"].append(theirs.run(args.steps))
    loss = ours.report.loss
    if args.profile:
        profile(ours.run, 3)
        if theirs:
            profile(theirs.run, 3)
    result = {"case": name, "loss": loss, "tokens": batch * length}
    for side in times:
        if times[side]:
            ms = statistics.median(times[side])
            memory = ours.memory if side == "ours" else theirs.bytes()
            result[side] = {"ms": ms, "least": min(times[side]), "most": max(times[side]),
                            "tokens_per_s": 1e3 * batch * length / ms, "bytes": memory}
    if theirs:
        result["ratio"] = result["ours"]["ms"] / result["pytorch"]["ms"]
        result["memory_ratio"] = result["ours"]["bytes"] / result["pytorch"]["bytes"]
        result["limit"] = case[8]
    ours.close()
    del theirs
    torch.cuda.empty_cache()
    torch._dynamo.reset()
    return result


def line(result):
    words = ["%-12s" % result["case"]]
    for side in ("ours", "pytorch"):
        if side in result:
            r = result[side]
            words.append("%s %8.2f ms %7.2f Mtok/s %6.2f GB" %
                         (side, r["ms"], r["tokens_per_s"] / 1e6, r["bytes"] / 1e9))
    if "ratio" in result:
        words.append("ratio %.3f (limit %.2f), memory %.2f" %
                     (result["ratio"], result["limit"], result["memory_ratio"]))
    return "  ".join(words) + ("" if math.isfinite(result["loss"]) else "  NOT FINITE")


def main(args):
    build = pathlib.Path(__file__).parent.parent / "build"
    path = args.library or build / "libhtransformer_models.so"
    library = c.CDLL(str(path))
    print("%s, PyTorch %s, %s, bf16, dropout %g" %
          (torch.cuda.get_device_name(), torch.__version__,
           "eager" if args.eager else "torch.compile", args.dropout))
    for name in (args.cases.split(",") if args.cases else CASES):
        result = measure(name, args, library)
        print(json.dumps(result) if args.json else line(result), flush=True)
