"""A recurrence whose step is the user's own equals the built-in one, on every shape of batch."""

import gc
import tracemalloc
import weakref
from collections import Counter

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.nn import functional as F
from varlen_rnn.program.recorder import Block
from varlen_rnn.steps import describe, dynamic_rnn, interpret, stages
from varlen_rnn.tape import operator as table
from varlen_rnn.tape.operator import find
from varlen_rnn.tape.variable import apply


class GRUCell(vr.nn.Module):
    """The equations of `nn.GRU`, in ordinary operators, on its parameters."""

    def __init__(self, gru):
        self.gru = gru

    def forward(self, x, h):
        gru, size = self.gru, self.gru.hidden_size
        of_x = apply("matmul", x, gru.weight_ih_l0, gru.bias_ih_l0, transposed=True)
        of_h = apply("matmul", h, gru.weight_hh_l0, gru.bias_hh_l0, transposed=True)
        r, z = (F.sigmoid(of_x[:, at : at + size] + of_h[:, at : at + size]) for at in (0, size))
        n = F.tanh(of_x[:, 2 * size :] + r * of_h[:, 2 * size :])
        h = n + z * (h - n)
        return h, h


@pytest.fixture
def gru():
    vr.manual_seed(0)
    return vr.nn.GRU(3, 4, dtype=np.float64)


def batch(lengths):
    return vr.create_lod_tensor(np.random.default_rng(1).standard_normal((sum(lengths), 3)), [lengths])


@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [1], [1, 1, 1], [4, 4, 4], [2, 0, 5, 1, 0]], ids=str)
def test_it_is_the_built_in_layer(gru, lengths):
    x, h_0 = batch(lengths), np.random.default_rng(2).standard_normal((len(lengths), 4))
    ours, theirs = [[vr.Variable(x, requires_grad=True), vr.Variable(h_0, requires_grad=True)] for _ in range(2)]
    y, last = vr.nn.DynamicRNN(GRUCell(gru))(ours[0], [ours[1]])
    wanted, h_n = gru(theirs[0], theirs[1].reshape(1, len(lengths), 4))
    np.testing.assert_allclose(y, wanted, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(last, np.asarray(h_n)[0], rtol=1e-12, atol=1e-14)
    assert y.lod() == x.lod()
    gradients = []
    for output, state in ((y, last), (wanted, h_n)):
        ((output * output).sum() + (state * 2.0).sum()).backward()
        gradients.append([parameter.grad for parameter in gru.parameters()])
        for parameter in gru.parameters():
            parameter.grad = None
    for mine, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-12)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.grad, other.grad, rtol=1e-9, atol=1e-12)
    assert ours[0].grad.lod() == x.lod()


def test_a_sparse_gradient_of_a_table_that_the_step_reads():
    vr.manual_seed(0)
    table = vr.nn.Embedding(5, 2, dtype=np.float64)
    ids = vr.create_lod_tensor(np.array([1, 2, 1, 4]), [[3, 1]])

    def cell(i, h):
        h = h + table(i) * table(i)
        return h, h

    y, _ = vr.nn.DynamicRNN(cell)(ids, [np.zeros((2, 2))])
    y.sum().backward()
    assert isinstance(table.weight.grad, vr.SelectedRows)
    counts = np.array([0, 4, 2, 0, 1])  # how many later rows a row's product reaches
    np.testing.assert_allclose(table.weight.grad.to_dense(), 2 * counts[:, None] * table.weight.data, rtol=1e-12)


def test_the_gradient_of_a_weight_takes_the_memory_of_one_however_many_steps_there_are():
    weight, peaks = vr.nn.Parameter(np.ones((64, 64))), []
    for steps in (10, 100):
        x = vr.create_lod_tensor(np.full((steps, 64), 0.01), [[steps]])
        y, _ = vr.nn.DynamicRNN(lambda x, h: (h, F.tanh(x @ weight + h)))(x, [np.zeros((1, 64))])
        loss, weight.grad = y.sum(), None
        tracemalloc.start()
        loss.backward()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 45 * weight.data.nbytes  # not one for each of the 90 more steps


