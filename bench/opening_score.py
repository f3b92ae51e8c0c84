#!/usr/bin/env python3
"""Which way of opening clusters finds single far rows again? Small models, attention alone differs.

    python3 bench/opening_score.py [--text FILE] [--jobs FILE] [--out FILE] [--workers N]
                                   [--limit SECONDS] [--total SECONDS]     all jobs, side by side
    python3 bench/opening_score.py --job KEY=VALUE,...                     one job, in this process
    python3 bench/opening_score.py --check                             the kernels against PyTorch

A job prints one line of JSON. Its keys and their defaults are DEFAULTS and TASKS below.
copy, small: half a window is text, the other half its four quarters in another order; the result
is bits per byte of the copied half (the first 16 bytes of a quarter left out; of windows up to 256
bytes, 8). pairs: 3/4 of a window are pairs of key and value, the rest asks for values; the result
is accuracy. Attention is emulated densely: a matrix of logits per head in which far rows carry
their cluster's mean, unless it is opened. Needs PyTorch; on a GPU also Triton.
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import threading
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

try:
    import triton
    import triton.language as tl
except ImportError:  # only a GPU needs it
    triton = None

HEAD, KEYS, VALUES, ROW, ALL = 64, 4096, 64, 100, 1 << 20
DEFAULTS = dict(
    kind="open",  # open | full
    k=8, peek=1, leaf=8, block=16,
    turn=0,       # 1: opened rows are turned (rotary) as near rows are
    far=0,        # 1: a learned number per head is added to all far logits
    share="none", # sum | max: all heads choose together, by the sum or maximum of their scores
    warm=0.0,     # all clusters are open for this part of the steps
    ease=0.0,     # then K falls to k, halving, until this part of the steps
    vary=0,       # 1: each step draws its K between k / 2 and 8 k
    random=0,     # so many of the k are drawn at random while training
    conv=0,       # width of a causal convolution over keys, per channel; starts as identity
    layers=4, width=256, windows=16, length=512, steps=2500, rate=1e-3, points=10, seed=1)
TASKS = dict(
    copy={},
    small=dict(block=8, layers=2, width=128, windows=8, length=256, steps=2600),
    pairs=dict(layers=2, width=128, windows=32, length=1024))
JOBS = """
task=copy,kind=full
task=copy
task=copy,far=1
task=copy,k=1048576
task=small,kind=full
task=small
task=copy,warm=.15
task=copy,conv=4
task=copy,kind=full,conv=4
task=copy,peek=2
task=pairs,kind=full
task=pairs
task=copy,random=2
task=copy,share=sum
task=small,conv=4
task=small,random=2
task=copy,k=0
task=copy,peek=0
task=copy,leaf=16
task=copy,k=16
task=copy,k=4
task=copy,seed=2
task=copy,far=1,seed=2
task=copy,kind=full,seed=2
task=copy,conv=4,seed=2
task=copy,peek=2,seed=2
task=copy,turn=1
task=copy,turn=1,conv=4
task=copy,peek=2,conv=4
task=small,turn=1
task=small,warm=.3
task=small,turn=1,conv=4
task=small,k=1048576
task=copy,turn=1,peek=2
task=pairs,length=512,kind=full
task=pairs,length=512
task=pairs,length=512,conv=4
task=pairs,length=512,turn=1
task=copy,turn=1,seed=2
task=small,peek=2,conv=4
task=copy,length=1024,windows=8,turn=1,conv=4
task=copy,length=1024,windows=8,kind=full
task=copy,warm=.4,ease=.6
task=copy,vary=1
"""


def parse_job(text):
    """KEY=VALUE,... as a dictionary with all keys."""
    given = dict(part.split("=", 1) for part in text.strip().split(","))
    task = given.pop("task", "copy")
    if task not in TASKS:
        raise SystemExit("task must be one of %s, got %s" % (", ".join(TASKS), task))
    job = dict(DEFAULTS, **TASKS[task])
    for key, value in given.items():
        if key not in job:
            raise SystemExit("unknown key %s; known: %s" % (key, ", ".join(job)))
        job[key] = type(DEFAULTS[key])(value)
    for key, words in (("kind", ("open", "full")), ("share", ("none", "sum", "max"))):
        if job[key] not in words:
            raise SystemExit("%s must be one of %s, got %s" % (key, ", ".join(words), job[key]))
    return dict(job, task=task)


# The choice and the logits, in plain PyTorch: the definition, for CPUs and for --check

def top_level(length, block):
    level = 0
    while block << (level + 1) < length:
        level += 1
    return level


def widen(x, times):
    return x.repeat_interleave(times, -1)


def pooled(s, level):
    return s.unflatten(-1, (-1, 1 << level)).mean(-1)


def score_of(s, level, peek):
    """A cluster's mean logit, and how much the means `peek` levels below vary: [..., clusters]"""
    parts = pooled(s, max(level - peek, 0)).unflatten(-1, (-1, 1 << min(peek, level)))
    return parts.mean(-1) + parts.std(-1, unbiased=False)


