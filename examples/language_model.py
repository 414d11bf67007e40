"""Train a language model on texts of unequal length, whose states it carries from chunk to chunk.

    python examples/language_model.py                    # train, and write some text
    python examples/language_model.py --layer Mamba2     # with another layer: LSTM, SLSTM, GatedDeltaNet or Mamba2
    python examples/language_model.py --epochs 1         # in under a minute
    python examples/language_model.py --data my.jsonl    # on {"text": ...} a line

Texts are read side by side, some characters of each at a time.  Where one ends, another one begins in its place, with
an empty state, while the others go on: a batch has as many rows as there are characters, and nothing is padded or cut.
The texts are the chapters of Python's reference.  The model is also measured with states that it forgets after each
chunk: what it knows of the text before is in them.  A perplexity of 4 is as uncertain as a choice among 4 characters.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from varlen_rnn.nn import functional as F


class LanguageModel(vr.nn.Module):
    """Characters to the character after each."""

    def __init__(self, vocabulary_size, embedding_size=48, hidden_size=256, layer="LSTM"):
        self.embedding = vr.nn.Embedding(vocabulary_size, embedding_size)
        self.reader = vr.nn.Stateful(getattr(vr.nn, layer)(embedding_size, hidden_size))
        self.output = vr.nn.Linear(hidden_size, vocabulary_size)

    def forward(self, ids, keys):
        """Return logits, one row per character of some texts, which have keys."""
        return self.output(self.reader(self.embedding(ids), keys)[0])


def chunks(texts, order, width, length):
    """Yield the characters of a chunk, those after each, and the keys of its texts, `width` side by side."""
    waiting, reading = list(order), {}
    while waiting or reading:
        while waiting and len(reading) < width:
            reading[waiting.pop(0)] = 0
        parts = {key: texts[key][at : at + length + 1] for key, at in reading.items()}
        ids = np.concatenate([part[:-1] for part in parts.values()])
        after = np.concatenate([part[1:] for part in parts.values()])
        yield vr.create_lod_tensor(ids, [[len(part) - 1 for part in parts.values()]]), after, list(parts)
        reading = {key: at + length for key, at in reading.items() if at + length + 1 < len(texts[key])}


def train(model, texts, settings):
    """Train a model, under a progress bar; the learning rate falls in a straight line."""

    def batches(epoch):
        model.reader.reset()
        order = np.random.default_rng(epoch).permutation(len(texts))
        return list(chunks(texts, order, settings.width, settings.chunk))

    def loss(ids, after, keys):
        return F.cross_entropy(model(ids, keys), after)

    optimizer = vr.optim.Adam(model.parameters(), lr=settings.lr)
    trainer = vr.training.Trainer(model, optimizer, loss, batches, clip_norm=1.0)
    steps = settings.epochs * trainer.steps_per_epoch
    falling = vr.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.05, 1 - step / steps))
    trainer.callbacks = [vr.training.Schedule(falling), vr.training.Progress()]
    trainer.fit(settings.epochs)


def perplexity(model, texts, settings, forgets=False):
    """Return the perplexity of a character; if the model `forgets`, it knows no text before the chunk."""
    total = count = 0
    model.reader.reset()
    with vr.no_grad():
        for ids, after, keys in chunks(texts, range(len(texts)), settings.width, settings.chunk):
            if forgets:
                model.reader.reset()
            total += F.cross_entropy(model(ids, keys), after, reduction="sum").item()
            count += len(after)
    return np.exp(total / count)


def perplexity_by_frequency(training, held_out, size):
    """Return the perplexity of a character that is told by how frequent it is alone."""
    counts = np.bincount(np.concatenate(training), minlength=size) + 1
    return np.exp(-np.log(counts / counts.sum())[np.concatenate(held_out)].mean())


def written(model, vocabulary, begin, count, rng):
    """Return a text that the model goes on with, character by character."""
    number_of, text = {character: number for number, character in enumerate(vocabulary)}, begin
    model.reader.reset()
    ids = [number_of[character] for character in begin if character in number_of]
    with vr.no_grad():
        for _ in range(count):
            rows = vr.create_lod_tensor(np.array(ids), [[len(ids)]])
            logits = np.asarray(model(rows, ["text"]))[-1].astype(np.float64) / 0.7
            chances = np.exp(logits - logits.max())
            ids = [int(rng.choice(len(vocabulary), p=chances / chances.sum()))]
            text += vocabulary[ids[0]]
    return text


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="JSON Lines with text; by default the chapters of Python's reference")
    parser.add_argument("--layer", choices=("LSTM", "SLSTM", "GatedDeltaNet", "Mamba2"), default="LSTM")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--width", type=int, default=32, help="texts side by side")
    parser.add_argument("--chunk", type=int, default=64, help="characters of a text at a time")
    parser.add_argument("--lr", type=float, default=4e-3)
    return parser.parse_args()


def read(path):
    """Return texts as arrays of the numbers of their characters, and the characters."""
    if path is None:
        from pydoc_data.topics import topics

        data = vr.data.from_texts([topics[name] for name in sorted(topics)], min_count=5)
    else:
        data = vr.data.read_jsonl(path, label=None, min_count=2)
    texts = [np.asarray(ids) for ids in data.sequences if len(ids) > 1]
    if len(texts) < 10:
        raise vr.InputError(path, expected="at least 10 texts", got=len(texts))
    return [texts[k] for k in np.random.default_rng(0).permutation(len(texts))], data.vocabulary


def main():
    """Train, and print a table and a text."""
    settings = parse_arguments()
    vr.manual_seed(0)
    try:
        texts, vocabulary = read(settings.data)
    except (vr.InputError, OSError) as error:
        raise SystemExit(f"Cannot use this file. {error}") from error
    held_out, training = texts[: len(texts) // 10], texts[len(texts) // 10 :]
    model, began = LanguageModel(len(vocabulary), layer=settings.layer), time.perf_counter()
    train(model, training, settings)
    seconds, lengths = time.perf_counter() - began, [len(text) for text in training]
    print(f"{len(training)} texts of {min(lengths)} to {max(lengths)} characters, training {seconds:.0f} s")
    print("held-out texts, perplexity of a character:")
    print(f"    by frequency         {perplexity_by_frequency(training, held_out, len(vocabulary)):6.2f}")
    print(f"    states forgotten     {perplexity(model, held_out, settings, forgets=True):6.2f}")
    print(f"    states carried       {perplexity(model, held_out, settings):6.2f}\n")
    print(written(model, vocabulary, "The ", 300, np.random.default_rng(0)))


if __name__ == "__main__":
    main()