def test_zeros_of_as_many_rows_as_there_are_sequences():
    def cell(x, h):
        return h, h + x

    with vr.program_guard() as program:
        y, last = vr.nn.DynamicRNN(cell)(vr.feed_data("x", [-1, 3], "float64", lod_level=1), [(3,)])
    for lengths in ([2, 3], [0], [], [1, 1, 1, 4]):
        x = batch(lengths)
        wanted = vr.nn.DynamicRNN(cell)(x, [np.zeros((len(lengths), 3))])
        for got in (vr.nn.DynamicRNN(cell)(x, [(3,)]), vr.Executor().run(program, {"x": x}, [y, last])):
            np.testing.assert_array_equal(got[0], wanted[0])
            np.testing.assert_array_equal(got[1], wanted[1])


def test_inference_keeps_nothing(gru):
    with vr.no_grad():
        y, last = vr.nn.DynamicRNN(GRUCell(gru))(batch([2, 3]), [np.zeros((2, 4))])
    assert y.record is last.record is None


def test_dropout_inside_of_a_step_is_drawn_at_every_step():
    vr.manual_seed(3)
    ones = vr.create_lod_tensor(np.ones((40, 8)), [[40]])
    y, _ = vr.nn.DynamicRNN(lambda x, h: (F.dropout(x, 0.5), h))(ones, [np.zeros((1, 1))])
    assert len({row.tobytes() for row in np.asarray(y)}) > 30


@pytest.mark.parametrize(
    ("cell", "states", "error"),
    [
        (lambda x, h: x, [np.zeros((2, 4))], "an output and 1 next states, got 1 variables"),
        (
            lambda x, h: (x, h, h),
            [np.zeros((2, 4))],
            r"expected a step that returns an output and 1 next states, got 3 variables \(return",
        ),
        (lambda x, h: (x, x), [np.zeros((2, 4))], "the next"),
        (lambda x, h: (x.sum(), h), [np.zeros((2, 4))], "expected a row for each sequence that has not ended"),
        (lambda x, h: (x, h[:1]), [np.zeros((2, 4))], "expected 2 rows, one per sequence that has not ended"),
        (lambda x, h: (x, h), [np.zeros((3, 4))], "expected 2 rows, one per sequence"),
        (lambda x, h: (x, h), np.zeros((2, 4)), "expected a list with an entry per state"),
        (lambda x, h: (x, h), [np.zeros(())], "expected a row for each sequence, got a single number"),
        (lambda x, h: (x * np.asarray(h), h), [np.zeros((2, 4))], "expected a value, got a variable of a step"),
    ],
)
def test_a_step_that_does_not_fit(cell, states, error):
    with pytest.raises(vr.InputError, match=error):
        vr.nn.DynamicRNN(cell)(batch([2, 3]), states)


def test_a_state_that_does_not_fit_is_told_in_shapes():
    x = vr.create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 3]])
    with pytest.raises(vr.ShapeError) as caught:
        vr.nn.DynamicRNN(lambda x, h: (h, x))(x, [np.zeros((2, 4))])
    expected = "DynamicRNN, the next state: expected shape (-1, 4) float64, got shape (-1, 3) float32"
    assert str(caught.value).startswith(expected)
    with pytest.raises(vr.ShapeError, match=r"not ended, got shape \(\) float64"):
        vr.nn.DynamicRNN(lambda x, h: (h.sum(), h))(x, [np.zeros((2, 4))])


def test_sequences_of_other_lengths_beside_the_first():
    with pytest.raises(vr.LoDError, match=r"DynamicRNN: expected one LoD"):
        vr.nn.DynamicRNN(lambda x, y, h: (x, h))((batch([2, 3]), batch([3, 2])), [np.zeros((2, 4))])


def recorded(cell):
    with vr.program_guard() as program:
        x, state = vr.feed_data("x", [-1, 3], "float64", lod_level=1), vr.feed_data("state", [-1, 3], "float64")
        y, _ = vr.nn.DynamicRNN(lambda row, h: cell(x, row, h))(x, [state])
        y.name = "y"
    return program


