"""The second library, of models, data and training: where it is found, its structs and functions.

Everything here mirrors include/htransformer_models.h, as far as it is used; tests/python/
test_models_library.py compares the two field by field. It is loaded when a model is first asked
for: the attention needs nothing of it.
"""
import ctypes
import os
import sys
import threading
import weakref
from ctypes import CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int
from ctypes import c_int32, c_int64, c_size_t, c_ubyte, c_uint64, c_void_p
from typing import Any, Callable, List, Optional

from . import _cublas, _library
from ._library import LibraryError

# ---- structs -----------------------------------------------------------------------------------

PARTS = {"train": 0, "valid": 1, "test": 2}
ROWS = {"auto": 0, "tsv": 1, "csv": 2, "jsonl": 3, "folders": 4}
HEADERS = {"auto": 0, "yes": 1, "no": 2}


class RowsDesc(Structure):
    _fields_ = [("size", c_size_t), ("path", c_char_p), ("bytes", c_char_p), ("count", c_size_t),
                ("kind", c_int), ("header", c_int), ("text_column", c_char_p),
                ("label_column", c_char_p), ("texts", c_int), ("unlabelled", c_int),
                ("skip_bad", c_int), ("most", c_size_t), ("each", c_void_p), ("user", c_void_p)]


class Batch(Structure):
    _fields_ = [("size", c_size_t), ("sequences", c_int64), ("tokens", c_void_p),
                ("cu_seqlens", c_void_p), ("targets", c_void_p), ("back", c_void_p)]


class DataDesc(Structure):
    _fields_ = [("size", c_size_t), ("config", c_void_p), ("path", c_char_p), ("part", c_int),
                ("holdout", c_double), ("papers", c_char_p), ("tokenizer", c_void_p),
                ("memory", c_size_t), ("rows", POINTER(RowsDesc)), ("labels", c_void_p),
                ("items", c_int64), ("keep_texts", c_int)]


class DataInfo(Structure):
    _fields_ = [("size", c_size_t), ("items", c_int64), ("tokens", c_int64), ("longest", c_int64),
                ("cut", c_int64), ("classes", c_int64), ("majority", c_double),
                ("documents", c_int64)]


class KeyInfo(Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("kind", c_int), ("owner", c_int),
                ("help", c_char_p), ("fallback", c_char_p), ("choices", c_void_p),
                ("least", c_double), ("most", c_double), ("keeps", c_int), ("decided", c_int)]


class TensorInfo(Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("rank", c_int), ("shape", c_int64 * 2),
                ("count", c_int64)]


class LinearInfo(Structure):
    _fields_ = [("size", c_size_t), ("classes", c_int64), ("features", c_int64),
                ("items", c_int64), ("valid_items", c_int64), ("linear_weight", c_double),
                ("model_weight", c_double), ("linear_loss", c_double),
                ("linear_accuracy", c_double), ("model_loss", c_double),
                ("model_accuracy", c_double), ("chosen_loss", c_double),
                ("chosen_accuracy", c_double)]


class GeneratorDesc(Structure):
    _fields_ = [("size", c_size_t), ("slots", c_int64), ("rows", c_int64), ("config", c_void_p)]


class Sampling(Structure):
    _fields_ = [("size", c_size_t), ("temperature", c_double), ("top_k", c_int64),
                ("top_p", c_double), ("min_p", c_double), ("repeat_penalty", c_double),
                ("seed", c_uint64)]


class TrainerDesc(Structure):
    _fields_ = [("size", c_size_t), ("config", c_void_p), ("inference", c_int),
                ("world", c_void_p)]


class Report(Structure):
    _fields_ = [("size", c_size_t), ("loss", c_double), ("accuracy", c_double),
                ("targets", c_int64), ("correct", c_int64), ("tokens", c_int64),
                ("rate", c_double), ("gradient_norm", c_double), ("applied", c_int)]


class ResumeInfo(Structure):
    _fields_ = [("size", c_size_t), ("step", c_int64), ("skipped", c_int64), ("why", c_char * 512)]


class Event(Structure):
    _fields_ = [("size", c_size_t), ("step", c_int64), ("steps", c_int64),
                ("report", POINTER(Report)), ("valid", POINTER(Report)), ("best", c_int),
                ("saved", c_int), ("step_seconds", c_double), ("elapsed", c_double),
                ("left", c_double), ("tired", c_int)]


Tell = CFUNCTYPE(c_int, c_void_p, POINTER(Event))


class TrainDesc(Structure):
    _fields_ = [("size", c_size_t), ("folder", c_char_p), ("train", c_void_p),
                ("valid", c_void_p), ("resume", c_int), ("tell", Tell), ("user", c_void_p)]


def made(struct: Any, **fields: Any) -> Any:
    return struct(size=ctypes.sizeof(struct), **fields)


# ---- functions ---------------------------------------------------------------------------------

