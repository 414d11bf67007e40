"""A program that was checked once runs as one that is checked in each run: the same bits, and the same errors."""

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.program import instructions
from varlen_rnn.program.checker import _parts, _send_back, _sources, examples_of
from varlen_rnn.program.sizes import Sizes
from varlen_rnn.tape import operator
from varlen_rnn.tape.kinds import LOD_TENSOR
from varlen_rnn.tape.modes import recorder
from varlen_rnn.tape.operator import OPERATORS
from varlen_rnn.tape.spec import describe

FEEDS = 30  # feeds of other sizes, for each example


def with_open_sizes(trial):
    """Return a program of an operator and its gradient whose feeds have no fixed size, and its feed."""
    feed, inputs = {}, []
    vr.manual_seed(0)
    with vr.program_guard() as program:
        for number, variable in enumerate(trial.variables()):
            if variable is not None and number not in trial.op.in_place:
                name, spec = f"x{number}", describe(variable.value)
                if spec.kind == LOD_TENSOR:
                    spec = spec._replace(shape=(-1,) * len(spec.shape))
                feed[name] = variable.value
                variable = vr.Variable(recorder().feed(name, spec), requires_grad=variable.requires_grad)
            inputs.append(variable)
        _, shown = trial.apply(inputs)
        _send_back(trial, shown, [np.array(number + 2.0) for number, _ in enumerate(_sources(shown))])
    gradients = [variable.grad for variable in inputs if variable is not None and variable.requires_grad]
    return program, feed, [variable.name for variable in [*shown, *gradients] if variable is not None]


def resized(rng, feed, odds):
    """Return a feed of other sizes: equal sizes stay equal, except that some, with these odds, become any size."""
    sizes = {size: int(rng.choice([size, size + 1, 1, 0, 2])) for value in feed.values() for size in shape_of(value)}
    return {name: _resized(rng, value, sizes, odds) for name, value in feed.items()}


def shape_of(value):
    return value.shape if isinstance(value, vr.LoDTensor) else ()


def _resized(rng, value, sizes, odds):
    if not isinstance(value, vr.LoDTensor):
        return value
    shape = [int(rng.integers(0, 5)) if rng.random() < odds else sizes[size] for size in value.shape]
    is_same = rng.random() < 0.5 or shape[:1] == [value.shape[:1]]
    if value.num_levels and is_same:
        shape[0] = value.shape[0]
    array = np.resize(value.data, shape) if value.data.size else np.zeros(shape, value.dtype)
    if not value.num_levels or is_same:
        return value.like(array) if value.num_levels else vr.LoDTensor(array)
    cut = int(rng.integers(0, shape[0] + 1))
    return vr.create_lod_tensor(array, [*[[1, 1]] * (value.num_levels - 1), [cut, shape[0] - cut]])


def outcome(program, feed, fetches):
    """Return the bits of the fetches, or the type and the text of the error."""
    before = {name: value.copy() for name, value in program.persistables.items()}
    vr.manual_seed(0)
    try:
        found = vr.Executor().run(program, feed, fetches)
        return [[(p.shape, str(p.dtype), p.tobytes()) for p in _parts(value)] for value in found]
    except vr.InputError as error:
        return type(error), str(error)
    finally:
        for name, value in before.items():
            program.persistables[name].data[...] = value.data


# Without rows, the loop of the example of `while_loop` never ends.
NAMES = sorted(name for name, op in OPERATORS.items() if op.examples and name != "while_loop")


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_and_its_gradient(name, monkeypatch):
    rng = np.random.default_rng(0)
    for trial in examples_of(OPERATORS[name]):
        try:
            program, feed, fetches = with_open_sizes(trial)
        except vr.InputError:  # it needs to know a size beforehand
            continue
        feeds = [feed, *(resized(rng, feed, 0.15 * (number % 3)) for number in range(FEEDS))]
        for given in [*feeds, *feeds[:10]]:
            warm = outcome(program, given, fetches)
            with monkeypatch.context() as patch:
                patch.setattr(instructions, "_MOST_CHECKED", 0)
                patch.setattr(program, "prepared", {})
                cold = outcome(program, given, fetches)
            assert warm == cold


