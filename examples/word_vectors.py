"""Learn vectors of words, by skip-gram with negative sampling, from the documentation of the standard library.

    python examples/word_vectors.py                          # train, and print the nearest words of some
    python examples/word_vectors.py thread parse             # ... of these
    python examples/word_vectors.py --data my.jsonl          # the same on {"text": ...} a line

Words that stand near each other get vectors with a large product, words that were drawn by chance a small one (Mikolov
et al., 2013).  Texts have none to some thousand words and lie one after another; words are near only within a text.
The gradients of both tables are `SelectedRows`: a step reads and writes the rows of its words, however large the
vocabulary is.
"""

import argparse
import ast
import sysconfig
import time
import warnings
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

REACH = 5  # words on each side that are near; nearer ones are drawn more often
LEAST_COUNT = 5  # of a word of the vocabulary
SHOWN, NEAREST = ["file", "thread", "string", "socket", "list", "exception", "month", "parse", "width"], 6


class SkipGram(vr.nn.Module):
    """A vector of each word, and one of each word as a neighbour."""

    def __init__(self, vocabulary_size, size=96):
        self.words = vr.nn.Embedding(vocabulary_size, size, sparse=True)
        self.neighbours = vr.nn.Embedding(vocabulary_size, size, sparse=True)
        self.words.weight.assign(np.asarray(self.words.weight) / size**0.5)
        self.neighbours.weight.assign(0.0)

    def forward(self, words, neighbours):
        """Return the scores of some neighbours, `(words, neighbours)`, of each word."""
        return (self.neighbours(neighbours) * self.words(words[:, None])).sum(axis=-1)


def library_texts():
    """Return the documentation strings of the standard library as words, each text once."""
    texts = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if not {"site-packages", "dist-packages", "test", "tests"} & set(path.parts):
            texts.update(dict.fromkeys(documentation_of(path)))
    if not texts:
        raise SystemExit(f"No texts: {sysconfig.get_path('stdlib')} has no sources; give a file by --data")
    return vr.data.from_texts(list(texts), tokens="words", min_count=LEAST_COUNT, name="documentation strings")


def documentation_of(path):
    """Yield the documentation strings of a file; none if Python cannot read it."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""


def own_texts(path):
    """Return the texts of a file as words; end with a plain message if it will not do."""
    try:
        data = vr.data.read_jsonl(path, label=None, tokens="words", min_count=LEAST_COUNT)
    except (vr.InputError, OSError) as error:
        raise SystemExit(f"Cannot use this file. {error}") from error
    if len(data) < 10 or len(data.vocabulary or ()) < 3:
        raise SystemExit(f"Cannot use this file. {path}: expected at least 10 texts and 2 frequent words, got {data}")
    return data


def thinned(texts, counts, rng):
    """Return texts without rare words (word 0), and without some of those that are more frequent than the mean word."""
    kept = 1 / np.sqrt(np.maximum(counts / counts[1:].mean(), 1))
    kept[0] = 0
    return [words[rng.random(len(words)) < kept[words]] for words in texts]


def pairs_of(batch, rng):
    """Return words and their neighbours in the same text, at most as far as each word's reach, drawn anew."""
    words, lengths = np.asarray(batch), batch.recursive_sequence_lengths()[-1]
    text, reach = np.repeat(np.arange(len(lengths)), lengths), rng.integers(1, REACH + 1, len(words))
    centres, others = [], []
    for distance in range(1, min(REACH, len(words) - 1) + 1):
        left = np.flatnonzero(text[distance:] == text[:-distance])
        for here, there in ((left, left + distance), (left + distance, left)):
            near = reach[here] >= distance
            centres.append(words[here[near]])
            others.append(words[there[near]])
    return np.concatenate([np.zeros(0, np.int64), *centres]), np.concatenate([np.zeros(0, np.int64), *others])


