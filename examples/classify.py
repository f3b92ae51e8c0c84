"""A classifier of texts from Python: trained, judged, asked; its rows of numbers for other uses.

    python3 examples/classify.py [steps]
"""
import random
import sys
import tempfile

import htransformer

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
random.seed(0)


def text(label):
    words = random.choices(["sun", "rain", "tree", "stone", "cloud", "river"], k=8)
    words[random.randrange(8)] = {"joy": "lovely", "grief": "dreadful"}[label]
    return " ".join(words)


def tell(now):
    if now.valid:
        print("step %d of %d, loss %.3f, accuracy %.2f" %
              (now.step, now.steps, now.valid.loss, now.valid.accuracy))


data = [(text(label), label) for label in ["joy", "grief"] * 100]
with tempfile.TemporaryDirectory() as folder:
    model = htransformer.train(data, run=folder + "/run", steps=STEPS, layers=1, width=32,
                               length=64, batch=8, eval_every=max(1, STEPS // 3), callback=tell)
    print(model)
    names, shares = model.predict([text("joy"), text("grief")], probabilities=True)
    print(names, shares.max(1))
    print("rows of", model.embed(["a lovely river"]).shape[1], "numbers")
    model.close()
