"""htransformer.train(): a run folder as the program's train makes and goes on with it."""
import ctypes
import fcntl
import json
import os
import warnings
from ctypes import byref, c_int64
from typing import Any, Callable, Dict, Iterable, NamedTuple, Optional, Tuple, Union

from . import _begin, _library, _linear
from ._folder import find_weights, is_there, read_file, read_run, rows_desc
from ._library import FileError, FormatError, InvalidError
from ._linear import Linear
from ._model import Model, in_bytes, load
from ._models_library import (PARTS, DataDesc, DataInfo, Owner, ResumeInfo, Tell, TrainDesc,
                              TrainerDesc, config_text, labels_of, made)

Data = Union[str, Iterable[Tuple[Any, Any]]]


class Scores(NamedTuple):
    loss: float      # mean over targets, natural logarithm
    accuracy: float  # share of targets with the largest logit
    targets: int


class Progress(NamedTuple):
    """What a callback gets after each step."""
    step: int
    steps: int
    train: Scores             # of this step
    valid: Optional[Scores]   # of the evaluation after it, or None
    rate: float
    gradient_norm: float      # before clipping
    best: bool                # the evaluation was the best so far
    saved: bool               # a checkpoint was written
    seconds: float            # of the step
    elapsed: float
    left: float               # as it looks now


# ---- files -------------------------------------------------------------------------------------


def _write(own: Owner, path: str, data: bytes) -> None:
    """Whole or not at all."""
    writer = own.make("ht_writer_create", "ht_writer_destroy", own.context, os.fsencode(path))
    try:
        own.call("ht_writer_put", writer, data, len(data))
        own.call("ht_writer_finish", writer)
        own.call("ht_writer_commit", writer)
    finally:
        own.drop(writer)