_H, _OUT = c_void_p, POINTER(c_void_p)
_FUNCTIONS = {  # name: (result, arguments); results of c_int are ht_status
    "ht_config_create": (c_int, [_OUT, _H, c_char_p]),
    "ht_config_copy": (c_int, [_OUT, _H]),
    "ht_config_destroy": (None, [_H]),
    "ht_config_set_int": (c_int, [_H, c_char_p, c_int64]),
    "ht_config_set_text": (c_int, [_H, c_char_p, c_char_p]),
    "ht_config_get_int": (c_int, [_H, c_char_p, POINTER(c_int64)]),
    "ht_config_read_json": (c_int, [_H, c_char_p]),
    "ht_config_write_json": (c_int, [_H, c_char_p, c_size_t, POINTER(c_size_t)]),
    "ht_config_check": (c_int, [_H]),
    "ht_config_resume": (c_int, [_H, _H, c_char_p]),
    "ht_config_keys": (c_int, []),
    "ht_config_key": (c_int, [c_int, POINTER(KeyInfo)]),
    "ht_labels_count": (c_int64, [_H]),
    "ht_labels_name": (c_char_p, [_H, c_int64]),
    "ht_tokenizer_open": (c_int, [_OUT, _H, c_char_p]),
    "ht_tokenizer_close": (None, [_H]),
    "ht_tokenizer_vocab": (c_int64, [_H]),
    "ht_tokenizer_encode": (c_int, [_H, c_char_p, c_size_t, c_void_p, c_int64,
                                    POINTER(c_int64)]),
    "ht_tokenizer_piece": (c_void_p, [_H, c_int32, POINTER(c_size_t)]),
    "ht_data_open": (c_int, [_OUT, _H, POINTER(DataDesc)]),
    "ht_data_open_parts": (c_int, [_OUT, _OUT, _H, POINTER(DataDesc)]),
    "ht_data_close": (None, [_H]),
    "ht_data_get_info": (c_int, [_H, POINTER(DataInfo)]),
    "ht_data_labels": (c_void_p, [_H]),
    "ht_data_text": (c_void_p, [_H, c_int64, POINTER(c_size_t)]),
    "ht_data_next": (c_int, [_H, POINTER(Batch)]),
    "ht_data_encode": (c_int, [_H, _H, c_char_p, c_size_t, c_void_p, c_int64, POINTER(c_int64)]),
    "ht_model_create": (c_int, [_OUT, _H, _H]),
    "ht_model_destroy": (None, [_H]),
    "ht_model_config": (c_void_p, [_H]),
    "ht_model_parameters": (c_int64, [_H]),
    "ht_model_load": (c_int, [_OUT, _H, c_char_p]),
    "ht_model_take": (c_int, [_H, c_char_p, POINTER(c_int64)]),
    "ht_model_labels": (c_void_p, [_H]),
    "ht_model_tensors": (c_int64, [_H]),
    "ht_model_tensor": (c_int, [_H, c_int64, POINTER(TensorInfo)]),
    "ht_model_read": (c_int, [_H, c_int64, c_void_p]),
    "ht_linear_fit": (c_int, [_OUT, _H, _H]),
    "ht_linear_destroy": (None, [_H]),
    "ht_linear_labels": (c_void_p, [_H]),
    "ht_linear_scores": (c_int, [_H, c_void_p, c_size_t, c_void_p]),
    "ht_linear_choose": (c_int, [_H, c_void_p, c_void_p, c_void_p, c_int64]),
    "ht_linear_mix": (c_int, [_H, c_void_p, c_void_p, c_void_p]),
    "ht_linear_get_info": (c_int, [_H, POINTER(LinearInfo)]),
    "ht_linear_save": (c_int, [_H, c_char_p]),
    "ht_linear_load": (c_int, [_OUT, _H, c_char_p]),
    "ht_generator_create": (c_int, [_OUT, _H, POINTER(GeneratorDesc)]),
    "ht_generator_destroy": (None, [_H]),
    "ht_generator_feed": (c_int, [_H, c_void_p, POINTER(Batch), c_void_p, c_int]),
    "ht_generator_sample": (c_int, [_H, c_int64, POINTER(Sampling), POINTER(c_int32),
                                    POINTER(c_double)]),
    "ht_trainer_create": (c_int, [_OUT, _H, POINTER(TrainerDesc)]),
    "ht_trainer_destroy": (None, [_H]),
    "ht_trainer_config": (c_void_p, [_H]),
    "ht_trainer_evaluate": (c_int, [_H, POINTER(Batch), POINTER(Report)]),
    "ht_trainer_predict": (c_int, [_H, POINTER(Batch), c_void_p]),
    "ht_trainer_guess": (c_int, [_H, POINTER(Batch), c_void_p, c_void_p]),
    "ht_trainer_embed": (c_int, [_H, POINTER(Batch), c_void_p]),
    "ht_trainer_resume": (c_int, [_H, _H, c_char_p, POINTER(ResumeInfo)]),
    "ht_train": (c_int, [_H, POINTER(TrainDesc)]),
    "ht_file_step": (c_int64, [c_char_p]),
    "ht_writer_create": (c_int, [_OUT, _H, c_char_p]),
    "ht_writer_destroy": (None, [_H]),
    "ht_writer_put": (c_int, [_H, c_char_p, c_size_t]),
    "ht_writer_finish": (c_int, [_H]),
    "ht_writer_commit": (c_int, [_H]),
}

