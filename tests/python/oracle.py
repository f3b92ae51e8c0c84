"""Dense attention oracle in NumPy, straight from the definition in docs/attention.md.

Every row meets every other at one level,
    level(i, j) = min { l : |i div (block 2^l) - j div (block 2^l)| <= 1 }.
A row's softmax runs over key clusters of all levels, each weighted by its number of valid rows.
Computes in the precision of its inputs, so that the same code says what the plain algorithm loses
in float32.
"""
import numpy as np


def level_of_pairs(length, block):
    """[length, length]: the level at which two rows meet."""
    i, j = np.arange(length)[:, None], np.arange(length)[None]
    found, level = np.full((length, length), -1), 0
    while (found < 0).any():
        near = np.abs(i // (block << level) - j // (block << level)) <= 1
        found[near & (found < 0)] = level
        level += 1
    return found


def rotate(x, theta):
    """Rotary positions: pairs (i, i + d/2) of row t turned by t * theta^(-2i/d)."""
    half = x.shape[1] // 2
    angle = np.arange(len(x))[:, None] * theta ** (-2.0 * np.arange(half) / x.shape[1])
    c, s = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    a, b, rest = x[:, :half], x[:, half:2 * half], x[:, 2 * half:]
    return np.concatenate([a * c - b * s, a * s + b * c, rest], 1)


def cluster_means(x, valid, level):
    """Mean of each cluster's valid rows, and their number."""
    clusters = -(-len(x) // (1 << level))
    mean, count = np.zeros((clusters, x.shape[1]), x.dtype), np.zeros(clusters, x.dtype)
    for c in range(clusters):
        rows = np.arange(c << level, min((c + 1) << level, len(x)))
        rows = rows[valid[rows]]
        count[c] = len(rows)
        if len(rows):
            mean[c] = x[rows].sum(0) / x.dtype.type(len(rows))
    return mean, count


def cluster_queries(q, valid, level, query):
    """The query each row uses at a level."""
    if query == "fine" or level == 0:
        return q
    rows = np.arange(len(q)) >> level
    if query == "mean":
        return cluster_means(q, valid, level)[0][rows]
    first = np.arange(rows[-1] + 1) << level
    for i in reversed(range(len(q))):
        if valid[i]:
            first[i >> level] = i
    return q[first][rows]


def one_head(q, k, v, *, block=16, causal=False, mode="mean", kind="hierarchical", scale=None,
             bias=None, k_valid=None, q_valid=None, theta=None):
    """z [length, value_dim] and lse [length] of one head; bias: [4*block - 1]."""
    length, dtype = len(q), q.dtype
    q_valid = np.ones(length, bool) if q_valid is None else q_valid.astype(bool)
    k_valid = np.ones(length, bool) if k_valid is None else k_valid.astype(bool)
    scale = dtype.type(1 / np.sqrt(q.shape[1]) if scale is None else scale)
    q, k, v = np.where(q_valid[:, None], q, 0), np.where(k_valid[:, None], k, 0), \
        np.where(k_valid[:, None], v, 0)
    meet = level_of_pairs(length, block)
    if kind == "full":
        meet = np.zeros_like(meet)
    scores, weights, values = [], [], []
    for level in range(1 if kind == "local" else meet.max() + 1):
        keys, count = cluster_means(k, k_valid, level)
        queries = cluster_queries(q, q_valid, level, mode)
        if level == 0 and theta:
            queries, keys = rotate(queries, theta), rotate(keys, theta)
        rows, clusters = np.arange(length) >> level, np.arange(len(keys))
        seen = (meet[:, clusters << level] == level) & (count > 0) & q_valid[:, None]
        if causal:
            seen &= clusters <= rows[:, None]
        s = scale * queries @ keys.T
        if bias is not None:
            at = np.clip(clusters - rows[:, None], 1 - 2 * block, 2 * block - 1) + 2 * block - 1
            s = s + bias[at]
        scores.append(np.where(seen, s, -np.inf))
        weights.append(count)
        values.append(cluster_means(v, k_valid, level)[0])
    s, n, v = np.concatenate(scores, 1), np.concatenate(weights), np.concatenate(values)
    top = s.max(1)
    p = np.exp(s - np.where(np.isinf(top), 0, top)[:, None]) * n
    total = p.sum(1)
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, top + np.log(total), -np.inf)
    return p @ v / np.where(total > 0, total, 1)[:, None], lse


def score(q, k, valid, level, cluster, peek, scale):
    """Mean of the logits of a cluster, and how far those `peek` levels below it lie apart."""
    below = max(level - peek, 0)
    mean, count = cluster_means(k, valid, below)
    inside = slice(cluster << (level - below), (cluster + 1) << (level - below))
    n, s = count[inside], scale * mean[inside] @ q
    middle = (n * s).sum() / n.sum()
    return middle + np.sqrt((n * (s - middle) ** 2).sum() / n.sum())


def opened_row(i, meet, q, k, valid, open, leaf, peek, scale, causal):
    """[length]: how row i meets the others, -1 not, 0 row by row, l as part of a cluster; rows of
    opened clusters are -2."""
    row = np.where(valid & ((np.arange(len(k)) <= i) | (not causal)), meet[i], -1)
    for level in range(row.max(initial=0), 0, -1):
        found = sorted({j >> level for j in np.flatnonzero(row == level)})
        best = sorted(found, key=lambda c: (-score(q, k, valid, level, c, peek, scale), c))
        for c in best[:open]:
            rows = np.arange(c << level, min((c + 1) << level, len(k)))
            rows = rows[row[rows] == level]
            row[rows] = -2 if 1 << level <= leaf or level == 1 else level - 1
    return row


def opened(q, k, v, *, block, open, leaf=8, peek=2, causal=False, k_valid=None):
    """One head whose rows open clusters, by a loop over the rows."""
    valid = np.ones(len(k), bool) if k_valid is None else k_valid.astype(bool)
    k, v = np.where(valid[:, None], k, 0), np.where(valid[:, None], v, 0)
    meet, scale, z = level_of_pairs(len(q), block), 1 / np.sqrt(q.shape[1]), np.zeros_like(v)
    means = [cluster_means(k, valid, level)[0] for level in range(meet.max() + 1)]
    for i in range(len(q)):
        row = opened_row(i, meet, q[i], k, valid, open, leaf, peek, scale, causal)
        seen = np.flatnonzero(row != -1)
        keys = np.array([means[max(row[j], 0)][j >> max(row[j], 0)] for j in seen])
        if len(seen):
            p = np.exp(scale * keys @ q[i])
            z[i] = p @ v[seen] / p.sum()
    return z


def attention(q, k, v, *, bias=None, key_mask=None, query_mask=None, **options):
    """z (batch, length, heads, dim) and lse (batch, heads, length); heads may share keys."""
    batch, length, heads, _ = q.shape
    group = heads // k.shape[2]
    z = np.zeros((batch, length, heads, v.shape[3]), q.dtype)
    lse = np.zeros((batch, heads, length), q.dtype)
    for b in range(batch):
        for h in range(heads):
            z[b, :, h], lse[b, h] = one_head(
                q[b, :, h], k[b, :, h // group], v[b, :, h // group],
                bias=None if bias is None else bias[:, h],
                k_valid=None if key_mask is None else key_mask[b],
                q_valid=None if query_mask is None else query_mask[b], **options)
    return z, lse


def tolerance(plain, exact):
    """What an error may be: twice that of the plain algorithm in the same precision, plus
    4 eps of the largest value. plain: in that precision; exact: in a finer one."""
    eps = np.finfo(plain.dtype).eps
    here = np.isfinite(exact)
    largest = np.abs(exact[here]).max() if here.any() else 0.0
    return 2 * error(plain, exact) + 4 * eps * largest


def error(found, exact):
    """Largest difference; infinities must agree."""
    here = np.isfinite(exact)
    assert np.array_equal(np.isfinite(found), here) and np.array_equal(found[~here], exact[~here])
    return np.abs(found[here].astype(exact.dtype) - exact[here]).max() if here.any() else 0.0


def check(found, exact, plain):
    """Pairs (z, lse): found and plain in the precision under test, exact in a finer one."""
    for x, reference, rough in zip(found, exact, plain):
        assert x.dtype == rough.dtype and x.shape == rough.shape
        assert error(x, reference) <= tolerance(rough, reference)
