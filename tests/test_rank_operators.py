"""Every operator on ranks: its examples are cut into two parts, and ranks get the loss of the whole, or an error."""

import contextlib
import itertools

import numpy as np
import pytest

import varlen_rnn as vr
from tests.rank_threads import run_ranks
from varlen_rnn.distributed import ReplicatedProgram, replicate
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.tape import operator
from varlen_rnn.tape.operator import OPERATORS
from varlen_rnn.tape.variable import apply_list

REFUSED = "backward of a replica"
LOSSES = {
    "squares": lambda y: (y * y).mean(),
    "sum": lambda y: y.tanh().sum(),
    "columns": lambda y: (y.tanh().mean(axis=0) ** 2).sum(),
    "rows": lambda y: y.tanh().mean(axis=-1).mean() if y.ndim > 1 else y.sum(),
}  # fmt: skip


def compared(loss_of, parameters, size=2):
    """Return "equal" or "wrong" for a loss on ranks, against one process; or the error that refuses it.

    `loss_of(parameters, rank)` computes the loss of a rank's part, or of the whole if `rank` is None.
    """

    def run(comm):
        model = vr.nn.Module()
        model.own = [vr.nn.Parameter(array.copy()) for array in parameters]
        if comm is not None:
            replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        loss = loss_of(model.own, None if comm is None else comm.rank)
        loss.backward()
        return [np.array(loss.item()), *(np.zeros(p.shape) if p.grad is None else dense(p.grad) for p in model.own)]

    wanted = run(None)
    if not np.isfinite(wanted[0]).all():
        return "a mean of nothing"
    try:
        every = run_ranks(size, run)
    except vr.ProgramError as error:
        if REFUSED in str(error):
            return str(error)
        raise
    largest = max(np.abs(array).max(initial=1e-3) for array in wanted)
    right = all(np.allclose(a, b, 1e-9, 1e-9 * largest) for found in every for a, b in zip(found, wanted, strict=True))
    return "equal" if right else "wrong"


def dense(gradient):
    return gradient.to_dense() if isinstance(gradient, vr.SelectedRows) else np.asarray(gradient)


