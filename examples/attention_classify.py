"""Train attention, without padding, to tell what is raised from the message of an exception.

    python examples/attention_classify.py                          # train, say how often it is right, draw what it saw
    python examples/attention_classify.py --data my.jsonl          # the same on {"text": ..., "label": ...} a line

Every word looks at its neighbours.  Then each class has one learned query, which looks at all words of a message: what
it finds tells how much speaks for that class, and where it looks tells why.  Messages of 2 to some 90 words lie one
after another.  They are those of the standard library, in every Python that has its sources.
"""

import argparse
import ast
import builtins
import re
import sysconfig
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

FILLED_IN = re.compile(r"%-?[.0-9]*[a-z]|\{[^}]*\}")  # of a message; it becomes "_"
NUM_CLASSES = 4  # the exceptions that are raised most
REACH = 2  # neighbours on each side at which a word looks
DRAWN, LONGEST_DRAWN = 2, 12  # messages of each class in the picture, and their words


class Classifier(vr.nn.Module):
    """Words, what they see of their neighbours, and what the query of each class finds among them."""

    def __init__(self, vocabulary_size, num_classes, size=64, num_heads=4):
        self.embedding = vr.nn.Embedding(vocabulary_size, size)
        self.neighbours = vr.nn.MultiheadAttention(size, num_heads)
        self.queries = vr.nn.Embedding(num_classes, size)
        self.key, self.output = vr.nn.Linear(size, size), vr.nn.Linear(size, num_classes)
        self.dropout = vr.nn.Dropout(0.3)

    def words(self, ids):
        """Return one row per word, with what it sees of its neighbours."""
        words = self.dropout(self.embedding(ids))
        return words + self.neighbours(words, words, words, window=(REACH, REACH))

    def forward(self, ids):
        """Return logits, one row per message: of each class from what its own query found."""
        words, (num_classes, size) = self.words(ids), self.output.weight.shape
        count = len(ids.recursive_sequence_lengths()[-1])
        classes = vr.create_lod_tensor(np.tile(np.arange(num_classes), count), [[num_classes] * count]).to(ids.device)
        found = F.scaled_dot_product_attention(self.queries(classes), self.key(words), words)
        return (found.reshape(count, num_classes, size) * self.output.weight).sum(axis=-1) + self.output.bias

    def attention(self, ids):
        """Return where the query of each class looks, `(words, classes)`: positive, and 1 in sum over a message."""
        scores = self.key(self.words(ids)) @ self.queries.weight.transpose(0, 1)
        return vr.sequence_softmax(scores / self.queries.weight.shape[1] ** 0.5)


def library_messages():
    """Return the messages of the exceptions that the standard library raises most, as words, each message once."""
    found = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if not {"site-packages", "dist-packages", "test", "tests"} & set(path.parts):
            found.update((message, name) for name, message in messages_of(path))
    most = [name for name, _ in Counter(found.values()).most_common(NUM_CLASSES)]
    messages = [(message, name) for message, name in found.items() if name in most]
    if not messages:
        raise SystemExit(f"No messages: {sysconfig.get_path('stdlib')} has no sources; give a file by --data")
    texts, labels = zip(*messages, strict=True)
    return vr.data.from_texts(texts, labels, min_count=2, name="messages of exceptions")


