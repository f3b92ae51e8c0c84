"""What a run begins with where nobody says so: as cli/run/begin.c decides for the program."""
from ctypes import byref, string_at
from typing import Any, Dict, Optional

from ._library import FileError
from ._models_library import KeyInfo, Owner, in_box, made

ENCODER = "encoder.safetensors"
PRESET = "encoder"
EPOCHS = 4  # over the items, on a GPU: the preset's steps are those of a CPU
EVALUATIONS = 8  # then, at most
MODEL = 0   # of ht_key_owner
LOOK = 1 << 20
ENOUGH = 27

# settings of the model that leave the weights their form and meaning
_FREE = ("task", "format", "classes", "pool", "head_hidden", "mask_zero", "dtype", "output_scale",
         "decay")


def _same_form(own: Owner, settings: Dict[str, Any]) -> bool:
    key = made(KeyInfo)
    for i in range(own.lib.ht_config_keys()):
        own.call("ht_config_key", i, byref(key))
        name = key.name.decode()
        if key.owner == MODEL and name in settings and name not in _FREE:
            return False
    return True


def preset_of(own: Owner, data: Any, init: Optional[str], settings: Dict[str, Any]) -> str:
    """Where none was named: for texts with labels that of the encoder in the box, if it is there
    and no setting asks for weights of another form."""
    if not data:
        return "small-listops"
    fits = not init and _same_form(own, settings) and \
        settings.get("task", "classify") == "classify" and settings.get("format", "tsv") == "tsv"
    return PRESET if fits and in_box(ENCODER) else "small"


def weights_of(own: Owner, preset: Optional[str], init: Optional[str], settings: Dict[str, Any],
               now: Dict[str, Any]) -> Optional[str]:
    """The encoder's file, if a run of these settings begins with it."""
    if init or preset != PRESET or now["task"] != "classify" or not _same_form(own, settings):
        return None
    found = in_box(ENCODER)
    if found is None:
        raise FileError("the encoder that comes with htransformer-models (%s) is not where it "
                        "should be; preset=\"small\" begins without it" % ENCODER)
    return found


def has_words(own: Owner, data: Any) -> bool:
    """Do these items look like texts? Sequences of a few letters (DNA, proteins, digits) do not:
    the encoder knows nothing of them."""
    from ._evaluate import text_of
    seen, looked, item = set(), 0, 0
    while looked < LOOK and len(seen) < ENOUGH:
        text, size = text_of(own, data, item)
        if not text:
            break
        seen.update(string_at(text, size))
        looked, item = looked + size, item + 1
    return len(seen) >= ENOUGH
