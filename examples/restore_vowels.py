"""Train a sequence-to-sequence model with attention, without padding, to write the vowels that texts have lost.

    python examples/restore_vowels.py                          # train, and spell out held-out texts
    python examples/restore_vowels.py "rtrn th lst nm"         # ... and texts of your own
    python examples/restore_vowels.py --data my.jsonl          # the same on {"text": ...} a line

An LSTM reads the consonants, both ways.  Another one writes letter after letter and attends to what was read; in
training, to all letters of a batch in one attention, whatever their numbers.  A beam search keeps the likeliest texts
of each source: hypotheses are sequences of their source, as many as there are, and attend to it as such.  The texts are
the prose of Python's reference, three words at a time.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

START, END = 0, 1
ALPHABET = "^$ abcdefghijklmnopqrstuvwxyz"  # the first two stand for the start and the end
WORDS, MOST_LETTERS, MOST_HELD_OUT = 3, 40, 500


class Speller(vr.nn.Module):
    """Consonants to letters."""

    def __init__(self, embedding_size=32, hidden_size=128):
        self.embedding = vr.nn.Embedding(len(ALPHABET), embedding_size)
        self.reader = vr.nn.LSTM(embedding_size, hidden_size // 2, bidirectional=True)
        self.begin, self.query = vr.nn.Linear(hidden_size, hidden_size), vr.nn.Linear(hidden_size, hidden_size)
        self.writer = vr.nn.LSTMCell(embedding_size, hidden_size)
        self.output = vr.nn.Linear(2 * hidden_size, len(ALPHABET))
        self.recurrence = vr.nn.DynamicRNN(self._write)

    def _write(self, letter, h, c):
        h, c = self.writer(letter, (h, c))
        return h, h, c

    def read(self, sources):
        """Return what was read, a row per consonant, and the state to begin with, a row per source."""
        found, _ = self.reader(self.embedding(sources))
        h = F.tanh(self.begin(vr.sequence_pool(found, "mean")))
        return found, h, h * 0.0

    def logits(self, h, found):
        """Return those of the next letter, of states with the LoD of sources."""
        attended = F.scaled_dot_product_attention(self.query(h), found, found)
        return self.output(F.concat([h, attended], axis=1))

    def forward(self, sources, letters):
        """Return the logits of the letter after each of some texts."""
        found, *states = self.read(sources)
        h, *_ = self.recurrence(self.embedding(letters), states)
        return self.logits(h, found)

    def search(self, sources, beam_size):
        """Return the likeliest texts of each source, as lists of lists of letters, and their scores."""
        found, h, c = self.read(sources)
        count = sources.num_elements(0)
        ids = [vr.create_lod_tensor(np.full(count, START), [[1] * count, [1] * count])]
        scores = [ids[0].like(np.zeros(count, np.float32))]
        while len(ids) < MOST_LETTERS and len(ids[-1].data):
            of_sources = ids[-1].absolute_lod()[:1]  # which hypotheses are of which source
            h, c = self.writer(self.embedding(ids[-1].data), (h, c))
            likely, letters = F.topk(F.log_softmax(self.logits(h.with_lod(of_sources), found)), beam_size)
            total = likely + scores[-1].data.reshape(-1, 1)
            kept, score, parents = vr.beam_search(ids[-1], scores[-1], letters, total, beam_size, END)
            ids.append(kept.value)
            scores.append(score.value)
            h, c = h[parents], c[parents]
        texts, score = vr.beam_search_decode(ids, scores, beam_size, END)
        return texts.value.to_sequences(), score.value.to_sequences()


def pairs_of(texts):
    """Return pairs of consonants and letters: of texts, all that a few words in a row are, each once."""
    rows = {" ".join(words[k : k + WORDS]) for words in texts for k in range(max(1, len(words) - WORDS + 1))}
    rows = sorted(row for row in rows if set(ALPHABET[2:]).issuperset(row) and 4 <= len(row) < MOST_LETTERS - 2)
    return [(row.translate(str.maketrans("", "", "aeiou")), row) for row in rows]


def encoded(texts, before="", after=""):
    """Return texts as one sequence of letters each."""
    rows = [np.array([ALPHABET.index(letter) for letter in before + text + after], np.int64) for text in texts]
    return vr.create_lod_tensor(np.concatenate(rows), [[len(row) for row in rows]])


def train(model, pairs, settings):
    """Train a model, under a progress bar; the learning rate falls in a straight line."""
    optimizer, rng = vr.optim.Adam(model.parameters(), lr=settings.lr), np.random.default_rng(0)
    batches = -(-len(pairs) // settings.batch_size)
    steps = settings.epochs * batches
    falling = vr.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.05, 1 - step / steps))

    def loss(chosen):
        sources, texts = zip(*(pairs[k] for k in chosen), strict=True)
        return F.cross_entropy(model(encoded(sources), encoded(texts, before="^")), encoded(texts, after="$"))

    vr.training.Trainer(
        model, optimizer, loss, lambda epoch: np.array_split(rng.permutation(len(pairs)), batches), clip_norm=1.0,
        callbacks=[vr.training.Schedule(falling), vr.training.Progress()],
    ).fit(settings.epochs)  # fmt: skip


def spelled(model, sources, beam_size):
    """Return the likeliest texts of each source, the best first."""
    with vr.no_grad():
        found, _ = model.search(encoded(sources), beam_size)
    return [["".join(ALPHABET[k] for k in text if k > END) for text in texts] for texts in found]


def shares(model, pairs, beam_size):
    """Return how often the best text is right, and how often one of the beam is; and some lines of a table."""
    best = among = 0
    lines = []
    for first in range(0, len(pairs), 100):
        sources, wanted = zip(*pairs[first : first + 100], strict=True)
        for source, text, found in zip(sources, wanted, spelled(model, sources, beam_size), strict=True):
            best, among = best + (found[0] == text), among + (text in found)
            lines.append(f"{source:24} {text:32} {' | '.join(found[:3])}")
    return best / len(pairs), among / len(pairs), lines


def most_frequent(training, pairs):
    """Return how often it is right to write each word as the training texts mostly have it."""
    counts = {}
    for source, text in training:
        for short, word in zip(source.split(" "), text.split(" "), strict=True):
            counts.setdefault(short, {}).setdefault(word, 0)
            counts[short][word] += 1
    usual = {short: max(words, key=words.get) for short, words in counts.items()}
    found = [" ".join(usual.get(short, short) for short in source.split(" ")) for source, _ in pairs]
    return np.mean([one == text for one, (_, text) in zip(found, pairs, strict=True)])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("texts", nargs="*", help="consonants to spell out after training")
    parser.add_argument("--data", type=Path, help="JSON Lines with text; by default the prose of Python's reference")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--beam-size", type=int, default=5)
    parser.add_argument("--lr", type=float, default=4e-3)
    return parser.parse_args()


def divided(path):
    """Return pairs to train on, and others, of sentences that those are not of."""
    if path is None:
        data = vr.data.documentation_sentences(min_count=1)
    else:
        data = vr.data.read_jsonl(path, label=None, tokens="words")
    texts = [[data.vocabulary[word] for word in words] for words in data.sequences]
    rng = np.random.default_rng(0)
    texts = [texts[k] for k in rng.permutation(len(texts))]
    training, others = pairs_of(texts[len(texts) // 10 :]), pairs_of(texts[: len(texts) // 10])
    others = sorted(set(others) - set(training))
    if not others:
        raise vr.InputError(path, expected="at least 10 texts of words of the letters a to z", got=len(texts))
    return training, [others[k] for k in rng.permutation(len(others))[:MOST_HELD_OUT]]


def main():
    """Train, and print a table."""
    settings = parse_arguments()
    vr.manual_seed(0)
    try:
        training, held_out = divided(settings.data)
    except vr.InputError as error:
        sys.exit(f"Cannot use this file. {error}")
    model, began = Speller(), time.perf_counter()
    train(model, training, settings)
    seconds = time.perf_counter() - began
    best, among, lines = shares(model, held_out, settings.beam_size)
    print(*lines[:10], sep="\n")
    print(f"\n{len(training)} texts, training         {seconds:6.0f} s")
    print(f"held-out texts, the best is right  {best:6.3f}")
    print(f"one of {settings.beam_size} is right                {among:6.3f}")
    print(f"each word as it mostly is          {most_frequent(training, held_out):6.3f}")
    if settings.texts:
        for source, found in zip(settings.texts, spelled(model, settings.texts, settings.beam_size), strict=True):
            print(f"{source}: {' | '.join(found)}")


if __name__ == "__main__":
    main()
