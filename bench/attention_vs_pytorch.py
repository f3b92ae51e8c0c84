#!/usr/bin/env python3
"""Our attention beside PyTorch's, on the same tensors in one process.

Peers on a GPU: scaled_dot_product_attention with its cuDNN and flash back ends, and FlexAttention;
on a CPU scaled_dot_product_attention. They compute full attention. Runs are interleaved, inputs
rotate so that no cache holds them, times are medians.

What is timed: one call as a user writes it, forward alone or forward and backward by autograd, on
a GPU between two events on its stream. The GPU is kept busy before the first one until the host has
put the whole call into the stream, so that it is the GPU's time, with the gaps between kernels but
without waiting for Python; where the host was late the sample is taken again with more to do
before. With --graph each call is captured once in a CUDA graph, ours and the peers' alike, and
the time is that of a replay; a peer that cannot be captured is left out. Decoding is never
captured.

Every row is checked in the same run:
`error` is the largest difference from the definition in float64 on sampled rows, `bar` what the
plain algorithm in the same precision would allow (twice its own error plus 4 eps of the largest
value), `met` whether it holds. `floor` is each input read once and each output written once at the
copy bandwidth measured here. Where rows open clusters (case open: 8 per level), which ones depends
on rounding; there the values are ones for the check, and all outputs must be 1.

    bench/attention_vs_pytorch.py [--quick] [--graph] [--cases forward,train,...] [--json FILE]
                                  [--device cpu]

Returns 0, 1 if a bar was not met or a part of ours failed, 77 without PyTorch.
"""
import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
import traceback

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("numpy") is None:
    print("skipped: %s has no PyTorch or no NumPy" % sys.executable)
    sys.exit(77)

import torch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "python"), os.path.join(ROOT, "tests", "python")]
import htransformer
import oracle_torch

MILLION = 1 << 20
CASES = ["forward", "causal", "fine", "open", "full", "train", "blocks", "decode", "breakeven",
         "layer", "types"]


def note(text):
    print("# " + text, file=sys.stderr, flush=True)


# ---- the machine --------------------------------------------------------------------------------


class Machine:
    """A device, its clock and what is measured on it."""

    def __init__(self, device, graph=False):
        self.device = torch.device(device)
        self.cuda = self.device.type == "cuda"
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        self.graph = graph and self.cuda
        self.reps = 20 if self.cuda else 5
        self.seconds = 0.4 if self.cuda else 2.0  # of samples per contender
        self.l2 = 64 << 20
        if self.cuda:
            about = torch.cuda.get_device_properties(self.device)
            self.l2 = getattr(about, "L2_cache_size", 0) or self.l2
        self.bandwidth = self._copy_bandwidth()

    def sample(self, work, busy=(1, 2, 4, 8)):
        """(device milliseconds, host milliseconds) of one call. busy: milliseconds the device has
        to do before, the next where the host took longer for the call."""
        if not self.cuda:
            begin = time.perf_counter()
            work()
            spent = 1e3 * (time.perf_counter() - begin)
            return spent, spent
        for ahead in busy:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(int(2e6 * ahead))  # cycles, at most 2 GHz
            begin = time.perf_counter()
            start.record()
            work()
            end.record()
            host = 1e3 * (time.perf_counter() - begin)
            end.synchronize()
            if host < 0.9 * ahead:  # the host was ahead, as it is in training
                break
        return start.elapsed_time(end), host

    def _copy_bandwidth(self):
        """Bytes per second, read and written, of a plain copy."""
        size = (1 << 30) if self.cuda else (1 << 27)
        a = torch.empty(size, dtype=torch.uint8, device=self.device).fill_(1)
        b = torch.empty_like(a)
        b.copy_(a)
        spent = statistics.median(self.sample(lambda: b.copy_(a))[0] for _ in range(9))
        return 2 * size / (spent * 1e-3)

    def floor(self, *tensors):
        """Milliseconds to move all these tensors once."""
        return 1e3 * sum(x.numel() * x.element_size() for x in tensors) / self.bandwidth

    def randn(self, *shape):
        return torch.randn(*shape, device=self.device, dtype=self.dtype)

    def free(self):
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def capture(machine, work, sets):
    """The same work as CUDA graphs, one for each set of inputs."""
    graphs, stream = {}, torch.cuda.Stream()
    for inputs in sets:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles and makes plans, which a capture must not
            work(inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graphs[id(inputs)] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[id(inputs)], stream=stream):
            work(inputs)
    return lambda inputs: graphs[id(inputs)].replay()


