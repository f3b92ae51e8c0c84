"""Dense attention oracle in PyTorch, for chosen rows of one head: differentiable, any dtype.

Says the same as oracle.py (a test compares the two), without masks. A few rows against all keys
stay cheap at a million tokens, so that speed and error can be measured on the same tensors in the
same run.
"""
import math

import torch


def _means(x, level):
    """Mean of each cluster of 2^level rows (the last may be short), and how many they are."""
    if level == 0:
        return x, torch.ones(len(x), dtype=x.dtype, device=x.device)
    size = 1 << level
    clusters = -(-len(x) // size)
    padded = torch.nn.functional.pad(x, (0, 0, 0, clusters * size - len(x)))
    count = torch.full((clusters,), size, dtype=x.dtype, device=x.device)
    count[-1] = len(x) - (clusters - 1) * size
    return padded.view(clusters, size, -1).sum(1) / count[:, None], count


def _queries(q, rows, level, query):
    if query == "fine" or level == 0:
        return q[rows]
    if query == "mean":
        return _means(q, level)[0][rows >> level]
    return q[(rows >> level) << level]


def levels(length, block):
    m = 1
    while block << m < length:
        m += 1
    return m


def rows_of_head(q, k, v, rows, *, block=16, causal=False, mode="mean", kind="hierarchical",
                 scale=None, bias=None):
    """z [len(rows), value_dim] and lse [len(rows)]; q, k [length, dim], bias [4*block - 1]."""
    scale = 1 / math.sqrt(q.shape[1]) if scale is None else scale
    scores, weights, values = [], [], []
    for level in range(1 if kind != "hierarchical" else levels(len(q), block)):
        keys, count = _means(k, level)
        row, cluster = rows >> level, torch.arange(len(keys), device=q.device)
        seen = (row[:, None] // block - cluster // block).abs() <= 1
        if level:  # what the level below has covered
            below = (rows >> (level - 1))[:, None] // block - 2 * cluster // block
            seen &= below.abs() > 1
        if kind == "full":
            seen = torch.ones_like(seen)
        if causal:
            seen &= cluster <= row[:, None]
        s = scale * (_queries(q, rows, level, mode) @ keys.T)
        if bias is not None:
            at = (cluster - row[:, None]).clamp(1 - 2 * block, 2 * block - 1) + 2 * block - 1
            s = s + bias[at].to(s.dtype)
        scores.append(s.masked_fill(~seen, -math.inf))
        weights.append(count)
        values.append(_means(v, level)[0])
    s, n, v = torch.cat(scores, 1), torch.cat(weights), torch.cat(values)
    top = s.detach().max(1).values
    p = torch.exp(s - top[:, None]) * n
    total = p.sum(1)
    return p @ v / total[:, None], top + torch.log(total)


def error_and_bound(found, exact, plain, largest=None):
    """Largest error of found against exact (float64), and what it may be: twice that of the plain
    algorithm in the same precision, plus 4 eps of the largest value (None: of exact)."""
    error = (found.double() - exact).abs().max().item()
    bound = 2 * (plain.double() - exact).abs().max().item()
    largest = exact.abs().max().item() if largest is None else largest
    return error, bound + 4 * torch.finfo(plain.dtype).eps * largest


def check(found, exact, plain, name=""):
    error, bound = error_and_bound(found, exact, plain)
    assert error <= bound, "%s: error %g, allowed %g" % (name, error, bound)