def messages_of(path):
    """Yield what a file raises, of what Python itself has: the name of the exception, and the words of its message."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            text = text_of(node.exc.args[0]) if node.exc.args else ""
            words = tuple(re.findall(r"\w+(?:'\w+)?", FILLED_IN.sub(" _ ", text.lower())))
            if len(words) > 1 and hasattr(builtins, node.exc.func.id):
                yield node.exc.func.id, words


def text_of(node):
    """Return the text of an expression: a string, one that is filled in, or one that `%` or `.format` fills in."""
    if isinstance(node, ast.BinOp):
        return text_of(node.left)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return text_of(node.func.value)
    if isinstance(node, ast.JoinedStr):
        return " ".join(part.value if isinstance(part, ast.Constant) else "_" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def own_messages(path):
    """Return the texts of a file as words; end with a plain message if it will not do."""
    try:
        data = vr.data.read_jsonl(path, tokens="words")
    except (vr.InputError, OSError) as error:
        raise SystemExit(f"Cannot use this file. {error}") from error
    if not data.vocabulary or len(data) < 10:
        raise SystemExit(f"Cannot use this file. {path}: expected at least 10 texts, got {data}")
    return data


def train(model, data, settings):
    """Train a model, under a progress bar; the learning rate falls in a straight line."""
    optimizer = vr.optim.Adam(model.parameters(), lr=settings.lr, lazy=True)
    batches = vr.data.batches(data.sequences, data.labels, batch_size=settings.batch_size, shuffle=True)
    steps = settings.epochs * len(batches)
    falling = vr.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.05, 1 - step / steps))
    vr.training.Trainer(
        model, optimizer, lambda ids, labels: F.cross_entropy(model(ids), labels), batches,
        callbacks=[vr.training.Schedule(falling), vr.training.Progress()],
    ).fit(settings.epochs)  # fmt: skip


def seen(model, data):
    """Return the class that the model tells of each text, and for each text where the query of that class looks."""
    model.eval()
    ids = vr.create_lod_tensor(np.concatenate(data.sequences), [[len(words) for words in data.sequences]])
    with vr.no_grad():
        told = np.asarray(model(ids)).argmax(axis=1)
        looks = model.attention(ids).value.to_sequences()
    return told, [look[:, name] for look, name in zip(looks, told, strict=True)]


def print_words(data, told, looks):
    """Print at which words the query of each class looks most: their share of its attention over all texts."""
    for number, name in enumerate(data.classes):
        shares = np.zeros(len(data.vocabulary))
        chosen = np.flatnonzero(told == number)
        for text in chosen:
            np.add.at(shares, data.sequences[text], looks[text])
        best = [f"{data.vocabulary[k]} {shares[k] / len(chosen):.2f}" for k in np.argsort(-shares)[:6] if shares[k]]
        print(f"  {name:20} {', '.join(best)}")


def draw(data, told, looks, path):
    """Write a picture of some texts, their words the darker the more the query of the class looks at them."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("No picture: matplotlib is not installed (pip install matplotlib).")
        return
    short = np.array([4 <= len(words) <= LONGEST_DRAWN for words in data.sequences])
    few = [k for name in range(len(data.classes)) for k in np.flatnonzero(short & (told == name))[:DRAWN]]
    figure, axes = plt.subplots(len(few) or 1, figsize=(12, 0.7 * len(few) + 0.6), layout="constrained", squeeze=False)
    for axis, text in zip(axes[:, 0], few, strict=False):
        words, right = [data.vocabulary[k] for k in data.sequences[text]], told[text] == data.labels[text]
        axis.imshow(looks[text][None], cmap="Blues", vmin=0, vmax=1, aspect="auto", extent=(0, len(words), 0, 1))
        for place, word in enumerate(words):
            shade = "white" if looks[text][place] > 0.6 else "black"
            axis.text(place + 0.5, 0.5, word, ha="center", va="center", color=shade, parse_math=False)
        axis.set(xlim=(0, LONGEST_DRAWN), xticks=[], yticks=[], frame_on=False)
        name = data.classes[told[text]] + ("" if right else f"\n(it is {data.classes[data.labels[text]]})")
        axis.set_ylabel(name, rotation=0, ha="right", va="center", color="black" if right else "tab:red")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"where it looked: {path}")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="JSON Lines with text and label; by default Python's own messages")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-3)
    return parser.parse_args()


def main():
    """Train, print a table, and draw a picture."""
    settings = parse_arguments()
    vr.manual_seed(0)
    data = library_messages() if settings.data is None else own_messages(settings.data)
    print(data)
    training, held_out = data.split(0.2, seed=0)
    model, began = Classifier(len(data.vocabulary), len(data.classes)), time.perf_counter()
    train(model, training, settings)
    told, looks = seen(model, held_out)
    most = np.bincount(training.labels).argmax()
    print(f"training             {time.perf_counter() - began:6.0f} s")
    print(f"held-out accuracy    {np.mean(told == held_out.labels):6.3f}")
    print(f"the largest class    {np.mean(most == held_out.labels):6.3f}")
    print("\nwhere the query of each class looks, when it is told:")
    print_words(held_out, told, looks)
    settings.out.mkdir(parents=True, exist_ok=True)
    draw(held_out, told, looks, settings.out / "attention.png")


if __name__ == "__main__":
    main()
