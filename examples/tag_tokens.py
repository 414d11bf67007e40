"""Train a tagger with a conditional random field, without padding, to tell the kinds of the tokens of programs.

    python examples/tag_tokens.py                          # train, and say how many held-out tokens are right
    python examples/tag_tokens.py "def f(x): return x"     # ... and the tokens of texts of your own
    python examples/tag_tokens.py --data my.jsonl          # the same on {"tokens": [...], "tags": [...]} a line

The model sees characters alone: an LSTM reads them both ways, and the field finds the best kinds of all characters of a
function together.  Whether a name is called, defined, or a parameter is not in its letters.  The functions are those
of the standard library, in every Python that has its sources; `tokenize` and `keyword` say what is right.
"""

import argparse
import io
import json
import keyword
import time
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

import varlen_rnn as vr

PACKAGES = ["asyncio", "email", "importlib", "json", "logging", "unittest"]
MOST_CHARACTERS = 2000
GAP = "-"  # the kind of what is between tokens
KINDS = {tokenize.NUMBER: "number", tokenize.STRING: "string", tokenize.COMMENT: "comment", tokenize.OP: "operator"}


class Tagger(vr.nn.Module):
    """Characters to kinds."""

    def __init__(self, vocabulary_size, num_kinds, embedding_size=32, hidden_size=96):
        self.embedding = vr.nn.Embedding(vocabulary_size, embedding_size)
        self.reader = vr.nn.LSTM(embedding_size, hidden_size, bidirectional=True)
        self.dropout = vr.nn.Dropout(0.2)
        self.output, self.field = vr.nn.Linear(2 * hidden_size, num_kinds), vr.nn.LinearChainCRF(num_kinds)

    def scores(self, ids):
        """Return the score of each kind, one row per character."""
        return self.output(self.dropout(self.reader(self.embedding(ids))[0]))

    def forward(self, ids, kinds):
        """Return the loss of each text."""
        return self.field(self.scores(ids), kinds)

    def tags(self, ids):
        """Return the best kinds, text by text."""
        return self.field.decode(self.scores(ids)).value.to_sequences()


def tokens_of(text):
    """Return the tokens of a function as (begin, end, kind), in characters."""
    begins = np.cumsum([0, *(len(line) for line in text.splitlines(keepends=True))])
    found, before, depth, in_head = [], "", 0, False
    for kind, word, begin, end, _ in tokenize.generate_tokens(io.StringIO(text).readline):
        if kind == tokenize.NAME:
            name = "keyword" if keyword.iskeyword(word) else "attribute" if before == "." else "name"
            in_head = in_head or word == "def"
            name = "definition" if before in ("def", "class") else name
            name = "parameter" if in_head and depth == 1 and before in ("(", ",", "*", "**") else name
        else:
            name = KINDS.get(kind)
            depth += (word in ("(", "[", "{")) - (word in (")", "]", "}"))
            in_head = in_head and not (word == ":" and depth == 0)
            if word == "(" and found and found[-1][2] in ("name", "attribute"):
                found[-1] = (*found[-1][:2], "call")
        if name is not None:
            found.append((begins[begin[0] - 1] + begin[1], begins[end[0] - 1] + end[1], name))
            before = word
    return found


def library_texts():
    """Return functions of the standard library with their tokens, in random order."""
    data, texts = vr.data.standard_library_functions(PACKAGES, limit=250), []
    for ids in data.sequences:
        text = "".join(data.vocabulary[number] for number in ids)
        if len(text) <= MOST_CHARACTERS:
            try:
                texts.append((text, tokens_of(text)))
            except (tokenize.TokenError, IndentationError):
                pass  # of a method, cut out of its class
    return [texts[k] for k in np.random.default_rng(0).permutation(len(texts))]


def own_texts(path):
    """Return the texts of a file, tokens with blanks between them, or end with the first line that is none."""
    texts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found = json.loads(line)
            words, tags = found["tokens"], found["tags"]
            begins = np.cumsum([0, *(len(word) + 1 for word in words)])
            tokens = [(b, b + len(word), tag + "") for b, word, tag in zip(begins, words, tags, strict=False)]
            texts.append((" ".join(words), tokens))
            if not 0 < len(words) == len(tags):
                raise ValueError
        except (ValueError, KeyError, TypeError) as error:
            expected = '{"tokens": [...], "tags": [...]}, texts, as many of both'
            raise SystemExit(f"Cannot use this file. {path}, line {number}: expected {expected}") from error
    if len(texts) < 10:
        raise SystemExit(f"Cannot use this file. {path}: expected at least 10 texts, got {len(texts)}")
    return texts


