"""`python -m benchmarks.estimators [TASK ...]`: the networks of the estimators, beside the same networks in skorch.

Each is trained with the settings that ours have by default, the same in both: embedding, a bidirectional LSTM over
packed sequences, maximum, mean and last row of each (of a tagger, every row), dropout, a linear layer, AdamW over one
cycle, the same batches' size and epochs; each in a process of its own, in turns.  Two things are ours alone: the
spellings of rare words, and of numbers ("lines") the convolutions beside the LSTM and other batches and epochs.
"""

import ast
import io
import json
import keyword
import statistics
import subprocess
import sys
import textwrap
import time
import tokenize

RUNS = 3
TASKS = {
    "names": "SequenceClassifier",  # of Unicode's characters, as characters: their category
    "sentences": "SequenceClassifier",  # of Python's reference, as words: their topic
    "lines": "SequenceRegressor",  # of functions, indentation and length of each: how many branches there are
    "characters": "SequenceTagger",  # of functions: keyword, name, number, text, operator, or none of them
}


def data(task):
    """Return sequences and labels to train on, and to test on."""
    import numpy as np

    import varlen_rnn as vr

    if task in ("names", "sentences"):
        whole = vr.data.unicode_names() if task == "names" else vr.data.documentation_sentences()
        tokens, cut = np.array(whole.vocabulary), "".join if task == "names" else list
        X, y = [cut(tokens[ids]) for ids in whole.sequences], np.array(whole.classes)[whole.labels]
    else:
        pairs = [pair for text in functions() if (pair := (lines if task == "lines" else characters)(text)) is not None]
        X, y = (list(part) for part in zip(*pairs, strict=True))
        y = np.array(y) if task == "lines" else y
    order = np.random.default_rng(0).permutation(len(X))
    held = len(X) // (10 if task == "names" else 4)
    return [([X[k] for k in some], y[some] if isinstance(y, np.ndarray) else [y[k] for k in some])
            for some in (order[held:], order[:held])]  # fmt: skip


def functions():
    """Return functions of the standard library, as texts."""
    import varlen_rnn as vr

    found = vr.data.standard_library_functions(["asyncio", "email", "json", "logging", "unittest"])
    return [textwrap.dedent("".join(found.vocabulary[number] for number in ids)) for ids in found.sequences]


def lines(text):
    """Return indentation and length of each line, and the logarithm of how many branches there are."""
    import numpy as np

    try:
        nodes = ast.walk(ast.parse(text))
    except SyntaxError:
        return None
    branches = sum(isinstance(node, (ast.If, ast.For, ast.While, ast.Try, ast.With, ast.IfExp)) for node in nodes)
    return np.array([(len(x) - len(x.lstrip()), len(x)) for x in text.splitlines()], np.float32), np.log1p(branches)


def characters(text):
    """Return the characters of a short function, and the kind of each."""
    import numpy as np

    kinds, begins = np.full(len(text), "none", "<U8"), [0]
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            kind = {1: "name", 2: "number", 3: "text"}.get(token.type, "operator" if token.type == tokenize.OP else "")
            if kind:
                begin, end = (begins[line - 1] + column for line, column in (token.start, token.end))
                kinds[begin:end] = "keyword" if keyword.iskeyword(token.string) else kind
    except (tokenize.TokenError, IndentationError):
        return None
    return (text, kinds) if len(text) <= 400 else None


def ours(task, seed):
    """Return the seconds of a fit, and the score of the test set."""
    import varlen_rnn.sklearn

    (X, y), (X_test, y_test) = data(task)
    estimator = getattr(varlen_rnn.sklearn, TASKS[task])
    network = {} if task == "characters" else {"model": "recurrent"}  # a tagger is always a network
    estimator(max_epochs=1, random_state=seed, **network).fit(X[:256], y[:256])  # compiles, or loads, the kernels
    began = time.perf_counter()
    model = estimator(random_state=seed, **network).fit(X, y)
    seconds = time.perf_counter() - began
    return seconds, model.score(X_test, y_test)


