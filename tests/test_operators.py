"""Every operator on its own examples; compositions against a central difference; the LoD rules; the tape's rules."""

import gc
import sys
import weakref

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.nn import functional as F
from varlen_rnn.program.checker import compute_trial, describe_trial, examples_of
from varlen_rnn.tape import modes
from varlen_rnn.tape.operator import OPERATORS as DECLARED
from varlen_rnn.tape.operator import find
from varlen_rnn.tape.run import run
from varlen_rnn.tape.variable import apply, as_variable

OPERATORS = dict(DECLARED)  # ours: other tests and doctests declare some of their own

BLOCKS = {"dynamic_rnn", "while_loop"}  # operators that run a nested block

RNG = np.random.default_rng(0)
LENGTHS = [2, 0, 3, 1]
PLAN = vr.sort_by_seq_len(vr.LoD.from_lengths([LENGTHS]))


def rows(*element, positive=False):
    data = RNG.standard_normal((6, *element))
    return vr.create_lod_tensor(np.abs(data) + 0.5 if positive else data, [LENGTHS])


def dense(*shape):
    return RNG.standard_normal(shape)


def elman(x, h, w):
    """Outputs and last states of a cell of ordinary operators; `w` is read from outside of the step."""

    def cell(x_t, state):
        state = F.tanh(x_t + (state @ w)[:, 1:] * 0.5).reshape(-1, 2) * (state[:, :2] - 1.5)
        return state[:, 0] * x_t[:, 1], F.softmax(vr.nn.functional.concat([state, x_t[:, :1]]))

    return vr.nn.DynamicRNN(cell)(x, [h])


def gated(x, h):
    """A cell that returns its arguments, of which one has no gradient, and a recurrence inside of its step."""
    total = vr.nn.DynamicRNN(lambda x_t, s: (s, s * x_t))(x, [h])[1]

    def cell(x_t, y_t, state, other):
        return state, x_t * total.sum(), y_t

    y, first, second = vr.nn.DynamicRNN(cell)((x, x * 2.0), [h, h])
    return y.sum() + (first * second).sum()


def nested(x, h):
    """A recurrence inside the step of another: over the same sequences, from a state that the outer one carries."""

    def cell(x_t, state):
        inner = vr.nn.DynamicRNN(lambda row, s: (row, F.tanh(s * row)))(x, [h])[1]
        return x_t * inner.sum(), state + x_t

    y, last = vr.nn.DynamicRNN(cell)(x, [h])
    return y.sum() + last.sum()


# name: (function of Variables, their values); every floating value gets a gradient.  What operators themselves compute,
# their own examples try.
CASES = {
    "sub reflected": (lambda x: 2.0 - x, [rows(3)]),
    "div reflected": (lambda x: 2.0 / x, [rows(3, positive=True)]),
    "matmul": (lambda x, w: x @ w, [rows(3), dense(3, 2)]),
    "getitem of an array": (lambda x: x[1:4].mean(axis=0), [dense(5, 3)]),
    "softmax": (F.softmax, [rows(3)]),
    "concat": (lambda x, y: F.concat([x, y], axis=0), [dense(2, 3), dense(1, 3)]),
    "cross_entropy": (lambda x: F.cross_entropy(x, np.array([0, 2, 1, 1, 0, 2])), [rows(3)]),
    "cross_entropy per sequence": (lambda x: F.cross_entropy(x, np.zeros(6, int), per="sequence"), [rows(3)]),
    "binary_cross_entropy": (F.binary_cross_entropy_with_logits, [rows(3), np.abs(dense(6, 3)) % 1]),
    "squared_error": (lambda x, y: F.mse_loss(x, y), [rows(3), dense(6, 3)]),
    "dynamic_rnn": (lambda *given: elman(*given)[0], [rows(2), dense(4, 3), dense(3, 3)]),
    "dynamic_rnn state": (lambda *given: elman(*given)[1], [rows(2), dense(4, 3), dense(3, 3)]),
    "dynamic_rnn zeros": (lambda x: vr.nn.DynamicRNN(lambda x_t, h: (h, h + x_t))(x, [(2,)])[0], [rows(2)]),
    "dynamic_rnn arguments": (gated, [rows(2), dense(4, 2)]),
    "dynamic_rnn nested": (nested, [rows(2), dense(4, 2)]),
}