# ---- finding and loading -----------------------------------------------------------------------

_models: Any = None
_loading = threading.Lock()


def package_folder() -> Optional[str]:
    """Where htransformer-models is installed, None: it is not."""
    import importlib.util
    spec = importlib.util.find_spec("htransformer_models")
    return os.path.dirname(spec.origin) if spec and spec.origin else None


def in_box(name: str) -> Optional[str]:
    """The file of weights that comes with htransformer-models, or lies in the source tree; None: it
    is in neither."""
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    for folder in (package_folder(), os.path.join(here, "models")):
        if folder and os.path.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    return None


def _candidates() -> List[str]:
    name = "libhtransformer_models.dylib" if sys.platform == "darwin" \
        else "libhtransformer_models.so"
    wheel = name if name.endswith("dylib") else name + ".1"
    folder = package_folder()
    beside = os.path.dirname(_library.library_path())
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    places = [folder and os.path.join(folder, wheel), beside and os.path.join(beside, name),
              os.path.join(os.path.dirname(here), "build", name), wheel, name]
    return [place for place in places if place]


def _open() -> Any:
    named = os.environ.get("HTRANSFORMER_MODELS_LIBRARY")
    tried = []
    for path in [named] if named else _candidates():
        if os.path.isabs(path) and not os.path.exists(path):
            tried.append("%s: no such file" % path)
            continue
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append("%s: %s" % (path, error))
    raise LibraryError("the library of models was not found: pip install htransformer-models, or "
                       "set HTRANSFORMER_MODELS_LIBRARY to its libhtransformer_models.so. Tried:"
                       "\n  " + "\n  ".join(tried))


def models() -> Any:
    """The loaded library, its functions typed."""
    global _models
    if _models is None:
        with _loading:
            if _models is None:
                _library.library()  # its symbols are the other's
                lib = _open()
                try:
                    for name, (result, arguments) in _FUNCTIONS.items():
                        function = getattr(lib, name)
                        function.restype, function.argtypes = result, arguments
                except AttributeError as error:
                    raise LibraryError("%s is not the library of models of version %s: %s"
                                       % (lib._name, _library.VERSION, error)) from None
                _models = lib
    return _models


# ---- handles -----------------------------------------------------------------------------------


def _destroy(handles: List[Any]) -> None:
    while handles:
        function, handle = handles.pop()
        function(handle)


class Owner:
    """A context and all that was made with it, destroyed last first. One thread at a time: who
    calls holds the lock."""

    def __init__(self, device: Optional[str] = None, threads: int = 0):
        lib = _library.library()
        self.lib, self.lock, self._handles = models(), threading.RLock(), []
        if device is None and not os.environ.get("HTRANSFORMER_DEVICE"):
            device = "auto"
        desc = _library.ContextDesc(size=ctypes.sizeof(_library.ContextDesc), threads=threads,
                                    device=None if device is None else device.encode())
        self.context = c_void_p()
        _library.check(lib.ht_context_create(ctypes.byref(self.context), ctypes.byref(desc)))
        self._handles.append((lib.ht_context_destroy, self.context))
        if self.device.startswith("cuda"):
            _cublas.provide()
        self.close = weakref.finalize(self, _destroy, self._handles)
        self.close.atexit = False  # the device's driver may be gone by then

    def check(self, status: int) -> None:
        if status:
            _library.check(status, self.context)

    def call(self, name: str, *arguments: Any) -> None:
        with self.lock:
            self.check(getattr(self.lib, name)(*arguments))

    def make(self, create: str, destroy: str, *arguments: Any) -> Any:
        """The handle of create(&handle, *arguments), which lives as long as this."""
        handle = c_void_p()
        self.call(create, ctypes.byref(handle), *arguments)
        self._handles.append((getattr(self.lib, destroy), handle))
        return handle

    def make_two(self, create: str, destroy: str, *arguments: Any) -> Any:
        """The handles of create(&one, &other, *arguments)."""
        both = (c_void_p(), c_void_p())
        self.call(create, *map(ctypes.byref, both), *arguments)
        self._handles += [(getattr(self.lib, destroy), handle) for handle in both]
        return both

    def drop(self, handle: Any) -> None:
        """Destroys one before its time."""
        for i, (function, found) in enumerate(self._handles):
            if found is handle:
                del self._handles[i]
                with self.lock:
                    function(handle)
                return

    @property
    def device(self) -> str:
        return _library.library().ht_context_device(self.context).decode()


def labels_of(handle: Any) -> List[str]:
    lib = models()
    count = lib.ht_labels_count(handle) if handle else 0
    return [lib.ht_labels_name(handle, i).decode(errors="replace") for i in range(count)]


def config_text(owner: Owner, config: Any) -> bytes:
    """All keys as JSON."""
    length = c_size_t()
    owner.call("ht_config_write_json", config, None, 0, ctypes.byref(length))
    room = ctypes.create_string_buffer(length.value + 1)
    owner.call("ht_config_write_json", config, room, len(room), None)
    return room.value


def pointer(array: Any) -> Any:
    return array.ctypes.data