def skorch(task, seed):
    """Return the same of skorch."""
    import numpy as np
    import torch
    from skorch import NeuralNet
    from skorch.callbacks import GradientNormClipping, LRScheduler
    from torch import nn
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

    (X, y), (X_test, y_test) = data(task)
    of_rows, numbers = task == "characters", task == "lines"
    tokens = [] if numbers else sorted({token for x in X for token in x})
    ids = {token: number for number, token in enumerate(tokens, 1)}
    classes = None if numbers else np.unique(np.concatenate(y) if of_rows else y)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = None if numbers else nn.Embedding(len(ids) + 1, 48)
            self.lstm = nn.LSTM(2 if numbers else 48, 64, batch_first=True, bidirectional=True)
            self.dropout = nn.Dropout(0.3)
            self.output = nn.Linear(128 if of_rows else 3 * 128, 1 if numbers else len(classes))

        def forward(self, x, lengths):
            x = x if self.embedding is None else self.embedding(x)
            packed = pack_padded_sequence(x, lengths.cpu(), True, enforce_sorted=False)
            y, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            rows = torch.arange(y.shape[1])[None, :] < lengths[:, None]
            if of_rows:
                return self.output(self.dropout(y[rows]))
            highest = y.masked_fill(~rows[:, :, None], -torch.inf).max(dim=1).values
            mean = (y * rows[:, :, None]).sum(dim=1) / lengths[:, None]
            last = y[torch.arange(len(y)), lengths - 1]
            return self.output(self.dropout(torch.cat([highest, mean, last], dim=1)))

    class Part(torch.utils.data.Dataset):
        def __init__(self, X, y):
            self.X = [torch.tensor((x - centre) / scale if numbers else [ids.get(t, 0) for t in x]) for x in X]
            labels = [(y - mean) / deviation] if numbers else [np.searchsorted(classes, some) for some in y]
            self.y = [torch.tensor(some) for some in (np.float32(labels[0])[:, None] if numbers else labels)]

        def __len__(self):
            return len(self.X)

        def __getitem__(self, number):
            return self.X[number], self.y[number]

    def collate(batch):
        rows, labels = zip(*batch, strict=True)
        lengths = torch.tensor([len(x) for x in rows])
        x = {"x": pad_sequence(rows, batch_first=True), "lengths": lengths}
        return x, torch.cat(labels) if of_rows else torch.stack(labels)

    if numbers:
        centre, scale = np.concatenate(X).mean(axis=0), np.concatenate(X).std(axis=0)
        mean, deviation = y.mean(), y.std()
    torch.manual_seed(seed)
    batch_size = min(64, max(8, len(X) // 40))
    steps_per_epoch = -(-len(X) // batch_size)
    epochs, rate = min(200, max(6, -(-2000 // steps_per_epoch))), 4e-3
    if of_rows:  # as a tagger, for about 500,000 rows
        least = min(epochs, max(6, -(-300 // steps_per_epoch)))
        epochs, rate = min(epochs, max(least, -(-500_000 // sum(map(len, X))))), 1e-2
    net = NeuralNet(
        Network, criterion=nn.MSELoss if numbers else nn.CrossEntropyLoss, optimizer=torch.optim.AdamW, lr=rate,
        max_epochs=epochs, batch_size=batch_size, optimizer__weight_decay=0.01, train_split=None, verbose=0,
        iterator_train__shuffle=True, iterator_train__collate_fn=collate, iterator_valid__collate_fn=collate,
        callbacks=[
            ("clip", GradientNormClipping(1.0)),
            ("rate", LRScheduler(torch.optim.lr_scheduler.OneCycleLR, max_lr=rate, pct_start=0.2, step_every="batch",
                                 total_steps=epochs * steps_per_epoch + 1, cycle_momentum=False)),
        ],
    )  # fmt: skip
    began = time.perf_counter()
    net.fit(Part(X, y), None)
    seconds = time.perf_counter() - began
    found = net.predict(Part(X_test, y_test))
    if numbers:
        return seconds, float(1 - ((found[:, 0] * deviation + mean - y_test) ** 2).mean() / y_test.var())
    wanted = np.concatenate(y_test) if of_rows else y_test
    return seconds, float((classes[found.argmax(axis=1)] == wanted).mean())


def main(tasks):
    """Run both in turns, and print what they took."""
    for task in tasks:
        found = {"ours": [], "skorch": []}
        for seed in range(RUNS):
            for engine, runs in found.items():
                command = [sys.executable, "-m", "benchmarks.estimators", engine, task, str(seed)]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                runs.append(json.loads(output.splitlines()[-1]))
                print(task, engine, *(f"{number:.4g}" for number in runs[-1]), flush=True)
        seconds = {engine: statistics.median(run[0] for run in runs) for engine, runs in found.items()}
        scores = {engine: round(statistics.mean(run[1] for run in runs), 4) for engine, runs in found.items()}
        print(f"{task}: skorch takes {seconds['skorch'] / seconds['ours']:.2f} times as long; scores {scores}")


if __name__ == "__main__":
    if sys.argv[1:2] in (["ours"], ["skorch"]):
        print(json.dumps({"ours": ours, "skorch": skorch}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
    else:
        main(sys.argv[1:] or TASKS)
