"""Updates by hand: `p -= ...`, `p.data = ...` and `module.p = ...` change the Parameter, or say why they do not."""

import copy
import re

import numpy as np
import pytest

import varlen_rnn as vr
from tests.emulated.device import MARKS, Driver
from varlen_rnn.nn import Buffer, Embedding, Linear, Parameter
from varlen_rnn.program.checker import examples_of
from varlen_rnn.runtime import cuda
from varlen_rnn.tape import gradient
from varlen_rnn.tape.backward import propagate
from varlen_rnn.tape.operator import OPERATORS, find

UPDATES = {
    "+=": (lambda p, y: p.__iadd__(y), np.add),
    "-=": (lambda p, y: p.__isub__(y), np.subtract),
    "*=": (lambda p, y: p.__imul__(y), np.multiply),
    "/=": (lambda p, y: p.__itruediv__(y), np.divide),
}
OTHERS = {
    "a number": 0.5,
    "a scalar of NumPy": np.float64(0.5),
    "an array": np.array([2.0, 4.0], np.float32),
    "a Variable": vr.Variable(np.array([2.0, 4.0], np.float32)),
}


def square(p):
    """Leave the gradient 2 p."""
    (p * p).sum().backward()


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("make", [Parameter, lambda a: vr.Variable(a, requires_grad=True), Buffer])
def test_a_leaf_is_updated_in_place_under_no_grad(make, name, other):
    first = np.array([[1.0, 2.0], [3.0, 5.0]], np.float32)
    p, (update, function) = make(first.copy()), UPDATES[name]
    memory = p.value.data
    with vr.no_grad():
        assert update(p, OTHERS[other]) is p
    assert p.value.data is memory
    np.testing.assert_array_equal(memory, function(first, np.asarray(OTHERS[other], np.float32)))


def test_descent_by_hand_is_that_of_the_optimizer():
    ours, theirs = Parameter([1.0, -2.0]), Parameter([1.0, -2.0])
    optimizer = vr.optim.SGD([theirs], lr=0.1)
    for _ in range(3):
        square(theirs)
        optimizer.step()
        optimizer.zero_grad()
        square(ours)
        with vr.no_grad():
            ours -= 0.1 * ours.grad
        ours.grad = None
    np.testing.assert_allclose(ours.data, theirs.data, rtol=1e-14)


@pytest.mark.parametrize("name", [*UPDATES, "**=", "@="])
def test_a_leaf_that_requires_a_gradient_is_not_updated_while_gradients_are_recorded(name):
    p = Parameter(np.eye(2))
    use = {"**=": lambda p, y: p.__ipow__(2.0), "@=": lambda p, y: p.__imatmul__(np.eye(2))}
    update = use[name] if name in use else UPDATES[name][0]
    with pytest.raises(vr.ProgramError, match=r"expected vr\.no_grad\(\) around an update in place, got a leaf"):
        update(p, 1.0)
    assert np.array_equal(p.data, np.eye(2))
    with vr.no_grad():
        assert update(p, 1.0) is p


def test_a_module_keeps_its_parameter():
    layer = Linear(3, 2)
    weight, before = layer.weight, layer.weight.data.copy()
    layer(np.ones((1, 3), np.float32)).sum().backward()
    with vr.no_grad():
        layer.weight -= 0.1 * layer.weight.grad
        layer.bias *= 0.0
    assert layer.weight is weight
    assert not np.array_equal(weight.data, before)
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    with pytest.raises(vr.ProgramError, match="no_grad"):
        layer.weight -= 1.0


@pytest.mark.parametrize("value", [vr.Variable(np.zeros((2, 3), np.float32)), np.zeros((2, 3), np.float32), 0.0])
def test_another_value_does_not_take_the_place_of_a_parameter(value):
    layer = Linear(3, 2)
    hint = r"weight\.assign\(array\) overwrites its numbers, nn\.Parameter\(array\) makes a new Parameter"
    with pytest.raises(vr.DTypeError, match=rf"Linear\.weight: expected a Parameter, or None, got .*{hint}"):
        layer.weight = value
    assert len(layer.parameters()) == 2
    layer.weight = type("Own", (Parameter,), {})(np.zeros((2, 3), np.float32))
    layer.weight = Parameter(np.zeros((2, 3), np.float32))
    layer.bias = None
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    del layer.weight
    layer.weight = value  # such as the result of a function of other parameters
    assert layer.parameters() == []


