"""Small trainings and inferences that call the kernels of all layers, optimizers and examples."""

import functools
import itertools

import numpy as np

from varlen_rnn import data, nn, no_grad, optim
from varlen_rnn.baselines import Padded
from varlen_rnn.kernels.arithmetic import log1p
from varlen_rnn.kernels.convolutions import convolve, shares_above
from varlen_rnn.linear_attention.single_rows import run_single_rows
from varlen_rnn.nn import functional as F
from varlen_rnn.nn.matrix.names import BY_NAME
from varlen_rnn.ops.linear_attention import linear_attention
from varlen_rnn.ops.recurrent.projected import slstm
from varlen_rnn.ops.sequence.along import sequence_reverse, sequence_softmax
from varlen_rnn.ops.sequence.beam_search import beam_search, beam_search_decode
from varlen_rnn.ops.sequence.causal_conv import causal_conv
from varlen_rnn.ops.sequence.expand import sequence_expand, sequence_expand_as
from varlen_rnn.ops.sequence.join import sequence_slice
from varlen_rnn.ops.sequence.pool import sequence_pool
from varlen_rnn.ops.sequence.steps import concat_outputs, init_memories, segment_inputs
from varlen_rnn.products.row_sums import MANY_ROWS
from varlen_rnn.rows.lod import create_lod_tensor
from varlen_rnn.rows.plan import sort_by_seq_len
from varlen_rnn.training.bound import bound

# Units of layers: more than the columns of one panel of packed weights, because a single panel has another layout.
_SIZE = 200

LAYERS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
_ALL_LAYERS = LAYERS | {"relu rnn": functools.partial(nn.RNN, nonlinearity="relu")}
OPTIMIZERS = [
    found
    for found in map(vars(optim).get, optim.__all__)
    if isinstance(found, type) and issubclass(found, optim.Optimizer) and found is not optim.Optimizer
]
_STEPS = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}


def works():
    """Return functions by name; each takes a data type, and runs trainings or inferences."""
    layers = {name: functools.partial(_run_layer, name) for name in _ALL_LAYERS}
    layers |= {
        "attention": _attend,
        "linear attention": _attend_linearly,
        "projected gates": _run_projected,
        "convolutions": _convolve_neighbours,
        "many rows": _sum_gradient_of_many_rows,
        "dropout": _drop_and_normalise,
        "functions": _curve,
        "random convolutions": _convolve_at_random,
        "bound steps": _bind,
    }
    return layers | {"optimizers": _optimize, "structures": _decode, "sequences": _move_rows}


def _batch():
    """Return ids and labels from `data.batches`, because kernels are compiled for exactly its kind of arrays."""
    return data.batches([[1, 2, 3], [], [1]], np.array([0, 1, 1]), batch_size=3)[0]


def _embedded(dtype, sparse=True):
    ids, _ = _batch()
    return nn.Embedding(4, _SIZE, sparse=sparse, dtype=dtype)(ids)


def _run_layer(name, dtype):
    """Train a layer with each kind of pooling, and run it padded, prepared, as a stream, stateful and as a cell."""
    ids, labels = _batch()
    embedding, output = nn.Embedding(4, _SIZE, dtype=dtype), nn.Linear(2 * _SIZE, 2, dtype=dtype)
    recurrent = _ALL_LAYERS[name](_SIZE, _SIZE, bidirectional=True, dtype=dtype)

    def logits(run, pool):
        return output(sequence_pool(run(embedding(ids))[0], pool))

    for pool, run in (("mean", recurrent), ("max", recurrent), ("last", recurrent), ("mean", Padded(recurrent))):
        F.cross_entropy(logits(run, pool), labels).backward()
    x = embedding(ids)
    forward = _ALL_LAYERS[name](_SIZE, _SIZE, dtype=dtype)
    nn.Stateful(forward)(x, keys=[0, 1, 2])[0].sum().backward()
    with no_grad():
        logits(recurrent, "mean")
        rows = np.asarray(x)
    recurrent.prepare()(x)
    forward.prepare()(x)
    forward.stream(3)(rows[:3])
    if name in _STEPS:
        _run_steps(_STEPS[name](_SIZE, _SIZE, dtype=dtype), embedding(ids))


