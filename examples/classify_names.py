"""Train a bidirectional LSTM, without padding, to tell the category of a Unicode character from its name.

    python examples/classify_names.py                              # train, save, reload, classify a few names
    python examples/classify_names.py "GREEK SMALL LETTER ALPHA"   # and classify this one
    python examples/classify_names.py --data my.jsonl              # the same on {"text": ..., "label": ...} a line
    python examples/classify_names.py --steps 500                  # stop early ...
    python examples/classify_names.py --resume                     # ... and go on, bit for bit

The data is in every Python. Names have 2 to 88 letters; a batch is their letters one after another.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

import varlen_rnn as vr
from varlen_rnn import random

DEFAULT_NAMES = ["GREEK SMALL LETTER ALPHA", "MUSICAL SYMBOL G CLEF", "DIGIT SEVEN", "COMBINING ACUTE ACCENT"]
KINDS = {"C": "control", "L": "letter", "M": "mark", "N": "number", "P": "punctuation", "S": "symbol", "Z": "separator"}
SETTINGS = {"epochs": 6, "batch_size": 64, "lr": 4e-3, "seed": 0}  # what decides a run, beside its data
LEAST = {"epochs": 1, "batch_size": 1, "lr": 0, "seed": 0}
CLIP_NORM = 1.0


class Classifier(vr.nn.Module):
    """Embedding, bidirectional LSTM, the maximum over each sequence, and a linear layer."""

    def __init__(self, vocabulary_size, num_classes, embedding_size=48, hidden_size=128):
        self.embedding = vr.nn.Embedding(vocabulary_size, embedding_size)
        self.lstm = vr.nn.LSTM(embedding_size, hidden_size, bidirectional=True)
        self.pool = vr.nn.SequencePool("max")
        self.dropout = vr.nn.Dropout(0.2)
        self.output = vr.nn.Linear(2 * hidden_size, num_classes)

    def forward(self, ids):
        """Return logits, one row per sequence."""
        y, _ = self.lstm(self.embedding(ids))
        return self.output(self.dropout(self.pool(y)))


class Run:
    """A training run that can stop after any step and go on, bit for bit."""

    def __init__(self, data, settings):
        vr.manual_seed(settings["seed"])
        self.data, self.settings = data, settings
        self.train, self.test = data.split(seed=0)
        self.model = Classifier(len(data.vocabulary), len(data.classes))
        self.optimizer = vr.optim.Adam(self.model.parameters(), lr=settings["lr"], lazy=True)
        self.batches = vr.data.batches(
            self.train.sequences, self.train.labels, batch_size=settings["batch_size"], shuffle=True, bucket=True,
            seed=settings["seed"],
        )  # fmt: skip
        self.num_steps = settings["epochs"] * len(self.batches)
        self.step, self.smooth, self.curve = 0, None, []

    def save(self, path):
        vr.save(
            path, model=self.model.state_dict(), optimizer=self.optimizer.state_dict(), random=random.get_state(),
            step=self.step, smooth=self.smooth, curve=self.curve, settings=self.settings, data=repr(self.data),
            vocabulary=self.data.vocabulary, classes=self.data.classes,
        )  # fmt: skip

    def resume(self, saved):
        """Go on from what `save` wrote: the step tells epoch and batch."""
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        random.set_state(saved["random"])
        self.step, self.smooth, self.curve = saved["step"], saved["smooth"], saved["curve"]

    def advance(self, last_step):
        """Train up to `last_step`, under a progress bar with loss and tokens per second."""
        tokens, seconds = 0, 0
        with tqdm(total=max(last_step, self.step), initial=self.step, unit="batch", desc="training") as bar:
            while self.step < last_step:
                epoch, position = divmod(self.step, len(self.batches))
                if position == 0 or bar.n == bar.initial:
                    batches = self.batches.at_epoch(epoch)
                ids, labels = batches[position]
                began = time.perf_counter()
                loss = self.learn(ids, labels)
                # Averages that forget: the first batch, which compiles, does not weigh on the rate for long.
                tokens, seconds = 0.98 * tokens + ids.shape[0], 0.98 * seconds + time.perf_counter() - began
                self.smooth = loss if self.smooth is None else 0.98 * self.smooth + 0.02 * loss
                rate = f"{tokens / seconds:,.0f} tokens/s"
                bar.set_postfix_str(f"loss {self.smooth:.3f}, {rate}", refresh=False)
                bar.update()
                if position + 1 == len(self.batches):
                    share = accuracy(self.model, self.test)
                    self.curve.append([self.step, self.smooth, share])
                    bar.write(f"epoch {epoch + 1}: loss {self.smooth:.3f}, held-out accuracy {share:.4f}, {rate}")

    def learn(self, ids, labels):
        """Take one step; the learning rate falls in a straight line to a fiftieth."""
        self.optimizer.lr = self.settings["lr"] * max(0.02, 1 - self.step / self.num_steps)
        loss = vr.nn.functional.cross_entropy(self.model(ids), labels)
        loss.backward()
        vr.optim.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return loss.item()


def predict(model, sequences):
    """Return the most probable class of each sequence, and its probability."""
    model.eval()
    classes, probabilities = [], []
    with vr.no_grad():
        for ids in vr.data.batches(sequences, batch_size=512):
            rows = np.asarray(vr.nn.functional.softmax(model(ids)))
            classes.append(rows.argmax(axis=1))
            probabilities.append(rows.max(axis=1))
    model.train()
    return np.concatenate(classes), np.concatenate(probabilities)


def accuracy(model, data):
    """Return the share of sequences that are classified right."""
    return float((predict(model, data.sequences)[0] == data.labels).mean())


def draw(curve, name, path):
    """Write a picture of loss and held-out accuracy by step."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print('No picture: matplotlib is not installed (pip install "varlen-rnn[plot]").')
        return
    steps, losses, accuracies = zip(*curve, strict=True)
    figure, left = plt.subplots(figsize=(7, 4), layout="constrained")
    left.plot(steps, losses, "o-", color="tab:blue")
    left.set(xlabel="steps", ylabel="training loss", title=f"{name}: bidirectional LSTM, no padding")
    right = left.twinx()
    right.plot(steps, accuracies, "s-", color="tab:orange")
    right.set_ylabel("held-out accuracy")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"training curve: {path}")