def measure(machine, contenders, sets, once=()):
    """Median milliseconds of each contender: {name: work(inputs)}, interleaved over rotating
    inputs. One that fails gets None and a note; one in `once` runs a single time. Also the host's
    milliseconds for ours, whose failure is the caller's."""
    times, wanted, host, contenders = {}, {}, [], dict(contenders)
    for name, work in contenders.items():
        try:
            if machine.graph and name not in once:
                work = contenders[name] = capture(machine, work, sets)
            first = machine.sample(lambda: work(sets[0]), busy=(1,))[0]
            if name not in once:  # the first one compiles and allocates
                first = machine.sample(lambda: work(sets[-1]))[0]
            times[name] = [first]
            wanted[name] = min(machine.reps, int(1e3 * machine.seconds / max(first, 1e-3)))
        except Exception as error:
            if name == "ours":
                raise
            note("%s: %s" % (name, str(error).strip().split("\n")[0][:160]))
            machine.free()
    for rep in range(machine.reps):
        for name in times:
            if name not in once and rep < wanted[name]:
                inputs = sets[rep % len(sets)]
                device, called = machine.sample(lambda: contenders[name](inputs))
                times[name].append(device)
                if name == "ours":
                    host.append(called)
    found = {name: statistics.median(samples) for name, samples in times.items()}
    return {name: found.get(name) for name in contenders}, statistics.median(host or [0])