class Alphabet:
    """Numbers of characters, of which 0 is any unknown one, and of kinds."""

    def __init__(self, texts):
        self.characters = {c: n for n, c in enumerate(sorted({c for text, _ in texts for c in text}), 1)}
        self.kinds = sorted({GAP, *(kind for _, tokens in texts for *_, kind in tokens)})

    def ids(self, texts):
        """Return the characters of texts, one sequence each."""
        rows = [self.characters.get(c, 0) for text in texts for c in text]
        return vr.create_lod_tensor(np.array(rows, np.int64), [list(map(len, texts))])

    def tags(self, texts):
        """Return the kind of each character: that of its token."""
        found = []
        for text, tokens in texts:
            kinds = np.full(len(text), self.kinds.index(GAP))
            for begin, end, kind in tokens:
                kinds[begin:end] = self.kinds.index(kind) if kind in self.kinds else 0
            found.append(kinds)
        return np.concatenate(found)


def batches(texts, batch_size, rng=None):
    """Yield texts of about the same length, in a random order with an `rng`."""
    sizes = np.array([len(text) for text, _ in texts]) * (1 if rng is None else rng.uniform(0.9, 1.1, len(texts)))
    groups = np.array_split(np.argsort(sizes), -(-len(texts) // batch_size))
    for number in range(len(groups)) if rng is None else rng.permutation(len(groups)):
        yield [texts[k] for k in groups[number]]


def train(model, texts, alphabet, settings):
    """Train a model, under a progress bar; the learning rate falls in a straight line."""
    optimizer, rng = vr.optim.Adam(model.parameters(), lr=settings.lr), np.random.default_rng(0)
    steps = settings.epochs * -(-len(texts) // settings.batch_size)
    falling = vr.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.05, 1 - step / steps))

    def loss(batch):
        ids = alphabet.ids([text for text, _ in batch])
        return model(ids, alphabet.tags(batch)).sum() / ids.shape[0]

    vr.training.Trainer(
        model, optimizer, loss, lambda epoch: batches(texts, settings.batch_size, rng), clip_norm=1.0,
        callbacks=[vr.training.Schedule(falling), vr.training.Progress()],
    ).fit(settings.epochs)  # fmt: skip


def tagged(model, texts, alphabet):
    """Return the best kinds of the characters of each text."""
    model.eval()
    with vr.no_grad():
        found = [model.tags(alphabet.ids(texts[first : first + 64])) for first in range(0, len(texts), 64)]
    return [tags for batch in found for tags in batch]


def evaluate(model, training, held_out, alphabet):
    """Print how many tokens of each kind are right in all their characters, beside the usual kind of each word."""
    usual = defaultdict(Counter)
    for text, tokens in training:
        for begin, end, kind in tokens:
            usual[text[begin:end]][kind] += 1
    most = Counter(kind for _, tokens in training for *_, kind in tokens).most_common(1)[0][0]
    counts, right, guessed = Counter(), Counter(), Counter()
    found = tagged(model, [text for text, _ in held_out], alphabet)
    for (text, tokens), tags in zip(held_out, found, strict=True):
        for begin, end, kind in tokens:
            word = text[begin:end]
            guess = usual[word].most_common(1)[0][0] if word in usual else most
            counts[kind] += 1
            right[kind] += all(alphabet.kinds[tag] == kind for tag in tags[begin:end])
            guessed[kind] += guess == kind
    print(f"{'held-out tokens':18}{'':8}  with the field  as the word mostly is")
    for kind, count in sorted(counts.items()):
        print(f"{kind:18}{count:8}{right[kind] / count:16.3f}{guessed[kind] / count:23.3f}")
    count = counts.total()
    print(f"{'all':18}{count:8}{right.total() / count:16.3f}{guessed.total() / count:23.3f}")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("texts", nargs="*", help="texts to tag after training")
    parser.add_argument("--data", type=Path, help="JSON Lines with tokens and tags; by default Python's own functions")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=6e-3)
    return parser.parse_args()


def main():
    """Train, and print a table."""
    settings = parse_arguments()
    vr.manual_seed(0)
    texts = library_texts() if settings.data is None else own_texts(settings.data)
    held_out, training = texts[: len(texts) // 10], texts[len(texts) // 10 :]
    alphabet, began = Alphabet(training), time.perf_counter()
    model = Tagger(1 + len(alphabet.characters), len(alphabet.kinds))
    train(model, training, alphabet, settings)
    print(
        f"{len(training)} texts of {np.mean([len(text) for text, _ in training]):.0f} characters in the mean, ", end=""
    )
    print(f"training {time.perf_counter() - began:.0f} s\n")
    evaluate(model, training, held_out, alphabet)
    for text, tags in zip(settings.texts, tagged(model, settings.texts, alphabet), strict=True):
        print(f"\n{text}")
        ends = [*np.flatnonzero(np.diff(tags)) + 1, len(text)]
        for begin, end in zip([0, *ends], ends, strict=False):
            print(f"    {text[begin:end]:20} {alphabet.kinds[tags[begin]]}")


if __name__ == "__main__":
    main()
