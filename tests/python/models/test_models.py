"""Models from Python: what the program does with the same run, to the last bit; training that goes
on as if it had not stopped; embeddings against the weights; errors by name."""
import json
import os
import shutil
import subprocess

import numpy as np
import pytest

import htransformer

try:
    htransformer.load
    from htransformer import _models_library
    _models_library.models()
except htransformer.LibraryError as missing:
    pytest.skip("no library of models: %s" % str(missing).split(".")[0], allow_module_level=True)

PROGRAM = os.path.join(os.path.dirname(htransformer.library_path()), "htransformer")
TINY = {"layers": 2, "width": 16, "heads": 2, "hidden": 16, "length": 64, "batch": 4, "steps": 8,
        "eval_every": 4, "save_every": 4}
HERE = {"device": "cpu", "threads": 1}
needs_program = pytest.mark.skipif(not os.path.exists(PROGRAM), reason="no program beside it")


def program(*words, cwd=None):
    done = subprocess.run([PROGRAM, *map(str, words), "--device", "cpu", "--threads", "1"],
                          capture_output=True, cwd=cwd, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return done.stdout


def mail(count=80):
    """(text, label): what is good says so."""
    random = np.random.default_rng(3)
    words = ["sun", "rain", "tree", "stone", "cloud"]
    for i in range(count):
        text = " ".join(random.choice(words, 6))
        yield (text + (" lovely" if i % 2 else " dreadful"), ["bad", "good"][i % 2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    (made / "mail.tsv").write_text("".join("%s\t%s\n" % (b, a) for a, b in mail()))
    (made / "prose.txt").write_text("the cat sat on the mat. " * 120)
    return made


@pytest.fixture(scope="module")
def classifier(folder):
    events = []
    made = htransformer.train(str(folder / "mail.tsv"), run=str(folder / "a"), **TINY, **HERE,
                              callback=events.append)
    return made, events


@pytest.fixture(scope="module")
def prose(folder):
    return htransformer.train(str(folder / "prose.txt"), run=str(folder / "prose"),
                              preset="small-text", **TINY, **HERE)


# ---- training ----------------------------------------------------------------------------------


def same_files(a, b, *names):
    for name in names:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


def test_callbacks(classifier):
    model, events = classifier
    assert [e.step for e in events] == list(range(1, 9)) and events[0].steps == 8
    assert [e.step for e in events if e.valid] == [4, 8] and events[7].saved
    assert events[0].train.loss > 0 and events[7].rate > 0
    assert model.labels == ["bad", "good"] and model.config["layers"] == 2
    assert model.task == "classify" and model.device.startswith("cpu") and model.parameters > 1000


@needs_program
def test_trains_as_the_program_does(folder, classifier):
    words = [w for key, value in TINY.items() for w in ("--" + key, value)]
    program("train", "--run", folder / "b", "--data", folder / "mail.tsv", "--quiet", *words)
    same_files(folder / "a", folder / "b", "best.safetensors", "linear.safetensors", "config.json")
    with open(folder / "a" / "run.json") as a, open(folder / "b" / "run.json") as b:
        assert json.load(a) == json.load(b)


def test_resume_is_exact(folder, classifier):
    """Stopped by its callback and gone on with, by this and by the program: nothing differs."""
    for name, goes_on in (("c", "python"), ("d", "program")):
        half = htransformer.train(str(folder / "mail.tsv"), run=str(folder / name), **TINY, **HERE,
                                  callback=lambda e: e.step == 3)
        half.close()
        if goes_on == "python":
            steps = []
            htransformer.train(run=str(folder / name), resume=True, **HERE,
                               callback=lambda e: steps.append(e.step)).close()
            assert steps == [4, 5, 6, 7, 8]
        elif os.path.exists(PROGRAM):
            program("train", "--run", folder / name, "--resume", "--quiet")
        else:
            continue
        same_files(folder / "a", folder / name, "best.safetensors", "linear.safetensors")


def test_what_a_callback_raises_comes_out(folder):
    def stop(event):
        if event.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        htransformer.train(list(mail()), run=str(folder / "e"), **TINY, **HERE, callback=stop)
    steps = []
    model = htransformer.train(run=str(folder / "e"), resume=True, linear=False, **HERE,
                               callback=lambda e: steps.append(e.step))
    assert steps[0] == 3 and steps[-1] == 8 and model.labels == ["bad", "good"]


def test_training_refusals(folder, classifier):
    data = str(folder / "mail.tsv")
    for error, sentence, words in (
            (htransformer.FileError, "already holds a run", {"run": str(folder / "a")}),
            (htransformer.FileError, "holds no run to go on with",
             {"run": str(folder), "resume": True}),
            (ValueError, "layerz", {"run": str(folder / "f"), "layerz": 3}),
            (ValueError, "heads", {"run": str(folder / "f"), "heads": 5, "width": 16}),
            (ValueError, "no preset|preset", {"run": str(folder / "f"), "preset": "huge"}),
            (ValueError, "header must be one of", {"run": str(folder / "f"), "header": "maybe"}),
            (ValueError, "epochs, steps and minutes",
             {"run": str(folder / "f"), "epochs": 1, **TINY})):
        with pytest.raises(error, match=sentence):
            htransformer.train(data, **HERE, **words)
    assert not (folder / "f" / "config.json").exists()
    with pytest.raises(OSError, match="nowhere"):
        htransformer.train("/nowhere/data.tsv", run=str(folder / "f"), **HERE)


# ---- classifiers -------------------------------------------------------------------------------


@needs_program
def test_predict_as_the_program_does(folder, classifier):
    model, _ = classifier
    texts = [text for text, _ in mail(9)]
    names, shares = model.predict(texts, probabilities=True)
    (folder / "lines.txt").write_text("\n".join(texts) + "\n")
    said = program("predict", folder / "a", "--data", folder / "lines.txt", "--json")
    for line, name, share in zip(said.splitlines(), names, shares):
        found = json.loads(line)
        assert found["label"] == name
        assert np.allclose([found["probabilities"][label] for label in model.labels], share,
                           atol=1e-6)
    assert model.predict(texts[0]) == names[0] and len(names) == 9


@needs_program
def test_evaluate_as_the_program_does(folder, classifier, prose):
    model, _ = classifier
    found = model.evaluate(str(folder / "mail.tsv"))
    said = json.loads(program("eval", folder / "a", "--data", folder / "mail.tsv", "--json"))
    for name in ("loss", "accuracy", "accuracy_error", "macro_f1", "majority"):
        assert np.isclose(found[name], said[name], rtol=1e-5), name
    assert found["items"] == 80 and found["confusion"].tolist() == said["confusion"]
    found = prose.evaluate(str(folder / "prose.txt"))
    said = json.loads(program("eval", folder / "prose", "--data", folder / "prose.txt", "--json"))
    for name in ("targets", "bytes", "loss", "perplexity", "bits_per_byte"):
        assert np.isclose(found[name], said[name], rtol=1e-5), name


def test_linear_and_transformer_mix(folder, classifier):
    """Without the file beside it the Transformer alone answers."""
    model, _ = classifier
    texts = [text for text, _ in mail(4)]
    shutil.copytree(folder / "a", folder / "g")
    os.remove(folder / "g" / "linear.safetensors")
    with htransformer.load(str(folder / "g"), **HERE) as alone:
        assert not np.allclose(alone.logits(texts), model.logits(texts))
        assert np.isfinite(alone.logits(texts)).all()
    with pytest.raises(ValueError, match="the model is closed"):
        alone.predict(texts)


def test_embed_is_what_the_head_reads(folder):
    """Logits from the embedding by the weights, in NumPy."""
    model = htransformer.train(list(mail(20)), run=str(folder / "h"), linear=False, **HERE,
                               **dict(TINY, steps=2, head_hidden=0))
    texts = [text for text, _ in mail(7)]
    rows, weights = model.embed(texts), model.weights()
    assert rows.shape == (7, 16) and rows.dtype == np.float32
    (matrix,) = [x for name, x in weights.items() if x.shape == (2, 16)]
    (shift,) = [x for name, x in weights.items() if x.shape == (2,)]
    assert np.allclose(rows @ matrix.T + shift, model.logits(texts), atol=1e-5)
    # alone or among others: products of other sizes, which BLAS may sum in another order
    assert np.allclose(model.embed(texts[0]), rows[0], atol=1e-5)


# ---- language models ---------------------------------------------------------------------------


@needs_program
def test_generate_as_the_program_does(folder, prose):
    found = "".join(prose.generate("the cat", 40, seed=5, temperature=0.9, top_k=40))
    said = program("generate", folder / "prose", "--prompt", "the cat", "--tokens", 40, "--seed",
                   5, "--temperature", 0.9, "--top_k", 40, "--json")
    assert found == json.loads(said)["text"]


def test_generate(prose):
    """With the model in the box, whose text is text."""
    model = htransformer.load(**HERE)
    whole = list(model.generate("ROMEO:", 40, temperature=0))
    text = "".join(whole)
    assert model.task == "language" and len(whole) == len(text) == 40
    assert text == "".join(model.generate(b"ROMEO:", 40, temperature=0))
    for stop in (text[5:8], text[20:22], text[39]):
        until = "".join(model.generate("ROMEO:", 40, temperature=0, stop=stop))
        assert until == text[:text.index(stop)]
    assert list(prose.generate("the cat", 0)) == []
    first = next(prose.generate("the cat", 10**9, endless=True))  # and is given up
    assert isinstance(first, str)
    with pytest.raises(ValueError, match="top_p"):
        list(prose.generate("a", 3, top_p=0.0))


@needs_program
def test_bits_as_the_program_says(folder, prose):
    texts = ["the cat sat", "xyz"]
    (folder / "two.txt").write_text("\n".join(texts) + "\n")
    said = program("predict", folder / "prose", "--data", folder / "two.txt", "--json")
    want = [json.loads(line)["bits_per_byte"] for line in said.splitlines()]
    assert np.allclose(prose.predict(texts), want, rtol=1e-5)
    assert prose.embed(texts).shape == (2, 16)


def test_refusals(folder, classifier, prose):
    model, _ = classifier
    with pytest.raises(OSError, match="/nowhere could not be opened"):
        htransformer.load("/nowhere")
    with pytest.raises(OSError, match="holds no checkpoint"):
        htransformer.load(str(folder))
    with pytest.raises(ValueError, match="not what it claims|mail.tsv"):
        htransformer.load(str(folder / "mail.tsv"))
    with pytest.raises(RuntimeError, match="task classify; this is for task language"):
        model.generate("a")
    with pytest.raises(ValueError, match="text 1 is empty"):
        model.predict(["a", ""])
    with pytest.raises(TypeError, match="a text must be str or bytes, got int"):
        prose.predict([3])
    with pytest.raises(ValueError, match="part must be one of"):
        model.evaluate(str(folder / "mail.tsv"), part="rest")


# ---- what lies in a run's folder may come from anywhere ----------------------------------------


def copied(folder, tmp_path, name="a"):
    shutil.copytree(folder / name, tmp_path / "run")
    return tmp_path / "run"


def test_names_of_checkpoints_are_taken_strictly(folder, classifier, tmp_path):
    run = copied(folder, tmp_path)
    for name in ("step-99999999999999999999999.safetensors", "step-\u00b2.safetensors",
                 "step-\u0661\u0662\u0663.safetensors", "step- 99.safetensors"):
        (run / name).write_bytes(b"")
    found = htransformer.load(str(run), last=True, **HERE)
    assert os.path.basename(found.path) == "step-000000008.safetensors"


def test_damaged_places(folder, classifier, tmp_path):
    run = copied(folder, tmp_path)
    model = htransformer.load(str(run), **HERE)
    data = str(folder / "mail.tsv")
    for text in (b"", b"{", b"[]", b"3", b'{"rows": []}', b'{"rows": "maybe"}', b'{"data": 3}',
                 b'{"holdout": "half"}', b'{"holdout": 1e999}', b'{"text_column": {}}', b"\xff\xfe",
                 b'{"a": ' + b"[" * 100000, b" " * ((1 << 20) + 1),
                 b'{"holdout": 1' + b"0" * 400 + b"}"):
        (run / "run.json").write_bytes(text)
        with pytest.raises(ValueError, match="run.json|rows must be one of"):
            model.evaluate(data)
    (run / "run.json").unlink()
    os.mkfifo(run / "run.json")
    with pytest.raises(OSError, match="run.json is not a regular file"):
        model.evaluate(data)


def test_damaged_settings(folder, classifier, tmp_path):
    run = copied(folder, tmp_path)
    (run / "config.json").write_bytes(b'{"layers": ')
    with pytest.raises(ValueError):
        htransformer.train(run=str(run), resume=True, **HERE)
    (run / "config.json").unlink()
    os.mkfifo(run / "config.json")
    with pytest.raises(OSError, match="config.json is not a regular file"):
        htransformer.train(run=str(run), resume=True, **HERE)


def test_a_damaged_newest_checkpoint_is_passed_over_with_a_word(folder, classifier, tmp_path):
    run = copied(folder, tmp_path)
    newest = run / "step-000000008.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="from step 4: 1 newer could not be read: .*000000008"):
        htransformer.train(run=str(run), resume=True, **HERE)
    same_files(run, folder / "a", "step-000000008.safetensors", "best.safetensors")


def test_reader_beside_a_trainer(folder, classifier, tmp_path, monkeypatch):
    """The newest is gone when it is opened: another one is looked for."""
    from htransformer import _model
    run, found = copied(folder, tmp_path), []

    def late(name, last):
        found.append(str(run / ("step-%09d.safetensors" % (len(found) + 7))))
        return found[-1]

    monkeypatch.setattr(_model, "find_weights", late)
    assert htransformer.load(str(run), last=True, **HERE).path == found[1] and len(found) == 2
