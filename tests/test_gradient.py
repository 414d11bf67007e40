"""What a backward pass reads again: what failed cannot be passed twice, and indices stay what they were."""

import gc
import weakref

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.tape.operator import find


def test_a_pass_that_failed_is_not_passed_again():
    x = vr.create_lod_tensor(np.ones((5, 3), np.float32), [[2, 3]])
    lstm = vr.nn.LSTM(3, 4)
    y, _ = lstm(x)
    gradient = np.ones((5, 4), np.float32)
    lstm.weight_hh_l0.grad = np.zeros(3, np.float32)
    with pytest.raises(vr.ShapeError):
        y.backward(gradient)
    lstm.weight_hh_l0.grad = None
    # The gradient was written over what the layer kept: a second pass would compute from it.
    with pytest.raises(vr.ProgramError, match="expected one pass, got a second one"):
        y.backward(gradient)


@pytest.mark.parametrize("make", [np.array, list])
def test_indices_are_those_of_the_forward_pass(make):
    v = vr.Variable(np.zeros((4, 2)), requires_grad=True)
    rows, columns = make([0, 1]), make([1, 1])
    y, z = v[rows], v[:, columns]
    rows[1] = columns[1] = columns[0] = 0
    (y.sum() + z.sum()).backward()
    assert v.grad.tolist() == [[1, 3], [1, 3], [0, 2], [0, 2]]


@pytest.mark.parametrize("index", [[], [[]], np.zeros(0, bool), ([], 0), (0, [])])
def test_an_empty_index_is_one(index):
    value = np.ones((0, 2)) if isinstance(index, np.ndarray) else np.ones((4, 2))
    assert vr.Variable(value)[index].shape == value[index].shape


def leaf(dtype=np.float32):
    return vr.Variable(np.ones(3, dtype), requires_grad=True)


def again(loss):
    loss.backward()
    loss.backward()


def to_what_is_there(grad):
    p = vr.nn.Parameter(np.ones(3, np.float32))
    p.name, p.grad = "weight", grad
    (p * 2.0).sum().backward()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: again((leaf() * 2.0).sum()), "backward through 'reduce_sum': expected one pass, got a second one"),
        (lambda: again((leaf() * 2.0 + leaf()).sum()), "expected one pass, got a second one"),
        (lambda: vr.Variable(1.0).backward(), "expected a variable computed from leaves that require gradients"),
        (lambda: vr.backward(np.ones(())), "backward, loss: expected a Variable, got ndarray"),
        (lambda: vr.backward(None), "backward, loss: expected a Variable, got NoneType"),
        (lambda: (leaf() * 2.0).backward(), r"backward: expected a single number, got shape \(3,\) \(reduce the"),
        (lambda: (leaf() * 2.0).backward(np.ones(2, "f")), r"gradient: expected shape \(3,\), got shape \(2,\)"),
        (lambda: (leaf() * 2.0).backward(np.ones(3)), "gradient: expected float32, got float64 .x.astype"),
        (lambda: (leaf() * 2.0).backward(np.ones(3, int)), "gradient: expected float32, got int64"),
        (lambda: (leaf() * 2.0).backward(2.0), r"gradient: expected shape \(3,\), got shape \(\)"),
        (lambda: (leaf() * 2.0).backward([[1], [1, 2]]), "an operand: expected rows of one shape"),
        (lambda: (leaf() * 2.0).backward(vr.SelectedRows([0], np.ones(1, "f"), 3)), "expected an array, got SelectedR"),
        (lambda: to_what_is_there("rubbish"), "grad of 'weight', to which backward adds: data: expected numbers"),
        (lambda: to_what_is_there(np.ones(2, "f")), r"grad of 'weight'.*expected shape \(2,\), got shape \(3,\)"),
        (lambda: to_what_is_there(np.ones(3)), "grad of 'weight'.*expected float64, as .* has, got float32"),
        (lambda: to_what_is_there(np.ones(3, int)), "grad of 'weight'.*expected int64, as .* has, got float32"),
    ],
)
def test_what_has_no_gradient_is_told_so(use, message):
    with pytest.raises(vr.InputError, match=message):
        use()


def test_a_number_as_gradient_takes_the_data_type_of_the_loss():
    p = leaf()
    (p * 2.0).sum().backward(0.5)
    assert (p.grad.dtype, p.grad.tolist()) == (np.float32, [1, 1, 1])


class Refused(Exception):
    """An error of an operator of the tests."""


@pytest.fixture
def refusing(monkeypatch):
    """Return a function whose gradient is an error."""

    def grad(inputs, outputs, d_outputs):
        raise Refused

    monkeypatch.setattr(find("tanh"), "grad", grad)
    return vr.nn.functional.tanh


def alive(make):
    """Return how many of the arrays that `make` returns are alive without a collection of garbage."""
    gc.collect()
    gc.disable()
    try:
        return sum(reference() is not None for reference in make())
    finally:
        gc.enable()


