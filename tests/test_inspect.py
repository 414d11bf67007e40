"""`inspect_gradients`: the norms of a pass, the first NaN and zero, and that nothing is used up or changed."""

import threading

import numpy as np
import pytest

import varlen_rnn as vr
from tests.test_gradient import leaf as ones
from tests.test_gradient import refusing  # noqa: F401
from varlen_rnn.nn import functional as F
from varlen_rnn.tape.operator import find


def norm(gradient):
    return np.sqrt(np.sum(np.square(np.asarray(gradient, np.float64))))


def test_the_norms_are_those_of_the_gradients():
    """Against what `retain_grad` keeps of every Variable, as NumPy sums it."""
    random = np.random.default_rng(0)
    x = vr.Variable(random.standard_normal((4, 3)))
    w = vr.Variable(random.standard_normal((3, 2)), requires_grad=True, name="w")
    product = x @ w
    hidden = F.tanh(product)
    squares = hidden * hidden
    loss = squares.mean()
    report = vr.inspect_gradients(loss)
    for variable in (product, hidden, squares, loss):
        variable.retain_grad()
    loss.backward()
    found = [(o.number, o.operator, o.arrived, o.passed) for o in report.operators]
    # Both operands of the square are `hidden`, and each gets half of its gradient.
    wanted = [
        (0, "reduce_mean", {"out": norm(loss.grad)}, {"x": norm(squares.grad)}),
        (1, "mul", {"out": norm(squares.grad)}, dict.fromkeys("xy", norm(hidden.grad) / 2)),
        (2, "tanh", {"out": norm(hidden.grad)}, {"x": norm(product.grad)}),
        (3, "matmul", {"out": norm(product.grad)}, {"weight": norm(w.grad)}),
    ]
    assert [entry[:2] for entry in found] == [entry[:2] for entry in wanted]
    for ours, numpy in zip(found, wanted, strict=True):
        assert ours[2] == pytest.approx(numpy[2], rel=1e-12)
        assert ours[3] == pytest.approx(numpy[3], rel=1e-12)
    ((name, shape, size),) = [(found.name, found.shape, found.norm) for found in report.leaves]
    assert (name, shape, size) == ("w", (3, 2), pytest.approx(norm(w.grad), rel=1e-12))
    assert report.first_nan is None
    assert report.first_zero is None


def lstm():
    layer = vr.nn.LSTM(3, 4, num_layers=2, bidirectional=True)
    return layer, lambda x: (layer(x)[0] * layer(x)[1][0].sum()).mean()


def gru_recomputed():
    layer = vr.nn.GRU(3, 4, recompute=True)
    return layer, lambda x: (layer(x)[0] * layer(x)[0]).mean()


def dynamic():
    layer = vr.nn.Linear(3, 3)

    def cell(x_t, h):
        h = F.tanh(layer(x_t) + h)
        return h, h

    return layer, lambda x: vr.nn.DynamicRNN(cell)(x, [(3,)])[0].mean()


def dynamic_with_an_lstm_cell():
    layer = vr.nn.LSTMCell(3, 4)

    def cell(x_t, h, c):
        h, c = layer(x_t, (h, c))
        return h, h, c

    return layer, lambda x: vr.nn.DynamicRNN(cell)(x, [(4,), (4,)])[0].mean()


def attention():
    layer = vr.nn.MultiheadAttention(4, 2)
    project = vr.nn.Linear(3, 4)
    return layer, lambda x: (layer(project(x), project(x), project(x)) ** 2).mean()


@pytest.mark.parametrize("make", [lstm, gru_recomputed, dynamic, dynamic_with_an_lstm_cell, attention])
def test_nothing_is_used_up(make):
    """The recurrence writes over what it kept: the pass after an inspection has the bits of one without."""
    vr.manual_seed(0)
    layer, loss_of = make()
    x = vr.Variable(vr.create_lod_tensor(np.random.default_rng(0).random((6, 3), np.float32), [[4, 2]]), True)
    loss_of(x).backward()
    wanted = [p.grad for p in (x, *layer.parameters())]
    for p in (x, *layer.parameters()):
        p.grad = None
    loss = loss_of(x)
    reports = [vr.inspect_gradients(loss) for _ in range(2)]
    assert repr(reports[0]) == repr(reports[1])
    assert all(p.grad is None for p in (x, *layer.parameters()))
    loss.backward()
    for p, gradient in zip((x, *layer.parameters()), wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(p.grad), np.asarray(gradient))


def test_gradients_stay_as_they_are():
    x = ones()
    x.grad = before = np.zeros(3, np.float32)
    y = x * 2.0
    y.retain_grad()
    vr.inspect_gradients((y * 3.0).sum())
    assert x.grad is before
    assert (before.tolist(), y.grad) == ([0, 0, 0], None)


def test_hooks_run_as_in_any_pass():
    x = ones()
    y = x * 2.0
    y.register_hook(lambda gradient: gradient * 0.0)
    x.register_hook(lambda gradient: gradient + 3.0)
    report = vr.inspect_gradients(y.sum())
    assert [o.arrived["out"] for o in report.operators] == [1, 0]
    assert report.operators[0].passed["x"] == pytest.approx(3**0.5)
    assert report.leaves[0].norm == pytest.approx(27**0.5)


def test_the_first_nan():
    x = vr.Variable([0.0, 1.0], requires_grad=True)
    with np.errstate(all="ignore"):
        report = vr.inspect_gradients((x.sqrt() * np.array([0.0, 1.0])).abs().sum())
    assert [o.operator for o in report.operators] == ["reduce_sum", "absolute", "mul", "sqrt"]
    assert report.first_nan is report.operators[3]
    assert np.isnan(report.first_nan.passed["x"])
    assert report.first_zero is None