def met_at(length, block, level, device):
    """[L, L >> level]: row i meets cluster c at this level, c in the past."""
    i = torch.arange(length, device=device)[:, None]
    c = torch.arange(length >> level, device=device)[None]
    near = ((i >> level) // block - c // block).abs() <= 1
    if level:
        near &= ((i >> (level - 1)) // block - 2 * c // block).abs() > 1
    return near & (c << level <= i)


def best(score, cand, k):
    """The k candidates with the highest score; ties: the smaller cluster."""
    order = score.masked_fill(~cand, -math.inf).sort(dim=-1, descending=True, stable=True).indices
    return torch.zeros_like(cand).scatter(-1, order[..., :k], True) & cand


@torch.no_grad()
def choose(s, job, k, random):
    """How each pair takes part, [B, H, L, L] int8: 0 near, l a cluster of level l, ROW, -1 not."""
    length = s.shape[-1]
    code = torch.where(met_at(length, job["block"], 0, s.device), 0, -1).to(torch.int8)
    code = code.expand(s.shape).clone()
    opened = None
    for level in range(top_level(length, job["block"]), 0, -1):
        cand = met_at(length, job["block"], level, s.device).expand(*s.shape[:3], -1)
        if opened is not None:
            cand = cand | opened
        score = score_of(s, level, job["peek"])
        if job["share"] != "none":
            score = score.sum(1, True) if job["share"] == "sum" else score.amax(1, True)
            score = score.expand(cand.shape)
        op = best(score, cand, k - random)
        if random:
            op |= best(torch.rand_like(score), cand & ~op, random)
        code[widen(cand & ~op, 1 << level)] = level
        if 1 << level <= max(job["leaf"], 2):
            code[widen(op, 1 << level)] = ROW
            opened = None
        else:
            opened = widen(op, 2)
    return code


def plain_weights(s0, s, far, control, job):
    """Softmax over everything a row sees; s0 [B, H, L, L] with rotary, s without, far [H]."""
    k, random = control.tolist()[:2]
    code = choose(s, job, k, random)
    far = far[:, None, None]
    logit = torch.where(code == 0, s0, -math.inf)
    logit = torch.where(code == ROW, (s0 if job["turn"] else s) + far, logit)
    for level in range(1, top_level(s.shape[-1], job["block"]) + 1):
        logit = torch.where(code == level, widen(pooled(s, level), 1 << level) + far, logit)
    return logit.softmax(-1)


# The same, one program per row, for a GPU

if triton:
    @triton.jit
    def spread(x, n: tl.constexpr, times: tl.constexpr):
        return tl.reshape(tl.broadcast_to(x[:, None], (n, times)), (n * times,))

    @triton.jit
    def mean_of(x, n: tl.constexpr, w: tl.constexpr):
        return tl.sum(tl.reshape(x, (n, w)), 1) / w

    @triton.jit
    def score_row(s, n: tl.constexpr, level: tl.constexpr, peek: tl.constexpr):
        below: tl.constexpr = peek if peek < level else level
        parts = mean_of(s, n << below, 1 << (level - below))
        mean = mean_of(parts, n, 1 << below)
        off = tl.reshape(parts, (n, 1 << below)) - mean[:, None]
        return mean + tl.sqrt(tl.sum(off * off, 1) / (1 << below))

    @triton.jit
    def best_row(score, cand, k, n: tl.constexpr):
        index = tl.arange(0, n)
        bits = score.to(tl.int32, bitcast=True)
        left = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # ordered as the scores; integers reduce faster
        left = tl.where(cand > 0, left, -0x80000000)
        opened = tl.where(k >= n, cand, 0)
        for _ in range(tl.where(k >= n, 0, k)):
            top = tl.max(left, 0)
            hit = index == tl.min(tl.where(left == top, index, n), 0)
            hit &= top > -0x80000000
            opened = tl.where(hit, 1, opened)
            left = tl.where(hit, -0x80000000, left)
        return opened

    @triton.jit
    def level_row(s, s_ptr, group, i, code, opened, control, noise, L: tl.constexpr,
                  block: tl.constexpr, level: tl.constexpr, peek: tl.constexpr,
                  leaf: tl.constexpr, heads: tl.constexpr, share: tl.constexpr):
        """One level of the descent: the new code [L] and what is opened for the next [2 n]"""
        n: tl.constexpr = L >> level
        c = tl.arange(0, n)
        met = tl.abs((i >> level) // block - c // block) <= 1
        met &= tl.abs((i >> (level - 1)) // block - 2 * c // block) > 1
        cand = tl.where(met & ((c << level) <= i), 1, opened)
        if share == 0:
            score = score_row(s, n, level, peek)
        else:
            score = score_row(tl.load(s_ptr + group), n, level, peek)
            for h in tl.static_range(1, heads):
                other = score_row(tl.load(s_ptr + group + h * L * L), n, level, peek)
                score = tl.maximum(score, other) if share == 2 else score + other
        k = tl.load(control)
        random = tl.load(control + 1)
        op = best_row(score, cand, k - random, n)
        if random > 0:
            op += best_row(tl.rand(tl.load(control + 2), noise + c), cand - op, random, n)
        code = tl.where(spread(cand - op, n, 1 << level) > 0, level, code)
        if (1 << level) <= leaf or level == 1:
            code = tl.where(spread(op, n, 1 << level) > 0, 100, code)
            op = tl.zeros_like(op)
        return code, spread(op, n, 2)

    @triton.jit
    def forward_row(s0_ptr, s_ptr, far_ptr, control, p_ptr, code_ptr, L: tl.constexpr,
                    block: tl.constexpr, top: tl.constexpr, peek: tl.constexpr,
                    leaf: tl.constexpr, heads: tl.constexpr, share: tl.constexpr,
                    turn: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        i = (row % L).to(tl.int32)
        head = row // L
        j = tl.arange(0, L)
        s = tl.load(s_ptr + row * L + j)
        near = (tl.abs(i // block - j // block) <= 1) & (j <= i)
        code = tl.where(near, 0, -1)
        group = (head // heads * heads * L + i) * L + j
        opened = tl.zeros((L >> top,), tl.int32)
        for step in tl.static_range(top):
            code, opened = level_row(s, s_ptr, group, i, code, opened, control,
                                     (row * 16 + step).to(tl.int32) * L, L, block, top - step,
                                     peek, leaf, heads, share)
        far = tl.load(far_ptr + head % heads)
        s0 = tl.load(s0_ptr + row * L + j)
        logit = tl.where(near, s0, float("-inf"))
        logit = tl.where(code == 100, (s0 if turn else s) + far, logit)
        for step in tl.static_range(top):
            mean = spread(mean_of(s, L >> (step + 1), 2 << step), L >> (step + 1), 2 << step)
            logit = tl.where(code == step + 1, mean + far, logit)
        e = tl.exp(logit - tl.max(logit, 0))
        tl.store(p_ptr + row * L + j, e / tl.sum(e, 0))
        tl.store(code_ptr + row * L + j, code.to(tl.int8))

    @triton.jit
    def backward_row(p_ptr, dp_ptr, code_ptr, ds0_ptr, ds_ptr, dfar_ptr, L: tl.constexpr,
                     top: tl.constexpr, turn: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        at = row * L + tl.arange(0, L)
        p = tl.load(p_ptr + at)
        dp = tl.load(dp_ptr + at)
        code = tl.load(code_ptr + at).to(tl.int32)
        d = p * (dp - tl.sum(p * dp, 0))
        exact = tl.where(code == 100, d, 0.0)
        tl.store(ds0_ptr + at, tl.where(code == 0, d, exact if turn else 0.0))
        tl.store(dfar_ptr + row, tl.sum(tl.where(code > 0, d, 0.0), 0))
        ds = tl.zeros_like(exact) if turn else exact
        for step in tl.static_range(top):
            mine = tl.where(code == step + 1, d, 0.0)
            ds += spread(mean_of(mine, L >> (step + 1), 2 << step), L >> (step + 1), 2 << step)
        tl.store(ds_ptr + at, ds)


    @triton.jit
    def turn_row(x_ptr, cos_ptr, sin_ptr, y_ptr, sign, L, rows, half: tl.constexpr,
                 tile: tl.constexpr):
        row = tl.program_id(0) * tile + tl.arange(0, tile)[:, None]
        t = tl.arange(0, half)[None]
        at, wave, in_range = row * 2 * half + t, row % L * half + t, row < rows
        a = tl.load(x_ptr + at, in_range)
        b = tl.load(x_ptr + at + half, in_range)
        cos = tl.load(cos_ptr + wave)
        sin = tl.load(sin_ptr + wave) * sign
        tl.store(y_ptr + at, a * cos - b * sin, in_range)
        tl.store(y_ptr + at + half, a * sin + b * cos, in_range)


class Turn(torch.autograd.Function):
    """Rotary positions of x [B, H, L, HEAD] in one pass; backward turns the other way."""
    @staticmethod
    def run(x, cos, sin, sign):
        x = x.contiguous()
        y, rows = torch.empty_like(x), x.numel() // HEAD
        turn_row[(triton.cdiv(rows, 32),)](x, cos, sin, y, sign, len(cos), rows, HEAD // 2, 32)
        return y

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return Turn.run(x, cos, sin, 1.)

    @staticmethod
    def backward(ctx, dy):
        return Turn.run(dy, *ctx.saved_tensors, -1.), None, None


class RowWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx, s0, s, far, control, job):
        s0, s = s0.contiguous(), s.contiguous()
        heads, length = s.shape[1], s.shape[-1]
        p, code = torch.empty_like(s), torch.empty_like(s, dtype=torch.int8)
        ctx.top = top_level(length, job["block"])
        share = ("none", "sum", "max").index(job["share"])
        forward_row[(s.numel() // length,)](
            s0, s, far, control, p, code, length, job["block"], ctx.top, job["peek"], job["leaf"],
            heads, share, job["turn"], num_warps=max(1, length // 512))
        ctx.turn = job["turn"]
        ctx.save_for_backward(p, code)
        return p

    @staticmethod
    def backward(ctx, dp):
        p, code = ctx.saved_tensors
        length, dp = p.shape[-1], dp.contiguous()
        ds0, ds, dfar = torch.empty_like(p), torch.empty_like(p), p.new_empty(p.shape[:3])
        backward_row[(p.numel() // length,)](p, dp, code, ds0, ds, dfar, length, ctx.top,
                                             ctx.turn, num_warps=max(1, length // 512))
        return ds0, ds, dfar.sum((0, 2)), None, None


# The model

def rotary(length, device):
    rate = 10000 ** (-torch.arange(HEAD // 2, device=device) / (HEAD // 2))
    angle = torch.arange(length, device=device)[:, None] * rate
    return angle.cos(), angle.sin()


def turn(x, cos, sin):
    if x.is_cuda:
        return Turn.apply(x, cos, sin)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class Attention(nn.Module):
    def __init__(self, job, control):
        super().__init__()
        width = job["width"]
        self.job, self.control, self.heads = job, control, width // HEAD
        self.qkv, self.out = nn.Linear(width, 3 * width, False), nn.Linear(width, width, False)
        self.far = nn.Parameter(torch.zeros(self.heads), requires_grad=bool(job["far"]))
        if job["conv"]:
            self.conv = nn.Parameter(torch.eye(job["conv"])[0, :, None].repeat(1, width))

    def mix(self, k):
        """k [B, L, E] with its neighbours in the past"""
        shifted = (F.pad(k, (0, 0, t, 0))[:, :k.shape[1]] for t in range(self.job["conv"]))
        return sum(w * x for w, x in zip(self.conv, shifted))

    def forward(self, x, wave):
        b, length, width = x.shape
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.job["conv"]:
            k = self.mix(k)
        q, k, v = (t.view(b, length, self.heads, HEAD).transpose(1, 2) for t in (q, k, v))
        if self.job["kind"] == "full":
            z = F.scaled_dot_product_attention(turn(q, *wave), turn(k, *wave), v, is_causal=True)
        else:
            q = q * HEAD ** -.5
            s0 = turn(q, *wave) @ turn(k, *wave).transpose(-1, -2)
            s = q @ k.transpose(-1, -2)
            if x.is_cuda:
                p = RowWeights.apply(s0, s, self.far, self.control, self.job)
            else:
                p = plain_weights(s0, s, self.far, self.control, self.job)
            z = p @ v
        return self.out(z.transpose(1, 2).reshape(b, length, width))


class Model(nn.Module):
    def __init__(self, job, control):
        super().__init__()
        width, pairs = job["width"], job["task"] == "pairs"
        self.tokens = nn.Parameter(torch.randn(KEYS if pairs else 256, width) * .3)
        self.values = nn.Parameter(torch.randn(VALUES + 1, width) * .3, requires_grad=pairs)
        layers = range(job["layers"])
        self.attention = nn.ModuleList(Attention(job, control) for _ in layers)
        self.hidden = nn.ModuleList(nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in layers)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2 * job["layers"] + 1))
        self.head = nn.Linear(width, VALUES if pairs else 256)
        self.wave, self.pairs = rotary(job["length"], control.device), pairs

    def forward(self, x, xv):
        # index_select: its backward is an index_add, which a CUDA graph can hold
        h = self.tokens.index_select(0, x.flatten()).view(*x.shape, -1)
        if self.pairs:
            h = h + self.values.index_select(0, xv.flatten()).view_as(h)
        for i, (attend, hidden) in enumerate(zip(self.attention, self.hidden)):
            h = h + attend(self.norms[2 * i](h), self.wave)
            h = h + hidden(self.norms[2 * i + 1](h))
        return self.head(self.norms[-1](h))


# The tasks

class Copying:
    """Text, then its quarters in another order. The last tenth of the text is for measuring."""
    def __init__(self, job, text, device):
        self.text, self.job, self.device = text.to(device), job, device

    def draw(self, gen, test, part):
        b, length = self.job["windows"], self.job["length"]
        cut = len(self.text) * 9 // 10
        low, high = (cut, len(self.text) - length) if test else (0, cut - length)
        start = torch.randint(low, high, (b, 1), device=self.device, generator=gen)
        source = self.text[start + torch.arange(length // 2, device=self.device)].long()
        order = torch.rand(b, 4, device=self.device, generator=gen).argsort(-1)
        quarters = source.view(b, 4, -1)
        copied = quarters.gather(1, order[..., None].expand_as(quarters)).flatten(1)
        x = torch.cat((source, copied), 1)
        y = torch.cat((x[:, 1:], torch.full_like(x[:, :1], -100)), 1)
        return x, torch.zeros_like(x), y

    def measure(self, logits, y):
        bits = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
        half = y.shape[1] // 2
        left_out = 16 if y.shape[1] > 256 else 8
        copied = bits[:, half - 1:-1].unflatten(1, (4, -1))[..., left_out:]
        return dict(first_half=bits[:, :half - 1].mean() / math.log(2),
                    copied=copied.mean() / math.log(2))


class Pairs:
    """Pairs, then questions. `part` of training done: few distinct pairs, repeated, at first (full
    attention does not begin otherwise): 8 for a fifth of the steps, then twice as many each 5 %."""
    def __init__(self, job, _, device):
        self.job, self.device = job, device

    def draw(self, gen, test, part):
        b, length, device = self.job["windows"], self.job["length"], self.device
        n = length * 3 // 4
        distinct = n if test else min(n, 8 << max(0, int((part - .15) / .05)))
        keys = torch.rand(b, KEYS, device=device, generator=gen).topk(n, -1).indices
        values = torch.randint(0, VALUES, (b, n), device=device, generator=gen)
        order = torch.rand(b, n, device=device, generator=gen).argsort(-1) % distinct
        keys, values = keys.gather(1, order), values.gather(1, order)
        ask = torch.randint(0, n, (b, length - n), device=device, generator=gen)
        x = torch.cat((keys, keys.gather(1, ask)), 1)
        xv = torch.cat((values + 1, torch.zeros_like(ask)), 1)
        y = torch.cat((torch.full_like(keys, -100), values.gather(1, ask)), 1)
        self.distance = torch.arange(n, length, device=device) - ask
        return x, xv, y

    def measure(self, logits, y):
        n = y.shape[1] * 3 // 4
        right = (logits[:, n:].argmax(-1) == y[:, n:]).float()
        result = dict(accuracy=right.mean())
        for low, high in ((1, n // 4), (n // 4, n // 2), (n // 2, 2 * n)):
            some = (self.distance >= low) & (self.distance < high)
            result["accuracy_from_%d" % low] = (right * some).sum() / some.sum()
        return result


@torch.no_grad()
def measure(model, task, control, k):
    """Means over eight batches, always the same ones, with k clusters open."""
    gen = torch.Generator(control.device).manual_seed(1000)
    control.copy_(torch.tensor((k, 0, 0), dtype=torch.int32))
    sums = {}
    for _ in range(8):
        x, xv, y = task.draw(gen, True, 1.)
        for key, value in task.measure(model(x, xv), y).items():
            sums[key] = sums.get(key, 0) + value
    return {key: round(value.item() / 8, 4) for key, value in sums.items()}


# Training

def open_count(job, part, draw):
    """K at this part of training; draw is uniform in [0, 1)."""
    if job["vary"]:
        return max(1, int(job["k"] / 2 * 16 ** draw))
    if part < job["warm"]:
        return ALL
    if part < job["ease"]:
        doublings = math.log2(job["length"] / job["k"])
        fallen = (part - job["warm"]) / (job["ease"] - job["warm"])
        return job["k"] << math.ceil(doublings * (1 - fallen))
    return job["k"]


def rate_at(job, step):
    wave = .55 + .45 * math.cos(math.pi * step / job["steps"])
    return job["rate"] * min(1, (step + 1) / 100) * wave


class Trainer:
    """A training step; on a GPU it is captured once and replayed."""
    def __init__(self, model, job, batch):
        self.model, self.batch, device = model, batch, batch[0].device
        self.rate = torch.tensor(0., device=device)
        self.learnt = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.learnt, lr=self.rate, betas=(.9, .98),
                                           weight_decay=.05, fused=True,
                                           capturable=batch[0].is_cuda)
        self.graph = self.capture() if batch[0].is_cuda else None

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        x, xv, y = self.batch
        F.cross_entropy(self.model(x, xv).flatten(0, 1), y.flatten()).backward()
        nn.utils.clip_grad_norm_(self.learnt, 1.)
        self.optimizer.step()

    def capture(self):
        before = [p.detach().clone() for p in self.learnt]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        with torch.no_grad():  # the steps that warmed up never happened
            for p, old in zip(self.learnt, before):
                p.copy_(old)
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()
        return graph

    def run(self, batch, rate):
        self.rate.fill_(rate)
        for mine, new in zip(self.batch, batch):
            mine.copy_(new)
        if self.graph:
            self.graph.replay()
        else:
            self.step()


def train(job, text, deadline):
    """The job's results as a dictionary; stops at the deadline and says so."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(job["seed"])
    control = torch.tensor((job["k"], job["random"], 0), dtype=torch.int32, device=device)
    model = Model(job, control).to(device)
    task = (Pairs if job["task"] == "pairs" else Copying)(job, text, device)
    gen = torch.Generator(device).manual_seed(job["seed"])
    started, key = time.time(), "accuracy" if job["task"] == "pairs" else "copied"
    trainer = Trainer(model, job, task.draw(gen, False, 0.))
    ready, curve, plan = time.time(), [], []
    for step, draw in enumerate(torch.rand(job["steps"]).tolist()):
        plan.append((open_count(job, step / job["steps"], draw), job["random"], step))
    plan = torch.tensor(plan, dtype=torch.int32, device=device)
    points = {max(1, job["steps"] * i // job["points"]) for i in range(1, job["points"] + 1)}
    for step in range(job["steps"]):
        control.copy_(plan[step])
        trainer.run(task.draw(gen, False, step / job["steps"]), rate_at(job, step))
        if step + 1 in points:
            curve.append((step + 1, measure(model, task, control, job["k"])[key]))
            if time.time() > deadline:
                break
    result = dict(job, **measure(model, task, control, job["k"]), curve=curve)
    if job["kind"] == "open":
        result["by_k"] = {str(k) if k < ALL else "all": measure(model, task, control, k)[key]
                          for k in (0, 4, 8, 16, 64, ALL)}
    if job["far"]:
        result["far_learnt"] = [[round(v, 2) for v in a.far.tolist()] for a in model.attention]
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    return dict(result, steps_done=step + 1, starting=round(ready - started, 1),
                seconds=round(time.time() - ready, 1), device=where)


# Checking and running

def check():
    """The kernels against plain PyTorch in float64, values and gradients; true if they differ."""
    worst = 0.
    for text in ("k=0", "k=8", "k=3,peek=2,leaf=16", "k=4,peek=0,leaf=1", "k=4,share=sum",
                 "k=4,share=max,block=8", "k=%d,turn=1" % ALL, "k=8,length=1024"):
        job = parse_job(text)
        size = (2, 4, job["length"], job["length"])
        torch.manual_seed(0)
        s0, s, down = (torch.randn(size, device="cuda") for _ in range(3))
        far = torch.randn(4, device="cuda")
        control = torch.tensor((job["k"], 0, 0), dtype=torch.int32, device="cuda")
        results = []
        for function, dtype in ((RowWeights.apply, torch.float32), (plain_weights, torch.float64)):
            inputs = [t.to(dtype, copy=True).requires_grad_() for t in (s0, s, far)]
            p = function(*inputs, control, job)
            p.backward(down.to(dtype))
            results.append([p.detach()] + [t.grad for t in inputs])
        errors = [((a - b).norm() / b.norm().clamp(min=1e-30)).item() for a, b in zip(*results)]
        print("check %-24s %s" % (text, " ".join("%.1e" % e for e in errors)), flush=True)
        worst = max([worst] + [e if math.isfinite(e) else 1. for e in errors])
    return worst > 1e-4


def read_text(path):
    """The file's bytes, or words drawn at random where there is none."""
    if path:
        return torch.frombuffer(bytearray(pathlib.Path(path).read_bytes()), dtype=torch.uint8)
    gen = torch.Generator().manual_seed(0)
    letters = torch.randint(97, 123, (5000, 6), generator=gen, dtype=torch.uint8)
    letters[:, 5] = 32
    return letters[torch.randint(0, 5000, (300000,), generator=gen)].flatten()


def run_all(jobs, args):
    """Jobs as processes, `workers` at a time, in order; each has its own limit of time."""
    end, lock, waiting = time.time() + args.total, threading.Lock(), list(jobs)

    def work():
        while True:
            with lock:
                if not waiting or time.time() > end - 15:
                    return
                job = waiting.pop(0)
            limit = min(args.limit, end - time.time())
            command = [sys.executable, __file__, "--job", job, "--limit", "%d" % limit]
            command += ["--text", args.text] if args.text else []
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=limit + 20)
                line, fault = done.stdout.strip(), done.stderr[-1500:]
            except subprocess.TimeoutExpired:
                line, fault = "", "killed after %d s" % (limit + 20)
            line = line or json.dumps(dict(job=job, error=fault))
            with lock:
                print(line, flush=True)
                if args.out:
                    with open(args.out, "a") as out:
                        out.write(line + "\n")

    threads = [threading.Thread(target=work) for _ in range(args.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for job in waiting:
        print(json.dumps(dict(job=job, error="no time left")), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", help="a file of a few megabytes; random words without")
    parser.add_argument("--job", help="KEY=VALUE,... of one job")
    parser.add_argument("--jobs", help="a file with a job per line instead of those in this file")
    parser.add_argument("--out", help="lines of JSON are added to this file")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--limit", type=float, default=600, help="seconds per job")
    parser.add_argument("--total", type=float, default=86400, help="seconds for all jobs")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    started = time.time()
    if args.check:
        return check()
    if args.job:
        job = parse_job(args.job)
        print(json.dumps(train(job, read_text(args.text), started + args.limit)), flush=True)
        return 0
    lines = pathlib.Path(args.jobs).read_text() if args.jobs else JOBS
    jobs = [line.strip() for line in lines.splitlines() if line.strip()]
    for job in jobs:
        parse_job(job)
    run_all(jobs, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