def test_another_value_does_not_take_the_place_of_a_buffer():
    layer = vr.nn.BatchNorm1d(2)
    with pytest.raises(vr.DTypeError, match=r"BatchNorm1d\.running_mean: expected a Buffer.*running_mean\.assign"):
        layer.running_mean = layer.running_mean * 0.9
    layer.running_mean *= 0.9
    layer.running_mean = Buffer(np.zeros(2, np.float32))
    assert "running_mean" in layer.state_dict()


def test_a_buffer_is_updated_in_any_mode_but_by_no_gradient():
    count, x = Buffer(np.zeros((), np.int64)), vr.Variable([1.0], requires_grad=True)
    count += 2
    assert count.data == 2
    mean = Buffer([1.0])
    with pytest.raises(vr.ProgramError, match=r"detach\(\)"):
        mean += x * 2.0
    mean += (x * 2.0).detach()
    assert mean.data == 3.0
    assert not mean.requires_grad


def test_other_variables_get_a_new_value_so_that_no_gradient_is_wrong():
    x = vr.Variable([1.0, 2.0], requires_grad=True)
    y = x * x
    alias, y = y, y.__imul__(3.0)
    assert alias is not y
    assert np.array_equal(alias, [1.0, 4.0])
    (y + alias).sum().backward()
    assert np.array_equal(x.grad, [8.0, 16.0])
    with vr.no_grad(), pytest.raises(vr.ProgramError, match=r"expected a leaf, or a Variable.*x = x \+ y"):
        y += 1.0  # the name would keep a constant, so that the next loss has no gradient
    array = np.zeros(2)
    total = given = vr.Variable(array)  # shares the memory of the array
    total += x * 2.0
    assert total.requires_grad
    with vr.no_grad():
        given += 1.0
    assert not array.any()


def test_a_pass_notices_an_update_since_the_forward_pass():
    for change in (lambda p: p.__imul__(2.0), lambda p: setattr(p, "data", np.zeros(2))):
        p = Parameter([1.0, 2.0])
        loss = (p * p).sum()
        with vr.no_grad():
            change(p)
        with pytest.raises(vr.ProgramError, match="a value updated since"):
            loss.backward()


@pytest.mark.parametrize(
    ("other", "error", "message"),
    [
        (np.ones((3, 2), np.float32), vr.ShapeError, r"a Parameter updated in place: expected shape \(2,\), got shape"),
        (np.ones(2), vr.DTypeError, "float32"),
        ([1.0, 2.0], vr.DTypeError, "float32"),
    ],
)
def test_an_update_changes_neither_shape_nor_data_type(other, error, message):
    p = Parameter(np.ones(2, np.float32))
    with vr.no_grad(), pytest.raises(error, match=message):
        p += other
    assert np.array_equal(p.data, [1, 1])


def test_a_program_has_no_updates_by_hand():
    p = Parameter([1.0])
    with vr.program_guard(), vr.no_grad():
        x = vr.feed_data("x", [-1, 1], "float64")
        x += 1.0  # a new variable
        with pytest.raises(vr.ProgramError, match="eager mode"):
            p -= 0.1
    assert p.data == 1.0


def test_memory_that_cannot_be_written_is_named():
    array = np.ones(2)
    array.flags.writeable = False
    p = Parameter(array, requires_grad=False, copy=False)
    for change in (lambda: p.__iadd__(1.0), lambda: p.assign(0.0), lambda: setattr(p, "data", np.zeros(2))):
        with pytest.raises(vr.ShapeError, match="read-only"):
            change()


