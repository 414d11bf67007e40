"""Traits of operators: a wrong one fails `check_operator`, a right one has an effect; names in lists exist."""

import importlib
import textwrap
from collections import Counter

import numpy as np
import onnx
import pytest

import varlen_rnn as vr
import varlen_rnn.onnx as vo
from varlen_rnn.cells.derivation.operations import COMPARISONS, NUM_OPERANDS, OPERATIONS
from varlen_rnn.cells.derivation.trace import Trace
from varlen_rnn.nn import functional as F
from varlen_rnn.onnx import nodes, operators, recurrent, shapes
from varlen_rnn.onnx import table as one_to_one
from varlen_rnn.program.attrs import decode
from varlen_rnn.steps.lower import _Lowering
from varlen_rnn.tape import operator as table
from varlen_rnn.tape.axes import follow, with_rows, without_rows
from varlen_rnn.tape.variable import apply

pytestmark = pytest.mark.usefixtures("operators_before")


EXAMPLE = "vr.create_lod_tensor(rng.random((5, 3)) + 0.5, [[2, 0, 3]])"
# name: (traits, forward, infer, backward, message)
WRONG = {
    "rows that are reversed": (
        "rows='each'", "x.data[::-1]", "x", "d_out.data[::-1]", "rows='each', along axis 0 of x",
    ),
    "rows that know each other": (
        "rows='each'", "x.data - x.data.mean(axis=0)", "x", "d_out.data - d_out.data.mean(axis=0)", "along axis 0",
    ),
    "columns that know each other": (
        "rows='each'", "x.data - x.data.mean(axis=1)[:, None]", "x",
        "d_out.data - d_out.data.mean(axis=1)[:, None]", "rows='each', along axis 1 of x",
    ),
    "a function that is wrong": (
        "rows=lambda specs, axes: 'each' if axes[0] != 1 else None", "x.data[::-1]", "x", "d_out.data[::-1]",
        "rows='each', along axis 0",
    ),
    "a function that returns another word": (
        "rows=lambda specs, axes: 'every'", "x.data * 2", "x", "d_out.data * 2",
        r"'wrong', rows: expected one of \('each', 'sum', 'sequence', 'batch'\), or None, got 'every'",
    ),
    "a function that returns an axis from the end": (
        "rows=lambda specs, axes: ('batch', -1)", "x.data * 2", "x", "d_out.data * 2",
        r"'wrong', rows: expected \('batch', axis\), with an axis of at least 0, got \('batch', -1\)",
    ),
    "a function that fails": (
        "rows=lambda specs: 'each'", "x.data * 2", "x", "d_out.data * 2", "'wrong': .* got TypeError",
    ),
    "no sum": (
        "rows='sum'", "x.data.max(axis=0)", "x._replace(shape=x.shape[1:], lod_level=0)",
        "(x.data == x.data.max(axis=0)) * d_out.data", "rows='sum', along axis 0 of x .*the sum of the results",
    ),
    "sequences that know each other": (
        "rows='sequence'", "x.data - x.data.mean(axis=0)", "x", "d_out.data - d_out.data.mean(axis=0)",
        "rows='sequence', along axis 0 of x of wrong: expected the same bits for",
    ),
    "parts of a batch that know each other": (
        "rows='batch'", "x.data - x.data.mean(axis=0)", "x", "d_out.data - d_out.data.mean(axis=0)",
        "rows='batch', along axis 0 of x of wrong: expected the results of two parts of the batch",
    ),
    "parts of a batch along another axis": (
        "rows=lambda specs, axes: ('batch', 1)", "x.data.T * 2", "x._replace(shape=x.shape[::-1], lod_level=0)",
        "2 * d_out.data.T[::-1]", "a central difference",
    ),
    "nothing that an example tries": (
        "rows='sum'", "x.data * 2", "x", "d_out.data * 2", "'wrong', rows: expected an example on",
    ),
    "no linear operator": (
        "linear=('x',)", "x.data * x.data", "x", "d_out.data * 2 * x.data", r"linear=\('x',\) of wrong",
    ),
    "another number": (
        "scalar=lambda x: x * 2", "x.data * 3", "x", "d_out.data * 3", r"scalar of \[.*\] of wrong: expected",
    ),
    "another function of NumPy": ("ufunc=np.sinh", "x.data * 3", "x", "d_out.data * 3", "ufunc=np.sinh of wrong"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_trait_is_found(name):
    traits, forward, infer, backward, message = WRONG[name]
    source = f"""
        @vr.operator({traits})
        def wrong(x):
            return {forward}

        wrong.infer(lambda x: {infer})

        @wrong.backward("x")
        def backward(x, d_out):
            return {backward}

        wrong.examples(lambda rng: [([{EXAMPLE}], {{}})])
    """
    names = {"vr": vr, "np": np}
    exec(textwrap.dedent(source), names)
    with pytest.raises(vr.ProgramError, match=message):
        vr.check_operator(names["wrong"])


DECLARATIONS = {
    "vr.operator(rows='row')": "operator, rows: expected one of .* got 'row'",
    "vr.operator(linear='x')": "operator, linear: expected a tuple of names",
    "vr.operator(scalar='tanh')": "operator, scalar: expected",
    "vr.operator(ufunc=np.mean)": "operator, ufunc: expected functions of NumPy",
    "vr.operator(ufunc=[np.exp, 1])": "operator, ufunc: expected functions of NumPy",
    "vr.operator(onnx=1)": "operator, onnx: expected the name of an ONNX node, or None, got 1",
    "vr.operator(ufunc=np.tanh)(f)": r"operator 'f', ufunc: expected a function of NumPy that belongs to no operator",
}


@pytest.mark.parametrize("text", DECLARATIONS)
def test_a_trait_that_cannot_be(text):
    def f(x):
        return x

    with pytest.raises(vr.InputError, match=DECLARATIONS[text]):
        eval(text, {"vr": vr, "np": np, "f": f})
    assert "f" not in table.OPERATORS


def leave_node(kind):
    """Forget our own operator of a node of ONNX, if there is one, so that a test may declare another."""
    for op in [op for op in table.OPERATORS.values() if op.onnx == kind]:
        del table.OPERATORS[op.type]


def hard_swish(x):
    return x * np.clip(x / 6 + 0.5, 0, 1)


def declare_hard_swish():
    """Return a user's operator, declared as the page tells."""
    leave_node("HardSwish")

    @vr.operator(rows="each", scalar=lambda x: x * vr.cells.clip(x / 6 + 0.5, 0, 1), onnx="HardSwish")
    def own_hard_swish(x):
        return hard_swish(x.data)

    own_hard_swish.infer(lambda x: x)
    own_hard_swish.backward("x")(_backward_of_hard_swish)
    own_hard_swish.examples(lambda rng: [([rng.standard_normal((5, 3))], {})])
    return own_hard_swish


def _backward_of_hard_swish(x, d_out):
    return d_out.data * np.where(np.abs(x.data) < 3, x.data / 3 + 0.5, x.data >= 3)


def test_an_operator_of_the_users_own_leaves_a_step(monkeypatch):
    own, calls = declare_hard_swish(), Counter()
    vr.check_operator(own)
    x = vr.create_lod_tensor(np.random.default_rng(0).standard_normal((24, 3)), [[20, 4]])
    forward = table.OPERATORS["own_hard_swish"].forward
    monkeypatch.setattr(
        table.OPERATORS["own_hard_swish"], "forward", lambda *given: calls.update(["own"]) or forward(*given)
    )
    y, _ = vr.nn.DynamicRNN(lambda row, h: (own(row), h + row))(x, [(3,)])
    assert calls == {"own": 1}
    np.testing.assert_array_equal(np.asarray(y), hard_swish(x.data))
    y, _ = vr.nn.DynamicRNN(lambda row, h: (h, own(row + h)))(x, [(3,)])
    assert calls == {"own": 21}, "where it reads the state, at every step"


def test_an_operator_of_the_users_own_is_fused(monkeypatch):
    own, found = declare_hard_swish(), []
    u = vr.nn.Parameter(np.linspace(-1, 1, 9).reshape(3, 3))
    for fused in (True, False):
        x = vr.Variable(vr.create_lod_tensor(np.linspace(-2, 2, 18).reshape(6, 3), [[4, 2]]), requires_grad=True)
        layer = vr.nn.DynamicRNN(lambda row, h: (own(row @ u + h @ u),) * 2)
        if not fused:
            monkeypatch.setattr(table.OPERATORS["own_hard_swish"], "scalar", None)
            vr.steps.describe._known.steps.clear()
            vr.steps.lower._known.clear()
        y, _ = layer(x, [(3,)])
        u.grad = None
        y.sum().backward()
        assert layer.explain().startswith("runs fused" if fused else "runs operator by operator: operator ")
        found.append([np.asarray(y), np.asarray(x.grad), np.asarray(u.grad)])
    for mine, other in zip(*found, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-13)


def test_an_operator_declared_again_is_fused_anew():
    u, x, found = np.eye(1), vr.create_lod_tensor(np.ones((2, 1)), [[2]]), []
    for factor in (2.0, 3.0):

        @vr.operator(name="scaled_when_fused", rows="each", scalar=lambda x, factor=factor: x * factor)
        def scaled(x):
            return x.data * factor  # noqa: B023

        scaled.infer(lambda x: x)
        layer = vr.nn.DynamicRNN(lambda row, h, own=scaled: (F.tanh(row @ u + own(h @ u)),) * 2)
        found.append(np.asarray(layer(x, [(1,)])[0])[1, 0])
        assert layer.explain().startswith("runs fused")
    first = np.tanh(1.0)
    np.testing.assert_allclose(found, np.tanh([1 + 2 * first, 1 + 3 * first]), rtol=1e-12)


def test_an_operator_of_the_users_own_is_a_node_of_onnx_in_both_directions(tmp_path):
    own, gru = declare_hard_swish(), vr.nn.GRU(3, 4)
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 3], "float32", lod_level=1)
        out = own(gru(x)[1])
        out.name = "out"
    vo.export(program, tmp_path / "a.onnx", [out])
    assert "HardSwish" in [node.op_type for node in onnx.load(tmp_path / "a.onnx").graph.node]
    again = vr.onnx.load(tmp_path / "a.onnx")
    assert "own_hard_swish" in [op.type for op in again.desc.blocks[0].ops]
    rows = vr.create_lod_tensor(np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32), [[2, 3]])
    wanted, found = (vr.Executor().run(one, {"x": rows}, ["out"])[0] for one in (program, again))
    np.testing.assert_allclose(found.data, wanted.data, rtol=1e-6)