def test_every_operator_with_a_gradient_has_examples():
    assert [name for name, op in OPERATORS.items() if op.grad and not examples_of(op)] == []


@pytest.mark.parametrize("name", [name for name, op in OPERATORS.items() if op.inference and op.examples])
def test_a_program_can_be_cut_to_inference(name):
    for trial in examples_of(find(name)):
        program, feed, _ = describe_trial(trial, compute_trial(trial)[2], unknown_rows=True)
        out = next(op for op in program.desc.blocks[0].ops if op.type == name).output_names()[0]
        cut = vr.Program.from_bytes(program.prune([out]).to_bytes())
        assert len(vr.Executor().run(cut, {key: feed[key] for key in cut.feed_names}, [out])) == 1


@pytest.mark.parametrize("name", [name for name, op in OPERATORS.items() if op.examples])
def test_an_operator_keeps_its_promises(name):
    vr.check_operator(OPERATORS[name])


def memories(values):
    return [value.data for value in values if isinstance(getattr(value, "data", None), np.ndarray)]


def test_operators_that_return_the_memory_of_an_input_say_so():
    found = set()
    for name, op in OPERATORS.items():
        for inputs, attrs in op.examples(np.random.default_rng(0)) if op.examples and name not in BLOCKS else ():
            values = [x if x is None else as_variable(x).value for x in inputs]
            results = memories(run(op, values, attrs))
            if any(np.shares_memory(x, y) for x in memories(values) for y in results):
                found.add(name)
    declared = {name for name, op in OPERATORS.items() if op.shares and op.examples}
    assert found - {name for name, op in OPERATORS.items() if op.in_place} == declared - BLOCKS


def moved(value, direction, step):
    data = np.asarray(value) + step * direction
    return vr.LoDTensor(data, value.structure) if isinstance(value, vr.LoDTensor) else data


@pytest.mark.parametrize("name", CASES)
def test_gradient(name):
    function, values = CASES[name]
    variables = [vr.Variable(value, requires_grad=True) for value in values]
    kept = [np.array(value) for value in values]
    out = function(*variables)
    weight = np.random.default_rng(1).standard_normal(out.shape)
    (out * weight).sum().backward()
    for value, copy in zip(values, kept, strict=True):
        assert np.array_equal(value, copy), "an input was changed"
    step = 1e-6
    for position, variable in enumerate(variables):
        direction = np.random.default_rng(2).standard_normal(variable.shape)
        ends = []
        for sign in (1, -1):
            inputs = [vr.Variable(value) for value in values]
            inputs[position] = vr.Variable(moved(values[position], direction, sign * step))
            ends.append(float((np.asarray(function(*inputs)) * weight).sum()))
        numeric, ours = (ends[0] - ends[1]) / (2 * step), float((np.asarray(variable.grad) * direction).sum())
        assert abs(numeric - ours) <= 1e-7 * max(1, abs(numeric)), f"input {position}: {ours}, numerically {numeric}"
        if isinstance(values[position], vr.LoDTensor):
            assert variable.grad.structure == values[position].structure
        else:
            assert isinstance(variable.grad, np.ndarray), "a LoD that the input has not"


def test_two_lods_are_an_error_that_names_both():
    x, y = vr.Variable(rows(3)), vr.create_lod_tensor(np.zeros((6, 3)), [[3, 3]])
    with pytest.raises(vr.LoDError, match=r"x has lengths \[\[2, 0, 3, 1\]\], got another in y: lengths \[\[3, 3\]\]"):
        x + y
    with pytest.raises(vr.LoDError):
        F.concat([x, vr.Variable(y)])