class _Folder:
    """A run folder, this process's alone while it trains."""

    def __init__(self, run: str, resume: bool):
        self.path, self.config = run, os.path.join(run, "config.json")
        if not resume:
            os.makedirs(run, exist_ok=True)
        try:
            self.lock = os.open(run, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise FileError("%s could not be opened: %s" % (run, error.strerror)) from None
        try:
            self._take(run, resume)
        except Exception:
            os.close(self.lock)
            raise

    def _take(self, run: str, resume: bool) -> None:
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileError("%s is in use: another process trains there" % run) from None
        there = is_there(self.config)
        if resume and not there:
            raise FileError("%s holds no run to go on with" % run)
        if there and not resume:
            raise FileError("%s already holds a run: resume=True goes on with it, another run "
                            "starts a new one" % run)

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def close(self) -> None:
        os.close(self.lock)


def _as_file(own: Owner, data: Optional[Data], path: str) -> str:
    """The name of data; (text, label) pairs are kept in the run's folder, for resume."""
    if data is None or isinstance(data, (str, os.PathLike)):
        return "" if data is None else os.fspath(data)
    lines = []
    for i, pair in enumerate(data):
        if isinstance(pair, (str, bytes)) or len(pair) != 2:
            raise InvalidError("data must be a path or pairs (text, label), item %d is %r"
                               % (i, pair))
        text = in_bytes(pair[0]).decode("utf-8", "replace")
        lines.append(json.dumps({"label": str(pair[1]), "text": text}))
    _write(own, path, "".join(line + "\n" for line in lines).encode())
    return path


# ---- where the data is -------------------------------------------------------------------------

_ROWS = ("rows", "header", "text_column", "label_column", "skip_bad")


def _places(own: Owner, folder: _Folder, given: Dict[str, Any], resume: bool) -> Dict[str, Any]:
    """run.json: what is given, else what the run was begun with."""
    found: Dict[str, Any] = {"data": "", "valid": "", "papers": "", "holdout": 0.1, "rows": "auto",
                             "header": "auto", "text_column": "", "label_column": "",
                             "skip_bad": False}
    if resume:
        found.update(read_run(folder.path))
        if given["holdout"] is not None and given["holdout"] != found["holdout"]:
            raise InvalidError("%s has holdout %g and keeps it: it cannot go on with %g"
                               % (folder.path, found["holdout"], given["holdout"]))
    for name in ("data", "valid"):
        if given[name] is not None:
            found[name] = _as_file(own, given[name], folder.file(name + ".jsonl"))
    found.update({name: given[name] for name in ("papers", "holdout", *_ROWS)
                  if given[name] is not None})
    return found


def _whole(path: str) -> str:
    """From the root, so that the run goes on from any working directory."""
    return os.path.realpath(path) if path and os.path.exists(path) else path


# ---- a run -------------------------------------------------------------------------------------


class _Run:
    """What train() makes, step by step."""

    def __init__(self, own: Owner, folder: _Folder, resume: bool):
        self.own, self.folder, self.resume = own, folder, resume
        self.preset: Optional[str] = None
        self.train = self.valid = self.tokenizer = self.linear = None

    def set(self, key: str, value: Any) -> None:
        text = str(int(value) if isinstance(value, bool) else value)
        self.own.call("ht_config_set_text", self.config, key.encode(), text.encode())

    def settings(self) -> Dict[str, Any]:
        return json.loads(config_text(self.own, self.config))

    def make_config(self, preset: Optional[str], settings: Dict[str, Any]) -> None:
        self.preset = preset
        self.config = self.own.make("ht_config_create", "ht_config_destroy", self.own.context,
                                    preset.encode() if preset else None)
        if self.resume:
            self.own.call("ht_config_read_json", self.config, read_file(self.folder.config))
        for key, value in settings.items():
            self.set(key, value)
        if self.resume:
            self.own.call("ht_config_resume", self.config, self.own.context,
                          os.fsencode(self.folder.path))
        else:
            self.own.call("ht_config_check", self.config)

    def use_tokenizer(self, given: Optional[str], settings: Dict[str, Any]) -> None:
        path = given or self.folder.file("tokens.model")
        if not given and not is_there(path):
            return
        if self.settings()["task"] != "language":
            raise InvalidError("tokenizer is for language models, got task %s"
                               % self.settings()["task"])
        self.tokenizer = self.own.make("ht_tokenizer_open", "ht_tokenizer_close",
                                       self.own.context, os.fsencode(path))
        if "vocab" not in settings:
            self.set("vocab", self.own.lib.ht_tokenizer_vocab(self.tokenizer))

    def describe(self, where: Dict[str, Any], path: str, **more: Any) -> DataDesc:
        return made(DataDesc, config=self.config, tokenizer=self.tokenizer,
                    rows=ctypes.pointer(rows_desc(where)),
                    keep_texts=int(_linear.fits(self.settings())),
                    path=os.fsencode(path) if path else None,
                    papers=os.fsencode(where["papers"]) if where["papers"] else None, **more)

    def open_one(self, desc: DataDesc) -> Any:
        return self.own.make("ht_data_open", "ht_data_close", self.own.context, byref(desc))

    def open_data(self, where: Dict[str, Any]) -> None:
        path, valid = where["data"], where["valid"]
        both = path and not valid and where["holdout"] > 0
        if both:  # of one file, by one reading
            self.train, self.valid = self.own.make_two(
                "ht_data_open_parts", "ht_data_close", self.own.context,
                byref(self.describe(where, path, holdout=where["holdout"])))
        else:
            self.train = self.open_one(self.describe(where, path))
        labels = self.own.lib.ht_data_labels(self.train)
        if labels:
            self.set("classes", len(labels_of(labels)))
        if not both and (valid or not path):
            self.valid = self.open_one(self.describe(where, valid or path, part=PARTS["valid"],
                                                     labels=labels))

    def open_words(self, where: Dict[str, Any], named: bool, settings: Dict[str, Any]) -> None:
        """The encoder was taken because nothing else was said: not for what is no text."""
        self.open_data(where)
        if named or self.resume or self.preset != _begin.PRESET or \
                _begin.has_words(self.own, self.train):
            return
        for handle in (self.valid, self.train, self.config):
            if handle is not None:
                self.own.drop(handle)
        self.make_config("small", settings)
        self.open_data(where)

    def count_epochs(self, epochs: float, named: bool, settings: Dict[str, Any]) -> None:
        now, info = self.settings(), made(DataInfo)
        said = self.resume or named or "steps" in settings or now["minutes"] > 0
        # without a word on it a GPU goes over the items as often as pays with the encoder
        spread = not epochs and not said and self.preset == _begin.PRESET and \
            self.own.device.startswith("cuda")
        epochs = _begin.EPOCHS if spread else epochs
        if not epochs:
            return
        if "steps" in settings or now["minutes"] > 0:
            raise InvalidError("epochs, steps and minutes say the same thing: give one")
        self.own.call("ht_data_get_info", self.train, byref(info))
        steps = int(min(-(-epochs * info.items // (now["batch"] * now["accumulate"])), 1e9))
        self.set("steps", steps)
        if spread and "eval_every" not in settings:
            self.set("eval_every", max(now["eval_every"], steps // _begin.EVALUATIONS))

    def make_model(self, init: Optional[str], settings: Dict[str, Any]) -> None:
        self.model = self.own.make("ht_model_create", "ht_model_destroy", self.own.context,
                                   self.config)
        if init and self.resume:
            raise InvalidError("init starts a run, resume goes on with one")
        path = find_weights(init) if init else None if self.resume else \
            _begin.weights_of(self.own, self.preset, init, settings, self.settings())
        if path:
            taken, all_ = c_int64(), self.own.lib.ht_model_tensors(self.model)
            self.own.call("ht_model_take", self.model, os.fsencode(path), byref(taken))
            if not init and 2 * taken.value < all_:  # all but the head
                raise FormatError("%s is no encoder of this form: %d of %d tensors fit"
                                  % (path, taken.value, all_))
        self.trainer = self.own.make("ht_trainer_create", "ht_trainer_destroy", self.model,
                                     byref(made(TrainerDesc, config=self.config)))
        if self.resume:  # before anything is written: settings that do not fit must not stay
            info = made(ResumeInfo)
            self.own.call("ht_trainer_resume", self.trainer, self.train,
                          os.fsencode(self.folder.path), byref(info))
            if info.skipped:
                warnings.warn("goes on from step %d: %d newer could not be read: %s" % (
                    info.step, info.skipped, info.why.decode(errors="replace")))

    def write_folder(self, where: Dict[str, Any], tokenizer: Optional[str]) -> None:
        if tokenizer:
            _write(self.own, self.folder.file("tokens.model"), read_file(tokenizer, 1 << 28))
        kept = {"version": _library.version(), **where}
        kept.update({name: _whole(where[name]) for name in ("data", "valid", "papers")})
        _write(self.own, self.folder.file("run.json"), (json.dumps(kept) + "\n").encode())
        config = self.own.lib.ht_trainer_config(self.trainer)
        _write(self.own, self.folder.config, config_text(self.own, config))

    def begin_linear(self, wanted: bool) -> None:
        """A run goes on with the one that it was begun with, if there was one."""
        now = self.settings()
        if not wanted or not _linear.fits(now):
            return
        self.linear = Linear.load(self.own, self.folder.path)
        if self.linear is None and not self.resume:
            self.linear = Linear.fit(self.own, self.train)
            if self.linear is not None:
                self.linear.choose(self.folder.path, None, self.valid, now["eval_items"])

    def end_linear(self) -> None:
        best = self.folder.file("best.safetensors")
        if self.linear is None or self.valid is None or not is_there(best):
            return
        self.own.call("ht_model_take", self.model, os.fsencode(best), None)
        self.linear.choose(self.folder.path, self.trainer, self.valid,
                           self.settings()["eval_items"])

    def go(self, callback: Optional[Callable[[Progress], Any]]) -> None:
        """Trains; what a callback raises, Ctrl-C too, comes out behind a checkpoint."""
        raised = []

        def tell(_: Any, event: Any) -> int:
            try:
                return int(bool(callback and callback(_progress(event.contents))))
            except BaseException as error:
                raised.append(error)
                return 1

        desc = made(TrainDesc, folder=os.fsencode(self.folder.path), train=self.train,
                    valid=self.valid, tell=Tell(tell))
        self.own.call("ht_train", self.trainer, byref(desc))
        if raised:
            raise raised[0]
        self.end_linear()


def _scores(report: Any) -> Optional[Scores]:
    if not report:
        return None
    r = report.contents
    return Scores(r.loss, r.accuracy, r.targets)


def _progress(e: Any) -> Progress:
    return Progress(e.step, e.steps, _scores(e.report), _scores(e.valid), e.report.contents.rate,
                    e.report.contents.gradient_norm, bool(e.best), bool(e.saved), e.step_seconds,
                    e.elapsed, e.left)


def train(data: Optional[Data] = None, *, run: str, preset: Optional[str] = None,
          resume: bool = False, valid: Optional[Data] = None, holdout: Optional[float] = None,
          papers: Optional[str] = None, tokenizer: Optional[str] = None,
          init: Optional[str] = None, epochs: float = 0, linear: bool = True,
          callback: Optional[Callable[[Progress], Any]] = None, device: Optional[str] = None,
          threads: int = 0, rows: Optional[str] = None, header: Optional[str] = None,
          text_column: Optional[str] = None, label_column: Optional[str] = None,
          skip_bad: Optional[bool] = None, **settings: Any) -> Model:
    """Trains a model and returns it, as `htransformer train` does: the same run folder, the same
    bits, and each goes on with the other's runs.

    data      a file or folder of labelled texts, plain text or images; or pairs (text, label);
              None: tasks that make their items
    run       the folder of the run
    preset    what the settings start from: "small", "small-text", "lm/tiny", "lra/listops", ...;
              None: labelled texts begin with the encoder that comes along (docs/encoder.md)
    resume    goes on with the run in the folder, bit for bit; data is where it was
    valid     data to validate on, else `holdout` (0.1) of data
    settings  all of docs/training.md by their names: steps=500, layers=4, block=16, open=8
    callback  is called with a Progress after each step; true ends the run after a checkpoint. What
              it raises, or Ctrl-C, does too, and is raised again
    the rest  as the options of the same names in docs/cli.md
    """
    own = Owner(device, threads)
    try:
        if resume and preset:
            raise InvalidError("preset starts a run, resume goes on with one")
        folder = _Folder(run, resume)
        try:
            r = _Run(own, folder, resume)
            where = _places(own, folder, {
                "data": data, "valid": valid, "papers": papers, "holdout": holdout, "rows": rows,
                "header": header, "text_column": text_column, "label_column": label_column,
                "skip_bad": skip_bad}, resume)
            r.make_config(None if resume else preset or _begin.preset_of(
                own, where["data"], init, settings), settings)
            r.use_tokenizer(tokenizer, settings)
            r.open_words(where, bool(preset), settings)
            r.count_epochs(epochs, bool(preset), settings)
            r.make_model(init, settings)
            r.write_folder(where, tokenizer)
            r.begin_linear(linear)
            r.go(callback)
        finally:
            folder.close()
    finally:
        own.close()
    return load(run, device=device, threads=threads)
