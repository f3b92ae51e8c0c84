#!/usr/bin/env python3
"""One training step, ours and PyTorch's: the same model, batch, precision, optimiser and cores.

    python3 bench/train_vs_pytorch.py [--program build/htransformer] [--batch 8] [--length 512]
                                      [--threads N] [--rounds 5] [--steps 4] [--json]
    python3 bench/train_vs_pytorch.py --device cuda:0 [--cases encoder-2k,decoder-256] [--dropout P]
                                      [--rounds 5] [--steps 4] [--json]

On a GPU: see train_cuda.py. On the CPU:

The model is the Long Range Arena's ListOps Transformer (preset listops: 8.9 million parameters),
float32, AdamW with decay on everything, no dropout. PyTorch runs eagerly: the same network with
full attention by scaled_dot_product_attention where there is one, else by products and softmax.
Ours runs with full attention (the same arithmetic) and with hierarchical attention. Rounds are
interleaved; times are medians over all steps but the first of each round. Before that both compute
the loss of the same weights on the same batch, which must agree.
"""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

V, C, E, H, M, N = 17, 10, 512, 8, 1024, 4  # vocabulary, classes, width, heads, hidden, layers


def sinusoids(length):
    t = torch.arange(length, dtype=torch.float64)[:, None]
    i = torch.arange(E)[None, :]
    angle = t * torch.pow(10000.0, -(i // 2 * 2).double() / E)
    return torch.where(i % 2 == 0, angle.sin(), angle.cos()).float()


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = torch.nn.LayerNorm(E, eps=1e-6)
        self.qkv = torch.nn.Linear(E, 3 * E, bias=False)
        self.out = torch.nn.Linear(E, E, bias=False)
        self.norm2 = torch.nn.LayerNorm(E, eps=1e-6)
        self.up = torch.nn.Linear(E, M)
        self.down = torch.nn.Linear(M, E)

    def attend(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, H, E // H).permute(2, 0, 3, 1, 4)
        if hasattr(F, "scaled_dot_product_attention"):
            z = F.scaled_dot_product_attention(q, k, v)
        else:
            z = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(E // H), -1) @ v
        return self.out(z.transpose(1, 2).reshape(b, n, E))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Classifier(torch.nn.Module):
    def __init__(self, length):
        super().__init__()
        self.embed = torch.nn.Embedding(V, E)
        self.cls = torch.nn.Parameter(torch.zeros(E))
        self.blocks = torch.nn.ModuleList(Block() for _ in range(N))
        self.norm = torch.nn.LayerNorm(E, eps=1e-6)
        self.head = torch.nn.Linear(E, M)
        self.output = torch.nn.Linear(M, C)
        self.register_buffer("positions", sinusoids(length + 1))

    def forward(self, tokens):
        x = torch.cat([self.cls.expand(tokens.shape[0], 1, E), self.embed(tokens)], 1)
        x = x + self.positions
        for block in self.blocks:
            x = block(x)
        return self.output(F.relu(self.head(self.norm(x)[:, 0])))

    def take(self, path):
        """The weights of one of our checkpoints."""
        names = {"embed.tokens.weight": "embed.weight", "embed.cls": "cls",
                 "head.0.weight": "head.weight", "head.0.bias": "head.bias"}
        mine = self.state_dict()
        for name, tensor in read_safetensors(path).items():
            name = names.get(name, name).replace("layers.", "blocks.").replace("mlp.", "")
            name = name.replace("attention.qkv", "qkv").replace("attention.output", "out")
            if not name.startswith("optimizer."):
                mine[name].copy_(tensor)


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    out = {}
    for name, about in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = about["data_offsets"]
            part = bytearray(data[8 + size + begin:8 + size + end])
            out[name] = torch.frombuffer(part, dtype=torch.float32).view(about["shape"])
    return out


def ours(args, folder, kind, data, steps, name):
    """Runs our trainer; returns the log lines of its steps."""
    run = folder / name
    command = [args.program, "train", "--run", run, "--preset", "listops", "--data", data,
               "--holdout", 0, "--quiet", "--attention", kind, "--length", args.length,
               "--batch", args.batch, "--dropout", 0, "--attention_dropout", 0, "--steps", steps,
               "--warmup", 0, "--schedule", "constant", "--rate", 1e-4, "--eval_every", 0,
               "--threads", args.threads]
    subprocess.run([str(word) for word in command], check=True)
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def theirs(model, optimiser, tokens, labels, steps):
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        optimiser.zero_grad()
        loss = F.cross_entropy(model(tokens), labels)
        loss.backward()
        optimiser.step()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    build = pathlib.Path(__file__).parent.parent / "build"
    parser.add_argument("--program", default=str(build / "htransformer"))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--library", help="cuda: libhtransformer_models.so, else that of build/")
    parser.add_argument("--cases", help="cuda: only these, separated by commas")
    parser.add_argument("--dropout", type=float, default=0, help="cuda")
    parser.add_argument("--eager", action="store_true", help="cuda: without torch.compile")
    parser.add_argument("--ours-only", action="store_true", help="cuda: without PyTorch")
    parser.add_argument("--profile", action="store_true", help="cuda: time by kernel")
    args = parser.parse_args()
    if args.device.startswith("cuda"):
        import train_cuda
        return train_cuda.main(args)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        tokens = torch.randint(1, 11, (args.batch, args.length))  # digits: ids 1 ... 10
        labels = torch.randint(0, C, (args.batch,))
        data = folder / "batch.tsv"
        data.write_text("".join("%d\t%s\n" % (label, " ".join(str(t - 1) for t in row))
                                for row, label in zip(tokens.tolist(), labels.tolist())))
        model = Classifier(args.length)
        count = sum(p.numel() for p in model.parameters())
        # the same weights must give the same loss: ours before its second step, theirs on the
        # checkpoint of the first
        log = ours(args, folder, "full", data, 2, "check")
        ours(args, folder, "full", data, 1, "first")
        with torch.no_grad():
            model.take(folder / "first" / "step-000000001.safetensors")
            loss = F.cross_entropy(model(tokens), labels).item()
        if abs(loss - log[1]["loss"]) > 1e-4 * abs(loss):
            sys.exit("losses differ: ours %.7g, PyTorch %.7g" % (log[1]["loss"], loss))
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9,
                                      weight_decay=0.1)
        times = {"pytorch": [], "full": [], "hierarchical": []}
        for i in range(args.rounds):
            times["pytorch"] += theirs(model, optimiser, tokens, labels, args.steps + 1)[1:]
            for kind in ("full", "hierarchical"):
                log_of = ours(args, folder, kind, data, args.steps + 1, "%s%d" % (kind, i))
                times[kind] += [line["ms"] for line in log_of[1:]]
    median = {name: statistics.median(values) for name, values in times.items()}
    ratio = {name: median[name] / median["pytorch"] for name in times}
    if args.json:
        print(json.dumps({
            "pytorch_version": torch.__version__, "parameters": count, "batch": args.batch,
            "length": args.length, "threads": args.threads, "loss": loss,
            "loss_ours": log[1]["loss"], "ms": median, "ratio": ratio,
            "spread": {name: [min(v), max(v)] for name, v in times.items()}}))
        return
    print("ListOps model, %d parameters, batch %d, length %d, float32, %d threads" %
          (count, args.batch, args.length, args.threads))
    print("loss of the same weights: ours %.6f, PyTorch %.6f" % (log[1]["loss"], loss))
    print("%-36s %9s %22s %6s" % ("step", "median ms", "least ... most", "ratio"))
    for name, words in (("pytorch", "PyTorch %s eager, full" % torch.__version__),
                        ("full", "htransformer, full"),
                        ("hierarchical", "htransformer, hierarchical")):
        print("%-36s %9.1f %10.1f ... %7.1f %6.2f" %
              (words, median[name], min(times[name]), max(times[name]), ratio[name]))


main()