class Cut:
    """The inputs of an example, whole and in two parts.

    Each input is "whole" (a parameter, or a constant that both ranks have), or cut into rows.
    """

    def __init__(self, inputs, roles):
        self.inputs, self.roles = inputs, roles
        lods = [value.structure for value in inputs if isinstance(value, LoDTensor) and value.num_levels]
        self.rows = {}  # sizes of an axis, and where the second part begins
        for lod in lods:
            count = len(lod.levels[0]) - 1
            places = [count // 2, count]
            self.rows.setdefault(places[1], places[0])
            for offsets in lod.levels:
                places = [int(offsets[place]) for place in places]
                self.rows.setdefault(places[1], places[0])

    def part(self, number, rank):
        value = self.inputs[number]
        if rank is None or value is None or self.roles[number] == "whole":
            return value
        if isinstance(value, LoDTensor) and value.num_levels:
            count = len(value.structure.levels[0]) - 1
            return value.slice(0, *((0, count // 2) if rank == 0 else (count // 2, count)))
        data = value.data if isinstance(value, LoDTensor) else np.asarray(value)
        axis = self.roles[number]
        at = self.rows[data.shape[axis]] if self.rows else data.shape[axis] // 2
        return np.split(data, [at], axis)[rank]


def roles_of(inputs):
    """Yield roles of the inputs of an example: which are cut, and along which axis."""
    choices = []
    for value in inputs:
        if not isinstance(value, (LoDTensor, np.ndarray)):
            choices.append(["whole"])
        elif isinstance(value, LoDTensor) and value.num_levels:
            choices.append([0])
        else:
            shape = value.data.shape
            choices.append(["whole", *(axis for axis, size in enumerate(shape[:2]) if size > 1)])
    yield from itertools.islice(itertools.product(*choices), 12)


def is_float(value):
    return isinstance(value, (LoDTensor, np.ndarray)) and value.dtype.kind == "f"


def loss_of_operator(op, cut, attrs, kind):
    """Return a loss of an operator's results, and its parameters: whole inputs, and a factor of each cut one."""
    floats = [n for n, value in enumerate(cut.inputs) if is_float(value)]
    parameters = [
        np.asarray(cut.inputs[n].data if isinstance(cut.inputs[n], LoDTensor) else cut.inputs[n])
        if cut.roles[n] == "whole" else np.array(1.0)
        for n in floats
    ]  # fmt: skip

    def loss_of(own, rank):
        given = [cut.part(n, rank) for n in range(len(cut.inputs))]
        for n, parameter in zip(floats, own, strict=True):
            given[n] = parameter if cut.roles[n] == "whole" else data_times(given[n], parameter, cut.roles[n])
        outputs = apply_list(op.type, *given, **attrs)
        places = op.output_places(len(given), len(outputs), attrs)
        found = [
            y for y, place in zip(outputs, places, strict=True)
            if place not in op.intermediate and isinstance(y.value, LoDTensor) and y.dtype.kind == "f"
        ]  # fmt: skip
        total = LOSSES[kind](found[0]) if found[0].ndim else found[0]
        for y in found[1:]:
            total = total + (LOSSES[kind](y) if y.ndim else y)
        return total

    return loss_of, parameters


def data_times(value, parameter, axis):
    """Return data times a parameter, with rows along an axis."""
    if not axis:
        return vr.Variable(value) * parameter
    return (vr.Variable(np.ascontiguousarray(np.swapaxes(value, 0, axis))) * parameter).transpose(0, axis)


def outcomes(op):
    """Yield (what, outcome) for each example of an operator, each choice of inputs that are cut, and each loss."""
    for number, (inputs, attrs) in enumerate(op.examples(np.random.default_rng(0))):
        for roles in roles_of(inputs):
            if set(roles) == {"whole"} or not any(map(is_float, inputs)):
                continue
            cut = Cut(inputs, roles)
            for kind in LOSSES:
                loss_of, parameters = loss_of_operator(op, cut, attrs, kind)
                with contextlib.suppress(vr.InputError, ValueError, IndexError, KeyError):
                    yield f"example {number}, cut {roles}, {kind}", compared(loss_of, parameters)


# Their examples say nothing here: the random numbers of dropout follow the positions of `data.batches`, moments need
# the context of a replica, the second operand of a weighted mean is a total, and steps are blocks of programs.
# `tests/test_replica.py` has them.  `sequence_pad` pads to the longest sequence that a rank has: a loss must leave the
# padding out, and the losses here do not.
ELSEWHERE = {"batch_norm", "dropout", "dynamic_rnn", "sequence_pad", "weighted_mean"}
# In these examples, nothing of a float is cut.
NEVER_EQUAL = {"concat_outputs", "init_memories"}


@pytest.mark.slow
def test_no_operator_is_wrong_on_ranks():
    wrong, never_equal = {}, set()
    for op in list(OPERATORS.values()):
        package = op.forward.__module__.startswith("varlen_rnn.")
        if not package or op.examples is None or op.grad is None or op.in_place or op.type in ELSEWHERE:
            continue
        found = list(outcomes(op))
        if bad := [what for what, outcome in found if outcome == "wrong"]:
            wrong[op.type] = bad
        if any(outcome.startswith(REFUSED) for _, outcome in found) and "equal" not in {got for _, got in found}:
            never_equal.add(op.type)
    assert not wrong
    assert never_equal <= NEVER_EQUAL


@pytest.mark.parametrize(
    "name",
    [
        "ctc_loss",
        "transducer_loss",
        "lattice_rows",
        "linear_chain_crf",
        "sequence_expand",
        "sequence_expand_as",
        "gather",
    ],
)
def test_ranks_divide_what_joins_or_counts_the_rows_of_one_sequence(name):
    found = {outcome.partition(":")[0] for _, outcome in outcomes(OPERATORS[name])}
    assert "equal" in found
    assert "wrong" not in found


X = np.random.default_rng(0).standard_normal((12, 3))
W = np.random.default_rng(1).standard_normal((3, 2))


def rows_of(rank):
    return vr.Variable(X if rank is None else X[:5] if rank == 0 else X[5:])


def sequences_of(rank):
    x = vr.create_lod_tensor(X, [[4, 1, 0, 2, 5]])
    return x if rank is None else x.slice(0, 0, 2) if rank == 0 else x.slice(0, 2, 5)


def of_a_user(monkeypatch, function, rows, backward):
    """Return an operator that a user declared, until the test ends."""
    monkeypatch.setattr(operator, "OPERATORS", dict(operator.OPERATORS))
    declared = vr.operator(rows=rows)(function)
    declared.infer(lambda x: x)
    declared.backward("x")(backward)
    return declared


def centred(x):
    return x.data - x.data.mean(axis=0)


def centred_grad(x, d_out):
    return d_out.data - d_out.data.mean(axis=0)


def turned(x):
    return np.ascontiguousarray(x.data.T)


def turned_grad(x, d_out):
    return np.ascontiguousarray(d_out.data.T)


def added(x):
    return x.data.sum(axis=0)


def added_grad(x, d_out):
    return np.broadcast_to(d_out.data, x.shape)


@pytest.mark.parametrize("data", [rows_of, sequences_of])
@pytest.mark.parametrize("rows", [None, lambda specs, axes: None if axes[0] == 0 else "each"])
def test_an_operator_of_a_user_that_mixes_rows_is_refused(data, rows, monkeypatch):
    op = of_a_user(monkeypatch, centred, rows, centred_grad)
    found = compared(lambda own, rank: (op(vr.Variable(data(rank)) @ own[0]) ** 2).mean(), [W])
    assert "got 'centred'" in found
    assert rows is not None or "without rows='each', 'sequence' or 'sum'" in found
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 3], "float64", lod_level=1 if data is sequences_of else 0)
        model = vr.nn.Linear(3, 2, dtype=np.float64)
        vr.optim.SGD(model.parameters(), 0.1).minimize((op(model(x)) ** 2).mean())
    with pytest.raises(vr.ProgramError, match="got 'centred', which mixes rows"):
        ReplicatedProgram(program)


def test_an_operator_of_a_user_is_right_as_far_as_its_trait_goes(monkeypatch):
    op = of_a_user(monkeypatch, turned, "each", turned_grad)
    op.infer(lambda x: x._replace(shape=x.shape[::-1]))
    for loss in (lambda y: y.mean(axis=1).exp().sum(), lambda y: y.mean(axis=0).exp().mean(), lambda y: y.mean()):
        assert compared(lambda own, rank, f=loss: f(op(rows_of(rank) @ own[0])), [W]) == "equal"
    op = of_a_user(monkeypatch, added, "sum", added_grad)
    op.infer(lambda x: x._replace(shape=x.shape[1:]))
    for loss in (lambda y: (y * y).mean(), lambda y: y.sum()):
        assert compared(lambda own, rank, f=loss: f(op(rows_of(rank) @ own[0])), [W]) == "equal"


@pytest.mark.parametrize("data", [rows_of, sequences_of])
def test_rows_that_are_split_are_refused_and_columns_are_not(data):
    def loss_of(own, rank, axis):
        y = vr.Variable(data(rank)) @ own[0]
        first, second = vr.nn.functional.split(y, [1, y.shape[axis] - 1], axis)
        return (first * first).mean() + second.exp().mean()

    assert "got 'split', which needs the rows of all ranks" in compared(lambda own, rank: loss_of(own, rank, 0), [W])
    assert compared(lambda own, rank: loss_of(own, rank, 1), [W]) == "equal"


def test_steps_and_loops_on_ranks():
    def step(x, h):
        return h.cumsum(1) + x, h * 0.5 + x

    def loss_of(own, rank):
        y, last = vr.nn.DynamicRNN(step)(vr.Variable(sequences_of(rank)) @ own[0], [(2,)])
        _, z = vr.while_loop(lambda n, z: n < 3.0, lambda n, z: (n + 1.0, z.tanh()), [vr.Variable(0.0), y])
        return (z * z).mean() + last.tanh().sum()

    assert compared(loss_of, [W]) == "equal"


def test_shapes_and_indices_that_know_the_number_of_rows():
    def loss_of(own, rank, function):
        y = vr.Variable(rows_of(rank).value) @ own[0]
        return (function(y, len(y)) ** 2).mean()

    right = [
        lambda y, n: y.reshape(n, 2, 1).sum(axis=1), lambda y, n: y.reshape(1, n, 2).exp().mean(axis=1),
        lambda y, n: y.reshape(2 * n).exp(), lambda y, n: y.transpose(0, 1).reshape(2, n, 1).exp().mean(axis=1),
        lambda y, n: y[np.arange(n), np.ones(n, int)], lambda y, n: y.reshape(-1, 1, 2).mean(axis=0),
    ]  # fmt: skip
    for function in right:
        assert compared(lambda own, rank, f=function: loss_of(own, rank, f), [W]) == "equal"
    wrong = [lambda y, n: y.transpose(0, 1).reshape(n, 2), lambda y, n: y[: n - 1]]
    for function in wrong:
        assert "rows" in compared(lambda own, rank, f=function: loss_of(own, rank, f), [W])


def test_a_weight_of_an_operator_along_sequences_has_no_rows():
    spec = vr.TensorSpec((5, 5), np.dtype(np.float64), 1)
    weights = {"additive_attention": 3, "linear_chain_crf": 2, "crf_decoding": 1, "crf_marginals": 1, "crf_n_best": 1}
    for name, number in weights.items():
        op, count = OPERATORS[name], max(number + 1, len(OPERATORS[name].inputs))
        attrs = dict.fromkeys(op.attrs)
        for axis, wanted in ((0, None), (None, "sequence" if number == 3 else "batch")):
            axes = [axis if n == number else 0 for n in range(count)]
            assert op.rows([spec] * count, axes, **attrs) == wanted, name