DTYPES = [np.float32, np.float64, np.float16, np.int64, np.int32, np.uint8]
FORMS = {
    "array": lambda dtype: np.ones(3, dtype),
    "array of rank 0": lambda dtype: np.ones((), dtype),
    "LoDTensor": lambda dtype: vr.LoDTensor(np.ones(3, dtype)),
    "Variable": lambda dtype: vr.Variable(np.ones(3, dtype)),
}
SIDES = {
    "add": (lambda x, y: x + y, lambda x, y: y + x),
    "sub": (lambda x, y: x - y, lambda x, y: y - x),
    "mul": (lambda x, y: x * y, lambda x, y: y * x),
    "div": (lambda x, y: x / y, lambda x, y: y / x),
}


@pytest.mark.parametrize("op", SIDES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_data_types_are_never_mixed(dtype, form, op):
    x = vr.Variable(np.ones(3, dtype))
    for side in SIDES[op]:
        for other in DTYPES:
            value = FORMS[form](other)
            if other == dtype:
                assert side(x, value).dtype == dtype
            else:
                with pytest.raises(vr.DTypeError, match=f"^{op}, [xy]: expected (float|u?int)"):
                    side(x, value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("number", [2, -0.5, True, 10**15, np.array([True, False, True])])
def test_python_numbers_and_masks_take_the_data_type_of_the_variable(number, dtype):
    x = vr.Variable(np.ones(3, dtype))
    for result in (x + number, number - x, x * number, number / x):
        assert result.dtype == dtype
    assert np.array_equal(x * number, np.ones(3) * np.asarray(number, dtype))
    with vr.program_guard() as program:
        y = vr.feed_data("x", [3], np.dtype(dtype).name) * number
    (fetched,) = vr.Executor().run(program, {"x": np.ones(3, dtype)}, [y])
    assert fetched.dtype == dtype
    assert np.array_equal(fetched, x * number)


def test_a_number_that_no_float_holds_is_an_error():
    with pytest.raises(vr.DTypeError, match="number: expected a number that float32 can hold, got 1000"):
        vr.Variable(np.ones(3, np.float32)) * 10**400


@pytest.mark.parametrize(
    ("function", "levels"),
    [
        (lambda x: x * 2, 1),
        (F.tanh, 1),
        (lambda x: x.sum(axis=1), 1),
        (lambda x: x.sum(axis=0), 0),
        (lambda x: x[:, 1:], 1),
        (lambda x: x[:], 1),
        (lambda x: x[1:3], 0),
        (lambda x: F.concat([x, x]), 1),
        (lambda x: F.concat([x, x], axis=0), 0),
        (lambda x: x.reshape(-1, 3, 1), 1),
        (lambda x: x.reshape(-1), 0),
        (lambda x: vr.sequence_pool(x, "sum"), 0),
    ],
)
def test_which_operators_keep_the_lod(function, levels):
    assert function(vr.Variable(rows(3))).value.num_levels == levels


def test_gradients_add_up_over_calls_and_uses():
    x = vr.Variable([1.0, 2.0], requires_grad=True)
    (x * x + x).sum().backward()
    assert x.grad.tolist() == [3, 5]
    (x * 2.0).sum().backward()
    assert x.grad.tolist() == [5, 7]
    y = x * 3.0
    x.grad = None
    (y * y).sum().backward()
    assert x.grad.tolist() == [18, 36]


def test_a_gradient_without_change_of_shape_or_lod_is_handed_on_as_it_is():
    x, d = vr.Variable(rows(3)), vr.Variable(rows(3))
    d_x, d_again = find("add").grad([x, x], None, [d])
    assert d_x is d_again is d
    _, relabelled = find("add").grad([x, vr.Variable(dense(6, 3))], None, [d])
    assert relabelled.value.num_levels == 0
    assert np.shares_memory(relabelled.value.data, d.value.data), "a LoD is taken off without a copy"


def test_sparse_gradients_pass_through_a_sum_of_tables():
    p, q = (vr.nn.Parameter(np.ones((5, 2))) for _ in range(2))
    apply("embedding", np.array([1, 1]), p + q, padding_idx=None, sparse=True).sum().backward()
    for table in (p, q):
        assert isinstance(table.grad, vr.SelectedRows)
        assert table.grad.rows.tolist() == [1, 1]


def test_powers_at_the_edges():
    for exponent, expected in [
        (0, [0, 0]),
        (1, [1, 1]),
        (2, [0, 4]),
        (-1, [-np.inf, -0.25]),
        (0.5, [np.inf, 0.125**0.5]),
    ]:
        x = vr.Variable([0.0, 2.0], requires_grad=True)
        (x**exponent).sum().backward()
        np.testing.assert_allclose(x.grad, expected, rtol=1e-12, err_msg=f"exponent {exponent}")
    x = vr.Variable(np.ones(2, np.float32), requires_grad=True)
    y = x ** np.float64(1.5)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == np.float32


HANDED_ON = {
    "add": lambda x, y: (x + y).sum(),
    "add in rows": lambda x, y: (x + y) * np.ones((2, 2)),
    "chain": lambda x, y: (x + 1.0) + (y - 1.0),
    "reshape": lambda x, y: (x.reshape(4) + y.reshape(4)).sum(),
    "concat": lambda x, y: F.concat([x, y], axis=0).sum(),
    "take_rows": lambda x, y: apply("take_rows", x, np.arange(2)) + apply("take_rows", y, np.arange(2)),
    "mean of one": lambda x, y: (x * y).sum(axis=0, keepdims=True).mean(axis=0),
    "alone": lambda x, y: x,
    "nothing done": lambda x, y: x + y,
}


@pytest.mark.parametrize("name", HANDED_ON)
def test_no_two_gradients_share_memory(name):
    """So that `p.grad *= 0.5` changes one gradient."""
    x, y = (vr.Variable(dense(2, 2), requires_grad=True) for _ in range(2))
    out = HANDED_ON[name](x, y)
    given = np.ones(out.shape)
    given.flags.writeable = False
    out.backward(given)
    gradients = [given, *(v.grad for v in (x, y) if v.grad is not None)]
    assert not any(np.may_share_memory(a, b) for i, a in enumerate(gradients) for b in gradients[:i])
    assert all(gradient.flags.writeable for gradient in gradients[1:])


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_the_gradient_of_a_reduction_of_one_number_can_be_written(reduce, axis):
    x = vr.Variable([3.0], requires_grad=True)
    getattr(x, reduce)(axis=axis).backward()
    x.grad *= 2
    assert x.grad.tolist() == [2]


def test_gradients_of_weights_are_not_copied(monkeypatch):
    copied, copy = [], vr.LoDTensor.copy
    monkeypatch.setattr(vr.LoDTensor, "copy", lambda self: copied.append(self.shape) or copy(self))
    monkeypatch.setattr(vr.SelectedRows, "copy", lambda self: copied.append("sparse"))
    embedding, linear = vr.nn.Embedding(9, 3), vr.nn.Linear(8, 2)
    layer = vr.nn.LSTM(3, 4, num_layers=2, bidirectional=True)
    y, _ = layer(embedding(vr.create_lod_tensor(np.arange(6), [LENGTHS])))
    F.cross_entropy(linear(vr.sequence_pool(y, "mean")), np.array([0, 1, 0, 1])).backward()
    # The two biases of a direction have one gradient.
    assert copied == [(16,)] * 4
    arrays = [p.grad for p in (*layer.parameters(), *linear.parameters())] + [embedding.weight.grad.value]
    assert not any(np.may_share_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


def test_a_second_pass_is_an_error():
    x = vr.Variable([1.0], requires_grad=True)
    y = (x * x).sum()
    y.backward()
    with pytest.raises(vr.ProgramError, match="second"):
        y.backward()


def test_an_update_between_the_passes_is_an_error():
    p = vr.nn.Parameter([1.0])
    loss = (p * p).sum()
    loss2 = (p * p).sum()
    loss.backward()
    vr.optim.SGD([p], lr=0.1).step()
    with pytest.raises(vr.ProgramError, match="updated since"):
        loss2.backward()


def test_backward_wants_a_number_and_something_to_differentiate():
    x = vr.Variable([1.0, 2.0], requires_grad=True)
    with pytest.raises(vr.ShapeError):
        (x * x).backward()
    (x * x).backward(np.array([1.0, 10.0]))
    assert x.grad.tolist() == [2, 40]
    (x * x).backward(np.array([True, False]))
    assert x.grad.tolist() == [4, 40]
    with vr.no_grad():
        y = (x * x).sum()
        assert not vr.grad_enabled()
    assert vr.grad_enabled()
    with pytest.raises(vr.ProgramError):
        y.backward()
    assert not vr.no_grad()(lambda: (x * x).sum())().requires_grad
    with pytest.raises(ZeroDivisionError), vr.no_grad():
        raise ZeroDivisionError
    assert vr.grad_enabled()


@pytest.mark.parametrize("mode", [vr.no_grad, modes.evaluating])
def test_a_mode_whose_end_was_interrupted_is_not_set_again_later(mode):
    def interrupt(frame, event, argument):
        if frame.f_code.co_name == "__exit__":
            sys.settrace(None)
            raise KeyboardInterrupt

    before = sys.gettrace()
    try:
        with mode():
            sys.settrace(interrupt)
            with mode():
                pass
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    assert vr.grad_enabled()
    assert vr.nn.Module().training


def test_records_are_freed_with_their_variables():
    gc.disable()
    try:
        x = vr.Variable(np.zeros(3), requires_grad=True)
        y = F.tanh(x * 2.0)
        array = y.record.inputs[0].value.data
        seen = weakref.ref(array)
        del y, array
        assert seen() is None
    finally:
        gc.enable()


def test_a_table_used_twice_sums_sparse_and_dense():
    table = vr.nn.Embedding(5, 2, dtype=np.float64)
    y = table(np.array([1, 3, 1]))
    only_sparse = (y * 2.0).sum()
    only_sparse.backward()
    assert isinstance(table.weight.grad, vr.SelectedRows)
    table.weight.grad = None
    (table(np.array([1, 3, 1])).sum() + (np.ones((1, 2)) @ np.ones((2, 2))).sum() * table.weight.sum()).backward()
    expected = np.full((5, 2), 4.0)
    expected[[1, 3]] += [[2.0], [1.0]]
    assert np.array_equal(np.asarray(table.weight.grad), expected)


@pytest.mark.parametrize("lengths", [[2, 0, 3, 1], [1, 1], [4]])
def test_steps_written_by_hand_equal_the_layer(lengths):
    vr.manual_seed(0)
    layer = vr.nn.RNN(3, 4, dtype=np.float64)
    data = np.random.default_rng(0).standard_normal((sum(lengths), 3))
    h_0 = np.random.default_rng(1).standard_normal((len(lengths), 4))
    gradients = []
    for by_hand in (False, True):
        x = vr.Variable(vr.create_lod_tensor(data, [lengths]), requires_grad=True)
        h = vr.Variable(h_0, requires_grad=True)
        if by_hand:
            plan, steps = vr.sort_by_seq_len(x), []
            state = vr.init_memories(h, plan)
            for t, size in enumerate(plan.batch_sizes):
                x_t = vr.segment_inputs(x, plan, t)
                products = apply("matmul", x_t, layer.weight_ih_l0, layer.bias_ih_l0, transposed=True)
                state = F.tanh(
                    products + apply("matmul", state[:size], layer.weight_hh_l0, layer.bias_hh_l0, transposed=True)
                )
                steps.append(state)
            y = vr.concat_outputs(steps, plan)
        else:
            y, _ = layer(x, h.reshape(1, len(lengths), 4))
        (y * y).sum().backward()
        gradients.append([np.asarray(y), *(np.asarray(v.grad) for v in (x, h, *layer.parameters()))])
        for parameter in layer.parameters():
            parameter.grad = None
    for a, b in zip(*gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