def test_constants_are_attributes_of_a_node(tmp_path):
    leave_node("ThresholdedRelu")

    @vr.operator(rows="each", onnx="ThresholdedRelu")
    def thresholded(x, alpha: float = 0.25):
        return np.where(x.data > x.dtype.type(alpha), x.data, x.dtype.type(0))

    thresholded.infer(lambda x, alpha: x)
    gru = vr.nn.GRU(3, 4)
    with vr.program_guard() as program:
        out = thresholded(gru(vr.feed_data("x", [-1, 3], "float32", lod_level=1))[1], alpha=0.5)
        out.name = "out"
    vo.export(program, tmp_path / "a.onnx", [out])
    model = onnx.load(tmp_path / "a.onnx")
    (node,) = [node for node in model.graph.node if node.op_type == "ThresholdedRelu"]
    assert node.attribute[0].f == 0.5
    alphas = []
    for _ in range(2):  # without the attribute, it is the one of ONNX
        loaded = vr.onnx.load(tmp_path / "a.onnx")
        alphas += [attrs["alpha"] for attrs in _constants(loaded, "thresholded")]
        del node.attribute[:]
        onnx.save(model, tmp_path / "a.onnx")
    assert alphas == [0.5, 1.0]


def _constants(program, name):
    described = [op for op in program.desc.blocks[0].ops if op.type == name]
    return [decode(table.find(name), op.attrs, None) for op in described]


