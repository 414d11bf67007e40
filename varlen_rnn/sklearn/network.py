"""The network of the estimators, which maps rows to outputs for each sequence or each row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from varlen_rnn import nn, random
from varlen_rnn.cells import registry
from varlen_rnn.errors import DTypeError, ProgramError, ShapeError, shown
from varlen_rnn.nn import functional
from varlen_rnn.nn.matrix.names import BY_NAME
from varlen_rnn.ops.sequence.expand import sequence_expand_as
from varlen_rnn.sklearn.inputs import Inputs
from varlen_rnn.sklearn.stretch import shortened, stretched
from varlen_rnn.tape.modes import evaluating, no_grad
from varlen_rnn.tape.variable import Variable

_LAYERS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
_HEADS = 4  # or fewer, if they would not divide `hidden_size`
_FILTERS, _WINDOWS = (32, 64, 32), (9, 5, 3)  # LSTM-FCN's windows are 8, 5 and 3 rows; it has four times the filters


class Convolutions(nn.Module):
    """Convolve along each sequence three times; normalise over the batch's rows and rectify after each convolution.

    The module maps rows `(rows, input_size)` to `(rows, 32)` and keeps the LoD.

    Source: Wang, Yan and Oates (2017), "Time series classification from scratch with deep neural networks".
    """

    def __init__(self, input_size: int) -> None:
        sizes = zip((input_size, *_FILTERS), _FILTERS, _WINDOWS, strict=False)
        self.convolve = nn.ModuleList([nn.SequenceConv(*each, bias=False) for each in sizes])
        self.normalise = nn.ModuleList([nn.BatchNorm1d(filters) for filters in _FILTERS])

    def forward(self, x: Any) -> Variable:
        """Return the features of each row."""
        for convolve, normalise in zip(self.convolve, self.normalise, strict=True):
            x = functional.relu(normalise(convolve(x)))
        return x


class Network(nn.Module):
    """Embed or standardise rows, then apply a recurrent layer, pooling, dropout and a linear layer.

    If rows are numbers and are pooled, convolutions run beside the recurrent layer, on the same rows.  The maximum and
    the mean of their outputs are joined to the pooled outputs of the recurrent layer.

    options: has `cell`, `embedding_size`, `hidden_size`, `num_layers`, `bidirectional`, `dropout` and `precision`
    inputs: static features are joined to each row before the recurrent layer, and to the results of pooling
    pool: the kinds of pooling (`nn.SequencePool`) whose results are joined for each sequence; if empty, the outputs are
        computed for each row instead
    stride: the number of neighbouring rows that one row, their mean, replaces before all layers
    stretches: whether standardised rows are stretched and scaled at random in training (`stretched`)

    Source: Karim, Majumdar, Darabi and Chen (2018), "LSTM fully convolutional networks for time series classification",
    arXiv 1709.05206.
    """

    def __init__(self, options: Any, inputs: Inputs, num_outputs: int, pool: Sequence[str], stride: int = 1) -> None:
        size, of_numbers, hidden_size = inputs.size, inputs.kind == "numbers", options.hidden_size
        self.standardize: Any = nn.Standardize(size) if of_numbers else None
        self.embedding = None if of_numbers else nn.Embedding(size, options.embedding_size, sparse=True)
        given = {"num_layers": options.num_layers, "bidirectional": options.bidirectional}
        given["dropout"] = options.dropout if options.num_layers > 1 else 0.0
        columns = (size if of_numbers else options.embedding_size) + inputs.num_static
        self.recurrent = _layer(options.cell)(columns, hidden_size, **given)
        self.pool, self.stride = list(pool), stride
        self.stretches = False  # whether sequences are stretched at random in training
        self.convolutions = Convolutions(size) if of_numbers and self.pool else None
        width = hidden_size * (2 if options.bidirectional else 1) * max(1, len(self.pool))
        width += (0 if self.convolutions is None else 2 * _FILTERS[-1]) + (inputs.num_static if self.pool else 0)
        self.dropout = nn.Dropout(options.dropout)
        self.output = nn.Linear(width, num_outputs)
        self.crf: Any = None  # a tagger's conditional random field
        for module in filter(None, (self.recurrent, self.convolutions, self.output)):
            module.precision = options.precision

    def forward(self, x: Any, static: Any = None) -> Variable:
        """Return the outputs of each sequence, or of each row if `pool` is empty, given the static features."""
        return self.output(self.dropout(self.features(self.rows(x), static)))

    def rows(self, x: Any) -> Any:
        """Return standardised or embedded rows, which are stretched at random in training if `stretches` is set."""
        rows = self.standardize(x) if self.embedding is None else self.embedding(x)
        return stretched(rows.value, random.generator()) if self.stretches and self.training else rows

    def features(self, rows: Any, static: Any = None) -> Variable:
        """Return the features of each sequence, or of each row if `pool` is empty, for the linear layer."""
        rows = rows if self.stride == 1 else shortened(rows, self.stride)
        beside = rows if static is None else functional.concat([rows, sequence_expand_as(static, rows)])
        y, _ = self.recurrent(beside)
        if not self.pool:
            return y
        parts = [functional.sequence_pool(y, kind) for kind in self.pool]
        if self.convolutions is not None:
            features = self.convolutions(rows)
            parts += [functional.sequence_pool(features, kind) for kind in ("max", "mean")]
        parts += [] if static is None else [static]
        return functional.concat(parts) if len(parts) > 1 else parts[0]


def _layer(cell: str) -> Any:
    """Return a function that makes a recurrent layer of the cell with this name."""
    expected = f"one of {', '.join(map(repr, _LAYERS | BY_NAME))}, or the name of a cell"
    if not isinstance(cell, str):
        raise DTypeError("cell", expected=expected, got=shown(cell))
    if cell in _LAYERS:
        return _LAYERS[cell]
    if cell in BY_NAME:
        return lambda columns, size, **options: BY_NAME[cell](columns, size, math.gcd(size, _HEADS), **options)
    try:
        found = registry.find_cell(cell)
    except ProgramError as error:
        raise ShapeError("cell", expected=expected, got=shown(cell)) from error
    if found.row_inputs:
        got = f"{cell!r}, which needs {', '.join(found.row_inputs)} for each row"
        raise ShapeError("cell", expected="a cell that needs nothing but rows and states", got=got)
    return lambda *sizes, **options: nn.Recurrent(found, *sizes, **options)


def of_batches(
    function: Callable[[Network, Any], np.ndarray], network: Network, batches: Iterable[Any], executor: Any
) -> Iterator[np.ndarray]:
    """Yield the results of a function of a network and a batch for each batch, in order.

    An executor computes the batches in parallel: processes get copies of the network, threads the network itself.
    """
    if executor is None:
        yield from (function(network, batch) for batch in batches)
        return
    if not callable(getattr(executor, "submit", None)):
        raise DTypeError("executor", expected="a concurrent.futures.Executor or None", got=shown(executor))
    futures = [executor.submit(function, network, batch) for batch in batches]
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:  # after an error, the other results are not needed
            future.cancel()


def outputs_of(network: Network, batch: Any) -> np.ndarray:
    """Return the outputs of a network for a batch, without a tape; worker processes import this function."""
    with no_grad(), evaluating():
        return np.asarray(network(*batch) if isinstance(batch, tuple) else network(batch))


def features_of(network: Network, batch: Any) -> np.ndarray:
    """Return the features of a batch for the linear layer, as `Network.features` does, without a tape."""
    x, static = batch if isinstance(batch, tuple) else (batch, None)
    with no_grad(), evaluating():
        return np.asarray(network.features(network.rows(x), static))