def classifier():
    """Return a recorded training step and the loss; its feeds have open sizes."""
    vr.manual_seed(0)
    table, layer, out = vr.nn.Embedding(9, 3), vr.nn.LSTM(3, 4), vr.nn.Linear(4, 5)
    parameters = [p for module in (table, layer, out) for p in module.parameters()]
    with vr.program_guard() as program:
        ids, labels = vr.feed_data("ids", [-1], "int64", lod_level=1), vr.feed_data("labels", [-1], "int64")
        y, _ = layer(table(ids))
        loss = vr.nn.functional.cross_entropy(out(vr.sequence_pool(y, "last")), labels)
        vr.optim.Adam(parameters).minimize(loss)
    return program, loss


def batch(lengths, num_labels=None):
    rng = np.random.default_rng(sum(lengths))
    ids = vr.create_lod_tensor(rng.integers(0, 9, sum(lengths)), [lengths])
    return {"ids": ids, "labels": rng.integers(0, 5, len(lengths) if num_labels is None else num_labels)}


def count_inferences(monkeypatch, program, feed, loss):
    """Return how many operators infer in a run."""
    calls = []
    for name, op in OPERATORS.items():
        monkeypatch.setattr(
            op, "infer", lambda *a, name=name, infer=op.infer, **k: (calls.append(name), infer(*a, **k))[1]
        )
    try:
        vr.Executor().run(program, feed, [loss])
    except vr.InputError:
        pass
    monkeypatch.undo()
    return len(calls)


def test_inference_runs_once_for_runs_of_other_sizes(monkeypatch):
    program, loss = classifier()
    operators = len(program.desc.blocks[0].ops) - 2
    assert count_inferences(monkeypatch, program, batch([3, 0, 2]), loss) > operators
    next(iter(program.prepared.values())).binding._before = -100  # no dry run yet, which infers, too
    for lengths in ([1, 1, 1, 1], [7, 2], [3, 0, 2], [0, 20, 5]):
        assert count_inferences(monkeypatch, program, batch(lengths), loss) == 0, lengths
    assert count_inferences(monkeypatch, program, batch([3, 0, 2], num_labels=4), loss) > 0, "an error"
    assert count_inferences(monkeypatch, program, batch([3, 0, 2]), loss) == 0


@pytest.mark.parametrize("wrong", ["shape", "dtype", "kind", "replaced"])
def test_a_parameter_that_changed_is_checked(wrong):
    program, loss = classifier()
    run = lambda: vr.Executor().run(program, batch([2, 1]), [loss])
    run()
    weight = next(v for name, v in program.variables.items() if v.value.shape == (5, 4) and v.requires_grad)
    before = weight.value
    if wrong == "shape":
        weight.value = vr.LoDTensor(np.zeros((5, 3), np.float32))
    elif wrong == "dtype":
        weight.value = vr.LoDTensor(np.zeros((5, 4)))
    elif wrong == "kind":
        weight.value = vr.SelectedRows([0], np.zeros((1, 4), np.float32), 5)
    else:
        weight.value = vr.LoDTensor(before.data * 2)
        run()
        return
    with pytest.raises(vr.InputError):
        run()
    weight.value = before
    run()


def test_a_result_that_is_not_as_before_is_checked(monkeypatch):
    monkeypatch.setattr(operator, "OPERATORS", dict(OPERATORS))

    @vr.operator
    def cut(x):
        return vr.LoDTensor(x.data[:2] if x.data[0, 0] else x.data)

    cut.infer(lambda x: x)
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 3], "float64")
        y = vr.nn.functional.mse_loss(cut(x), x)
    for _ in range(2):
        assert vr.Executor().run(program, {"x": np.zeros((4, 3))}, [y])[0] == 0.0
        with pytest.raises(vr.ShapeError, match=r"mse_loss, target: expected shape .2, 3., got shape .4, 3."):
            vr.Executor().run(program, {"x": np.ones((4, 3))}, [y])


def test_sizes_remember_what_differs_from_run_to_run():
    sizes = Sizes()
    rows, labels = sizes.measure(8), sizes.measure(8)
    assert (rows, 5) == (labels, 5)
    assert rows != -1
    assert rows == rows
    assert not rows < 1
    assert 2 * rows + 1 == 17
    (equal, less, computed) = sizes.compared
    assert sizes.compared == {equal: True, less: False, computed: True}
    assert (equal[1:], len(sizes.made)) == ((rows.slot, labels.slot), 2)
    with pytest.raises(TypeError):
        range(rows)
    with pytest.raises(TypeError):
        hash(rows)