def test_a_node_that_mixes_rows_of_sequences_is_refused(tmp_path):
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1], "float32", lod_level=1)
        out = F.log_softmax(x)
    with pytest.raises(vr.ProgramError, match="log_softmax over the rows of sequences"):
        vo.export(program, tmp_path / "a.onnx", [out])


def test_a_function_of_numpy_is_the_operator_that_says_so():
    @vr.operator(rows="each", ufunc=np.sinh)
    def hyperbolic_sine(x):
        return np.sinh(x.data)

    hyperbolic_sine.infer(lambda x: x)
    hyperbolic_sine.backward("x")(_backward_of_sinh)
    x = vr.Variable([0.5, 1.0], requires_grad=True)
    np.sinh(x).sum().backward()
    np.testing.assert_allclose(x.grad, np.cosh([0.5, 1.0]))


def _backward_of_sinh(x, d_out):
    return d_out.data * np.cosh(x.data)


# What is followed, beside examples in numbers of the module itself.

SPECS = {shape: vr.TensorSpec(shape, np.dtype(np.float64)) for shape in ((-1, 3), (3, 2), (-1, 1, 3), (2, 3), (5, 3))}
ROWS, WEIGHT = with_rows(SPECS[-1, 3]), without_rows(SPECS[3, 2])
FOLLOWED = {
    "matmul": ([ROWS, WEIGHT, without_rows(None)], {"transposed": False}, "each", 0),
    "matmul of another step's rows": (
        [without_rows(SPECS[2, 3]), ROWS, without_rows(None)],
        {"transposed": True},
        None,
        1,
    ),
    "row_product": ([ROWS, ROWS], {}, "sum", None),
    "transpose": ([ROWS], {"axis0": 0, "axis1": 1}, "each", 1),
    "reduce_sum of rows": ([ROWS], {"axis": 0, "keepdims": False}, None, None),
    "reduce_sum": ([with_rows(SPECS[2, 3], 1)], {"axis": 0, "keepdims": False}, "each", 0),
    "reshape": ([ROWS], {"shape": (-1, 1, 3)}, "each", 0),
    "reshape to the front": ([with_rows(SPECS[2, 3], 1)], {"shape": (-1, 2)}, None, 0),
    "getitem of columns": ([ROWS], {"index": (Ellipsis, slice(0, 2))}, "each", 0),
    "getitem backwards": ([ROWS], {"index": (slice(None, None, -1),)}, None, 0),
    "add": ([ROWS, without_rows(SPECS[2, 3]._replace(shape=(1, 3)))], {}, "each", 0),
    "add of two": ([without_rows(SPECS[2, 3])] * 2, {}, "same", None),
    "concat of rows": ([ROWS, ROWS], {"axis": 0}, None, "unknown"),
    "add of another number of rows": ([ROWS, without_rows(SPECS[5, 3])], {}, None, "unknown"),
    "dropout": ([ROWS], {"p": 0.5, "training": True}, None, 0),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_along_which_axis_rows_run(name):
    given, attrs, trait, axis = FOLLOWED[name]
    found, outputs = follow(table.find(name.split(" of ")[0].split(" to ")[0].split(" ")[0]), attrs, given)
    assert found == trait
    assert ("unknown" if outputs is None else outputs[0].axis) == axis


# What is still a list.


def test_what_is_listed_exists():
    load, sequences = (importlib.import_module(f"varlen_rnn.onnx.{name}") for name in ("load", "sequences"))
    kinds = {schema.name for schema in onnx.defs.get_all_schemas()}
    assert set(operators.SAID) <= set(table.OPERATORS)
    assert set(nodes.READS) | {kind for kind, _ in one_to_one.NODES.values()} <= kinds
    assert all(set(names) <= set(table.find(op).attrs) for op, (_, names) in one_to_one.NODES.items())
    assert {op.onnx for op in table.OPERATORS.values() if op.onnx} <= kinds
    for listed in (sequences._ALONG, load._RANDOM, recurrent.LAYERS, shapes.ALIKE, shapes._MOVES, shapes._OTHERS):
        assert set(listed) <= kinds
    assert set(_Lowering.MOVES) <= set(table.OPERATORS)
    of_one_node = {op.type for op in table.OPERATORS.values() if op.onnx}
    assert not set(operators.SAID) & (of_one_node | set(one_to_one.NODES)), "said twice"
    assert not of_one_node & set(one_to_one.NODES), "said twice"
    assert not set(_Lowering.MOVES) & {op.type for op in table.OPERATORS.values() if op.scalar}, "said twice"


def test_operations_of_equations_exist():
    assert set(OPERATIONS) >= COMPARISONS
    assert set(OPERATIONS) == set(NUM_OPERANDS)
    numbers = 0.75, 0.5, 0.25
    names = {name: getattr(vr.cells, name) for name in vr.cells.__all__}
    for name, operation in OPERATIONS.items():
        operands = numbers[: NUM_OPERANDS[name]]
        source = operation.source.format(*operands)
        np.testing.assert_allclose(eval(source, names), operation.on_arrays(*operands), rtol=1e-12)


def test_the_scalars_of_operators_are_operations_of_equations():
    declared = [op for op in table.OPERATORS.values() if op.scalar]
    assert len(declared) > 15
    for op in declared:
        trace, attrs = Trace(), dict.fromkeys(op.attrs, 3.0)
        numbers = [trace.node("prev", what=number) for number in range(len(op.inputs))]
        result = trace.number_of(op.scalar(*numbers, **attrs))
        assert {trace.nodes[k].op for k in trace.reach([result])} <= {*OPERATIONS, "prev", "number"}


def test_operators_of_ours_with_a_trait_of_rows_return_tensors():
    """Where a step runs them at every step, nobody checks them."""
    for op in table.OPERATORS.values():
        if op.rows in (None, "batch") or not op.examples or "block" in op.attrs.values():
            continue
        for values, attrs in op.examples(np.random.default_rng(0)):
            given = [
                v if v is None or isinstance(v, (vr.LoDTensor, vr.SelectedRows)) else vr.LoDTensor(v) for v in values
            ]
            found = op.forward(*given, **attrs)
            found = found if isinstance(found, (tuple, list)) else [found]
            assert all(isinstance(one, (vr.LoDTensor, vr.SelectedRows, vr.SortedSeqs)) for one in found), op.type


def test_an_operator_without_a_trait_stays_in_its_step():
    @vr.operator(name="untold")
    def untold(x):
        return x.data * 2.0

    untold.infer(lambda x: x)
    assert follow(table.find("untold"), {}, [ROWS]) == (None, None)
    y, _ = vr.nn.DynamicRNN(lambda row, h: (untold(row), h))(vr.create_lod_tensor(np.ones((2, 3)), [[2]]), [(3,)])
    assert np.asarray(y).tolist() == [[2.0] * 3] * 2
    assert apply("untold", vr.Variable([1.0])).value.data.tolist() == [2.0]