def train(model, texts, counts, settings):
    """Train a model, under a progress bar: a neighbour is to be told from words drawn by their frequency."""
    drawn = np.where(np.arange(len(counts)) > 0, counts, 0) ** 0.75
    drawn /= drawn.sum()

    def batches(epoch):
        rng = np.random.default_rng(epoch)
        made = vr.data.batches(thinned(texts, counts, rng), max_tokens=settings.words, shuffle=True, seed=epoch)
        return [(*pair, rng) for pair in (pairs_of(batch, rng) for batch in made) if len(pair[0])]

    def loss(words, near, rng):
        others = rng.choice(len(drawn), (len(words), settings.negatives), p=drawn)
        scores = model(words, np.column_stack([near, others]))
        wanted = np.zeros(scores.shape, np.float32)
        wanted[:, 0] = 1
        return F.binary_cross_entropy_with_logits(scores, wanted, reduction="sum") / len(words)

    if not batches(0):
        raise SystemExit("Cannot learn from this. No text has two frequent words near each other")
    optimizer = vr.optim.Adam(model.parameters(), lr=settings.lr, lazy=True)
    trainer = vr.training.Trainer(model, optimizer, loss, batches)
    steps = settings.epochs * trainer.steps_per_epoch
    falling = vr.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.05, 1 - step / steps))
    trainer.callbacks = [vr.training.Schedule(falling), vr.training.Progress()]
    trainer.fit(settings.epochs)


def told_apart(model, texts, counts):
    """Return how often a neighbour scores higher than the neighbour of another word, in texts that were not seen."""
    rng = np.random.default_rng(1)
    (batch,) = vr.data.batches(thinned(texts, counts, rng), batch_size=len(texts))
    words, near = pairs_of(batch, rng)
    if not len(words):
        raise SystemExit("Cannot measure this. No held-out text has two frequent words near each other")
    with vr.no_grad():
        scores = np.asarray(model(words, np.column_stack([near, rng.permutation(near)])))
    return np.mean(scores[:, 0] > scores[:, 1]) + np.mean(scores[:, 0] == scores[:, 1]) / 2, len(words)


def print_nearest(model, vocabulary, shown):
    """Print the words whose vectors have the most similar direction."""
    vectors = np.asarray(model.words.weight)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for word in shown:
        if word not in vocabulary[1:]:
            print(f"{word:12} is not among the {len(vocabulary) - 1} words")
            continue
        similar = vectors @ vectors[vocabulary.index(word)]
        similar[[0, vocabulary.index(word)]] = -np.inf
        best = np.argsort(-similar)[: min(NEAREST, len(vocabulary) - 2)]
        print(f"{word:12} {', '.join(f'{vocabulary[k]} {similar[k]:.2f}' for k in best)}")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("shown", nargs="*", help="words whose nearest ones are printed")
    parser.add_argument("--data", type=Path, help="JSON Lines with text; by default Python's own documentation")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--words", type=int, default=1024, help="words of a batch")
    parser.add_argument("--negatives", type=int, default=8, help="words that a neighbour is told from")
    parser.add_argument("--lr", type=float, default=2e-2)
    return parser.parse_args()


def main():
    """Train, and print a table."""
    settings = parse_arguments()
    vr.manual_seed(0)
    data = library_texts() if settings.data is None else own_texts(settings.data)
    print(data)
    training, held_out = data.split(seed=0)
    counts = np.bincount(np.concatenate(training.sequences), minlength=len(data.vocabulary))
    model, began = SkipGram(len(data.vocabulary)), time.perf_counter()
    train(model, training.sequences, counts, settings)
    share, pairs = told_apart(model, held_out.sequences, counts)
    print(f"training                           {time.perf_counter() - began:6.0f} s")
    print(f"held-out neighbours told apart     {share:6.3f}    of {pairs} pairs; by chance 0.5\n")
    frequent = [word for word in SHOWN if word in data.vocabulary] or data.vocabulary[1:9]
    print_nearest(model, data.vocabulary, settings.shown or frequent)


if __name__ == "__main__":
    main()
