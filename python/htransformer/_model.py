"""htransformer.load(): a trained model as an object."""
import codecs
import ctypes
import json
import math
import os
from ctypes import byref, c_double, c_int32, c_int64, c_size_t
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _library
from ._folder import find_weights, is_there, read_run, rows_desc
from ._library import FileError, InvalidError, UnsupportedError
from ._linear import Linear
from ._models_library import (PARTS, Batch, DataDesc, GeneratorDesc, Owner, Sampling, TensorInfo,
                              TrainerDesc, config_text, labels_of, made, models, pointer)

Text = Union[str, bytes]

END = 1  # of ht_status
TURNS = 50  # that a trainer may take the newest checkpoint away beneath a reader


def in_bytes(text: Text) -> bytes:
    if not isinstance(text, (str, bytes)):
        raise TypeError("a text must be str or bytes, got %s" % type(text).__name__)
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


# ---- the model ---------------------------------------------------------------------------------


class Model:
    """A trained model: made by htransformer.load() or htransformer.train().

    config      all settings, by name
    labels      names of the classes in the order of their numbers; of a language model []
    task        "classify", "pairs", "language" or "denoise"
    device      what computes, "cuda:0" or "cpu:avx2"
    path        the file of the weights
    parameters  how many numbers it has
    """

    def __init__(self, run: Optional[str] = None, *, device: Optional[str] = None, threads: int = 0,
                 last: bool = False, length: Optional[int] = None, open: Optional[int] = None):
        path = find_weights(run, last)
        self._own = Owner(device, threads)
        self._model, self.path = self._load(path, run, last)
        self.device = self._own.device
        lib = self._own.lib
        self._config = self._own.make("ht_config_copy", "ht_config_destroy",
                                      lib.ht_model_config(self._model))
        self._change(length, open)
        self.config: Dict[str, Any] = json.loads(config_text(self._own, self._config))
        self.task: str = self.config["task"]
        self.labels: List[str] = [] if self.task in ("language", "denoise") else \
            labels_of(lib.ht_model_labels(self._model))
        self.parameters: int = lib.ht_model_parameters(self._model)
        self._tokenizer = self._open_tokenizer() if self.task == "language" else None
        self._trainer = self._own.make(
            "ht_trainer_create", "ht_trainer_destroy", self._model,
            byref(made(TrainerDesc, config=self._config, inference=1)))
        self._linear = Linear.find(self._own, os.path.dirname(self.path), self.config, self.labels)

    def _load(self, path: str, run: Optional[str], last: bool) -> Tuple[Any, str]:
        """Beside a trainer the checkpoint that was the newest may be gone when it is opened; then
        another one is."""
        for turn in range(TURNS + 1):
            try:
                return self._own.make("ht_model_load", "ht_model_destroy", self._own.context,
                                      os.fsencode(path)), path
            except FileError:
                if run is None or turn == TURNS or is_there(path):
                    raise
            path = find_weights(run, last)
        raise AssertionError("not reached")

    def _change(self, length: Optional[int], open: Optional[int]) -> None:
        """Another length: as many tokens per batch as before."""
        now = json.loads(config_text(self._own, self._config))
        if length:
            batch = max(1, now["batch"] * now["length"] // length)
            self._own.call("ht_config_set_int", self._config, b"length", length)
            self._own.call("ht_config_set_int", self._config, b"batch", batch)
        if open is not None:
            self._own.call("ht_config_set_int", self._config, b"open", open)

    def _open_tokenizer(self) -> Any:
        path = os.path.join(os.path.dirname(self.path), "tokens.model")
        found = self._own.make("ht_tokenizer_open", "ht_tokenizer_close", self._own.context,
                               os.fsencode(path) if is_there(path) else None)
        tokens = self._own.lib.ht_tokenizer_vocab(found)
        if tokens > self.config["vocab"]:
            raise _library.FormatError("%s has %d tokens, but the model only %d"
                                       % (path, tokens, self.config["vocab"]))
        return found

    def close(self) -> None:
        """Gives its memory back; it cannot be used any more."""
        self._own.close()
        self._trainer = None

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return "htransformer.Model(%r, task=%s, parameters=%d, device=%s)" % (
            self.path, self.task, self.parameters, self.device)

    def _need(self, *tasks: str) -> None:
        if self._trainer is None:
            raise InvalidError("the model is closed")
        if tasks and self.task not in tasks:
            raise UnsupportedError("%s is a model with task %s; this is for task %s"
                                   % (self.path, self.task, " and ".join(tasks)))

    # ---- texts to tokens and batches ----

    def _encode(self, text: Text, number: int, room: int) -> np.ndarray:
        data, count = in_bytes(text), c_int64()
        tokens = np.empty(max(1, room), np.int32)
        where = (pointer(tokens), room, byref(count))
        if self._tokenizer is not None:
            self._own.call("ht_tokenizer_encode", self._tokenizer, data, len(data), *where)
        else:
            self._own.call("ht_data_encode", self._own.context, self._config, data, len(data),
                           *where)
        if count.value == 0:
            raise InvalidError("text %d is empty" % number)
        return tokens[:min(count.value, room)]

    def _sequences(self, texts: Sequence[Any]) -> Iterator[List[np.ndarray]]:
        """Of each text its sequences: one, of pairs two."""
        length = self.config["length"]
        for i, text in enumerate(texts):
            if self.task == "pairs":
                if isinstance(text, (str, bytes)) or len(text) != 2:
                    raise InvalidError("text %d must be a pair of texts, got %r" % (i, text))
                yield [self._encode(x, i, length) for x in text]
            elif self._tokenizer is not None:  # asked for each token, the first behind token 0
                yield [np.concatenate([np.zeros(1, np.int32), self._encode(text, i, length)])]
            else:
                yield [self._encode(text, i, length)]

    def _batches(self, texts: Sequence[Any]) -> Iterator[Tuple[Batch, int, Any]]:
        """(batch, items, what keeps its arrays alive). A language model's last token is a target
        alone."""
        asks = self._tokenizer is not None
        found = list(self._sequences(texts))
        for first in range(0, len(found), self.config["batch"]):
            group = found[first:first + self.config["batch"]]
            rows = [x[:-1] if asks else x for item in group for x in item]
            tokens = np.concatenate(rows)
            starts = np.cumsum([0] + [len(x) for x in rows], dtype=np.int32)
            targets = np.concatenate([x[1:] for item in group for x in item]) if asks else None
            batch = made(Batch, sequences=len(rows), tokens=pointer(tokens),
                         cu_seqlens=pointer(starts),
                         targets=None if targets is None else pointer(targets))
            yield batch, len(group), (tokens, starts, targets)

    # ---- what users call ----

    def predict(self, texts: Any, probabilities: bool = False) -> Any:
        """Labels of texts: a list of names; of one text its name. Of pairs a text is a tuple of
        two. With probabilities=True (labels, array [texts, classes]).

        Of a language model bits per byte of each text, as an array. Texts longer than
        config["length"] are cut."""
        self._need("classify", "pairs", "language")
        single = isinstance(texts, (str, bytes)) or (self.task == "pairs" and len(texts) == 2
                                                     and isinstance(texts[0], (str, bytes)))
        given = [texts] if single else list(texts)
        if self.task == "language":
            bits = self._bits(given)
            return bits[0] if single else bits
        logits = self.logits(given)
        shifted = np.exp(logits - logits.max(1, keepdims=True))
        shares = shifted / shifted.sum(1, keepdims=True)
        names = [self.labels[i] for i in logits.argmax(1)]
        if single:
            return (names[0], shares[0]) if probabilities else names[0]
        return (names, shares) if probabilities else names

    def logits(self, texts: Sequence[Any]) -> np.ndarray:
        """What predict() chooses by, [texts, classes]; where a linear model answers too, the logits
        of both."""
        self._need("classify", "pairs")
        out = np.empty((len(texts), len(self.labels)), np.float32)
        if self._linear is not None and self._linear.alone:
            list(self._sequences(texts))  # what is wrong with one is said all the same
        else:
            at = 0
            for batch, items, _alive in self._batches(texts):
                self._own.call("ht_trainer_predict", self._trainer, byref(batch),
                               pointer(out[at:at + items]))
                at += items
        if self._linear is not None:
            for i, text in enumerate(texts):
                self._linear.mix(in_bytes(text), out[i])
        return out

    def _bits(self, texts: Sequence[Text]) -> np.ndarray:
        found = []
        for batch, items, (tokens, starts, targets) in self._batches(texts):
            losses = np.empty(len(tokens), np.float32)
            self._own.call("ht_trainer_predict", self._trainer, byref(batch), pointer(losses))
            for b in range(items):
                here = slice(starts[b], starts[b + 1])
                found.append(float(losses[here].astype(np.float64).sum()) / math.log(2)
                             / self._bytes(targets[here]))
        return np.array(found)

    def _bytes(self, tokens: Sequence[int]) -> int:
        return sum(len(self._piece(int(token))) for token in tokens)

    def _piece(self, token: int) -> bytes:
        size = c_size_t()
        at = self._own.lib.ht_tokenizer_piece(self._tokenizer, token, byref(size))
        return ctypes.string_at(at, size.value) if at else b""

    def embed(self, texts: Any) -> np.ndarray:
        """A row of numbers for each text, [texts, width], float32; of one text [width]: what the
        classifier's head reads, of other models the mean over the text. Of pairs two rows each,
        [texts, 2, width]."""
        self._need()
        single = isinstance(texts, (str, bytes))
        given = [texts] if single else list(texts)
        each, width = (2 if self.task == "pairs" else 1), self.config["width"]
        out, at = np.empty((len(given) * each, width), np.float32), 0
        for batch, _items, _alive in self._batches(given):
            self._own.call("ht_trainer_embed", self._trainer, byref(batch), pointer(out[at:]))
            at += batch.sequences
        if each == 2:
            return out.reshape(len(given), 2, width)
        return out[0] if single else out

    def generate(self, prompt: Text = "", tokens: int = 300, *, temperature: float = 0.8,
                 top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
                 repeat_penalty: float = 1.0, seed: int = 1, stop: Optional[Text] = None,
                 endless: bool = False) -> Iterator[str]:
        """Goes on with a text: yields pieces of it as they come, at most `tokens` tokens.

        temperature 0 is always the likeliest token; the same seed gives the same text. It ends
        before `stop`, or where the model ends the document unless `endless`.
        "".join(model.generate("It was")) is all of it."""
        self._need("language")
        if tokens < 0:
            raise InvalidError("tokens must be >= 0, got %r" % (tokens,))
        sampling = made(Sampling, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
                        repeat_penalty=repeat_penalty, seed=seed)
        return self._write(in_bytes(prompt), tokens, sampling, in_bytes(stop or b""), endless)

    def _write(self, prompt: bytes, tokens: int, sampling: Sampling, stop: bytes, endless: bool
               ) -> Iterator[str]:
        desc = made(GeneratorDesc, config=self._config)
        generator = self._own.make("ht_generator_create", "ht_generator_destroy", self._model,
                                   byref(desc))
        out = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            yield from _decoded(out, _until(stop, self._pieces(generator, prompt, tokens, sampling,
                                                               endless)))
        finally:
            self._own.drop(generator)

    def _pieces(self, generator: Any, prompt: bytes, tokens: int, sampling: Sampling, endless: bool
                ) -> Iterator[bytes]:
        count = c_int64()
        text = np.zeros(2 * len(prompt) + 8, np.int32)
        self._own.call("ht_tokenizer_encode", self._tokenizer, prompt, len(prompt),
                       pointer(text[1:]), len(text) - 1, byref(count))
        self._feed(generator, text[:count.value + 1])
        for i in range(tokens):
            token = c_int32()
            self._own.call("ht_generator_sample", generator, 0, byref(sampling), byref(token), None)
            if token.value == 0 and not endless:
                return
            yield self._piece(token.value)
            if i + 1 < tokens:
                self._feed(generator, np.array([token.value], np.int32))

    def _feed(self, generator: Any, tokens: np.ndarray, most: int = 4096) -> None:
        for at in range(0, len(tokens), most):
            part = tokens[at:at + most]
            starts = np.array([0, len(part)], np.int32)
            self._own.call("ht_generator_feed", generator, None, byref(made(
                Batch, sequences=1, tokens=pointer(part), cu_seqlens=pointer(starts))), None, 0)

    def evaluate(self, data: Optional[str] = None, *, part: str = "test", holdout: float = 0.0,
                 papers: Optional[str] = None, items: int = 0, rows: Optional[str] = None,
                 header: Optional[str] = None, text_column: Optional[str] = None,
                 label_column: Optional[str] = None, skip_bad: bool = False) -> Dict[str, Any]:
        """How good the model is on data, a file or a folder as in training; without it on items
        that are made (tasks that make theirs). How rows are read is what training found, unless
        it is given. A dict: loss, accuracy and its standard error, of classes macro_f1, majority
        and confusion[label, answer], of language models bits_per_byte and perplexity."""
        from ._evaluate import evaluate
        self._need()
        if part not in PARTS:
            raise InvalidError("part must be one of %s, got %r" % (", ".join(PARTS), part))
        given = dict(read_run(os.path.dirname(self.path)))
        given.update({name: x for name, x in (
            ("rows", rows), ("header", header), ("text_column", text_column),
            ("label_column", label_column), ("skip_bad", skip_bad or None)) if x is not None})
        how = rows_desc(given)
        desc = made(DataDesc, config=self._config, part=PARTS[part], holdout=holdout,
                    path=os.fsencode(data) if data else None, rows=ctypes.pointer(how),
                    papers=os.fsencode(papers) if papers else None, tokenizer=self._tokenizer,
                    labels=self._own.lib.ht_model_labels(self._model), items=items,
                    keep_texts=int(self._linear is not None))
        found = self._own.make("ht_data_open", "ht_data_close", self._own.context, byref(desc))
        try:
            return evaluate(self, found)
        finally:
            self._own.drop(found)

    def weights(self) -> Dict[str, np.ndarray]:
        """All weights by name, as float64."""
        self._need()
        found = {}
        for i in range(self._own.lib.ht_model_tensors(self._model)):
            info = made(TensorInfo)
            self._own.call("ht_model_tensor", self._model, i, byref(info))
            values = np.empty(info.count)
            self._own.call("ht_model_read", self._model, i, pointer(values))
            found[info.name.decode()] = values.reshape(info.shape[:info.rank])
        return found


def _until(stop: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Pieces up to `stop`; what could be its beginning waits until it is known not to be."""
    held = b""
    for piece in pieces:
        held += piece
        at = held.find(stop) if stop else -1
        if at >= 0:
            yield held[:at]
            return
        keep = next((k for k in range(min(len(stop) - 1, len(held)), 0, -1)
                     if held.endswith(stop[:k])), 0)
        yield held[:len(held) - keep]
        held = held[len(held) - keep:]
    yield held


def _decoded(decoder: Any, pieces: Iterator[bytes]) -> Iterator[str]:
    """Whole characters; bytes that are none become U+FFFD."""
    for piece in pieces:
        text = decoder.decode(piece)
        if text:
            yield text
    text = decoder.decode(b"", True)
    if text:
        yield text


def load(run: Optional[str] = None, *, device: Optional[str] = None, threads: int = 0,
         last: bool = False, length: Optional[int] = None, open: Optional[int] = None) -> Model:
    """A trained model: of a run folder (htransformer.train, or the program's), a checkpoint's file,
    or without a name the small language model that comes with htransformer-models.

    device   None: the first GPU if it can be used, else the CPU; or "cpu", "cuda:0", "cpu:ref"
    threads  of the CPU; 0: all
    last     the newest checkpoint instead of the best
    length   tokens of a text, None: as it was trained; open: clusters that a row opens, likewise
    """
    models()  # first of all: is it installed?
    return Model(run, device=device, threads=threads, last=last, length=length, open=open)