def test_a_step_for_inference_has_no_dropout():
    program = recorded(lambda x, row, h: (F.dropout(row, 0.5), h)).prune(["y"])
    x = batch([2, 0, 3])
    np.testing.assert_array_equal(vr.Executor().run(program, {"x": x, "state": np.zeros((3, 3))})[0], x)


def test_a_step_inside_of_a_step_is_pruned_and_split():
    def cell(x, row, h):
        return row, vr.nn.DynamicRNN(lambda r, s: (r, F.dropout(s, 0.5) + r))(x, [h])[1]

    program = recorded(cell)
    pruned, (part, _) = program.prune(["y"]), program.split(at=["y"])
    assert [block.parent_idx for block in pruned.desc.blocks] == [-1, 0, 1]
    assert "training=True" not in str(pruned)
    feed = {"x": batch([2]), "state": np.zeros((1, 3))}
    for one in (pruned, part, vr.Program.from_bytes(pruned.to_bytes())):
        np.testing.assert_array_equal(vr.Executor().run(one, feed, ["y"])[0], feed["x"])


def test_blocks_too_deep_are_an_error_not_a_recursion():
    def cell(depth, x, row, h):
        if depth:
            h = vr.nn.DynamicRNN(lambda r, s: cell(depth - 1, x, r, s))(x, [h])[1]
        return row, h

    assert recorded(lambda *given: cell(20, *given)).prune(["y"])
    with pytest.raises(vr.ProgramError, match="expected at most 32 blocks, one inside the other"):
        recorded(lambda *given: cell(40, *given)).prune(["y"])


def test_a_sparse_gradient_of_a_batch_without_steps_is_sparse():
    table = vr.nn.Embedding(5, 2)
    ids = vr.create_lod_tensor(np.empty(0, np.int64), [[0]])
    vr.nn.DynamicRNN(lambda i, h: (table(i), h))(ids, [np.zeros((1, 2), np.float32)])[0].sum().backward()
    assert isinstance(table.weight.grad, vr.SelectedRows)
    assert table.weight.grad.rows.shape == (0,)


def test_data_types_that_the_kernels_of_movement_do_not_know():
    x, half = batch([1, 2]), vr.create_lod_tensor(np.ones((3, 2), np.float16), [[1, 2]])
    for rows, state in ((half, np.zeros((2, 2))), (x, np.zeros((2, 2), np.float16))):
        with pytest.raises(vr.DTypeError, match="any data type except float16, got float16"):
            vr.nn.DynamicRNN(lambda a, h: (h, h))(rows, [state])


def test_what_a_step_reads_from_outside_is_freed_with_the_result():
    def use():
        outside = vr.Variable(np.ones(3), requires_grad=True) * 2.0
        y, _ = vr.nn.DynamicRNN(lambda a, h: (a * outside, h))(batch([1, 2]), [np.zeros((2, 1))])
        y.sum().backward()
        return weakref.ref(outside.value.data)

    gc.disable()
    try:
        assert use()() is None
    finally:
        gc.enable()


def test_recording_a_layer_describes_its_own_blocks_only(monkeypatch):
    made = []
    monkeypatch.setattr(Block, "desc", lambda *given, desc=Block.desc: made.append(given[0].idx) or desc(*given))

    def described(layers):
        made.clear()
        weight = vr.nn.Parameter(np.ones((3, 3)))
        with vr.program_guard():
            x = vr.feed_data("x", [-1, 3], "float64", lod_level=1)
            for _ in range(layers):
                x, _ = vr.nn.DynamicRNN(lambda row, h: (h, row @ weight + h))(x, [(3,)])
            x.sum().backward()
        return len(made)

    assert described(20) == 5 * described(4)


