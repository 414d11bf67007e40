"""No description that passes the checks makes a kernel read where it must not, or touches what is not its own."""

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.program.desc import Attr, Var, of_var, to_var
from varlen_rnn.program.prune import edge
from varlen_rnn.tape.operator import find
from varlen_rnn.tape.spec import TensorSpec, describe
from varlen_rnn.tape.variable import apply


def program_of(feeds, ops, persistables=None):
    """Return a program of operators written by hand: `(type, inputs, outputs, attrs)`, by names; sizes are inferred."""
    values = {name: vr.LoDTensor(value) for name, value in (persistables or {}).items()}
    variables = {name: to_var(name, describe(v), True) for name, v in values.items()}
    variables |= {name: to_var(name, spec) for name, spec in feeds.items()}
    described = [edge("feed", "feed", name, column) for column, name in enumerate(feeds)]
    for op_type, inputs, outputs, attrs in ops:
        kind = find(op_type)
        specs = [of_var(variables[name]) if name else None for name in inputs]
        for name, spec in zip(outputs, kind.specs(specs, attrs), strict=True):
            variables.setdefault(name, to_var(name, spec))
        places = [tuple(Var(*pair) for pair in pairs) for pairs in kind.by_place(inputs, outputs, attrs)]
        attrs = tuple(Attr(name, value) for name, value in attrs.items())
        described.append(vr.OpDesc(op_type, *places, attrs))
    lists = [vr.VarDesc("feed", vr.VarType(vr.VarType.FEED_MINIBATCH))] if feeds else []
    return vr.Program(vr.ProgramDesc((vr.BlockDesc(0, -1, (*lists, *variables.values()), tuple(described)),)), values)


def spec_of(shape, dtype="float64", lod_level=0):
    return TensorSpec(shape, np.dtype(dtype), lod_level)


def test_a_product_of_one_dimension_has_no_rows_that_a_lod_could_cut():
    x = vr.create_lod_tensor(np.arange(3.0), [[1, 2]])
    y = vr.Variable(x) @ np.ones((3, 1))
    assert y.lod() == []
    program = program_of(
        {"x": spec_of((-1,), lod_level=1), "w": spec_of((-1, 1))},
        [("matmul", ["x", "w", ""], ["y"], {"transposed": False})],
    )
    assert of_var(program.desc.blocks[0].var("y")).lod_level == 0
    assert vr.Executor().run(program, {"x": x, "w": np.ones((3, 1))}, ["y"])[0] == 3.0


def test_the_gradient_of_take_rows_has_the_rows_and_features_that_were_taken():
    with pytest.raises(vr.ShapeError, match="take_rows_grad, d_out"):
        apply("take_rows_grad", np.ones((3, 2)), np.array([0, 1]), np.ones((2, 5)))
    with pytest.raises(vr.ShapeError, match="take_rows_grad, d_out"):
        apply("take_rows_grad", np.ones((3, 2)), np.array([0, 1]), np.ones((1, 2)))


@pytest.mark.parametrize("op", ["segment_inputs", "init_memories"])
def test_rows_that_the_kernels_of_movement_do_not_know(op):
    plan = vr.sort_by_seq_len([0, 1, 3])
    rows = np.ones((3 if op == "segment_inputs" else 2, 2), np.float16)
    with pytest.raises(vr.DTypeError, match="any data type except float16, got float16"):
        apply(op, rows, plan, **({"t": 0} if op == "segment_inputs" else {}))
    with pytest.raises(vr.DTypeError, match="step 0"):
        vr.concat_outputs([rows[:2], rows[:1]], plan)


@pytest.mark.parametrize("op", ["reshape", "getitem", "segment_inputs"])
def test_a_selected_rows_is_no_tensor(op):
    attrs = {"reshape": {"shape": (2, 2)}, "getitem": {"index": 0}, "segment_inputs": {"t": 0}}[op]
    rows = vr.SelectedRows([0], [[1.0, 2.0]], height=2)
    plan = [vr.sort_by_seq_len([0, 2])] if op == "segment_inputs" else []
    with pytest.raises(vr.DTypeError, match=f"{op}, x: expected a LOD_TENSOR, got SELECTED_ROWS"):
        apply(op, rows, *plan, **attrs)


@pytest.mark.parametrize("op", ["tanh_grad", "pow_grad"])
@pytest.mark.parametrize("value", [vr.SelectedRows([0], [[1.0]], height=1), np.ones((1, 1), int)], ids=["rows", "int"])
def test_the_gradient_of_an_activation_is_of_floating_rows(op, value):
    attrs = {"exponent": 2.0} if op == "pow_grad" else {}
    with pytest.raises(vr.DTypeError, match=f"{op}, x"):
        apply(op, value, np.ones((1, 1)), np.ones((1, 1)), **attrs)


def test_a_softmax_is_over_at_least_one_class():
    for rows in (np.ones((2, 0)), np.ones(())):
        with pytest.raises(vr.ShapeError, match="at least one class"):
            vr.nn.functional.log_softmax(rows)
    with pytest.raises(vr.ShapeError, match="at least one class"):
        vr.nn.functional.cross_entropy(np.ones((0, 0)), np.zeros(0, int))


def test_labels_of_a_gradient_are_classes():
    with pytest.raises(vr.OutOfRangeError, match="entry 0"):
        apply("cross_entropy_grad", np.array([-1]), np.zeros((1, 2)), np.ones(1))