def make_sets(machine, batch, length, heads, dim, grad=False):
    """Lists of (q, k, v, dz), as many as it takes to fill the last-level cache three times."""
    size = 3 * batch * length * heads * dim * torch.finfo(machine.dtype).bits // 8
    count = max(1, min(8, -(-3 * machine.l2 // size))) if machine.cuda else 2
    sets = []
    for _ in range(count):
        made = [machine.randn(batch, length, heads, dim) for _ in range(4 if grad else 3)]
        sets.append([x.requires_grad_(grad) for x in made[:3]] + made[3:])
    return sets


# ---- the peers ----------------------------------------------------------------------------------


def plain_attention(q, k, v, causal):
    """For a PyTorch without scaled_dot_product_attention: one head at a time."""
    outs = []
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            s = q[b, h] @ k[b, h].T / q.shape[-1]**0.5
            if causal:
                future = torch.triu(torch.ones_like(s, dtype=torch.bool), 1)
                s = s.masked_fill(future, float("-inf"))
            outs.append(torch.softmax(s, -1) @ v[b, h])
    return torch.stack(outs).view(*q.shape[:3], v.shape[-1])


def sdpa(back_end):
    """A function of (q, k, v, causal), (batch, length, heads, dim), with one back end; "sdpa":
    PyTorch's choice."""
    function = getattr(torch.nn.functional, "scaled_dot_product_attention", None)

    def any_back_end(q, k, v, causal):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if function is None:
            return plain_attention(q, k, v, causal).transpose(1, 2)
        return function(q, k, v, is_causal=causal).transpose(1, 2)

    if back_end == "sdpa":
        return any_back_end
    from torch.nn.attention import SDPBackend, sdpa_kernel
    chosen = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}[back_end]

    def one_back_end(q, k, v, causal):
        with sdpa_kernel(chosen):
            return any_back_end(q, k, v, causal)

    return one_back_end


class Flex:
    """FlexAttention, compiled for each shape, until that has taken long enough."""

    def __init__(self, machine, seconds):
        self.machine, self.left, self.masks = machine, seconds, {}

    def charge(self, work):
        """The same work; its first call, which compiles, is counted."""
        called = []

        def run(*arguments, **options):
            begin = time.perf_counter()
            result = work(*arguments, **options)
            if not called:
                self.left -= time.perf_counter() - begin
                called.append(True)
            return result

        return run

    def attend(self, length, causal):
        """A function of (q, k, v, causal)."""
        import torch._dynamo
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        # its limit of shapes per function is low, and beyond it the slow path would run
        torch._dynamo.reset()
        compiled = torch.compile(flex_attention, dynamic=False)
        if causal and length not in self.masks:
            make = self.charge(create_block_mask)
            self.masks[length] = make(lambda b, h, i, j: i >= j, None, None, length, length,
                                      device=self.machine.device, _compile=True)
        mask = self.masks[length] if causal else None

        def run(q, k, v, causal):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return compiled(q, k, v, block_mask=mask).transpose(1, 2)

        return run


# ---- checking -----------------------------------------------------------------------------------


def sampled(machine, length):
    """Rows to check: all of a short sequence, else some from everywhere, the ends among them."""
    if length <= 2048:
        return torch.arange(length, device=machine.device)
    count = 256 if length <= 65536 else 64
    rows = torch.randint(0, length, (count,), generator=torch.Generator().manual_seed(length))
    rows[0], rows[1] = 0, length - 1
    return rows.unique().to(machine.device)


def worst(pairs):
    """(error, bar) of the pair closest to its bar, or furthest over it."""
    for error, bar in pairs:
        if error != error or bar != bar:  # NaN compares with nothing
            return error, bar
    return max(pairs, key=lambda pair: pair[0] / max(pair[1], 1e-300))


def check_forward(machine, inputs, z, options):
    """First and last (sequence, head) of z against float64."""
    rows, found = sampled(machine, z.shape[1]), []
    for b, h in {(0, 0), (z.shape[0] - 1, z.shape[2] - 1)}:
        one = [x.detach()[b, :, h] for x in inputs[:3]]
        exact = oracle_torch.rows_of_head(*[x.double() for x in one], rows, **options)[0]
        plain = oracle_torch.rows_of_head(*one, rows, **options)[0]
        found.append(oracle_torch.error_and_bound(z.detach()[b, rows, h], exact, plain))
    return worst(found)


def check_train(machine, inputs, attend, options):
    """Values and gradients of one (sequence, head); dz is zero but on the sampled rows."""
    q, k, v, dz = inputs
    b, h, rows = q.shape[0] - 1, q.shape[2] - 1, sampled(machine, q.shape[1])
    sparse = torch.zeros_like(dz)
    sparse[b, rows, h] = dz[b, rows, h]
    z = attend(q, k, v)
    grads = torch.autograd.grad(z, (q, k, v), sparse)
    ours = [z.detach()[b, rows, h], *[g[b, :, h] for g in grads]]
    results = []
    for dtype in (torch.float64, machine.dtype):
        one = [x.detach()[b, :, h].to(dtype).requires_grad_() for x in (q, k, v)]
        out = oracle_torch.rows_of_head(*one, rows, **options)[0]
        grads = torch.autograd.grad(out, one, dz[b, rows, h].to(dtype))
        results.append([out.detach(), *grads])
    # gradients are differences of larger numbers: the largest of them all is what they are held to
    largest = [None] + 3 * [max(g.abs().max().item() for g in results[0][1:])]
    return worst([oracle_torch.error_and_bound(*four) for four in zip(ours, *results, largest)])


def check_ones(machine, inputs, attend):
    """With ones as values all outputs are 1, whatever was opened: (error, bar)."""
    q, k, v = (x.detach() for x in inputs[:3])
    z = attend(q, k, torch.ones_like(v)).float()
    # sums of a few hundred weights in float, then rounded
    bar = 64 * torch.finfo(torch.float32).eps + torch.finfo(machine.dtype).eps
    return (z - 1).abs().max().item(), bar


# ---- the table ----------------------------------------------------------------------------------


class Table:
    """Rows as they come, and all results for --json."""

    def __init__(self, peers):
        self.peers, self.results, self.failed = peers, {"rows": []}, 0
        first = peers[0]
        self.columns = ["case", "L", "ours ms", "floor ms", "x floor", first + " ms"]
        self.columns += [first + "/ours"]
        self.columns += [peer + " ms" for peer in peers[1:]] + ["error", "bar", "met"]
        self.started = False

    def print(self, cells):
        numbers = "".join(str(cell).rjust(11) for cell in cells[1:])
        print(str(cells[0]).ljust(20) + numbers, flush=True)

    @staticmethod
    def number(x, digits=4):
        if x is None:
            return "-"
        return "%.*g" % (digits, x) if x < 1e4 else "%.0f" % x

    def add(self, case, length, times, floor, error_and_bar, host, **more):
        if not self.started:
            self.print(self.columns)
            self.started = True
        ours, first = times["ours"], times.get(self.peers[0])
        error, bar = error_and_bar
        met = error <= bar
        self.failed += not met
        number = self.number
        cells = [case, length, number(ours), number(floor), number(ours / floor, 3)]
        cells += [number(first), number(first and first / ours, 3)]
        cells += [number(times.get(peer)) for peer in self.peers[1:]]
        cells += [number(error, 2), number(bar, 2), "yes" if met else "NO"]
        self.print(cells)
        row = {"case": case, "length": length, "ms": times, "floor_ms": floor, "host_ms": host}
        self.results["rows"].append({**row, "error": error, "bar": bar, "met": met, **more})

    def guard(self, name, part, *arguments):
        """One part's failure is said, counted, and the rest goes on."""
        try:
            part(*arguments)
        except Exception as error:
            self.failed += 1
            note("%s failed: %s: %s" % (name, type(error).__name__, str(error).strip()[:300]))
            traceback.print_exc(limit=-4)
            self.results.setdefault("failures", []).append("%s: %s" % (name, error))


# ---- the parts ----------------------------------------------------------------------------------


class Bench:
    """All parts; each fills rows of the table or prints lines of its own."""

    def __init__(self, options):
        self.o, self.machine = options, Machine(options.device, options.graph)
        cuda, quick = self.machine.cuda, options.quick
        self.heads, self.dim, self.block = (8, 64, 16) if cuda or not quick else (2, 32, 8)
        self.peers = ["cuDNN", "flash", "flex"] if cuda else ["sdpa"]
        self.tokens = 65536 if cuda else 512 if quick else 16384
        if cuda:
            self.lengths = [1024, 4096] if quick else [1024, 4096, 16384, 65536, MILLION]
        else:
            self.lengths = [64, 256] if quick else [1024, 4096, 16384]
        self.train_lengths = [n for n in self.lengths if n <= 65536]
        self.flex_lengths = [] if quick else [4096, 65536]
        self.flex = Flex(self.machine, options.flex_seconds)
        self.table = Table(self.peers)

    def attend(self, **options):
        options.setdefault("block", self.block)
        return lambda q, k, v, *_: htransformer.attention(q, k, v, **options)

    def contenders(self, ours, length, causal, train, peers):
        """{name: work(inputs)}"""
        attends = {"ours": ours}
        for peer in peers:
            if peer != "flex":
                attends[peer] = sdpa(peer)
            elif length in self.flex_lengths and self.flex.left > 0:
                try:
                    attends[peer] = self.flex.attend(length, causal)
                except Exception as error:
                    note("flex: %s" % str(error).strip().split("\n")[0][:160])

        def forward(attend):

            def run(inputs):
                with torch.no_grad():
                    attend(*inputs[:3], causal)

            return run

        def both(attend):
            return lambda inputs: torch.autograd.grad(attend(*inputs[:3], causal), inputs[:3],
                                                      inputs[3])

        made = {name: (both if train else forward)(attend) for name, attend in attends.items()}
        if "flex" in made:
            made["flex"] = self.flex.charge(made["flex"])
        return made

    def peers_at(self, length):
        """A million tokens take PyTorch's best back end 5 s, the others longer."""
        if length <= 65536:
            return self.peers
        return [] if self.o.skip_slow else self.peers[:1]

    def row(self, case, length, causal, query, train=False, kind="hierarchical", block=None,
            open=0):
        machine = self.machine
        batch = max(1, self.tokens // length)
        sets = make_sets(machine, batch, length, self.heads, self.dim, train)
        options = {"block": block or self.block, "causal": causal, "mode": query, "kind": kind}
        ours = self.attend(**options, **({"open": open} if open else {}))
        peers = self.peers_at(length)
        contenders = self.contenders(ours, length, causal, train, peers)
        times, host = measure(machine, contenders, sets, peers if length > 65536 else ())
        q, k, v = sets[0][:3]
        if train:  # forward q k v -> z, backward q k v z dz -> dq dk dv
            floor = 4 * machine.floor(q, k, v)
            checked = check_ones(machine, sets[0], ours) if open else \
                check_train(machine, sets[0], ours, options)
        else:
            floor = machine.floor(q, k, v, q)
            with torch.no_grad():
                checked = check_ones(machine, sets[0], ours) if open else \
                    check_forward(machine, sets[0], ours(q, k, v), options)
        self.table.add(case, length, times, floor, checked, host, batch=batch)
        del sets, q, k, v
        machine.free()

    def rows(self, case, lengths, *arguments, **more):
        for length in lengths:
            self.table.guard("%s %d" % (case, length),
                             lambda: self.row(case, length, *arguments, **more))

    # ---- decoding ----

    def decode(self, context):
        """One token for each of 64 sequences. The cache is filled by prefill calls; where 64 such
        contexts do not fit, one is filled and copied to the other slots."""
        machine, steps = self.machine, 40 if self.machine.cuda else 5
        slots = 64 if machine.cuda else 4
        shared = slots * context > 1 << 22
        sequences = 1 if shared else slots
        cache = htransformer.Cache(slots, self.heads, self.dim, mode="fine", block=self.block,
                                   dtype=machine.dtype, device=machine.device)
        prefill = [machine.randn(sequences, context, self.heads, self.dim) for _ in range(3)]
        tokens = [machine.randn(steps + 2, slots, 1, self.heads, self.dim) for _ in range(3)]
        cache.extend(*prefill, slots=range(sequences))
        for slot in range(sequences, slots):
            cache.fork(slot, 0)

        def step(t):
            return cache.extend(*[x[t] for x in tokens])

        step(0)  # then once only: a step changes the cache
        device, host = machine.sample(lambda: [step(t) for t in range(1, steps + 1)], busy=(11,))
        checked = self.check_step(step(steps + 1), prefill, tokens)
        times = {"ours": device / steps}
        if not shared:
            times.update(self.decode_peers(prefill, tokens))
        state = 1e3 * slots * len(cache.save(0)) / machine.bandwidth
        floor = state + machine.floor(*[x[0] for x in tokens], tokens[0][0])
        rate = self.decoded[context] = 1e3 * slots * steps / device
        self.table.add("decode fine x%d" % slots, context, times, floor, checked, host / steps,
                       tokens_per_s=rate)
        print("    %.0f tokens/s on the device, %.0f by the host's clock; %d rows of keys a head"
              % (rate, 1e3 * slots * steps / max(host, device), cache.rows(0)))

    def check_step(self, last, prefill, tokens):
        """The last step's output of the first sequence and head, against its whole history."""
        one = [torch.cat([p[0, :, 0], x[:, 0, 0, 0]]) for p, x in zip(prefill, tokens)]
        rows = torch.tensor([len(one[0]) - 1], device=last.device)
        options = {"block": self.block, "causal": True, "mode": "fine"}
        exact = oracle_torch.rows_of_head(*[x.double() for x in one], rows, **options)[0]
        plain = oracle_torch.rows_of_head(*one, rows, **options)[0]
        return oracle_torch.error_and_bound(last[0, :, 0], exact, plain)

    def decode_peers(self, prefill, tokens):
        """PyTorch with a filled key and value cache of the same context, appending left out."""

        def run(peer):
            attend = sdpa(peer)
            return lambda _: attend(tokens[0][0], prefill[1], prefill[2], False)

        contenders = {peer: run(peer) for peer in self.peers if peer != "flex"}
        with torch.no_grad():
            return measure(self.machine, contenders, [None])[0]

    def decode_all(self):
        self.decoded = {}
        contexts = [4096, MILLION] if self.machine.cuda else [self.lengths[-1], 1 << 17]
        for context in contexts[:1] if self.o.quick else contexts:
            self.table.guard("decode %d" % context, self.decode, context)
            self.machine.free()
        if len(self.decoded) == 2:
            (a, x), (b, y) = sorted(self.decoded.items())
            print("    tokens/s at context %d over those at %d: %.2f" % (b, a, y / x))

    # ---- from which length on ----

    def breakeven(self):
        """The shortest length from which on ours is faster than the first peer."""
        first = self.peers[0]
        print("\nbreak-even against %s, %d tokens in all" % (first, self.tokens))
        found = self.table.results["breakeven"] = []
        for query, causal in (("mean", False), ("first", True), ("fine", True)):
            for train in (False, True):
                name = "%s %s%s" % ("fwd+bwd" if train else "forward", query,
                                    " causal" if causal else "")
                self.table.guard("break-even " + name, self.search, found, name, causal, query,
                                 train)

    def search(self, found, name, causal, query, train):
        first, length, ratios = self.peers[0], 128 if self.machine.cuda else 32, []
        ours = self.attend(causal=causal, mode=query)
        top = min(16384, self.tokens)
        while length <= top:
            sets = make_sets(self.machine, self.tokens // length, length, self.heads, self.dim,
                             train)
            both = self.contenders(ours, length, causal, train, [first])
            times, _ = measure(self.machine, both, sets)
            if times[first] is None:
                raise RuntimeError("%s cannot run length %d" % (first, length))
            ratios.append((length, times[first] / times["ours"]))
            if len(ratios) > 2 and all(ratio >= 1 for _, ratio in ratios[-3:]):
                break  # three in a row: from here on the gap only grows
            length = length * 3 // 2 if length & (length - 1) == 0 else length * 4 // 3
        since = None
        for length, ratio in reversed(ratios):
            if ratio < 1:
                break
            since = length
        found.append({"case": name, "length": since, "ratios": ratios})
        said = "from length %d on" % since if since else "not up to %d" % ratios[-1][0]
        print("    %-22s %s   (%s)" % (name, said, ", ".join("%d: %.2f" % x for x in ratios)),
              flush=True)

    # ---- a whole layer ----

    def layer(self):
        """In-projection, attention, out-projection; the peer between the same weights."""
        first = self.peers[0]
        print("\nwhole layer (in-projection, attention, out-projection), embed_dim %d: ms" %
              (self.heads * self.dim))
        print("    %-22s %9s %10s %10s %10s" % ("case", "L", "ours", first, first + "/ours"))
        self.table.results["layer"] = []
        for causal, train in ((False, False), (True, False), (False, True), (True, True)):
            for length in self.train_lengths:
                name = "fwd+bwd " if train else "forward "
                name += "first causal" if causal else "mean"
                self.table.guard("layer %s %d" % (name, length), self.layer_row, name, length,
                                 causal, train)

    def layer_row(self, name, length, causal, train):
        machine, first, embed = self.machine, self.peers[0], self.heads * self.dim
        ours = htransformer.HAttention(embed, self.heads, batch_first=True, causal=causal,
                                       block=self.block, device=machine.device,
                                       dtype=machine.dtype)
        attend = sdpa(first)
        linear = torch.nn.functional.linear

        def theirs(x):
            qkv = linear(x, ours.in_proj_weight, ours.in_proj_bias)
            q, k, v = qkv.view(*x.shape[:2], 3, self.heads, self.dim).unbind(2)
            return ours.out_proj(attend(q, k, v, causal).reshape(x.shape))

        batch, parameters = max(1, self.tokens // length), list(ours.parameters())
        sets = [(machine.randn(batch, length, embed).requires_grad_(train),
                 machine.randn(batch, length, embed)) for _ in range(2)]

        def work(layer):
            def run(inputs):
                if train:
                    torch.autograd.grad(layer(inputs[0]), [inputs[0]] + parameters, inputs[1])
                else:
                    with torch.no_grad():
                        layer(inputs[0])

            return run

        contenders = {"ours": work(lambda x: ours(x)[0]), first: work(theirs)}
        times, _ = measure(machine, contenders, sets)
        ratio = times[first] and times[first] / times["ours"]
        self.table.results["layer"].append({"case": name, "length": length, "ms": times})
        cells = [Table.number(times["ours"]), Table.number(times[first]), Table.number(ratio, 3)]
        print("    %-22s %9d %10s %10s %10s" % (name, length, *cells), flush=True)

    # ---- types and sizes ----

    def types(self):
        """Ours alone: 16 bits and 32, head sizes between powers of two; times over the first of
        their group."""
        machine, dim = self.machine, self.dim
        length = self.train_lengths[min(1, len(self.train_lengths) - 1)]
        dtypes = [machine.dtype] + [x for x in (torch.bfloat16, torch.float16, torch.float32)
                                    if x != machine.dtype]
        print("\ntypes and sizes, L %d, %d tokens in all" % (length, self.tokens))
        print("    %-20s %9s %5s %9s %6s %9s %9s %4s" % ("case", "dtype", "dim", "ms", "over",
                                                       "error", "bar", "met"))
        self.table.results["types"] = []
        cases = [("forward mean", False, "mean", False),
                 ("forward fine causal", True, "fine", False),
                 ("fwd+bwd mean", False, "mean", True),
                 ("fwd+bwd first causal", True, "first", True),
                 ("fwd+bwd fine causal", True, "fine", True)]
        groups = [(case, [(dtype, dim) for dtype in dtypes]) for case in cases]
        sizes = [(64, 48), (128, 80, 96, 112)] if machine.cuda else [(dim, dim - dim // 4)]
        groups += [(cases[0], [(machine.dtype, size) for size in group]) for group in sizes]
        for case, kinds in groups:
            self.base = None
            for dtype, size in kinds:
                self.table.guard("%s %s %d" % (case[0], dtype, size), self.types_row, length,
                                 dtype, size, *case)

    def types_row(self, length, dtype, size, case, causal, query, train):
        machine, usual = self.machine, self.machine.dtype
        machine.dtype = dtype
        try:
            batch = max(1, self.tokens // length)
            sets = make_sets(machine, batch, length, self.heads, size, train)
            options = {"block": self.block, "causal": causal, "mode": query}
            ours = self.attend(**options)
            work = {"ours": self.contenders(ours, length, causal, train, [])["ours"]}
            spent = measure(machine, work, sets)[0]["ours"]
            if train:
                error, bar = check_train(machine, sets[0], ours, options)
            else:
                with torch.no_grad():
                    error, bar = check_forward(machine, sets[0], ours(*sets[0][:3]), options)
        finally:
            machine.dtype = usual
            machine.free()
        self.base = self.base or spent
        self.table.failed += not error <= bar
        self.table.results["types"].append({"case": case, "dtype": str(dtype), "dim": size,
                                            "ms": spent, "error": error, "bar": bar})
        number = Table.number
        print("    %-20s %9s %5d %9s %6.2f %9s %9s %4s" % (
            case, str(dtype).replace("torch.", "").replace("float", "f"), size, number(spent),
            spent / self.base, number(error, 2), number(bar, 2), "yes" if error <= bar else "NO"),
            flush=True)

    # ---- all of it ----

    def run(self):
        wanted = set(self.o.cases)
        longest = max(self.train_lengths)
        if "forward" in wanted:
            self.rows("forward mean", self.lengths, False, "mean")
        if "causal" in wanted:
            self.rows("forward first causal", self.lengths, True, "first")
        if "fine" in wanted:
            self.rows("forward fine causal", [longest], True, "fine")
        if "open" in wanted:
            self.rows("forward open 8 causal", self.lengths, True, "fine", open=8)
            self.rows("fwd+bwd open 8 causal", self.train_lengths, True, "fine", train=True,
                      open=8)
        if "full" in wanted:
            exact = [n for n in self.lengths if n <= 4096]
            self.rows("full", exact, False, "mean", kind="full")
            self.rows("full causal", exact, True, "first", kind="full")
        if "train" in wanted:
            self.rows("fwd+bwd mean", self.train_lengths, False, "mean", train=True)
            self.rows("fwd+bwd first causal", self.train_lengths, True, "first", train=True)
        if "blocks" in wanted:  # causal: larger blocks, and every row's own query
            middle = self.train_lengths[min(1, len(self.train_lengths) - 1)]
            for query in ("fine", "first"):
                for block in (self.block, 2 * self.block, 4 * self.block):
                    self.rows("fwd+bwd %s block %d" % (query, block), [middle], True, query,
                              train=True, block=block)
        if "decode" in wanted:
            self.decode_all()
        if "breakeven" in wanted:
            self.breakeven()
        if "layer" in wanted:
            self.layer()
        if "types" in wanted:
            self.types()
        hosts = [row["host_ms"] for row in self.table.results["rows"]
                 if row["case"].startswith("forward") and row["host_ms"]]
        if self.machine.cuda and not self.machine.graph and hosts:
            print("\nhost time of one forward call: %.0f microseconds" % (1e3 * min(hosts)))


def about(bench):
    """What ran where."""
    machine = bench.machine
    device = "CPU, %d threads, %s" % (torch.get_num_threads(), ", ".join(
        d["name"] for d in htransformer.devices() if d["chosen"]))
    if machine.cuda:
        device = torch.cuda.get_device_name(machine.device)
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"],
                            capture_output=True, text=True).stdout.strip()
    return {"device": device, "dtype": str(machine.dtype).replace("torch.", ""),
            "torch": torch.__version__, "library": htransformer.version(), "commit": commit,
            "path": htransformer.library_path(), "copy_gb_per_s": machine.bandwidth / 1e9,
            "heads": bench.heads, "head_dim": bench.dim, "block": bench.block,
            "timed": "replays of CUDA graphs" if machine.graph else "calls",
            "tokens": bench.tokens, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cases", default=",".join(CASES), type=lambda text: text.split(","),
                        help="some of " + ",".join(CASES))
    parser.add_argument("--quick", action="store_true", help="short lengths only")
    parser.add_argument("--graph", action="store_true",
                        help="time replays of CUDA graphs instead of calls")
    parser.add_argument("--skip-slow", action="store_true",
                        help="no peer at 1,048,576 tokens (5 s a call)")
    parser.add_argument("--flex-seconds", type=float, default=60,
                        help="time FlexAttention may compile")
    parser.add_argument("--json", metavar="FILE", help="write all results there too")
    options = parser.parse_args()
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error("unknown case %s; there are %s" %
                     (", ".join(sorted(unknown)), ", ".join(CASES)))
    torch.manual_seed(0)
    bench = Bench(options)
    bench.table.results["about"] = made = about(bench)
    print("%(device)s, %(dtype)s, PyTorch %(torch)s, htransformer %(library)s (%(commit)s); copy "
          "%(copy_gb_per_s).0f GB/s; heads %(heads)d, dim %(head_dim)d, block %(block)d; timed: "
          "%(timed)s" % made)
    begin = time.perf_counter()
    try:
        bench.run()
    finally:
        made["seconds"] = time.perf_counter() - begin
        if options.json:
            with open(options.json, "w") as file:
                json.dump(bench.table.results, file, indent=1)
    failed = bench.table.failed
    said = "%d parts failed or bars not met" % failed if failed else "every bar met"
    print("%.0f s; %s" % (made["seconds"], said))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