def read(path):
    """Return the data set of a JSON Lines file, or of the Unicode names; end with a plain message if it will not do."""
    if path is None:
        return vr.data.unicode_names()
    try:
        data = vr.data.read_jsonl(path)
    except (vr.InputError, OSError) as error:
        raise SystemExit(f"Cannot use this file. {error}") from error
    if not data.vocabulary or len(data) < 10:
        raise SystemExit(f"Cannot use this file. {path}: expected at least 10 texts, got {data}")
    return data


def saved_run(path, data, given):
    """Return the saved run to go on with; end with a plain message unless it is a run of this data and settings."""
    try:
        saved = vr.load(path)
    except (vr.CheckpointError, OSError) as error:
        raise SystemExit(f"Cannot resume. {error}") from error
    if saved["data"] != repr(data) or saved["vocabulary"] != data.vocabulary or saved["classes"] != data.classes:
        raise SystemExit(f"Cannot resume. {path} was trained on other data: {saved['data']}")
    for name, value in given.items():
        if value != saved["settings"][name]:
            raise SystemExit(f"Cannot resume. {path} was trained with {name} {saved['settings'][name]}, not {value}")
    return saved


def classify(path, data, texts):
    """Reload the model from its file and print what it says of some texts."""
    saved = vr.load(path)
    model = Classifier(len(saved["vocabulary"]), len(saved["classes"]))
    model.load_state_dict(saved["model"])
    print(f"saved and reloaded: {path}")
    sequences = [data.encode(text.split() if data.tokens == "list" else text) for text in texts]
    for text, label, probability in zip(texts, *predict(model, sequences), strict=True):
        name = saved["classes"][label]
        kind = f", {KINDS[name[0]]}" if data.name.startswith("unicode_names") else ""
        print(f"  {text}: {name}{kind} (probability {probability:.2f})")


def text_of(data, sequence):
    """Return a sequence as text again."""
    return ("" if data.tokens == "characters" else " ").join(data.vocabulary[token] for token in sequence)


def at_least(minimum, kind):
    """Return what reads a number of the command line and refuses one below `minimum`."""

    def number(text):
        value = kind(text)
        if not minimum <= value < np.inf:
            raise argparse.ArgumentTypeError(f"expected at least {minimum}, got {text}")
        return value

    return number


def arguments_of_command_line():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="names to classify after training")
    parser.add_argument("--data", help="a JSON Lines file with the fields text and label")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the model and the picture")
    parser.add_argument("--steps", type=at_least(0, int), help="stop after this many steps in all")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the folder, with its settings")
    for name, value in SETTINGS.items():
        kind = at_least(LEAST[name], type(value))
        parser.add_argument("--" + name.replace("_", "-"), type=kind, help=f"default {value}")
    return parser.parse_args()


def main():
    arguments = arguments_of_command_line()
    data = read(arguments.data)
    print(data)
    path = arguments.out / "names.safetensors"
    given = {name: value for name in SETTINGS if (value := getattr(arguments, name)) is not None}
    if arguments.resume:
        saved = saved_run(path, data, given)
        run = Run(data, saved["settings"])
        run.resume(saved)
        print(f"going on after step {run.step} of {run.num_steps}")
    else:
        arguments.out.mkdir(parents=True, exist_ok=True)
        run = Run(data, SETTINGS | given)
    first, began = run.step, time.perf_counter()
    print("The first batch compiles the kernels; they are kept for the next run.")
    run.advance(run.num_steps if arguments.steps is None else min(arguments.steps, run.num_steps))
    print(f"{run.step - first} steps in {time.perf_counter() - began:.0f} s; "
          f"held-out accuracy {accuracy(run.model, run.test):.4f}")  # fmt: skip
    run.save(path)
    if run.curve:
        draw(run.curve, data.name, arguments.out / "names.png")
    held_out = [text_of(data, sequence) for sequence in run.test.sequences[:4]]
    classify(path, data, arguments.names or (held_out if arguments.data else DEFAULT_NAMES))


if __name__ == "__main__":
    main()