def _run_steps(cell, x):
    """Run one step of a cell, and a DynamicRNN around the cell."""
    alone = cell(x.detach()[:3])
    (alone[0] if isinstance(alone, tuple) else alone).sum().backward()
    count = 2 if isinstance(alone, tuple) else 1

    def step(row, *states):
        new = cell(row, states if count > 1 else states[0])
        return (new[0], *new) if count > 1 else (new, new)

    outputs, *_ = nn.DynamicRNN(step)(x, [np.zeros((3, _SIZE), x.dtype)] * count)
    outputs.sum().backward()


def _optimize(dtype):
    ids, _ = _batch()
    for rule in OPTIMIZERS:
        embedding, output = nn.Embedding(4, _SIZE, dtype=dtype), nn.Linear(_SIZE, 2, dtype=dtype)
        optimizer = rule([*embedding.parameters(), *output.parameters()], lr=1e-3)
        output(embedding(ids)).sum().backward()
        optimizer.step()


def _bind(dtype):
    """Run training steps of classifiers and taggers by `bound`, on batches of several sizes, with all optimizers."""
    rules = itertools.cycle(OPTIMIZERS)
    for number in range(max(2 * len(LAYERS), len(OPTIMIZERS))):
        layer, is_tagger = list(LAYERS.values())[number % len(LAYERS)], number % 2
        embedding, output = nn.Embedding(4, _SIZE, sparse=number % 4 > 1, dtype=dtype), nn.Linear(_SIZE, 2, dtype=dtype)
        recurrent = layer(_SIZE, _SIZE, dtype=dtype)
        parameters = [p for module in (embedding, recurrent, output) for p in module.parameters()]
        step = bound(_step_of(embedding, recurrent, output, next(rules)(parameters, lr=1e-3), is_tagger))
        for lengths in [[1], [2, 1], [0, 3], [2, 2, 1], [4], [1, 1], [3, 2], [2, 0, 1, 3], [5, 1], [3, 3, 3]]:
            ids = create_lod_tensor(np.ones(sum(lengths), np.int64), [lengths])
            step(ids, ids.like(np.zeros(sum(lengths), np.int64)) if is_tagger else np.zeros(len(lengths), np.int64))


def _step_of(embedding, recurrent, output, optimizer, is_tagger):
    def step(ids, labels):
        optimizer.zero_grad()
        outputs = recurrent(embedding(ids))[0]
        loss = F.cross_entropy(output(outputs if is_tagger else sequence_pool(outputs, "last")), labels)
        loss.backward()
        optim.clip_grad_norm_(optimizer.parameters, 1e-3)
        optimizer.step()
        return loss

    return step


def _attend(dtype):
    x, heads = _embedded(dtype), nn.MultiheadAttention(_SIZE, 4, dtype=dtype)
    heads(x, x, x, window=(1, 1)).sum().backward()
    x, additive = _embedded(dtype), nn.AdditiveAttention(_SIZE, _SIZE, _SIZE, dtype=dtype)
    additive(x, x, x).sum().backward()
    x = _embedded(dtype)
    F.scaled_dot_product_attention(x, x, x).sum().backward()
    nn.LayerNorm(_SIZE, dtype=dtype)(_embedded(dtype)).sum().backward()
    nn.RMSNorm(_SIZE, dtype=dtype)(_embedded(dtype)).sum().backward()


