"""Train a translator with attention, without padding, to put the blanks back between words, and decode by beam search.

    python examples/restore_blanks.py                          # train, and say how often a held-out text is right
    python examples/restore_blanks.py --data my.jsonl          # the same on {"source": ..., "target": ...} a line

"thenameofthemodule" is to become "the name of the module".  An LSTM reads the characters of the source in both
directions, another writes those of the target, and looks at the source by attention.  The beam search keeps the best
hypotheses of all sources of a batch at once, however many each has left.  The data is the prose of Python's reference,
which every Python carries; a file of your own may translate from anything to anything, a character at a time.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

WORDS, STRIDE = 6, 2  # of a text, and from the beginning of one to that of the next
END, START = 0, 1  # the symbol that ends a text, and the one before its first; characters follow


class Translator(vr.nn.Module):
    """Characters of a source, to the logits of the next character of a target."""

    def __init__(self, symbols, embedding_size=32, hidden_size=128):
        self.embedding = vr.nn.Embedding(symbols, embedding_size)
        self.encoder = vr.nn.LSTM(embedding_size, hidden_size, bidirectional=True)
        self.decoder = vr.nn.LSTM(embedding_size, hidden_size)
        self.query = vr.nn.Linear(hidden_size, 2 * hidden_size)
        self.hidden = vr.nn.Linear(3 * hidden_size, hidden_size)
        self.dropout = vr.nn.Dropout(0.2)
        self.output = vr.nn.Linear(hidden_size, symbols)

    def encode(self, source):
        """Return what the decoder attends to, a row per character, and the state in which it begins."""
        rows, (h, c) = self.encoder(self.embedding(source))
        return rows, (h[1:], c[1:])  # of the direction that ends at the first character

    def step(self, symbols, state, encoded, lod=None):
        """Return the logits of what follows each symbol, and the new state.

        Symbols are sequences, each from its own state; `lod` says which rows look at which source, unless each
        sequence has its own.
        """
        rows, state = self.decoder(self.embedding(symbols), state)
        rows = rows if lod is None else vr.lod_reset(rows, target_lod=lod)
        seen = F.scaled_dot_product_attention(self.query(rows), encoded, encoded)
        return self.output(self.dropout(F.tanh(self.hidden(F.concat([rows, seen]))))), state


def reference_pairs():
    """Return pairs (without blanks, with them) of the words of Python's reference: for training, and held out."""
    data = vr.data.documentation_sentences(min_count=1)
    order, sides = np.random.default_rng(0).permutation(len(data)), ({}, {})
    for place, number in enumerate(order):
        words = [data.vocabulary[word] for word in data.sequences[number]]
        for first in range(0, len(words) - WORDS + 1, STRIDE):
            chosen = words[first : first + WORDS]
            if all(word.isascii() and word.isalpha() for word in chosen):
                sides[place % 10 == 0]["".join(chosen)] = " ".join(chosen)
    training, held_out = sides
    return list(training.items()), [pair for pair in held_out.items() if pair[0] not in training]


def read_pairs(path):
    """Return the pairs of a file of JSON Lines, every tenth held out, or end with the first line that is none."""
    pairs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found = json.loads(line)
            pairs.append((found["source"] + "", found["target"] + ""))
        except (ValueError, KeyError, TypeError) as error:
            expected = '{"source": text, "target": text}'
            raise SystemExit(f"Cannot use this file. {path}, line {number}: expected {expected}") from error
    if len(pairs) < 20:
        raise SystemExit(f"Cannot use this file. {path}: expected at least 20 pairs, got {len(pairs)}")
    return [pair for k, pair in enumerate(pairs) if k % 10], pairs[::10]


def numbers_of(pairs, characters):
    """Return sources and targets as arrays of the numbers of characters; what is not known is left out."""
    number_of = {character: number for number, character in enumerate(characters, 2)}
    return [
        [np.array([number_of[c] for c in text if c in number_of], np.int64) for text in side]
        for side in zip(*pairs, strict=True)
    ]


def batch_of(sequences):
    """Return sequences one after another, with their lengths."""
    return vr.create_lod_tensor(np.concatenate(sequences), [[len(each) for each in sequences]])