def test_data_is_set_with_checks():
    p = Parameter(np.ones((2, 2), np.float32))
    memory = p.data
    p.data = np.full((2, 2), 3.0, np.float32)
    p.data -= 1.0
    p.data *= np.float32(2.0)
    p.data[0] = 0.0
    assert p.data.tolist() == [[0, 0], [4, 4]]
    assert p.data.base is memory.base or p.data is memory
    p.data = vr.Variable(np.zeros((2, 2), np.float32))
    assert not p.data.any()
    for wrong, error, message in (
        (np.ones((2, 2)), vr.DTypeError, r"data: expected data type float32, got float64 \(.*assign"),
        (np.ones(2, np.float32), vr.ShapeError, r"data: expected shape \(2, 2\), got shape \(2,\) \(.*assign"),
        (Parameter(np.ones((2, 2), np.float32)), vr.ProgramError, "detach"),
        ("no numbers", vr.DTypeError, "numbers"),
    ):
        with pytest.raises(error, match=message):
            p.data = wrong
    buffer = Buffer(np.zeros(2, np.int64))
    buffer.data = np.ones(2, np.int64)
    buffer.assign(5)
    assert buffer.data.tolist() == [5, 5]


@pytest.mark.twins
def test_updates_on_a_device(device):
    first = np.array([1.0, -2.0, 3.0], np.float32)
    p = Parameter(device.put(first))
    q = Parameter(first)
    for own in (p, q):
        square(own)
        with vr.no_grad():
            own -= 0.25 * own.grad
            own *= 3.0
            own /= vr.Variable(own.grad * own.grad + 1.0)
            own += own.grad - own.grad / 2
        own.data -= 0.5 * own.grad
        own.data = -own.data
        own.data *= 0.5
    np.testing.assert_allclose(device.get(p.data), q.data, rtol=1e-6)
    assert p.device == vr.Variable(p.grad).device
    p.data = first  # of the host
    assert device.get(p.data).tolist() == first.tolist()
    with pytest.raises(vr.ShapeError, match="data: expected shape"):
        p.data = device.put(np.ones(2, np.float32))
    layer = Linear(3, 2).to(p.device)
    with vr.no_grad():
        layer.weight -= layer.weight
        layer.bias.assign(0.0)
    assert not device.get(layer(p.data[None]).value.data).any()


@pytest.mark.twins
def test_arithmetic_of_arrays_of_a_device_is_that_of_numpy(device):
    x, y = np.array([[1.0, 4.0], [0.5, -2.0]], np.float32), np.array([2.0, 8.0], np.float32)
    for compute in (
        lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y, lambda x, y: -x,
        lambda x, y: 2 * x + 1, lambda x, y: 1 - x, lambda x, y: 1 / x, lambda x, y: x * np.float32(3),
        lambda x, y: np.float64(3) * x,
    ):  # fmt: skip
        found = compute(device.put(x), device.put(y))
        np.testing.assert_allclose(device.get(found), compute(x, y), rtol=1e-6)
    v = vr.Variable(vr.LoDTensor(device.put(x)), requires_grad=True)
    (device.put(x) * v).sum().backward()
    np.testing.assert_array_equal(device.get(v.grad), x)


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=MARKS)])
def test_a_table_takes_its_sparse_gradient(place, monkeypatch):
    if place == "cuda":
        monkeypatch.setattr(cuda, "driver", Driver())
    table = Embedding(5, 2, sparse=True).to(place)
    before = table.weight.to("cpu").value.data.copy()
    table(vr.Variable(np.array([3, 1, 3])).to(place)).sum().backward()
    gradient = table.weight.grad
    assert isinstance(gradient, vr.SelectedRows)
    with vr.no_grad():
        table.weight -= 0.5 * gradient
        table.weight += gradient / np.float64(4)
    wanted = before.copy()
    np.add.at(wanted, [3, 1, 3], np.float32(-0.25))
    np.testing.assert_allclose(table.weight.to("cpu").value.data, wanted, rtol=1e-6, atol=1e-6)
    assert table.weight.dtype == np.float32


def test_sparse_gradients_are_subtracted_and_scaled():
    sparse, dense = vr.SelectedRows([2, 0, 2], [[1.0], [2.0], [3.0]], 4), np.arange(4.0).reshape(4, 1)
    for found, wanted in [
        (dense - sparse, dense - sparse.to_dense()), (sparse - dense, sparse.to_dense() - dense),
        ((sparse - 2 * sparse).to_dense(), -sparse.to_dense()), ((-sparse).to_dense(), -sparse.to_dense()),
        ((sparse * np.float32(3)).to_dense(), 3 * sparse.to_dense()), ((sparse / 2).to_dense(), sparse.to_dense() / 2),
    ]:  # fmt: skip
        np.testing.assert_array_equal(found, wanted)
    wrongs = (
        lambda: sparse * sparse,
        lambda: sparse * True,
        lambda: sparse / "2",
        lambda: 2 / sparse,
        lambda: sparse - 1,
    )
    for wrong in wrongs:
        with pytest.raises(TypeError):
            wrong()


