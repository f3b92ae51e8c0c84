"""Sums over the batches of data, and what they say."""
import ctypes
import math
from ctypes import byref, c_size_t
from typing import Any, Dict, Iterator, Tuple

import numpy as np

from ._models_library import Batch, Owner, Report, made, pointer

OK, END = 0, 1


def array(at: Any, count: int) -> Any:
    """Host memory of the library as an array; it lasts until the next batch."""
    if not at:
        return None
    return np.ctypeslib.as_array((ctypes.c_int32 * count).from_address(at))


def batches(own: Owner, data: Any) -> Iterator[Tuple[Batch, Any]]:
    """All batches in their order: (batch, (tokens, starts, targets))."""
    batch = made(Batch)
    with own.lock:
        while own.lib.ht_data_next(data, byref(batch)) == OK:
            pass  # who was there before may have left it in the middle
    while True:
        with own.lock:
            status = own.lib.ht_data_next(data, byref(batch))
            if status == END:
                return
            own.check(status)
        starts = array(batch.cu_seqlens, batch.sequences + 1)
        tokens = array(batch.tokens, int(starts[-1]))
        yield batch, (tokens, starts, batch.targets)


def text_of(own: Owner, data: Any, item: int) -> Tuple[Any, int]:
    size = c_size_t()
    return own.lib.ht_data_text(data, item, byref(size)), size.value


def evaluate(model: Any, data: Any) -> Dict[str, Any]:
    if model.task == "denoise":
        return _reported(model, data)
    if model.task == "language":
        return _language(model, data)
    return _classes(model, data)


def _share(correct: float, count: float) -> Dict[str, float]:
    share = correct / count if count else math.nan
    return {"accuracy": share, "accuracy_error": math.sqrt(share * (1 - share) / count)}


def _reported(model: Any, data: Any) -> Dict[str, Any]:
    loss = correct = targets = 0.0
    for batch, _ in batches(model._own, data):
        report = made(Report)
        model._own.call("ht_trainer_evaluate", model._trainer, byref(batch), byref(report))
        loss += report.loss * report.targets
        correct, targets = correct + report.correct, targets + report.targets
    return {"targets": int(targets), "loss": loss / targets, **_share(correct, targets)}


def _language(model: Any, data: Any) -> Dict[str, Any]:
    sizes = np.array([len(model._piece(token)) for token in range(model.config["vocab"])])
    loss, right, count, size = 0.0, 0, 0, 0
    for batch, (tokens, starts, targets) in batches(model._own, data):
        wanted = array(targets, len(tokens))
        losses, hits = np.empty(len(tokens), np.float32), np.empty(len(tokens), np.uint8)
        model._own.call("ht_trainer_guess", model._trainer, byref(batch), pointer(losses),
                        pointer(hits))
        counts = wanted >= 0
        loss += float(losses[counts].sum(dtype=np.float64))
        right, count = right + int(hits[counts].sum()), count + int(counts.sum())
        size += int(sizes[wanted[counts]].sum())
    return {"targets": count, "bytes": size, "loss": loss / count, "accuracy": right / count,
            "perplexity": math.exp(loss / count), "bits_per_byte": loss / math.log(2) / size}


def _classes(model: Any, data: Any) -> Dict[str, Any]:
    classes, own, linear = len(model.labels), model._own, model._linear
    each = 2 if model.task == "pairs" else 1
    confusion, loss, seen = np.zeros((classes, classes), np.int64), 0.0, 0
    for batch, (_tokens, _starts, targets) in batches(own, data):
        items = batch.sequences // each
        labels, logits = array(targets, items), np.empty((items, classes), np.float32)
        own.call("ht_trainer_predict", model._trainer, byref(batch), pointer(logits))
        for i in range(items if linear is not None else 0):
            text, size = text_of(own, data, seen + i)
            linear.mix(ctypes.string_at(text, size), logits[i])
        seen += items
        wide = logits.astype(np.float64)
        wide -= wide.max(1, keepdims=True)
        wide -= np.log(np.exp(wide).sum(1, keepdims=True))
        for i in np.flatnonzero(labels >= 0):
            loss -= wide[i, labels[i]]
            confusion[labels[i], logits[i].argmax()] += 1
    return _of_confusion(confusion, loss)


def _of_confusion(confusion: np.ndarray, loss: float) -> Dict[str, Any]:
    items, right = confusion.sum(), np.diag(confusion)
    there = confusion.sum(0) + confusion.sum(1)
    f1 = 2 * right[there > 0] / there[there > 0]
    return {"items": int(items), "loss": loss / items, **_share(right.sum(), items),
            "macro_f1": float(f1.mean()), "majority": confusion.sum(1).max() / items,
            "confusion": confusion}
