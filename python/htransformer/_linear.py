"""The linear model of a run of labelled texts, beside the Transformer."""
import os
from ctypes import byref
from typing import Any, Dict, List, Optional

import numpy as np

from ._folder import is_there
from ._library import FormatError, UnsupportedError
from ._models_library import DataInfo, LinearInfo, Owner, labels_of, made, pointer

FILE = "linear.safetensors"


def fits(config: Dict[str, Any]) -> bool:
    return config["task"] == "classify" and config["format"] == "tsv"


class Linear:
    def __init__(self, owner: Owner, handle: Any):
        self.own, self.handle = owner, handle
        self.labels = labels_of(owner.lib.ht_linear_labels(handle))
        self.look()

    def look(self) -> None:
        self.info = made(LinearInfo)
        self.own.call("ht_linear_get_info", self.handle, byref(self.info))
        self.alone = self.info.valid_items > 0 and self.info.model_weight == 0

    @staticmethod
    def load(owner: Owner, folder: str) -> Optional["Linear"]:
        path = os.path.join(folder, FILE)
        if not is_there(path):
            return None
        return Linear(owner, owner.make("ht_linear_load", "ht_linear_destroy", owner.context,
                                        os.fsencode(path)))

    @staticmethod
    def find(owner: Owner, folder: str, config: Dict[str, Any], labels: List[str]
             ) -> Optional["Linear"]:
        """That of a trained model, if it answers too."""
        found = Linear.load(owner, folder) if fits(config) else None
        if found is not None and found.labels != labels:
            raise FormatError("%s has other labels than the model beside it"
                              % os.path.join(folder, FILE))
        # one that nobody has judged is worth nobody knows what
        return found if found is not None and found.info.valid_items > 0 else None

    @staticmethod
    def fit(owner: Owner, train: Any) -> Optional["Linear"]:
        """None: too many texts or classes for the memory that it would take."""
        try:
            return Linear(owner, owner.make("ht_linear_fit", "ht_linear_destroy", owner.context,
                                            train))
        except UnsupportedError:
            return None

    def scores(self, text: Any, size: int, out: np.ndarray) -> None:
        self.own.call("ht_linear_scores", self.handle, text, size, pointer(out))

    def mix(self, text: bytes, logits: np.ndarray) -> None:
        """logits [classes] become those of both."""
        scores = np.empty(len(self.labels) + 2, np.float32)
        self.scores(text, len(text), scores)
        self.own.call("ht_linear_mix", self.handle, pointer(scores), pointer(logits),
                      pointer(logits))

    def choose(self, folder: str, trainer: Any, valid: Any, most: int) -> None:
        """Weighs both on the validation texts, trainer None: itself alone; into the run's file."""
        from ._evaluate import array, batches, text_of
        if valid is not None:
            info, classes, items = made(DataInfo), len(self.labels), 0
            self.own.call("ht_data_get_info", valid, byref(info))
            scores = np.zeros((info.items, classes), np.float32)
            logits, labels = np.zeros_like(scores), np.zeros(info.items, np.int32)
            for batch, (_tokens, _starts, targets) in batches(self.own, valid):
                if 0 < most <= items:
                    continue
                if trainer is not None:
                    self.own.call("ht_trainer_predict", trainer, byref(batch),
                                  pointer(logits[items:]))
                for target in array(targets, batch.sequences):
                    labels[items] = target
                    self.scores(*text_of(self.own, valid, items), scores[items])
                    items += 1
            self.own.call("ht_linear_choose", self.handle, pointer(scores),
                          None if trainer is None else pointer(logits), pointer(labels), items)
        self.own.call("ht_linear_save", self.handle, os.fsencode(os.path.join(folder, FILE)))
        self.look()