SHARED = {
    "detach": lambda p: p.detach(),
    "a view under no_grad": lambda p: _under_no_grad(lambda: p.reshape(2, 1))[:, 0],
    "another Variable": lambda p: vr.Variable(p.value.data),
    "a view of a view": lambda p: p.detach()[::-1].detach(),
}


def _under_no_grad(make):
    with vr.no_grad():
        return make()


@pytest.mark.parametrize("update", ["by hand", "by an optimizer", "assign", "data"])
@pytest.mark.parametrize("share", SHARED)
def test_a_gradient_through_shared_memory_is_not_computed_from_an_update(share, update):
    p, w, q = Parameter([1.0, 2.0]), Parameter([3.0, 4.0]), Parameter([1.0, 1.0])
    loss = (SHARED[share](p) * w).sum()
    (SHARED[share](p) * q).sum().backward()  # before the update, all is well
    p.grad = np.ones(2)
    if update == "by hand":
        with vr.no_grad():
            p *= 10.0
    elif update == "by an optimizer":
        vr.optim.SGD([p], lr=0.1).step()
    elif update == "assign":
        p.assign(np.zeros(2))
    else:
        p.data -= 1.0
    with pytest.raises(vr.ProgramError, match="a value updated since"):
        loss.backward()
    (SHARED[share](p) * w).sum().backward()
    np.testing.assert_array_equal(w.grad, SHARED[share](p).numpy())


def test_notes_of_updates_are_forgotten_with_the_memory():
    before = len(gradient._updates)
    for _ in range(10):
        p = Parameter(np.zeros(3))
        p.assign(1.0)
    del p
    assert len(gradient._updates) <= before


def gradients_after(trial, update):
    """Return the gradients of an operator's inputs, after an update in place of `detach()` of each output if asked."""
    variables = trial.variables()
    _, shown = trial.apply(variables)
    sources = [output for output in shown if isinstance(output.value, vr.LoDTensor) and output.dtype.kind == "f"]
    if update:
        for output in (output for output in sources if output.value.data.flags.writeable):
            leaf = output.detach().requires_grad_()
            with vr.no_grad():
                leaf *= 3.0
    weights = [np.random.default_rng(n).standard_normal(output.shape) for n, output in enumerate(sources)]
    propagate(sources, [vr.Variable(output.value.like(d)) for output, d in zip(sources, weights, strict=True)])
    given = [variable.grad for variable in variables if variable is not None and variable.requires_grad]
    return [grad.to_dense() if isinstance(grad, vr.SelectedRows) else grad for grad in given]


def is_refused(name, trial):
    """Return whether a gradient after an update of the outputs is refused; raise if it is another than before."""
    wanted = gradients_after(trial, update=False)
    fresh = trial._replace(values=copy.deepcopy(trial.values))  # an output may be a view of an input
    try:
        found = gradients_after(fresh, update=True)
    except vr.ProgramError as error:
        if not re.match(f"backward through '{name}', (output|input) .*got a value updated since", str(error)):
            raise
        return True
    for ours, expected in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, expected)
    return False


NEED_AN_OUTPUT = {"exp", "tanh", "sigmoid", "sqrt", "softmax", "log_softmax", "div", "recurrent", "dynamic_rnn"}
NEED_NONE = {"add", "sub", "mul", "matmul", "reduce_sum", "concat", "where"}


@pytest.mark.parametrize("name", [name for name, op in OPERATORS.items() if op.grad])
def test_no_gradient_is_computed_from_an_output_that_was_updated(name):
    refused = [is_refused(name, trial) for trial in examples_of(find(name))]
    assert any(refused) or name not in NEED_AN_OUTPUT
    assert not any(refused) or name not in NEED_NONE