ORDINARY = {
    "what reads no state is before the loop": lambda x, h, w, b: (h, F.tanh((x @ w) * 2.0 + b + h)),
    "what only the output reads is after it": lambda x, h, w, b: (F.log_softmax(F.relu(h @ w + b)), h + x * x),
    "a weight read twice": lambda x, h, w, b: (h @ w, F.tanh((x @ w) @ w + h @ w)),
    "a part of a weight": lambda x, h, w, b: (h, F.sigmoid(h @ w[:, :] + x * b[:3] * (w * 2.0).sum())),
    "rows that are no rows of a step": lambda x, h, w, b: (h.reshape(-1, 3) + x.sum(), h * x.mean() + b),
    "the sum of the rows alive": lambda x, h, w, b: (
        h + (x @ w).sum(axis=0),
        F.tanh(h @ w) + h.sum(axis=0, keepdims=True),
    ),
    "an output that is the input": lambda x, h, w, b: (x, h * b + w[0]),
    "an output that is the state": lambda x, h, w, b: (h, x),
    "comparisons and choices": lambda x, h, w, b: (
        F.where((x > b) & ~(h < x), F.maximum(h, b), abs(x)),
        F.minimum(F.gelu(x @ w), h) + F.where(F.equal(h, 0.0), 1.0, b),
    ),
    "pieces of products": lambda x, h, w, b: (
        F.concat([F.split(F.tanh(x @ w), [1, 2])[1], F.split(h, 2)[1]]),
        F.concat(F.split(h * b, 2)[::-1]) + F.split(x, [3])[0],
    ),
    "products of gates": lambda x, h, w, b: (h, apply("concat", (x @ w)[:, :1] * h[:, 1:2], h[:, 1:], axis=1) - b),
}


@pytest.mark.parametrize("cell", ORDINARY.values(), ids=ORDINARY)
@pytest.mark.parametrize("lengths", [[1], [3, 0, 1, 3, 2, 5], [4, 4, 4]], ids=str)
def test_stages_compute_what_steps_one_by_one_do(cell, lengths, monkeypatch):
    def gradients():
        rng = np.random.default_rng(3)
        x = vr.Variable(batch(lengths), requires_grad=True)
        rest = [vr.Variable(rng.standard_normal(s), requires_grad=True) for s in ((len(lengths), 3), (3, 3), (3,))]
        y, last = vr.nn.DynamicRNN(lambda row, h: cell(row, h, *rest[1:]))(x, rest[:1])
        ((y * y).sum() + (last * 2.0).sum()).backward()
        return [np.asarray(y), np.asarray(last), *(None if v.grad is None else np.asarray(v.grad) for v in (x, *rest))]

    monkeypatch.setattr(dynamic_rnn, "lowered_step", lambda *_: "the test says so")
    staged = gradients()
    monkeypatch.setattr(describe, "_known", describe._Known())
    monkeypatch.setattr(stages, "follow", lambda *_: (None, None))  # nothing is known: all operators run at every step
    for mine, other in zip(staged, gradients(), strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-13)


def test_rows_of_a_step_looked_up_by_ids_are_those_of_that_step():
    ids = vr.create_lod_tensor(np.array([1, 1, 0, 0, 0, 1]), [[2, 3, 1]])  # of the sequences alive, longest first
    x = vr.Variable(vr.create_lod_tensor(np.arange(6.0)[:, None], [[2, 3, 1]]), requires_grad=True)
    for look_up in (lambda i, row: F.embedding(i, row), lambda i, row: row[i]):
        y, _ = vr.nn.DynamicRNN(lambda i, row, h, f=look_up: (f(i, row), h))((ids, x), [np.zeros((3, 1))])
        assert np.asarray(y).ravel().tolist() == [0, 1, 2, 3, 4, 0]
        x.grad = None
        (y * np.arange(1.0, 7)[:, None]).sum().backward()
        assert np.asarray(x.grad).ravel().tolist() == [7, 2, 3, 4, 5, 0]


def test_a_product_with_a_weight_is_one_product_for_all_steps(monkeypatch):
    weight, calls = vr.nn.Parameter(np.ones((3, 3))), Counter()
    for name in ("matmul", "row_product"):
        op = find(name)
        monkeypatch.setattr(op, "forward", lambda *a, f=op.forward, n=name, **k: calls.update([n]) or f(*a, **k))
    y, _ = vr.nn.DynamicRNN(lambda x, h: (h, F.tanh(x @ weight + h)))(batch([7, 5]), [(3,)])
    assert calls == {"matmul": 1}
    y.sum().backward()
    assert calls == {"matmul": 1, "row_product": 1}


