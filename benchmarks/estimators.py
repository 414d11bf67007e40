"""`python -m benchmarks.estimators`: the classifier, end to end, beside the same model in skorch with packed sequences.

Both train on the names of characters in Unicode: embedding, bidirectional LSTM, maximum, mean and last row, dropout,
linear layer, AdamW over one cycle, the same numbers of everything; each in a process of its own, in turns.
"""

import json
import statistics
import subprocess
import sys
import time

EPOCHS, RUNS = 6, 3


def data():
    """Return texts and classes to train on, and to test on."""
    import numpy as np

    import varlen_rnn as vr

    whole = vr.data.unicode_names()
    parts = []
    for part in whole.split(0.1, seed=0):
        texts = ["".join(whole.vocabulary[token] for token in sequence) for sequence in part.sequences]
        parts.append((texts, np.array(whole.classes)[part.labels]))
    return parts


def ours(seed):
    """Return the seconds of a fit, and the share of the test set that is right."""
    from varlen_rnn.sklearn import SequenceClassifier

    (X, y), (X_test, y_test) = data()
    SequenceClassifier(max_epochs=1, random_state=seed).fit(X[:256], y[:256])  # compiles, or loads, the kernels
    began = time.perf_counter()
    model = SequenceClassifier(max_epochs=EPOCHS, random_state=seed).fit(X, y)
    seconds = time.perf_counter() - began
    return seconds, model.score(X_test, y_test)


def skorch(seed):
    """Return the same of skorch."""
    import numpy as np
    import torch
    from skorch import NeuralNetClassifier
    from skorch.callbacks import GradientNormClipping, LRScheduler
    from torch import nn
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

    (X, y), (X_test, y_test) = data()
    ids = {token: number for number, token in enumerate(sorted(set("".join(X))), 1)}
    classes = np.unique(y)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(len(ids) + 1, 48)
            self.lstm = nn.LSTM(48, 64, batch_first=True, bidirectional=True)
            self.dropout = nn.Dropout(0.3)
            self.output = nn.Linear(6 * 64, len(classes))

        def forward(self, tokens, lengths):
            packed = pack_padded_sequence(self.embedding(tokens), lengths.cpu(), True, enforce_sorted=False)
            y, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            rows = torch.arange(y.shape[1])[None, :, None] < lengths[:, None, None]
            highest = y.masked_fill(~rows, -torch.inf).max(dim=1).values
            mean = (y * rows).sum(dim=1) / lengths[:, None]
            last = y[torch.arange(len(y)), lengths - 1]
            return self.output(self.dropout(torch.cat([highest, mean, last], dim=1)))

    class Names(torch.utils.data.Dataset):
        def __init__(self, X, y):
            self.X = [torch.tensor([ids.get(token, 0) for token in text]) for text in X]
            self.y = torch.tensor(np.searchsorted(classes, y))

        def __len__(self):
            return len(self.X)

        def __getitem__(self, number):
            return self.X[number], self.y[number]

    def collate(batch):
        tokens, labels = zip(*batch, strict=True)
        lengths = torch.tensor([len(text) for text in tokens])
        return {"tokens": pad_sequence(tokens, batch_first=True), "lengths": lengths}, torch.stack(labels)

    torch.manual_seed(seed)
    train, test = Names(X, y), Names(X_test, y_test)
    steps = EPOCHS * -(-len(train) // 64) + 1
    net = NeuralNetClassifier(
        Network, criterion=nn.CrossEntropyLoss, optimizer=torch.optim.AdamW, lr=4e-3, max_epochs=EPOCHS, batch_size=64,
        optimizer__weight_decay=0.01, train_split=None, verbose=0, iterator_train__shuffle=True,
        iterator_train__collate_fn=collate, iterator_valid__collate_fn=collate,
        callbacks=[
            ("clip", GradientNormClipping(1.0)),
            ("rate", LRScheduler(torch.optim.lr_scheduler.OneCycleLR, max_lr=4e-3, total_steps=steps, pct_start=0.2,
                                 cycle_momentum=False, step_every="batch")),
        ],
    )  # fmt: skip
    began = time.perf_counter()
    net.fit(train, None)
    seconds = time.perf_counter() - began
    return seconds, float((net.predict(test) == test.y.numpy()).mean())


def main():
    """Run both in turns, and print and save what they took."""
    found = {"ours": [], "skorch": []}
    for seed in range(RUNS):
        for engine, runs in found.items():
            command = [sys.executable, "-m", "benchmarks.estimators", engine, str(seed)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            runs.append(json.loads(output.splitlines()[-1]))
            print(engine, *(f"{number:.4g}" for number in runs[-1]), flush=True)
    seconds = {engine: statistics.median(run[0] for run in runs) for engine, runs in found.items()}
    scores = {engine: statistics.mean(run[1] for run in runs) for engine, runs in found.items()}
    print(f"skorch takes {seconds['skorch'] / seconds['ours']:.2f} times as long; accuracy {scores}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps({"ours": ours, "skorch": skorch}[sys.argv[1]](int(sys.argv[2]))))
    else:
        main()
