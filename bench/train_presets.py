#!/usr/bin/env python3
"""Milliseconds of a training step of presets on a GPU, and the time of each kernel.

    python3 bench/train_presets.py [--library build/libhtransformer_models.so] [--device cuda:0]
                                   [--steps 12] [--kernels N] PRESET[:KEY=VALUE,...] ...

    python3 bench/train_presets.py lra/pathfinder:block=32,attention_dropout=0 lra/image:pool=mean

Presets of classifiers, in bf16. Batches have their size and are random tokens: images of full
length, of Pathfinder 85 % black; ListOps of a quarter of the length and more. A step's time is the
median, host included; a kernel's the least sum of a step, as PyTorch's profiler sees it. The loss
is printed with all its digits: two runs of one build must agree.
"""
import argparse
import ctypes as c
import json
import pathlib
import statistics
import time

import torch

from train_cuda import Batch, ContextDesc, Report


def value_of(text):
    """Numbers as they are, other words as strings."""
    try:
        return json.loads(text)
    except ValueError:
        return text


class Trainer:
    def __init__(self, library, device, preset, keys):
        self.lib = c.CDLL(str(pathlib.Path(library).resolve()))
        self.lib.ht_context_error.restype = c.c_char_p
        self.ctx, self.model, self.trainer = c.c_void_p(), c.c_void_p(), c.c_void_p()
        desc = ContextDesc(c.sizeof(ContextDesc), device.encode())
        self.check(self.lib.ht_context_create(c.byref(self.ctx), c.byref(desc)))
        config = c.c_void_p()
        self.check(self.lib.ht_config_create(c.byref(config), self.ctx, preset.encode()))
        keys = dict({"dtype": "bf16", "schedule": "constant", "warmup": 0}, **keys)
        self.check(self.lib.ht_config_read_json(config, json.dumps(keys).encode()))
        self.check(self.lib.ht_model_create(c.byref(self.model), self.ctx, config))
        self.check(self.lib.ht_trainer_create(c.byref(self.trainer), self.model, None))
        self.make_batch(self.read_config(config))
        self.report = Report(c.sizeof(Report))
        self.run(4)

    def read_config(self, config):
        text, length = c.create_string_buffer(8192), c.c_size_t()
        self.check(self.lib.ht_config_write_json(config, text, c.c_size_t(8192),
                                                 c.byref(length)))
        config = json.loads(text.value)
        if config["task"] != "classify":
            raise SystemExit("only presets that classify, got task %s" % config["task"])
        return config

    def make_batch(self, config):
        batch, length = int(config["batch"]), int(config["length"])
        rng = torch.Generator().manual_seed(1)
        lengths = torch.full((batch,), length)
        if config["format"] == "listops":
            lengths = torch.randint(length // 4, length, (batch,), generator=rng)
        count = int(lengths.sum())
        self.tokens = torch.randint(1, int(config["vocab"]), (count,), generator=rng).int()
        if config["format"] == "pathfinder":
            self.tokens[torch.rand(count, generator=rng) < 0.85] = 0
        classes = int(config["classes"])
        self.targets = torch.randint(0, classes, (batch,), generator=rng).int()
        self.starts = torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()
        self.batch = Batch(c.sizeof(Batch), batch, self.tokens.data_ptr(), self.starts.data_ptr(),
                           self.targets.data_ptr())

    def check(self, status):
        if status:
            raise RuntimeError(self.lib.ht_context_error(self.ctx).decode())

    def run(self, steps):
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            self.check(self.lib.ht_trainer_step(self.trainer, c.byref(self.batch), c.c_int64(1),
                                                c.byref(self.report)))
            times.append(1e3 * (time.perf_counter() - start))
        return times

    def close(self):
        self.lib.ht_trainer_destroy(self.trainer)
        self.lib.ht_model_destroy(self.model)
        self.lib.ht_context_destroy(self.ctx)


def kernel_times(run, steps):
    """(microseconds, launches, name) per step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run(steps)
        torch.cuda.synchronize()
    launches = {}
    for e in profiler.events():
        if e.device_type == torch.autograd.DeviceType.CUDA:
            launches.setdefault(e.name, []).append(
                (e.time_range.start, e.time_range.end - e.time_range.start))
    rows = []
    for name, times in launches.items():
        times.sort()
        n = max(len(times) // steps, 1)
        sums = [sum(d for _, d in times[i:i + n]) for i in range(0, len(times) - n + 1, n)]
        rows.append((min(sums), n, name))
    return sorted(rows, reverse=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    build = pathlib.Path(__file__).parent.parent / "build"
    parser.add_argument("--library", default=str(build / "libhtransformer_models.so"))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--kernels", type=int, default=0, help="lines of the table of kernels")
    parser.add_argument("presets", nargs="+", metavar="PRESET[:KEY=VALUE,...]")
    args = parser.parse_args()
    for item in args.presets:
        preset, _, rest = item.partition(":")
        keys = {k: value_of(v) for k, v in (p.split("=") for p in rest.split(",") if p)}
        trainer = Trainer(args.library, args.device, preset, keys)
        times = trainer.run(args.steps)
        print("%-16s %-40s %8.3f ms (least %.3f), loss %.17g" %
              (preset, rest, statistics.median(times), min(times), trainer.report.loss), flush=True)
        rows = kernel_times(trainer.run, 4) if args.kernels else []
        if rows:
            print("    kernels %.3f ms" % (sum(r[0] for r in rows) / 1e3))
        for us, count, name in rows[:args.kernels]:
            print("%10.1f us %5d x  %s" % (us, count, name[:100]), flush=True)
        trainer.close()


if __name__ == "__main__":
    main()
