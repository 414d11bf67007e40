"""Train LSTMs, without padding, to find the body of a function by the first line of its documentation.

    python examples/match_answers.py                          # train, and rank the bodies of held-out functions
    python examples/match_answers.py --data my.jsonl          # the same on {"query": ..., "answer": ...} a line

A query has some ten words, an answer 10 to 400: a padded batch is mostly padding, and here there is none.  The
functions are those of the standard library, in every Python that has its sources.
"""

import argparse
import ast
import json
import re
import sysconfig
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+|[^\w\s]")  # names in their parts, numbers, signs
SHORTEST, LONGEST = 10, 400  # words of an answer
LEAST_COUNT = 3  # of a word of the vocabulary; all others are word 0
CANDIDATES = 100  # that a held-out query ranks, its own answer among them


class Matcher(vr.nn.Module):
    """Texts to directions: words, the LSTM over them, the largest of each feature; one for queries, one for answers."""

    def __init__(self, vocabulary_size, embedding_size=96, hidden_size=96):
        self.embedding = vr.nn.Embedding(vocabulary_size, embedding_size)
        self.of_query = vr.nn.LSTM(embedding_size, hidden_size, bidirectional=True)
        self.of_answer = vr.nn.LSTM(embedding_size, hidden_size, bidirectional=True)
        self.dropout = vr.nn.Dropout(0.2)

    def encode(self, ids, layer):
        """Return a row of length 1 per sequence: of the mean of its words, and of what the layer makes of them."""
        words = self.dropout(self.embedding(ids))
        found = vr.sequence_pool(layer(words)[0], "max")
        row = F.concat([vr.sequence_pool(words, "mean"), found])
        return row / (row * row).sum(axis=-1, keepdims=True) ** 0.5

    def forward(self, queries, answers):
        """Return the score of each query, one per row, with each answer: 20 times the cosine."""
        found = self.encode(answers, self.of_answer)
        return 20 * (self.encode(queries, self.of_query) @ found.transpose(1, 0))


def words_of(text):
    """Return the words of a text or a program, in lower case."""
    return [word.lower() for word in WORD.findall(text)]


def library_pairs():
    """Return pairs (first line of the documentation, body) of functions of the standard library, in random order."""
    pairs = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if not {"test", "tests", "site-packages", "dist-packages"} & set(path.parts):
            pairs += pairs_of(path)
    return [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))]


def pairs_of(path):
    """Return the pairs of a file; none of one that this Python cannot read."""
    try:
        source = path.read_text(encoding="utf-8")
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
    except (SyntaxError, UnicodeDecodeError):
        return []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and len(node.body) > 1]
    lines = source.splitlines()
    return [
        (text.partition("\n")[0], "\n".join(lines[node.body[1].lineno - 1 : node.end_lineno]))
        for node in functions
        if (text := ast.get_docstring(node))
    ]


def read_pairs(path):
    """Return the pairs of a file of JSON Lines, or end with the first line that is none."""
    pairs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found = json.loads(line)
            pairs.append((found["query"] + "", found["answer"] + ""))
        except (ValueError, KeyError, TypeError) as error:
            expected = '{"query": text, "answer": text}'
            raise SystemExit(f"Cannot use this file. {path}, line {number}: expected {expected}") from error
    return pairs


def sequences_of(pairs):
    """Return queries and answers as arrays of words' numbers, and the number of words; answers are cut at 400 words."""
    texts = [(words_of(query), words_of(answer)[:LONGEST]) for query, answer in pairs]
    texts = [(query, answer) for query, answer in texts if len(query) >= 3 and len(answer) >= SHORTEST]
    counts = Counter(word for pair in texts for text in pair for word in text)
    if len(texts) < 20:
        raise SystemExit(f"Cannot use this. Expected at least 20 pairs of 3 and {SHORTEST} words, got {len(texts)}")
    often = sorted(word for word, count in counts.items() if count >= LEAST_COUNT)
    number_of = {word: number for number, word in enumerate(often, 1)}
    queries, answers = (
        [[number_of.get(word, 0) for word in text] for text in side] for side in zip(*texts, strict=True)
    )
    return queries, answers, len(number_of) + 1


