"""A bidirectional LSTM in PyTorch over packed sequences, as its tutorials have it: AdamW at 1e-3, 40 epochs or more."""

import time

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

HIDDEN, EMBEDDED, RATE, SIZE, STEPS = 64, 48, 1e-3, 32, 2000


class Network(nn.Module):
    """Embedding or numbers, LSTM, and a linear layer over the mean of each sequence, or over each row."""

    def __init__(self, num_tokens, width, num_outputs, of_rows):
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, EMBEDDED) if num_tokens else None
        self.lstm = nn.LSTM(EMBEDDED if num_tokens else width, HIDDEN, batch_first=True, bidirectional=True)
        self.output = nn.Linear(2 * HIDDEN, num_outputs)
        self.of_rows = of_rows

    def forward(self, x):
        """Return the outputs of a list of sequences."""
        lengths = torch.tensor([len(each) for each in x])
        rows = pad_sequence(x, batch_first=True)
        rows = rows if self.embedding is None else self.embedding(rows)
        packed = pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        there = torch.arange(y.shape[1])[None] < lengths[:, None]
        return self.output(y[there] if self.of_rows else (y * there[:, :, None]).sum(1) / lengths[:, None])


def lstm(kind, X, y, X_test, seed):
    """Train for 40 epochs or 2,000 steps, the lesser of the two, but for at least 3 epochs."""
    torch.manual_seed(seed)
    train, test, num_tokens = _inputs(kind, X, X_test)
    mean, scale = (np.mean(y), np.std(y)) if kind == "numbers" else (0.0, 1.0)
    classes = None if kind == "numbers" else np.unique(np.concatenate(y) if kind == "tags" else y)
    labels = _labels(kind, y, classes, mean, scale)
    width = train[0].shape[1] if num_tokens == 0 else 0
    network = Network(num_tokens, width, 1 if classes is None else len(classes), kind == "tags")
    began = time.process_time()
    _train(network, train, labels, nn.MSELoss() if classes is None else nn.CrossEntropyLoss(), seed)
    seconds = time.process_time() - began
    network.eval()
    with torch.no_grad():
        outputs = [network(test[at : at + SIZE]) for at in range(0, len(test), SIZE)]
    found = torch.cat(outputs)
    if classes is None:
        return found[:, 0].numpy() * scale + mean, None, seconds
    predicted = classes[found.argmax(1).numpy()]
    if kind == "tags":
        return np.split(predicted, np.cumsum(list(map(len, X_test)))[:-1]), None, seconds
    return predicted, found.softmax(1).numpy(), seconds


def _inputs(kind, X, X_test):
    """Return the tensors of training and test sequences, and the number of tokens or 0; token 0 is unknown."""
    if kind in ("series", "numbers"):
        rows = np.concatenate(X)
        mean, scale = rows.mean(0), rows.std(0) + 1e-8
        scaled = lambda some: [torch.tensor((x - mean) / scale, dtype=torch.float32) for x in some]
        return scaled(X), scaled(X_test), 0
    cut = lambda x: x.split() if kind == "texts" and words else list(x)
    words = kind == "texts" and np.median([len(x.split()) for x in X]) >= 10
    ids = {token: number for number, token in enumerate(sorted({token for x in X for token in cut(x)}), 1)}
    coded = lambda some: [torch.tensor([ids.get(token, 0) for token in cut(x)] or [0]) for x in some]
    return coded(X), coded(X_test), len(ids) + 1


def _labels(kind, y, classes, mean, scale):
    if kind == "numbers":
        return [torch.tensor([(each - mean) / scale], dtype=torch.float32) for each in y]
    numbers = (lambda some: torch.tensor(np.searchsorted(classes, some))) if kind == "tags" else None
    return [numbers(some) for some in y] if numbers else list(torch.tensor(np.searchsorted(classes, y))[:, None])


def _train(network, x, labels, loss_of, seed):
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE)
    rng, per_epoch = np.random.default_rng(seed), -(-len(x) // SIZE)
    for _ in range(max(3, min(40, STEPS // per_epoch))):
        order = rng.permutation(len(x))
        for at in range(0, len(x), SIZE):
            chosen = order[at : at + SIZE]
            outputs, wanted = network([x[k] for k in chosen]), torch.cat([labels[k] for k in chosen])
            optimizer.zero_grad()
            loss_of(outputs, wanted.reshape(-1, 1) if isinstance(loss_of, nn.MSELoss) else wanted).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