ONE, TARGETS = vr.nn.Parameter(np.linspace(0.5, 1.5, 3)), np.linspace(0.1, 0.9, 3)
BY_ROW = {
    "layer_norm": lambda x: F.layer_norm(x, ONE),
    "focal": lambda x: apply("focal", x * x, gamma=2.0),
    "huber": lambda x: apply("huber", x, x * TARGETS, delta=0.5),
    "squared_error": lambda x: apply("squared_error", x, x * TARGETS),
    "binary_cross_entropy": lambda x: apply("binary_cross_entropy", x, F.sigmoid(x)),
    "cross_entropy": lambda x: apply("cross_entropy", x, x.argmax(axis=1))[0].reshape(-1, 1) * ONE,
    "label_weights": lambda x: apply("label_weights", x.argmax(axis=1), ONE, ignore_index=-1).reshape(-1, 1) * x,
    "batched_matmul": lambda x: (x.reshape(-1, 1, 3) @ x.reshape(-1, 3, 1)).reshape(-1, 1) * x,
}


@pytest.mark.parametrize("name", BY_ROW)
def test_what_takes_each_row_on_its_own_leaves_the_step(name, monkeypatch):
    weight, calls, function = vr.nn.Parameter(np.eye(3)), Counter(), BY_ROW[name]
    x, outside = (vr.Variable(batch([20, 4]), requires_grad=True) for _ in range(2))
    (function(outside) @ weight).sum().backward()
    wanted = function(outside) @ weight
    for each in (name, "matmul"):
        op = find(each)
        monkeypatch.setattr(op, "forward", lambda *a, f=op.forward, n=each, **k: calls.update([n]) or f(*a, **k))
    y, _ = vr.nn.DynamicRNN(lambda row, h: (function(row) @ weight, h + row))(x, [(3,)])
    assert calls == {name: 1, "matmul": 1}
    np.testing.assert_array_equal(np.asarray(y), np.asarray(wanted))
    y.sum().backward()
    assert max(calls.values()) <= 3, "one of the operator, two of its gradient"
    np.testing.assert_array_equal(np.asarray(x.grad), np.asarray(outside.grad))


def test_the_same_step_is_made_ready_once(monkeypatch):
    weight, made = vr.nn.Parameter(np.ones((3, 3))), []
    monkeypatch.setattr(interpret, "arrange", lambda *given: made.append(1) or stages.arrange(*given))
    for _ in range(3):
        y, _ = vr.nn.DynamicRNN(lambda x, h: (F.relu(h * 3.25), F.tanh(x @ weight + h)))(batch([7, 5]), [(3,)])
        y.sum().backward()
    assert len(made) == 2  # and its gradient


def test_an_operator_that_is_declared_again_is_the_one_that_runs(monkeypatch):
    monkeypatch.setattr(table, "OPERATORS", dict(table.OPERATORS))  # what a test declares is forgotten after it

    def computed(factor):
        @vr.operator(name="scaled_in_a_step")
        def scaled(x):
            return x.data * factor

        scaled.infer(lambda x: x)
        return np.asarray(vr.nn.DynamicRNN(lambda x, h: (scaled(x), h))(batch([2]), [(3,)])[0])

    np.testing.assert_allclose(computed(2.0) * 1.5, computed(3.0))


def test_a_size_that_fits_some_steps_only_is_checked_at_every_step():
    outside = vr.Variable(np.ones((2, 3)))
    with pytest.raises(vr.ShapeError, match="add: expected shapes that broadcast"):
        vr.nn.DynamicRNN(lambda x, h: (h, h + outside))(batch([4, 4, 1]), [(3,)])
    with pytest.raises(vr.ShapeError, match="add: expected shapes that broadcast"):
        vr.nn.DynamicRNN(lambda x, h: (h, x + outside))(batch([1, 4, 4, 4]), [(3,)])