def batch_of(sequences, chosen):
    """Return some sequences one after another, with their lengths."""
    its = [sequences[i] for i in chosen]
    return vr.create_lod_tensor(np.concatenate(its).astype(np.int64), [[len(words) for words in its]])


def train(model, queries, answers, settings):
    """Train a model, under a progress bar: of the answers of a batch, each query's own is to score highest."""
    optimizer, rng = vr.optim.Adam(model.parameters(), lr=settings.lr, lazy=True), np.random.default_rng(0)
    size = min(settings.batch_size, len(queries))
    starts = range(0, len(queries) - size + 1, size)
    steps = settings.epochs * len(starts)
    falling = vr.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.05, 1 - step / steps))

    def batches(epoch):
        order = rng.permutation(len(queries))
        return [order[first : first + size] for first in starts]

    def loss(chosen):
        return F.cross_entropy(model(batch_of(queries, chosen), batch_of(answers, chosen)), np.arange(size))

    callbacks = [vr.training.Schedule(falling), vr.training.Progress()]
    vr.training.Trainer(model, optimizer, loss, batches, clip_norm=1.0, callbacks=callbacks).fit(settings.epochs)


def ranks_of(model, queries, answers):
    """Return the rank, from 1, of each query's own answer among those of its group, and the size of each's group."""
    model.eval()
    ranks, sizes = [], []
    for chosen in np.array_split(np.arange(len(queries)), -(-len(queries) // CANDIDATES)):
        with vr.no_grad():
            scores = np.asarray(model(batch_of(queries, chosen), batch_of(answers, chosen)))
        ranks.append((scores >= np.diag(scores)[:, None]).sum(axis=1))
        sizes.append(np.full(len(chosen), len(chosen)))
    model.train()
    return np.concatenate(ranks), np.concatenate(sizes)


def cost_of_padding(model, answers, batch_size=64, rounds=5):
    """Return rows, and the least seconds of a forward pass, of the answers unpadded and padded: random batches."""
    groups = np.array_split(np.arange(len(answers)), max(1, len(answers) // batch_size))
    batches = [model.embedding(batch_of(answers, group)) for group in groups]
    layers = {"unpadded": model.of_answer, "padded": vr.baselines.Padded(model.of_answer)}
    rows = {"unpadded": sum(len(x) for x in batches), "padded": sum(vr.baselines.Padded.rows(x) for x in batches)}
    seconds = dict.fromkeys(layers, float("inf"))
    for _ in range(rounds):
        for name, layer in layers.items():
            began = time.perf_counter()
            with vr.no_grad():
                for x in batches:
                    layer(x)
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    return rows, seconds


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="JSON Lines with query and answer; by default functions of Python's")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=4e-3)
    return parser.parse_args()


def main():
    """Train, and print two tables."""
    settings = parse_arguments()
    vr.manual_seed(0)
    pairs = library_pairs() if settings.data is None else read_pairs(settings.data)
    queries, answers, vocabulary_size = sequences_of(pairs)
    held = len(queries) // 10
    model = Matcher(vocabulary_size)
    train(model, queries[held:], answers[held:], settings)
    ranks, sizes = ranks_of(model, queries[:held], answers[:held])
    lengths = [len(answer) for answer in answers]
    print(
        f"{len(queries)} pairs; answers of {min(lengths)} to {max(lengths)} words, {np.mean(lengths):.0f} in the mean"
    )
    print(f"\n{held} held-out queries, each among {sizes.max()} answers    trained   chance")
    by_chance = np.mean([(1 / np.arange(1, size + 1)).mean() for size in sizes])
    print(f"the right one is first                            {np.mean(ranks == 1):6.3f}   {np.mean(1 / sizes):6.3f}")
    print(f"mean reciprocal rank                              {np.mean(1 / ranks):6.3f}   {by_chance:6.3f}")
    rows, seconds = cost_of_padding(model, answers[:held])
    print("\nanswers, forward        rows    seconds")
    for name in rows:
        print(f"{name:17} {rows[name]:10,} {seconds[name]:10.3f}")


if __name__ == "__main__":
    main()