def train(model, sources, targets, settings):
    """Train a model, under a progress bar, to tell each character of a target from those before it and the source."""
    optimizer, rng = vr.optim.Adam(model.parameters(), lr=settings.lr), np.random.default_rng(0)
    steps = settings.epochs * -(-len(sources) // settings.batch_size)
    before = [np.insert(target, 0, START) for target in targets]
    after = [np.append(target, END) for target in targets]
    with tqdm(total=steps, unit="batch", desc="training") as bar:
        for _ in range(settings.epochs):
            for chosen in np.array_split(rng.permutation(len(sources)), steps // settings.epochs):
                optimizer.lr = settings.lr * max(0.05, 1 - bar.n / steps)
                encoded, state = model.encode(batch_of([sources[i] for i in chosen]))
                logits, _ = model.step(batch_of([before[i] for i in chosen]), state, encoded)
                loss = F.cross_entropy(logits, batch_of([after[i] for i in chosen]))
                loss.backward()
                vr.optim.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                bar.set_postfix_str(f"loss {loss.item():.3f}", refresh=False)
                bar.update()


def translate(model, sources, beam_size, most):
    """Return the hypotheses of each source, the best first, as pairs of numbers of characters and a score."""
    count = len(sources)
    begin = vr.create_lod_tensor(np.full(count, START), [[1] * count, [1] * count])
    ids, scores = [begin], [begin.like(np.zeros(count, np.float32))]
    with vr.no_grad():
        encoded, state = model.encode(batch_of(sources))
        while len(ids) <= most and len(ids[-1].data):
            each_alone = vr.create_lod_tensor(ids[-1].data, [[1] * len(ids[-1].data)])
            lod = ids[-1].absolute_lod()[0]  # the hypotheses of each source
            logits, (h, c) = model.step(each_alone, state, encoded, lod)
            totals = F.log_softmax(logits) + scores[-1].data[:, None]
            *kept, parents = vr.beam_search(ids[-1].data, scores[-1].data, None, totals, beam_size, END)
            state = h[:, np.asarray(parents)], c[:, np.asarray(parents)]
            ids, scores = [*ids, kept[0].value], [*scores, kept[1].value]
        texts, totals = vr.beam_search_decode(ids, scores, beam_size, END)
    found = zip(texts.value.to_sequences(), totals.value.to_sequences(), strict=True)
    return [[(text[1:], score[-1]) for text, score in zip(*source, strict=True)] for source in found]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="JSON Lines with source and target; by default Python's reference")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--beam-size", type=int, default=5)
    parser.add_argument("--lr", type=float, default=5e-3)
    return parser.parse_args()


def main():
    """Train, translate, and print what was found of a few sources, and how often the best hypothesis is right."""
    settings = parse_arguments()
    vr.manual_seed(0)
    training, held_out = reference_pairs() if settings.data is None else read_pairs(settings.data)
    characters = sorted({character for pair in training for text in pair for character in text})
    model, began = Translator(len(characters) + 2), time.perf_counter()
    train(model, *numbers_of(training, characters), settings)
    model.eval()
    print(f"{len(training)} pairs to train, {time.perf_counter() - began:.0f} s; {len(held_out)} held out")
    sources, _ = numbers_of(held_out, characters)
    longest = 2 + 2 * max(len(target) for _, target in training)
    right = {}
    for beam_size in (1, settings.beam_size):
        found = translate(model, sources, beam_size, longest)
        texts = [["".join(characters[n - 2] for n in text if n > START) for text, _ in each] for each in found]
        right[beam_size] = np.mean([each[0] == target for each, (_, target) in zip(texts, held_out, strict=True)])
    for (source, _), each, hypotheses in list(zip(held_out, found, texts, strict=True))[:: -(-len(held_out) // 5)]:
        print(f"\n{source}")
        for (_, score), text in zip(each[:3], hypotheses, strict=False):
            print(f"{score:10.3f}  {text}")
    print()
    for beam_size, share in right.items():
        print(f"the best of a beam of {beam_size:<3} is right  {share:6.3f}")


if __name__ == "__main__":
    main()