def _carried(x, h, w, u, carry):
    h = F.tanh(x @ w + carry(h) @ u)
    return h, h


def _by_detach(h):
    return h.detach()


def _by_no_grad(h):
    with vr.no_grad():
        return h * 1.0


@pytest.mark.parametrize("stop", [_by_detach, _by_no_grad])
def test_a_gradient_stops_where_the_step_says_so(stop):
    rng = np.random.default_rng(0)
    w, u = (vr.Variable(rng.standard_normal(shape), requires_grad=True) for shape in ((2, 3), (3, 3)))
    x = vr.create_lod_tensor(rng.standard_normal((2, 2)), [[2]])

    layer = vr.nn.DynamicRNN(lambda x, h: _carried(x, h, w, u, stop))
    y, _ = layer(x, [(3,)])
    y.sum().backward()

    rows, first = np.asarray(x), np.tanh(np.asarray(x)[:1] @ np.asarray(w))
    second = np.tanh(rows[1:] @ np.asarray(w) + first @ np.asarray(u))
    d_second = 1 - second**2
    np.testing.assert_allclose(u.grad, first.T @ d_second, atol=1e-12)
    np.testing.assert_allclose(w.grad, rows[:1].T @ (1 - first**2) + rows[1:].T @ d_second, atol=1e-12)
    assert "detach" in layer.explain()


def test_a_gradient_stops_at_a_next_state_that_is_detached():
    u = vr.Variable(np.eye(1), requires_grad=True)

    def step(x, h):
        h = F.tanh(x @ u + h @ u)
        return h.detach(), h.detach()

    y, last = vr.nn.DynamicRNN(step)(vr.create_lod_tensor(np.ones((2, 1)), [[2]]), [(1,)])
    (y.sum() + last.sum()).backward()
    assert u.grad is None or not u.grad.any()


def test_steps_that_differ_in_a_flag_only_are_told_apart():
    u, x = vr.Variable(np.eye(1), requires_grad=True), vr.create_lod_tensor(np.ones((3, 1)), [[3]])
    found = []
    for carry in (lambda h: h, _by_detach, lambda h: h, lambda h: h * -0.0, lambda h: h * 0.0):
        u.grad = None
        y, _ = vr.nn.DynamicRNN(lambda x, h, carry=carry: _carried(x, h, u, u, carry))(x, [(1,)])
        y.sum().backward()
        found.append(u.grad.item())
    assert found[0] == found[2] != found[1]
    assert found[3] == found[4] != found[0]


def test_a_step_that_is_described_again_has_the_values_of_its_own_call():
    x = vr.create_lod_tensor(np.ones((2, 1)), [[2]])
    for factor in (1.0, 2.0, 1.0):
        w = vr.Variable(np.full((1, 1), factor))
        y, _ = vr.nn.DynamicRNN(lambda x, h, w=w: (x @ w + F.softmax(h) * 0.0,) * 2)(x, [(1,)])
        assert np.asarray(y).ravel().tolist() == [factor, factor]


def test_what_is_captured_may_have_a_lod():
    rng = np.random.default_rng(0)
    found = []
    for lengths in ([3], [1, 2], None):
        data = rng.standard_normal((3, 4)) if not found else found[0][0]
        memory = vr.Variable(data if lengths is None else vr.create_lod_tensor(data, [lengths]), requires_grad=True)
        x = vr.create_lod_tensor(np.ones((3, 2)), [[3]])
        q = vr.Variable(np.linspace(0, 1, 12).reshape(4, 3))

        def step(x, h, memory=memory, q=q):
            h = F.tanh(h + F.softmax(h @ q) @ memory)
            return h, h

        y, _ = vr.nn.DynamicRNN(step)(x, [(4,)])
        y.sum().backward()
        assert lengths is None or memory.grad.lod() == memory.lod()
        found.append((data, np.asarray(y), np.asarray(memory.grad)))
    for other in found[1:]:
        for mine, wanted in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(mine, wanted)
