"""What the Python tests share: the package on the path, random inputs, the modes there are."""
import os
import sys

import numpy as np
import pytest

_HERE = os.path.dirname(os.path.abspath(__file__))
for _path in (_HERE, os.path.join(_HERE, "..", "..", "python")):
    if _path not in sys.path:
        sys.path.insert(0, _path)

import htransformer

# thousands of tiny calls: threads would mostly wait for each other
htransformer.set_num_threads(1)

MODES = [("mean", False), ("first", True), ("first", False), ("fine", True), ("fine", False)]


@pytest.fixture
def random():
    """random(shape, ...) -> float64 arrays, the same in every run."""
    generator = np.random.default_rng(20)

    def make(*shapes):
        made = [generator.standard_normal(shape) for shape in shapes]
        return made if len(made) > 1 else made[0]

    return make
