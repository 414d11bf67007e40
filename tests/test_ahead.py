"""What of a step runs ahead of the recurrence: the same bits, the same gradients, and which operators they are."""

import functools

import numpy as np
import pytest

import varlen_rnn as vr
from tests.test_nested import DOCUMENTS as LENGTHS
from varlen_rnn.nn import functional as F
from varlen_rnn.steps import ahead, describe


class Model(vr.nn.Module):
    """Parts that steps are made of."""

    def __init__(self):
        self.words = vr.nn.LSTM(4, 3, bidirectional=True, dtype=np.float64)
        self.gru = vr.nn.GRU(4, 6, dtype=np.float64)
        self.cell = vr.nn.LSTMCell(6, 5, dtype=np.float64)
        self.inner = vr.nn.Linear(6, 6, dtype=np.float64)
        self.end, self.rec = vr.nn.Linear(6, 5, dtype=np.float64), vr.nn.Linear(5, 5, dtype=np.float64)
        self.attention = vr.nn.MultiheadAttention(4, 2, dtype=np.float64)
        self.conv = vr.nn.SequenceConv(4, 6, 3, dtype=np.float64)
        self.score = vr.nn.Linear(6, 1, dtype=np.float64)
        self.query = vr.nn.Linear(5, 6, dtype=np.float64)

    def next(self, rows, h):
        return F.tanh(self.end(rows) + self.rec(h))


def pooled_layer(m, s, h):
    y, _ = m.words(s)
    h = m.next(vr.sequence_pool(y, "mean"), h)
    return h, h


def last_states(m, s, h):
    _, (last, _) = m.words(F.tanh(s))
    h = m.next(F.concat([last[0], last[1]], axis=-1), h)
    return h, h


def reshaped_state(m, s, h):
    _, last = m.gru(s)
    h = m.next(last.reshape(-1, 6) * 2.0, h)
    return h, h


def two_layers(m, s, h):
    y, last = m.gru(s)
    y, (last, _) = m.words(y[:, :4] * s, None)
    h = m.next(last.transpose(0, 1).reshape(-1, 6), h)
    return h, h


def self_attention(m, s, h):
    y = m.attention(s, s, s)
    h = m.next(m.inner(vr.sequence_pool(F.concat([y, y[:, 1:3]], axis=1), "max")), h)
    return h, h


def weights_from_the_state(m, s, h):
    encoded = m.conv(s)
    weights = vr.sequence_softmax((encoded * vr.sequence_expand_as(m.query(h), encoded)).sum(axis=1).reshape(-1, 1))
    h = m.next(vr.sequence_pool(encoded * weights, "sum"), h)
    return h, h


def an_own_weight(m, s, h):
    scale = F.exp(m.end.bias)[:4].reshape(1, -1)
    pooled = vr.sequence_pool(s * scale, "sum")
    h = m.next(F.concat([pooled, F.sigmoid(pooled[:, ::2])], axis=1), h)
    return pooled.sum(axis=1) * h[:, 0], h


def what_is_pooled_alone(m, s, h):
    pooled = F.tanh(vr.sequence_pool(s, "max"))
    return pooled, F.concat([pooled, pooled[:, :1]], axis=1)


def nothing_of_it(m, s, h):
    return h * 2.0, h * 0.5


def gradients_stopped(m, s, h):
    y, _ = m.words(s.detach())
    with vr.no_grad():
        scale = m.inner(vr.sequence_pool(y, "max"))
    h = m.next(vr.sequence_pool(y, "mean") * scale, h)
    return h, h


def by_rows_alone(m, s, h):
    h = m.next(vr.sequence_pool(m.inner(F.concat([s, s[:, :2]], axis=1)), "sqrt"), h)
    return h, h


AHEAD = {
    pooled_layer: ["recurrent", "sequence_pool"],
    last_states: ["tanh", "recurrent", "getitem", "getitem", "concat"],
    reshaped_state: ["recurrent", "reshape", "fill_constant", "mul"],
    two_layers: ["recurrent", "getitem", "mul", "recurrent", "transpose", "reshape"],
    self_attention: None,
    weights_from_the_state: ["sequence_conv"],
    an_own_weight: None,
    what_is_pooled_alone: ["sequence_pool", "tanh", "getitem", "concat"],
    nothing_of_it: [],
    gradients_stopped: None,
    by_rows_alone: ["getitem", "concat", "matmul", "sequence_pool"],
}


def batch(lengths, width=4):
    return vr.create_lod_tensor(np.random.default_rng(1).standard_normal((sum(lengths[-1]), width)), lengths)


@pytest.fixture
def operator_by_operator(monkeypatch):
    """Fused, a step sums products in another order: its last bits are others."""
    describe._known.steps.clear()
    monkeypatch.setattr(describe, "lower", lambda block: "as the test wants it")
    yield monkeypatch
    describe._known.steps.clear()


