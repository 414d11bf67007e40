"""Train a bidirectional LSTM, without padding, to tell the category of a Unicode character from its name.

    python examples/classify_names.py                              # train, save, reload, classify a few names
    python examples/classify_names.py "GREEK SMALL LETTER ALPHA"   # and classify this one
    python examples/classify_names.py --data my.jsonl              # the same on {"text": ..., "label": ...} a line

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
        """Return logits, a row a sequence."""
        y, _ = self.lstm(self.embedding(ids))
        return self.output(self.dropout(self.pool(y)))


class Run:
    """A training run that can stop after any step and go on, bit for bit."""

    def __init__(self, data, arguments):
        vr.manual_seed(arguments.seed)
        self.train, self.test = data.split(seed=0)
        self.model = Classifier(len(data.vocabulary), len(data.classes))
        self.optimizer = vr.optim.Adam(self.model.parameters(), lr=arguments.lr, lazy=True)
        self.batches = vr.data.batches(
            self.train.sequences, self.train.labels, batch_size=arguments.batch_size, shuffle=True, bucket=True,
            seed=arguments.seed,
        )  # fmt: skip
        self.lr, self.num_epochs, self.step, self.curve = arguments.lr, arguments.epochs, 0, []

    @property
    def num_steps(self):
        return self.num_epochs * len(self.batches)

    def save(self, path, data):
        vr.save(
            path, model=self.model.state_dict(), optimizer=self.optimizer.state_dict(), step=self.step,
            curve=self.curve, random=random.get_state(), vocabulary=data.vocabulary, classes=data.classes,
        )  # fmt: skip

    def resume(self, path):
        state = vr.load(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        random.set_state(state["random"])
        self.step, self.curve = state["step"], state["curve"]

    def advance(self, last_step):
        """Train up to `last_step`, under a progress bar with loss and tokens a second."""
        bar = tqdm(total=last_step, initial=self.step, unit="batch", desc="training")
        smooth, tokens, began = None, 0, time.perf_counter()
        while self.step < last_step:
            epoch, position = divmod(self.step, len(self.batches))
            batches = self.batches.at_epoch(epoch)
            for ids, labels in (
                batches[k] for k in range(position, min(len(batches), position + last_step - self.step))
            ):
                loss = self.learn(ids, labels)
                tokens += ids.shape[0]
                smooth = loss if smooth is None else 0.98 * smooth + 0.02 * loss
                rate = tokens / (time.perf_counter() - began)
                bar.set_postfix_str(f"loss {smooth:.3f}, {rate:,.0f} tokens/s", refresh=False)
                bar.update()
            if self.step % len(self.batches) == 0:
                self.curve.append([self.step, smooth, accuracy(self.model, self.test)])
                bar.write(f"epoch {epoch + 1}: loss {smooth:.3f}, held-out accuracy {self.curve[-1][2]:.4f}")
        bar.close()

    def learn(self, ids, labels):
        """Take one step; the learning rate falls in a straight line to a fiftieth."""
        self.optimizer.lr = self.lr * max(0.02, 1 - self.step / self.num_steps)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="names to classify after training")
    parser.add_argument("--data", help="a JSON Lines file with the fields text and label")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the model and the picture")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, help="stop after this many steps in all")
    parser.add_argument("--resume", action="store_true", help="go on from the model in the folder")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    data = vr.data.read_jsonl(arguments.data) if arguments.data else vr.data.unicode_names()
    print(data)
    run = Run(data, arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "names.safetensors"
    if arguments.resume:
        run.resume(path)
    began = time.perf_counter()
    print("The first batch compiles the kernels; they are kept for the next run.")
    run.advance(run.num_steps if arguments.steps is None else min(arguments.steps, run.num_steps))
    print(f"{run.step} steps in {time.perf_counter() - began:.0f} s; "
          f"held-out accuracy {accuracy(run.model, run.test):.4f}")  # fmt: skip
    run.save(path, data)
    if run.curve:
        draw(run.curve, data.name, arguments.out / "names.png")

    saved = vr.load(path)
    model = Classifier(len(saved["vocabulary"]), len(saved["classes"]))
    model.load_state_dict(saved["model"])
    print(f"saved and reloaded: {path}")
    names = arguments.names or ([] if arguments.data else DEFAULT_NAMES)
    if names:
        for name, label, probability in zip(names, *predict(model, [data.encode(n) for n in names]), strict=True):
            print(f"  {name}: {saved['classes'][label]} ({probability:.2f})")


if __name__ == "__main__":
    main()
