#!/usr/bin/env python3
"""Tables and curves of docs/lab/lm.md from results/lm.jsonl.

    python3 scripts/lm_tables.py [results/lm.jsonl] [--svg FOLDER]

Prints one table per group of runs (the last line of a run counts); with --svg writes
FOLDER/lm-GROUP.svg, the loss by position in the context of each run of the group.
"""
import argparse
import json
import math
import pathlib
import sys

COLOURS = ["#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a", "#bf3989", "#0a7ea4"]
FAR = 1024  # positions from here on are "far"


def read(path):
    """The last line of each run, by group and in the order of the file."""
    runs = {}
    for line in pathlib.Path(path).read_text().splitlines():
        if line.strip():
            run = json.loads(line)
            runs.pop(run["run"], None)
            runs[run["run"]] = run
    groups = {}
    for run in runs.values():
        groups.setdefault(run["run"].split("-")[0], []).append(run)
    return groups


def far_loss(run):
    """Mean loss of the targets at far positions, or None."""
    far = [p for p in run.get("by_position", []) if p["from"] >= FAR]
    count = sum(p["targets"] for p in far)
    return sum(p["loss"] * p["targets"] for p in far) / count if count else None


def positions(run):
    words = [] if run["rotary"] == "none" else ["rotary " + run["rotary"]]
    return " + ".join(words + (["bias"] if run["relative_bias"] else [])) or "none"


def error(run, key, digits):
    """A standard error; of a single sequence it is not known."""
    return "?" if run[key] is None else f"{run[key]:.{digits}f}"


def row(run, music):
    kind = run["attention"]
    if kind == "hierarchical":
        kind = f"{run['query']}"
    far = far_loss(run)
    measure = (f"{run['word_loss']:.3f} +- {error(run, 'word_loss_error', 3)}" if music else
               f"{run['bits_per_byte']:.4f} +- {error(run, 'bits_per_byte_error', 4)}")
    words = run["word_perplexity"]
    cells = [run["run"], kind, int(run["block"]), positions(run), int(run["length"]), measure,
             f"{words:.1f}" if words and words < 1e6 else "",
             f"{far / math.log(2):.4f}" if far else "",
             run["steps"], f"{run['ms_per_step']:.1f}", run["device"]]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table(group, runs):
    music = group == "e"
    head = ["run", "kind", "block", "positions", "length",
            "loss per step" if music else "bits per byte", "perplexity per word",
            f"bits per token from position {FAR} on", "steps", "ms per step", "device"]
    print(f"\n### {group}\n\n| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for run in runs:
        print(row(run, music))


def svg(group, runs):
    """Loss in bits against position, on a logarithmic axis."""
    width, height, left, bottom = 720, 420, 60, 40
    curves = [(run["run"], [(p["to"] + 1, p["loss"] / math.log(2)) for p in run["by_position"]
                            if p["from"] >= 8]) for run in runs]
    points = [point for _, curve in curves for point in curve]
    if not points:
        return None
    x0, x1 = (math.log2(f(x for x, _ in points)) for f in (min, max))
    y0, y1 = (f(y for _, y in points) for f in (min, max))
    at_x = lambda x: left + (math.log2(x) - x0) / max(x1 - x0, 1e-9) * (width - left - 180)
    at_y = lambda y: 20 + (y1 - y) / max(y1 - y0, 1e-9) * (height - bottom - 40)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           'font-family="sans-serif" font-size="12">',
           f'<text x="{left}" y="{height - 6}">position in the context</text>',
           '<text x="4" y="14">bits per token</text>']
    for power in range(math.ceil(x0), math.floor(x1) + 1):
        x = at_x(2**power)
        out.append(f'<path d="M{x:.1f} 20V{height - bottom}" stroke="#d0d7de"/>'
                   f'<text x="{x:.1f}" y="{height - bottom + 16}" text-anchor="middle">{2**power}'
                   "</text>")
    for i in range(5):
        y = y0 + (y1 - y0) * i / 4
        out.append(f'<path d="M{left} {at_y(y):.1f}H{width - 180}" stroke="#d0d7de"/>'
                   f'<text x="{left - 6}" y="{at_y(y) + 4:.1f}" text-anchor="end">{y:.3f}</text>')
    for i, (name, curve) in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        dash = ' stroke-dasharray="5 3"' if i >= len(COLOURS) else ""
        line = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in curve)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"'
                   f"{dash}/>"
                   f'<text x="{width - 170}" y="{30 + 16 * i}" fill="{colour}">{name}</text>')
    return "\n".join(out + ["</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", nargs="?", default="results/lm.jsonl")
    parser.add_argument("--svg", metavar="FOLDER")
    options = parser.parse_args()
    if not pathlib.Path(options.results).exists():
        sys.exit(f"{options.results} is not there: scripts/lm.sh writes it")
    for group, runs in sorted(read(options.results).items()):
        table(group, runs)
        picture = svg(group, runs) if options.svg else None
        if picture:
            pathlib.Path(options.svg).mkdir(parents=True, exist_ok=True)
            pathlib.Path(options.svg, f"lm-{group}.svg").write_text(picture)


if __name__ == "__main__":
    main()