def test_records_are_freed_with_what_they_produced():
    def forgets_no_grad():
        p, arrays = leaf(), []
        for _ in range(3):
            hidden = p * 2.0
            y = vr.nn.functional.tanh(hidden)
            arrays += [weakref.ref(hidden.value.data), weakref.ref(y.value.data)]
        del hidden, y
        return arrays

    assert alive(forgets_no_grad) == 0


def test_a_pass_frees_what_it_has_passed():
    def passes():
        p = leaf()
        hidden = p * 2.0
        loss = (hidden * hidden).sum()
        arrays = [weakref.ref(hidden.value.data)]
        del hidden
        assert arrays[0]() is not None
        loss.backward()
        assert loss.record is not None
        return arrays

    assert alive(passes) == 0


def test_an_error_in_the_middle_leaves_no_cycle(refusing):
    def fails():
        p = leaf()
        hidden = p * 2.0
        loss = (refusing(hidden) * 3.0).sum()
        arrays = [weakref.ref(hidden.value.data), weakref.ref(p.value.data)]
        del hidden
        with pytest.raises(vr.ProgramError, match="Refused"):
            loss.backward()
        del loss, p
        return arrays

    assert alive(fails) == 0


def test_a_leaf_that_was_frozen_gets_no_gradient_and_costs_nothing(refusing):
    p, q = leaf(), leaf()
    loss = (refusing(p) + q).sum()
    p.requires_grad = False
    loss.backward()  # its gradient is not asked for
    assert p.grad is None
    assert q.grad.tolist() == [1, 1, 1]
    p.requires_grad = True
    (p * 2.0).sum().backward()
    assert p.grad.tolist() == [2, 2, 2]


def run_a_program(model, optimizer):
    with vr.program_guard() as program:
        optimizer.minimize(model(np.ones((1, 2), np.float32)).sum())
    vr.Executor().run(program)


def run_the_update_of_a_program(model, optimizer):
    with vr.program_guard() as program:
        optimizer.minimize(model(np.ones((1, 2), np.float32)).sum())
    _, update = program.split(at=[["weight@GRAD", "bias@GRAD"]])
    vr.Executor().run(update, {"weight@GRAD": np.ones((1, 2), np.float32), "bias@GRAD": np.ones(1, np.float32)})


def step(model, optimizer):
    for p in model.parameters():
        p.grad = np.ones(p.shape, np.float32)
    optimizer.step()


@pytest.mark.parametrize(
    "change",
    [
        step,
        run_a_program,
        run_the_update_of_a_program,
        lambda model, optimizer: model.load_state_dict(model.state_dict()),
        lambda model, optimizer: model.weight.assign(0),
    ],
    ids=["step", "Executor", "Executor of a part", "load_state_dict", "assign"],
)
def test_a_parameter_that_was_updated_since_is_an_error(change):
    model = vr.nn.Linear(2, 1)
    optimizer = vr.optim.SGD(model.parameters(), lr=0.1)
    x = vr.Variable(np.ones((3, 2), np.float32), requires_grad=True)
    loss = model(x).sum()
    change(model, optimizer)
    with pytest.raises(vr.ProgramError, match="input weight: expected the value that the forward pass used"):
        loss.backward()
    assert x.grad is None
    model(x).sum().backward()


def test_a_run_that_updates_nothing_is_no_change():
    model = vr.nn.Linear(2, 1)
    loss = model(np.ones((3, 2), np.float32)).sum()
    with vr.program_guard() as program:
        y = model(np.ones((1, 2), np.float32))
    vr.Executor().run(program, fetch_list=[y])
    loss.backward()
    assert model.weight.grad.tolist() == [[3, 3]]


def test_sparse_gradients_of_many_uses_are_put_together_once(monkeypatch):
    table, uses, copied, concatenate = vr.nn.Embedding(5, 2), 50, [], np.concatenate
    loss = sum((table(np.array([number % 5])) * float(number)).sum() for number in range(uses))

    def counted(arrays, **named):
        joined = concatenate(arrays, **named)
        copied.append(len(joined))
        return joined

    monkeypatch.setattr(np, "concatenate", counted)
    loss.backward()
    monkeypatch.undo()
    assert sum(copied) <= 4 * uses  # rows and values: not those of all former uses with each
    wanted = [[sum(range(row, uses, 5))] * 2 for row in range(5)]
    assert table.weight.grad.to_dense().tolist() == wanted


def test_a_sparse_gradient_is_added_to_what_the_table_has():
    table = vr.nn.Embedding(3, 1)
    table.weight.grad = before = vr.SelectedRows([2], np.ones((1, 1), np.float32), 3)
    (table(np.array([0])).sum() + table(np.array([1, 2])).sum()).backward()
    assert table.weight.grad.to_dense().tolist() == [[1], [1], [2]]
    assert before.rows.tolist() == [2]
    table.weight.grad = dense = np.ones((3, 1), np.float32)
    (table(np.array([0])).sum() + (table.weight * 2.0).sum() + table(np.array([0])).sum()).backward()
    assert table.weight.grad.tolist() == [[5], [3], [3]]
    assert dense.tolist() == [[1], [1], [1]]