def _attend_linearly(dtype):
    for axes in ((), (slice(None), slice(None), 0)):
        x = _embedded(dtype).reshape(-1, 4, _SIZE // 4)
        linear_attention(x, x, x, x[axes])[0].sum().backward()
    one = np.ones((2, 2), dtype)
    run_single_rows(one, one, one, one[:, :1].copy(), one[:, :1].copy(), np.ones((2, 4), dtype), True, 1e-6, 1.0)
    for layer in BY_NAME.values():
        rows = _embedded(dtype)
        layer(_SIZE, _SIZE, bidirectional=True, dtype=dtype)(rows)[0].sum().backward()
        stream = layer(_SIZE, _SIZE, dtype=dtype).stream(3)
        for _ in range(5):  # the fourth call binds the program of a step
            stream(np.asarray(rows)[:3])


def _run_projected(dtype):
    weight = nn.Parameter(np.ones((4 * _SIZE, _SIZE // 4), dtype))
    for forget in ("exp", "sigmoid"):
        gates = nn.Embedding(4, 4 * _SIZE, dtype=dtype)(_batch()[0])
        slstm(gates, weight, forget=forget)[0].sum().backward()


def _convolve_neighbours(dtype):
    nn.RowConv(_SIZE, 2, dtype=dtype)(_embedded(dtype)).sum().backward()
    nn.SequenceConv(_SIZE, 2, 3, dtype=dtype)(_embedded(dtype)).sum().backward()
    weight = nn.Parameter(np.ones((_SIZE, 2), dtype))
    causal_conv(_embedded(dtype), weight)[0].sum().backward()


def _drop_and_normalise(dtype):
    for per in ("row", "sequence"):
        F.dropout(_embedded(dtype), 0.5, per=per).sum().backward()
    nn.BatchNorm1d(_SIZE, dtype=dtype)(_embedded(dtype)).sum().backward()


def _curve(dtype):
    """Compute the functions that have a compiled loop, and reductions."""
    for function in (F.exp, F.log, F.tanh, F.sigmoid, F.elu, F.softplus, log1p):
        function(np.ones(2, dtype))
    x = nn.Parameter(np.ones((3, 2), dtype))
    F.gelu(x).sum().backward()
    (x**1.5).sum()
    F.topk(x, 1)[0].sum().backward()
    for axis in (None, 0):
        (x.max(axis) + x.min(axis)).sum().backward()
    x.cumsum(1).sum().backward()
    np.asarray(F.not_equal(x.argmax(1), 1).sum())


def _convolve_at_random(dtype):
    x, offsets = np.ones((12, 2), dtype), np.array([0, 9, 9, 12])
    table, channels, out = np.array([[0, 1, 2, 1, 1]]), np.array([[0, 1]]), np.empty((3, 2), dtype)
    convolve(x, table, channels, 0, np.empty(12, dtype))
    shares_above(x, offsets, table, channels, np.zeros((1, 2), dtype), out)


def _sum_gradient_of_many_rows(dtype):
    nn.Linear(2, 2, dtype=dtype)(np.ones((MANY_ROWS + 1, 2), dtype)).sum().backward()


def _decode(dtype):
    """Run a conditional random field, the CTC loss and a beam search."""
    ids, _ = _batch()
    scores, field = nn.Linear(_SIZE, 4, dtype=dtype), nn.LinearChainCRF(4, dtype=dtype)
    field(scores(_embedded(dtype)), ids).sum().backward()
    field.decode(scores(_embedded(dtype)))
    nn.CTCLoss()(scores(_embedded(dtype)), create_lod_tensor(np.array([1, 2]), [[1, 0, 1]])).sum().backward()
    start, total = (create_lod_tensor(one, [[1], [1]]) for one in (np.array([1]), np.zeros(1, dtype)))
    candidates = create_lod_tensor(np.zeros((1, 2), dtype), [[1], [1]])
    found = beam_search(start, total, np.array([[0, 2]]), candidates, 2, 0)
    beam_search_decode([start, found[0]], [total, found[1]], 2, 0)


def _move_rows(dtype):
    _embedded(dtype, sparse=False).sum().backward()
    x = _embedded(dtype)
    plan = sort_by_seq_len(x)
    steps = [segment_inputs(x, plan, t) for t in range(plan.max_seq_len)]
    (concat_outputs(steps, plan).sum() + init_memories(x[:3], plan).sum()).backward()
    sequence_softmax(_embedded(dtype)).sum().backward()
    sequence_reverse(_embedded(dtype)).sum().backward()
    sequence_slice(_embedded(dtype), np.array([0, 0, 0]), np.array([1, 0, 1])).sum().backward()
    sequence_expand(_embedded(dtype)[:3], create_lod_tensor(np.zeros(3, dtype), [[1, 1, 1]])).sum().backward()
    sequence_expand_as(np.ones((3, 2), dtype), _embedded(dtype))  # static features