def test_a_nan_that_arrives_is_the_first_where_it_arrives():
    x = vr.Variable([0.0, 1.0], requires_grad=True)
    y = x * 2.0
    report = vr.inspect_gradients(y * 3.0, gradient=[np.nan, 1.0])
    assert report.first_nan.number == 0


def test_the_first_zero():
    x, w = ones(), ones()
    dead = F.relu(x * w - 5.0)
    report = vr.inspect_gradients((dead + w).sum())
    assert (report.first_zero.operator, report.first_zero.passed) == ("relu", {"x": 0.0})
    assert report.first_nan is None


def test_an_empty_gradient_is_no_zero():
    x = vr.Variable(np.ones((0, 2)), requires_grad=True)
    report = vr.inspect_gradients((x * 2.0).sum())
    assert [o.passed for o in report.operators] == [{"x": 0.0}, {"x": 0.0}]
    assert report.first_zero is None


def test_an_operator_that_passes_nothing_on_is_a_zero(monkeypatch):
    monkeypatch.setattr(find("mul"), "grad", lambda inputs, outputs, d_outputs: [d_outputs[0], None])
    report = vr.inspect_gradients((ones() * ones()).sum())
    assert report.first_zero.passed == {"x": pytest.approx(3**0.5), "y": None}
    assert "y none" in repr(report)


def test_norms_of_float32_neither_overflow_nor_vanish():
    x = ones()
    for size in (1e30, 1e-30):
        report = vr.inspect_gradients(x * np.float32(1.0), gradient=np.full(3, size, np.float32))
        assert report.leaves[0].norm == pytest.approx(size * 3**0.5, rel=1e-6)


def test_rows_of_a_table_are_added_up_before_the_norm():
    table = vr.nn.Embedding(5, 2, dtype=np.float64)
    loss = table(np.array([3, 3, 1])).sum()
    report = vr.inspect_gradients(loss, names=table.named_parameters())
    assert [(found.name, found.shape) for found in report.leaves] == [("weight", (5, 2))]
    assert report.leaves[0].norm == report.operators[-1].passed["table"] == pytest.approx(10**0.5)


def test_a_pass_that_fails_uses_nothing_up(refusing):  # noqa: F811
    x, y = ones(), ones()
    shared = y * 2.0
    loss = (refusing(x) + shared).sum()
    for _ in range(2):
        with pytest.raises(vr.ProgramError, match="Refused"):
            vr.inspect_gradients(loss)
    x.requires_grad = False
    loss.backward()
    assert y.grad.tolist() == [2, 2, 2]


def test_another_pass_at_the_same_time_is_refused():
    x, told = ones(), []
    y = x * 2.0
    loss = y.sum()

    def other():
        try:
            loss.backward()
        except vr.ProgramError as error:
            told.append(str(error))

    def hook(gradient):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(60)

    handle = y.register_hook(hook)
    vr.inspect_gradients(loss)
    assert "expected one pass, got a second one" in told[0]
    handle.remove()
    loss.backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_a_report_is_a_table():
    x = vr.Variable([1.0, 2.0], requires_grad=True, name="x")
    other = vr.Variable([3.0, 4.0], requires_grad=True)
    assert repr(vr.inspect_gradients((x * other).sum())).splitlines() == [
        "gradients through 2 operators, from the loss back",
        "     operator    arrived    passed on",
        "  0  reduce_sum  out 1      x 1.414",
        "  1  mul         out 1.414  x 5, y 2.236",
        "leaves",
        "  x     (2,)  5",
        "  leaf  (2,)  2.236",
        "first NaN: none",
        "first zero: none",
    ]


def test_a_long_report_shows_both_ends():
    y = ones()
    for _ in range(100):
        y = y * 1.0
    report = vr.inspect_gradients(y.sum())
    lines = repr(report).splitlines()
    assert len(report.operators) == 101
    assert len(lines) == 67
    assert lines[32] == "  ...  41 more"
    assert lines[33].split()[:2] == ["71", "mul"]


def test_a_leaf_has_no_operators():
    x = ones()
    report = vr.inspect_gradients(x, gradient=np.full(3, 2.0, np.float32))
    assert (report.operators, report.leaves[0].norm) == ([], pytest.approx(12**0.5))
    assert x.grad is None


def in_a_program():
    with vr.program_guard():
        vr.inspect_gradients(vr.feed_data("x", [1], "float32", requires_grad=True) * 2.0)


def used_up():
    loss = (ones() * 2.0).sum()
    loss.backward()
    vr.inspect_gradients(loss)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (in_a_program, "inspect_gradients: expected eager mode, got a program"),
        (used_up, "expected one pass, got a second one"),
        (lambda: vr.inspect_gradients(np.ones(())), "inspect_gradients, loss: expected a Variable, got ndarray"),
        (lambda: vr.inspect_gradients(vr.Variable(1.0)), "inspect_gradients: expected a variable computed from leaves"),
        (lambda: vr.inspect_gradients(ones() * 2.0), r"inspect_gradients: expected a single number, got"),
        (lambda: vr.inspect_gradients(ones(), np.ones(2, "f")), r"gradient: expected shape \(3,\), got shape \(2,\)"),
        (lambda: vr.inspect_gradients(ones().sum(), names=3), "names: expected pairs of a name and a Variable, got 3"),
    ],
)
def test_what_cannot_be_inspected(use, message):
    with pytest.raises(vr.InputError, match=message):
        use()
