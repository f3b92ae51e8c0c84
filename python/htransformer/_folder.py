"""What lies in a run's folder. It may come from anywhere: nothing in it is believed unseen."""
import json
import os
import stat
from typing import Any, Dict, Optional

from ._library import FileError, FormatError, InvalidError
from ._models_library import HEADERS, ROWS, RowsDesc, in_box, made, models

BOX = "shakespeare.safetensors"
MOST = 1 << 20  # bytes of a small text, as in the program


def is_there(path: str) -> bool:
    """What is there but cannot be looked at is an error, no absence."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise FileError("%s could not be opened: %s" % (path, error.strerror)) from None
    return True


def read_file(path: str, most: int = MOST) -> bytes:
    """A regular file, not larger than that; no pipe or device is waited for."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise FileError("%s is not a regular file" % path)
            if about.st_size > most:
                raise FormatError("%s has %d bytes, more than the %d that such a file may have"
                                  % (path, about.st_size, most))
            return file.read(most)
    except FileError:
        raise
    except OSError as error:
        raise FileError("%s could not be opened: %s" % (path, error.strerror)) from None


# ---- weights -----------------------------------------------------------------------------------


def _newest(run: str) -> Optional[str]:
    """The checkpoint with the highest step in its name."""
    step_of = models().ht_file_step
    try:
        names = os.listdir(run)
    except OSError as error:
        raise FileError("%s could not be listed: %s" % (run, error.strerror)) from None
    step, name = max(((step_of(os.fsencode(name)), name) for name in names), default=(-1, ""))
    return name if step >= 0 else None


def find_weights(run: Optional[str], last: bool = False) -> str:
    """The file of a run's weights, as the program finds it."""
    if run is None:
        return _box()
    if not is_there(run):
        raise FileError("%s could not be opened: there is no such file or folder" % run)
    if not os.path.isdir(run):
        return run
    best = os.path.join(run, "best.safetensors")
    if not last and is_there(best):
        return best
    newest = _newest(run)
    if newest is not None:
        return os.path.join(run, newest)
    other = os.path.join(run, "model.safetensors")
    if is_there(other):
        return other
    raise FileError("%s holds no checkpoint of a run" % run)


def _box() -> str:
    found = in_box(BOX)
    if found is None:
        raise FileError("the model that comes with htransformer-models (%s) is not installed: name "
                        "a run" % BOX)
    return found


# ---- run.json ----------------------------------------------------------------------------------

_WORDS = ("data", "valid", "papers", "rows", "header", "text_column", "label_column")


def read_run(folder: str) -> Dict[str, Any]:
    """run.json of a folder: where its data was and how its rows are read; {}: there is none."""
    path = os.path.join(folder, "run.json")
    if not is_there(path):
        return {}
    try:
        found = json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError("%s is damaged: %s" % (path, error)) from None
    share = found.get("holdout", 0.0) if isinstance(found, dict) else None
    if not isinstance(share, (int, float)) or not 0 <= share < 1 \
            or any(not isinstance(found.get(name, ""), str) for name in _WORDS):
        raise FormatError("%s is damaged" % path)
    return found


def rows_desc(given: Dict[str, Any]) -> RowsDesc:
    def words(name: str) -> Optional[bytes]:
        return given[name].encode("utf-8", "surrogateescape") if given.get(name) else None

    kind, header = given.get("rows") or "auto", given.get("header") or "auto"
    for name, value, table in (("rows", kind, ROWS), ("header", header, HEADERS)):
        if value not in table:
            raise InvalidError("%s must be one of %s, got %r" % (name, ", ".join(table), value))
    return made(RowsDesc, kind=ROWS[kind], header=HEADERS[header], text_column=words("text_column"),
                label_column=words("label_column"), skip_bad=int(bool(given.get("skip_bad"))))
