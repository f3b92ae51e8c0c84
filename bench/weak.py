"""Weak scaling of `train` on the CPU: processes with one thread each, and as much work for each.

    python3 bench/weak.py [--rounds 9] [--ranks 2] [--program build/htransformer]

In every round, one after the other: one process; `ranks` processes that know nothing of each other;
`ranks` processes that train one model. Prints the median over rounds of each time of a step (of a
run the median of its steps) and of the ratios to the third. The second says what part of the loss
is the machine's: caches, memory, other people's programs.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

SIZES = ("--preset lm/tiny --threads 1 --steps 9 --eval_every 0 --eval_items 1 --save_every 1000 "
         "--quiet").split()
BATCH = 4


def command(program, folder, name, batch):
    return [program, "train", "--run", str(folder / name), "--data", str(folder / "text"), *SIZES,
            "--batch", str(batch)]


def step(folder, name):
    """Milliseconds, without the first two: memory is touched for the first time there."""
    lines = [json.loads(line) for line in (folder / name / "log.jsonl").read_text().splitlines()]
    return statistics.median([line["ms"] for line in lines if "ms" in line][2:])


def round_of(args, environment):
    with tempfile.TemporaryDirectory() as room:
        folder = pathlib.Path(room)
        (folder / "text").write_bytes(os.urandom(1 << 18).hex().encode())
        together = ["mpirun", "--bind-to", "none", "--oversubscribe", "-n", str(args.ranks)]
        subprocess.run(command(args.program, folder, "one", BATCH), check=True)
        others = [subprocess.Popen(command(args.program, folder, f"apart{i}", BATCH))
                  for i in range(args.ranks)]
        assert all(other.wait() == 0 for other in others)
        subprocess.run(together + command(args.program, folder, "all", args.ranks * BATCH),
                       check=True, env=environment)
        apart = max(step(folder, f"apart{i}") for i in range(args.ranks))
        return step(folder, "one"), apart, step(folder, "all")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--program", default="build/htransformer")
    args = parser.parse_args()
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1",
                       OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    rows = [round_of(args, environment) for _ in range(args.rounds)]
    for i, name in enumerate(("one process", "apart", "together")):
        ms = statistics.median(row[i] for row in rows)
        ratio = statistics.median(row[i] / row[2] for row in rows)
        print(f"{name:12} {ms:8.1f} ms a step   {ratio:.3f} of the time together")


main()
