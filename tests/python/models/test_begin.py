"""What training begins with where nobody says so, as the program decides it: an encoder in the box
for labelled texts, if there is one, and random weights for all else."""
import json
import os
import shutil
import subprocess

import numpy as np
import pytest

import htransformer

try:
    htransformer.load
    from htransformer import _begin, _models_library
    _models_library.models()
except htransformer.LibraryError as missing:
    pytest.skip("no library of models: %s" % str(missing).split(".")[0], allow_module_level=True)

PROGRAM = os.path.join(os.path.dirname(htransformer.library_path()), "htransformer")
HERE = {"device": "cpu", "threads": 1}
SHORT = {"length": 64, "batch": 4, "steps": 2, **HERE}
WORDS = "the quick brown fox jumps over the lazy dog THE END 0123456789".split()


def program(folder, *words):
    """A copy of it, whose box is folder/models."""
    done = subprocess.run([str(folder / "bin" / "htransformer"), *map(str, words)],
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if not os.path.exists(PROGRAM):
        pytest.skip("no program beside the library")
    made = tmp_path_factory.mktemp("begin")
    for name in ("bin", "models"):
        (made / name).mkdir()
    shutil.copy(PROGRAM, made / "bin" / "htransformer")
    random = np.random.default_rng(4)
    rows = [(str(i % 2), " ".join(random.choice(WORDS, 9))) for i in range(60)]
    (made / "texts.tsv").write_text("".join("%s\t%s\n" % row for row in rows))
    sites = ["%d\t%s\n" % (i % 2, "".join(random.choice(list("ACGT"), 30))) for i in range(60)]
    (made / "sites.tsv").write_text("".join(sites))
    return made


@pytest.fixture(scope="module")
def encoder(folder):
    """Of the sizes that scripts/encoder.sh trains, after one step."""
    path = folder / "models" / "encoder.safetensors"
    htransformer.train(str(folder / "texts.tsv"), run=str(folder / "encoder"), preset="encoder",
                       task="denoise", format="text", across=1, holdout=0.0,
                       **dict(SHORT, steps=1)).close()
    program(folder, "export", folder / "encoder", "--last", "--to", path, "--dtype", "bf16")
    return path


@pytest.fixture
def box(monkeypatch, encoder):
    """The Python side looks where the program does."""
    monkeypatch.setattr(_begin, "in_box", lambda name: str(encoder.parent / name)
                        if (encoder.parent / name).exists() else None)
    return encoder


def test_as_the_program_does(folder, box):
    htransformer.train(str(folder / "texts.tsv"), run=str(folder / "a"), **SHORT).close()
    said = program(folder, "train", "--run", folder / "b", "--data", folder / "texts.tsv",
                   "--length", 64, "--batch", 4, "--steps", 2, "--device", "cpu", "--threads", 1)
    assert b"47 of 49 tensors" in said
    for name in ("best.safetensors", "config.json", "linear.safetensors"):
        assert (folder / "a" / name).read_bytes() == (folder / "b" / name).read_bytes(), name


def width_of(folder, name, data="texts.tsv", **words):
    """Which preset it was: encoder is 256 wide, small 128."""
    htransformer.train(str(folder / data), run=str(folder / name), **{**SHORT, **words}).close()
    return json.loads((folder / name / "config.json").read_text())["width"]


def test_what_begins_with_it(folder, box):
    assert width_of(folder, "pool", pool="mean", dropout=0.2) == 256
    assert width_of(folder, "sites", "sites.tsv") == 128  # no words
    assert width_of(folder, "named", preset="small") == 128
    assert width_of(folder, "merge", merge=2) == 128  # weights of another form
    assert width_of(folder, "init", init=str(folder / "merge"), merge=2) == 128


def test_a_run_goes_on_with_its_own(folder, box):
    run = str(folder / "c")
    htransformer.train(str(folder / "texts.tsv"), run=run, **SHORT,
                       callback=lambda e: True).close()
    htransformer.train(run=run, resume=True, **HERE).close()
    assert (folder / "c" / "best.safetensors").read_bytes() == \
        (folder / "a" / "best.safetensors").read_bytes()


def test_without_one(folder, monkeypatch):
    monkeypatch.setattr(_begin, "in_box", lambda name: None)
    assert width_of(folder, "bare") == 128
    with pytest.raises(OSError, match='not where it should be; preset="small" begins without'):
        width_of(folder, "asked", preset="encoder")


def test_of_another_form(folder, box, monkeypatch):
    htransformer.train(str(folder / "texts.tsv"), run=str(folder / "other"), layers=1, width=6,
                       heads=1, vocab=300, pool="mean", linear=False, **SHORT).close()
    other = str(folder / "other" / "best.safetensors")
    monkeypatch.setattr(_begin, "in_box", lambda name: other)
    with pytest.raises(ValueError, match="no encoder of this form: 1 of 49 tensors fit"):
        width_of(folder, "wrong")



@pytest.mark.parametrize("words, steps, every", [
    ({}, 4, 8), ({"steps": 9}, None, None), ({"epochs": 2.5}, 2.5, None),
    ({"eval_every": 11}, 4, None), ({"preset": "small"}, None, None)])
def test_how_long_on_a_gpu(folder, box, monkeypatch, words, steps, every):
    """Four times over the items with eight evaluations, where nothing else was said. What is said
    to be a GPU is the CPU."""
    rows = (folder / "texts.tsv").read_text() * 3
    (folder / "more.tsv").write_text(rows)
    monkeypatch.setattr(_models_library.Owner, "device", "cuda:0")
    run = folder / ("gpu-" + "-".join(words))
    with pytest.raises(KeyboardInterrupt):
        htransformer.train(str(folder / "more.tsv"), run=str(run), length=8, batch=1, linear=False,
                           callback=stop, **words, **HERE)
    now = json.loads((run / "config.json").read_text())
    if steps:
        assert 140 < now["steps"] / steps < 180  # nine tenths of 180
    else:
        assert now["steps"] == words.get("steps", 1000)
    if "preset" not in words:
        assert now["eval_every"] == (now["steps"] // every if every
                                     else words.get("eval_every", 50))


def stop(event):
    raise KeyboardInterrupt


def test_same_numbers_as_the_program():
    """What both sides have by heart."""
    run = os.path.join(os.path.dirname(__file__), "..", "..", "..", "cli", "run")
    with open(os.path.join(run, "begin.h")) as head, open(os.path.join(run, "begin.c")) as body:
        head, body = head.read(), body.read()
    assert "BEGIN_EPOCHS = %d, BEGIN_EVALUATIONS = %d " % (_begin.EPOCHS,
                                                           _begin.EVALUATIONS) in head
    assert "ENOUGH = %d, LOOK = 1 << %d " % (_begin.ENOUGH, _begin.LOOK.bit_length() - 1) in body
    free = body[body.index("names[] = {"):body.index("NULL}")]
    assert tuple(free.replace('"', " ").replace(",", " ").split()[3:]) == _begin._FREE