def ran(step, lengths):
    """Return outputs, gradients and LoD of a step, and how it ran."""
    vr.manual_seed(0)
    model = Model()
    x = vr.Variable(batch(lengths), requires_grad=True)
    h = vr.Variable(np.random.default_rng(2).standard_normal((len(lengths[0]), 5)), requires_grad=True)
    layer = vr.nn.DynamicRNN(lambda s, h: step(model, s, h), level=0)
    y, last = layer(x, [h])
    loss = (y * y).sum() + (last * 3.0).sum()
    if loss.requires_grad:
        loss.backward()
    leaves = [x, h, *model.parameters()]
    gradients = [np.zeros(leaf.shape) if leaf.grad is None else np.asarray(leaf.grad) for leaf in leaves]
    return [np.asarray(y), np.asarray(last)], gradients, y.lod(), layer.explain()


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("step", AHEAD, ids=lambda step: step.__name__)
def test_equals_what_runs_at_every_step(step, lengths, operator_by_operator):
    values, gradients, lod, _ = ran(step, lengths)
    operator_by_operator.setattr(ahead, "split", lambda *_: None)
    wanted, wanted_gradients, wanted_lod, text = ran(step, lengths)
    assert "ahead" not in text
    assert lod == wanted_lod
    for mine, other in zip(values, wanted, strict=True):
        np.testing.assert_array_equal(mine, other)
    for mine, other in zip(gradients, wanted_gradients, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("step", [step for step, names in AHEAD.items() if names is not None], ids=lambda s: s.__name__)
def test_what_runs_ahead(step):
    *_, text = ran(step, LENGTHS["ragged"])
    _, _, names = text.partition("; ahead of it, on all steps at once: ")
    assert names == ", ".join(AHEAD[step])


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_layers_at_both_levels_equal_flat_ones_bit_for_bit(lengths):
    """And the step is fused: it has become a cell."""
    vr.manual_seed(0)
    model, found = Model(), []
    outer = vr.nn.LSTM(6, 5, dtype=np.float64)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        getattr(model.cell, name).value.data[...] = getattr(outer, f"{name}_l0").value.data

    def step(sentence, h, c):
        y, _ = model.words(sentence)
        h, c = model.cell(vr.sequence_pool(y, "max"), (h, c))
        return h, h, c

    layer = vr.nn.DynamicRNN(step, level=0)
    for nested in (True, False):
        x = vr.Variable(batch(lengths), requires_grad=True)
        if nested:
            y, h, c = layer(x, [(5,), (5,)])
        else:
            y, (h, c) = outer(vr.sequence_pool(model.words(x)[0], "max"))
        (y * y).sum().backward()
        found.append([y, h, c, x.grad, model.words.weight_ih_l0.grad])
        model.words.weight_ih_l0.grad = None
    for mine, other in zip(*found, strict=True):
        np.testing.assert_array_equal(np.asarray(mine).ravel(), np.asarray(other).ravel())
    assert layer.explain().startswith("runs fused as a cell of gates")


def test_a_program_and_its_file_give_the_same_bits(tmp_path):
    x, results = batch(LENGTHS["ragged"]), []
    for saved in (None, False, True):
        vr.manual_seed(0)
        model = Model()
        layer = vr.nn.DynamicRNN(functools.partial(last_states, model), level=0)
        optimizer = vr.optim.SGD(model.parameters(), 0.1)
        if saved is None:
            y, _ = layer(x, [(5,)])
            (y * y).sum().backward()
            optimizer.step()
            y, _ = layer(x, [(5,)])
            results.append(np.asarray(y))
            continue
        with vr.program_guard() as program:
            out, _ = layer(vr.feed_data("x", [-1, 4], "float64", lod_level=2), [(5,)])
            optimizer.minimize((out * out).sum())
        if saved:
            program.save(tmp_path / "nested")
            program = vr.Program.load(tmp_path / "nested")
        executor = vr.Executor()
        executor.run(program, {"x": x}, [out.name])
        results.append(np.asarray(executor.run(program, {"x": x}, [out.name])[0]))
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_random_masks_are_drawn_at_every_step():
    vr.manual_seed(0)
    model = Model()

    def step(s, h):
        h = model.next(F.dropout(vr.sequence_pool(model.conv(s), "sum"), 0.5), h)
        return h, h

    layer = vr.nn.DynamicRNN(step, level=0)
    layer(batch(LENGTHS["ragged"]), [(5,)])
    assert layer.explain().endswith("on all steps at once: sequence_conv, sequence_pool")


def test_a_state_of_as_many_sequences_as_a_step_has_stays_in_it():
    """Which works where every step has as many: one document."""
    vr.manual_seed(0)
    model, first = Model(), vr.Variable(np.ones((1, 1, 6)))

    def step(s, h):
        h = model.next(model.gru(s, first)[1][0], h)
        return h, h

    layer = vr.nn.DynamicRNN(step, level=0)
    y, _ = layer(batch([[3], [2, 0, 1]]), [(5,)])
    assert y.shape == (3, 5)
    assert "ahead" not in layer.explain()
