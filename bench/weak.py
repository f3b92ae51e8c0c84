"""Weak scaling of `train` on the CPU: processes with one thread each, and as much work for each.

    python3 bench/weak.py [--rounds 9] [--ranks 2] [--program build/htransformer]

In every round, one after the other: one process; `ranks` processes that know nothing of each other;
`ranks` processes that train one model. Prints the median over rounds of the time of a step (of a
run the median of its steps) and of the ratios to the last. The second says what part of the loss
is the machine's: caches, memory, other people's programs. Then the same of the processor time that
a process needs for a step, which other programs hardly change, but in which waiting is not counted.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile

SIZES = ("--preset lm/tiny --threads 1 --eval_every 0 --eval_items 1 --save_every 1000 "
         "--quiet").split()
BATCH, FEW, STEPS = 4, 3, 15
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


def start(program, folder, name, ranks, steps=STEPS):
    """A run in the background; ranks 1: without MPI."""
    together = ["mpirun", "--bind-to", "none", "--oversubscribe", "-n", str(ranks)]
    return subprocess.Popen(together * (ranks > 1) + [
        program, "train", "--run", str(folder / name), "--data", str(folder / "text"), *SIZES,
        "--steps", str(steps), "--batch", str(ranks * BATCH)], env=ENVIRONMENT)


def finish(*runs):
    """Processor seconds of all of them."""
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert all(run.wait() == 0 for run in runs)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime


def step(folder, name):
    """Milliseconds, without the first two: memory is touched for the first time there."""
    lines = [json.loads(line) for line in (folder / name / "log.jsonl").read_text().splitlines()]
    return statistics.median([line["ms"] for line in lines if "ms" in line][2:])


def round_of(program, ranks):
    """ms of a step: one, apart, together; processor ms of a process: one, together."""
    with tempfile.TemporaryDirectory() as room:
        folder = pathlib.Path(room)
        (folder / "text").write_bytes(os.urandom(1 << 18).hex().encode())
        cpu = []
        for name, count in ("one", 1), ("all", ranks):
            few = finish(start(program, folder, name + "-few", count, FEW))
            many = finish(start(program, folder, name, count))
            cpu.append(1e3 * (many - few) / (STEPS - FEW) / count)
        finish(*[start(program, folder, f"apart{i}", 1) for i in range(ranks)])
        apart = max(step(folder, f"apart{i}") for i in range(ranks))
        return step(folder, "one"), apart, step(folder, "all"), *cpu


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--program", default="build/htransformer")
    args = parser.parse_args()
    rows = [round_of(args.program, args.ranks) for _ in range(args.rounds)]
    names = "one process", "apart", "together", "one process, processor", "together, processor"
    for i, name in enumerate(names):
        last = 2 if i < 3 else 4
        ms = statistics.median(row[i] for row in rows)
        ratio = statistics.median(row[i] / row[last] for row in rows)
        print(f"{name:24} {ms:8.1f} ms a step   {ratio:.3f} of that together")


main()