def a_layer(dtype=np.float64):
    """Return a layer's forward inputs and outputs, hidden size 2, and the attrs of its gradient."""
    rng = np.random.default_rng(0)
    x = vr.create_lod_tensor(rng.standard_normal((5, 3)).astype(dtype), [[2, 0, 3]])
    weights = [rng.standard_normal(shape).astype(dtype) for shape in ((2, 3), (2, 2), (2,), (2,))]
    outputs = [v.value for v in apply("recurrent", x, None, *weights, cell="rnn_tanh", keep=True)]
    attrs = {"cell": "rnn_tanh", "num_forward": 6, "need_x": True, "need_weights": True, "all_states": False}
    return [x, None, *weights], outputs, attrs


def gradient(inputs, outputs, attrs, d_y, d_h=None):
    y, _, plan, kept = outputs
    return [v.value for v in apply("recurrent_grad", *inputs, y, plan, kept, d_y, d_h, **attrs)]


def strided(value):
    """Return the same rows, one column of a wider array each."""
    wide = np.zeros((*value.data.shape, 7), value.data.dtype)
    wide[..., 0] = value.data
    return vr.LoDTensor(wide[..., 0], value.structure)


@pytest.mark.parametrize("shape", [(5, 1), (4, 2)])
def test_what_was_kept_is_of_the_rows(shape):
    inputs, outputs, attrs = a_layer()
    outputs[-1] = vr.LoDTensor(np.zeros(shape))
    with pytest.raises(vr.ShapeError, match="recurrent_grad"):
        gradient(inputs, outputs, attrs, vr.LoDTensor(np.ones((5, 2))))


def test_a_gradient_reads_views_as_what_they_are():
    inputs, outputs, attrs = a_layer()
    d_y = vr.LoDTensor(np.ones((5, 2)))
    wanted = gradient(inputs, outputs, attrs, d_y)
    inputs, outputs, attrs = a_layer()
    viewed = [outputs[0], *outputs[1:]]
    viewed[0] = strided(outputs[0])
    got = gradient([inputs[0], None, *map(strided, map(vr.LoDTensor, inputs[2:]))], viewed, attrs, strided(d_y))
    for value, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(value.data, other.data)
    for view in (strided, lambda kept: vr.LoDTensor(np.broadcast_to(np.float64(1), kept.shape))):
        inputs, outputs, attrs = a_layer()
        outputs[3] = view(outputs[3])
        with pytest.raises(vr.ProgramError, match="a contiguous array that can be overwritten"):
            gradient(inputs, outputs, attrs, d_y)


def test_a_gradient_of_last_states_has_a_row_a_sequence():
    inputs, outputs, attrs = a_layer()
    with pytest.raises(vr.ShapeError, match="d_h_n"):
        gradient(inputs, outputs, attrs, None, np.ones((1, 1, 2)))


@pytest.mark.parametrize("number", [-1, 0, 11, 2**62])
def test_where_the_inputs_of_a_layer_end(number):
    inputs, outputs, attrs = a_layer()
    with pytest.raises(vr.InputError):
        gradient(inputs, outputs, attrs | {"num_forward": number}, np.ones((5, 2)))


def test_a_program_overwrites_no_memory_but_its_own():
    inputs, outputs, attrs = a_layer()
    y, _, plan, kept = outputs
    given = {"x": inputs[0], "y": y, "plan": plan, "kept": kept}
    given |= dict(zip(("w", "u", "b", "c"), map(vr.LoDTensor, inputs[2:]), strict=True))
    feeds = {name: describe(value) for name, value in given.items()}
    names = ["x", "", "w", "u", "b", "c", "y", "plan", "own", "y", ""]
    outs = ["d_x", "d_h", "d_w", "d_u", "d_b", "d_c"]
    again = [f"{name}_again" for name in outs]
    ops = [
        ("assign", ["kept"], ["own"], {}),
        ("recurrent_grad", names, outs, attrs),
        ("recurrent_grad", names, again, attrs),
    ]
    program = program_of(feeds, ops)
    before = kept.data.copy()
    first, second = vr.Executor().run(program, given, ["d_w", "d_w_again"])
    np.testing.assert_array_equal(kept.data, before)
    np.testing.assert_array_equal(first, second)


def test_a_parameter_is_not_its_own_state():
    values = {"w": np.ones(2), "lr": np.array(0.1)}
    attrs = {"momentum": 0.9, "nesterov": False, "weight_decay": 0.0}
    with pytest.raises(vr.ProgramError, match="to be updated in place"):
        program_of({"g": spec_of((2,))}, [("momentum", ["w", "g", "lr", "w"], ["w", "w"], attrs)], values)
    with pytest.raises(vr.ProgramError, match="to be updated in place"):
        program_of({}, [("sgd", ["w", "w", "lr"], ["w"], {"weight_decay": 0.0})], values)


@pytest.mark.parametrize("op", ["sum", "concat", "split_like"])
def test_operators_of_any_number_of_inputs_need_one(op):
    inputs = ["x"] if op == "split_like" else []
    attrs = {} if op == "sum" else {"axis": 0}
    places = [tuple(Var(*pair) for pair in pairs) for pairs in find(op).by_place(inputs, ["y"], attrs)]
    ops = (edge("feed", "feed", "x", 0), vr.OpDesc(op, *places, tuple(Attr(*pair) for pair in attrs.items())))
    variables = (vr.VarDesc("feed", vr.VarType(vr.VarType.FEED_MINIBATCH)), *(to_var(n, spec_of((2,))) for n in "xy"))
    with pytest.raises(vr.ProgramError, match=f"operator 1 \\({op}\\)"):
        vr.Program(vr.ProgramDesc((vr.BlockDesc(0, -1, variables, ops),)))


def test_the_list_of_feeds_is_no_value():
    program = program_of({"x": spec_of((2,))}, [("neg", ["x"], ["y"], {})])
    with pytest.raises(vr.ProgramError, match="fetch_list, entry 0"):
        vr.Executor().run(program, {"x": np.ones(2)}, ["feed"])
