"""Layers whose products are in bfloat16: bits that depend on nothing but a sequence, and errors beside float64."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.each import check_each
from tests.emulated.device import Driver
from tests.oracles import bfloat16 as oracle
from varlen_rnn.cells import LN_LSTM, MIN_GRU, find_cell, gru_cell, rnn_cell
from varlen_rnn.ops.cost import costs
from varlen_rnn.ops.recurrent.inputs import weight_shapes
from varlen_rnn.recurrence import schedule
from varlen_rnn.runtime import cuda, threads
from varlen_rnn.tape.variable import apply_list

PRODUCTS = {"bf16": oracle.amx_product, "bf16-avx512": oracle.avx512_product}
FEATURES, UNITS = 35, 37  # no multiples of 2, 16 or 32, and more numbers than one instruction of AMX sums
EVEN = 38  # units of layers whose slots have 16 bits
LENGTHS, ALL = [5, 0, 17, 1, 9, 40, 1], range(7)
LAYERS = {
    "RNN": lambda dtype: vr.nn.RNN(FEATURES, UNITS, nonlinearity="relu", dtype=dtype),
    "LSTM": lambda dtype: vr.nn.LSTM(FEATURES, UNITS, bidirectional=True, dtype=dtype),
    "LSTM of two layers, recomputed": lambda dtype: vr.nn.LSTM(FEATURES, UNITS, num_layers=2, recompute=8, dtype=dtype),
    "LSTM with slots of 16 bits": lambda dtype: vr.nn.LSTM(FEATURES, EVEN, bidirectional=True, dtype=dtype),
    "LSTM with slots of 16 bits, recomputed": lambda dtype: vr.nn.LSTM(FEATURES, EVEN, recompute=8, dtype=dtype),
    "LSTM with peepholes": lambda dtype: vr.nn.LSTM(FEATURES, EVEN, peepholes=True, dtype=dtype),
    "GRU with slots of 16 bits": lambda dtype: vr.nn.GRU(FEATURES, EVEN, bidirectional=True, dtype=dtype),
    "MinGRU with slots of 16 bits": lambda dtype: vr.nn.Recurrent(MIN_GRU, FEATURES, EVEN, dtype=dtype),
    "RNN with slots of 16 bits": lambda dtype: vr.nn.RNN(FEATURES, EVEN, dtype=dtype),
    "LSTM with a projection": lambda dtype: vr.nn.LSTM(FEATURES, UNITS, proj_size=19, dtype=dtype),
    "LSTM with norms": lambda dtype: vr.nn.Recurrent(LN_LSTM, FEATURES, UNITS, dtype=dtype),
    "GRU of two phases": lambda dtype: vr.nn.Recurrent(gru_cell(reset_after=False), FEATURES, UNITS, dtype=dtype),
    "SLSTM with heads": lambda dtype: vr.nn.SLSTM(FEATURES, 38, num_heads=2, dtype=dtype),
    "Linear": lambda dtype: vr.nn.Linear(FEATURES, UNITS, dtype=dtype),
    "SequenceConv": lambda dtype: vr.nn.SequenceConv(FEATURES, UNITS, 3, dtype=dtype),
    "MultiheadAttention": lambda dtype: vr.nn.MultiheadAttention(FEATURES, 5, dtype=dtype),
}
CASES = [(name, precision) for name in LAYERS for precision in PRODUCTS]
TOLERANCE = 6e-3  # relative to the norm: each product rounds both factors to 8 bits, and attention has four in a row


def step(name, precision, order=ALL, poison=None, dtype=np.float32):
    """Run a training step of a layer on sequences; return all results by name, and those of rows by sequence.

    `order` lists the sequences that the batch has; the first row of sequence `poison` is NaN.
    """
    rng = np.random.default_rng(0)
    vr.manual_seed(1)
    layer = LAYERS[name](dtype)
    inputs = [rng.standard_normal((length, FEATURES)).astype(dtype) for length in LENGTHS]
    if poison is not None:
        inputs[poison][0] = np.nan
    weights = [rng.standard_normal((length, 2 * EVEN)).astype(dtype) for length in LENGTHS]
    x = vr.Variable(vr.LoDTensor.from_sequences([inputs[k] for k in order]), requires_grad=True)
    with vr.float32_matmul_precision(precision):
        y = layer(x, x, x) if name == "MultiheadAttention" else layer(x)
        y = y[0] if isinstance(y, tuple) else y
        (y * np.concatenate([weights[k] for k in order])[:, : y.shape[1]]).sum().backward()
    arrays = {"y": np.asarray(y.value.data), "d_x": np.asarray(x.grad)}
    ends = np.cumsum([0, *(LENGTHS[k] for k in order)])
    by_sequence = {
        (part, k): arrays[part][ends[number] : ends[number + 1]] for part in arrays for number, k in enumerate(order)
    }
    return arrays | {its: np.asarray(weight.grad) for its, weight in layer.named_parameters()}, by_sequence


def same(found, expected):
    for name in found:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=str(name))


def test_errors_beside_float64_are_small_and_float64_ignores_the_precision():
    def check(case):
        found, _ = step(*case)
        exact, _ = step(*case, dtype=np.float64)
        same(exact, step(case[0], "fp32", dtype=np.float64)[0])
        apart = {part: np.linalg.norm(found[part] - array) / np.linalg.norm(array) for part, array in exact.items()}
        assert max(apart.values()) < TOLERANCE, apart
        assert min(apart["y"], apart["d_x"]) > TOLERANCE / 20, "it ran in float32"

    check_each(CASES, check)


def test_the_rows_of_a_sequence_depend_on_that_sequence_alone(monkeypatch):
    """Neither on other sequences, nor on their order, nor on the number of threads; a NaN stays in its sequence."""
    monkeypatch.setattr(threads, "SMALL_WORK", 0)

    def check(case):
        vr.set_num_threads(1)
        whole, rows = step(*case)
        same(step(*case)[0], whole)
        for order in ([3, 6, 5, 0, 1, 4, 2], [2], [3], [1]):
            same(step(*case, order=order)[1], rows)
        poisoned = step(*case, poison=2)[1]
        assert np.isnan(poisoned.pop(("y", 2))).any()
        del poisoned["d_x", 2]
        same(poisoned, rows)
        vr.set_num_threads(2)
        for cost in (schedule._BARRIER_COST, 0):  # threads divide the sequences, or the units of all sequences
            monkeypatch.setattr(schedule, "_BARRIER_COST", cost)
            same(step(*case)[0], whole)

    check_each(CASES, check)


def test_saved_gates_are_integers_of_16_bits():
    """Saturated gates are exactly 0, 1 or -1, others have a step of 1 / 32767, and the integer of NaN is -32768."""
    rng = np.random.default_rng(0)
    shapes = (4 * EVEN, FEATURES), (4 * EVEN, EVEN), (4 * EVEN,), (4 * EVEN,)
    weights = [(rng.standard_normal(shape) / 5).astype("f") for shape in shapes]
    x = rng.standard_normal((3, FEATURES)).astype("f")
    x[1] *= 1e4
    x[2, 0] = np.nan
    rows = vr.create_lod_tensor(x, [[1, 1, 1]])
    for precision in PRODUCTS:
        with vr.float32_matmul_precision(precision):
            inputs = rows, None, None, *weights
            _, c_all, *_, kept = apply_list("recurrent", *inputs, cell="lstm", keep=True, all_states=True)
        saved = np.asarray(kept.value.data)
        assert saved.shape == (3, 3 * EVEN)
        integers, c = saved.view(np.int16)[:, : 4 * EVEN], saved[:, 2 * EVEN :]
        i, _, g, _ = np.split(integers / 32767, 4, axis=1)
        np.testing.assert_array_equal(c_all.value.data, c)
        np.testing.assert_allclose(c[0], (i * g)[0], atol=1e-4)
        assert set(integers[1]) == {0, 32767, -32767}
        assert (integers[2] == -32768).all()
        assert np.isnan(c[2]).all()


def test_a_saved_factor_of_gradients_is_a_bfloat16():
    """The product u_n of a GRU's first step is the bias, b_hn; a number whose square is taken is no factor."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape).astype("f") for shape in ((3 * EVEN, 2), (3 * EVEN, EVEN), (3 * EVEN,))]
    weights[2][-EVEN:][[3, 7, 11]] = 1e30, np.inf, np.nan
    inputs = vr.create_lod_tensor(np.ones((1, 2), "f"), [[1]]), None, *weights, weights[2]
    for precision in PRODUCTS:
        with vr.float32_matmul_precision(precision):
            *_, kept = apply_list("recurrent", *inputs, cell="gru", keep=True)
        saved = np.asarray(kept.value.data)
        assert saved.shape == (1, 2 * EVEN)
        u_n = (saved.view(np.uint16)[0, :EVEN].astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(u_n, oracle.rounded(weights[2][-EVEN:]))
    assert (gru_cell().factors, MIN_GRU.factors, rnn_cell(activation="softplus").factors) == ((0,), (1,), ())


def test_the_cost_of_a_layer_has_the_bytes_that_its_slots_have():
    """A program counts the cost of one row, so the layer runs on one row."""
    x = vr.create_lod_tensor(np.ones((1, FEATURES), "f"), [[1]])

    def check(case):
        name, precision = case
        cell = find_cell(name)
        weights = [np.ones(shape, np.float32) for shape in weight_shapes(cell, FEATURES, EVEN).values()]
        others, constants = [None] * len(cell.states) + weights, {"cell": name, "keep": True, "all_states": False}
        with vr.float32_matmul_precision(precision):
            found = apply_list("recurrent", x, *others, **constants)
            with vr.program_guard() as program:
                apply_list("recurrent", vr.feed_data("x", [-1, FEATURES], "float32", lod_level=1), *others, **constants)
        (cost,) = [cost for op, cost in costs(program.desc) if op.type == "recurrent"]
        rows = [np.asarray(its.value.data) for its in found if hasattr(its.value, "data")]
        assert len(rows) == 2 + len(cell.states)
        assert cost.bytes == sum(array.nbytes for array in [x.data, *weights, *rows])

    names, precisions = ("lstm", "gru", "rnn_tanh", LN_LSTM.name), ("fp32", *PRODUCTS)
    check_each([(name, precision) for name in names for precision in precisions], check)


def of_relu_rnn(x, d_y, weights, product):
    """Return the outputs, the gradients of gates and the gradients of rows of an RNN, for one sequence."""
    weight_ih, weight_hh, bias_ih, bias_hh = weights
    projected = product(x, weight_ih.T, np.tile(bias_ih, (len(x), 1)))
    h, nothing = np.zeros((1, UNITS), np.float32), np.zeros((1, UNITS), np.float32)
    y, d_gates, d_h = np.empty_like(d_y), np.empty_like(d_y), nothing
    for t in range(len(x)):
        h = y[t : t + 1] = np.maximum(projected[t] + product(h, weight_hh.T, bias_hh[None]), 0)
    for t in reversed(range(len(x))):
        d_gates[t] = np.where(y[t] > 0, d_y[t] + d_h[0], 0)
        d_h = product(d_gates[t : t + 1], weight_hh, nothing)
    return y, d_gates, product(d_gates, weight_ih, np.zeros_like(x))


def test_a_step_of_an_rnn_has_the_bits_of_a_loop_over_rounded_products():
    rng, lengths = np.random.default_rng(0), [17, 1, 9]
    xs, d_ys = ([rng.standard_normal((n, size)).astype("f") for n in lengths] for size in (FEATURES, UNITS))
    for precision, product in PRODUCTS.items():
        layer, x = LAYERS["RNN"](np.float32), vr.Variable(vr.LoDTensor.from_sequences(xs), requires_grad=True)
        with vr.float32_matmul_precision(precision):
            y, _ = layer(x)
            y.backward(np.concatenate(d_ys))
        weights = [np.asarray(weight.data) for weight in layer.parameters()]
        parts = [of_relu_rnn(*pair, weights, product) for pair in zip(xs, d_ys, strict=True)]
        outputs, d_gates, d_x = map(np.concatenate, zip(*parts, strict=True))
        before = np.concatenate([np.pad(its[:-1], ((1, 0), (0, 0))) for its, _, _ in parts])
        d_weights = [oracle.row_product(d_gates, rows, product) for rows in (np.concatenate(xs), before)]
        d_bias = d_gates.sum(axis=0, dtype=np.float64).astype(np.float32)
        expected = {"y": outputs, "d_x": d_x} | dict(zip("WUbc", [*d_weights, d_bias, d_bias], strict=True))
        gradients = [np.asarray(weight.grad) for weight in layer.parameters()]
        same({"y": y.numpy(), "d_x": np.asarray(x.grad)} | dict(zip("WUbc", gradients, strict=True)), expected)


@pytest.mark.slow
@pytest.mark.needs_device
def test_a_cuda_device_refuses_bfloat16_by_name(monkeypatch):
    """Before any kernel runs, whatever the layer; in float64 there is nothing to refuse."""
    monkeypatch.setattr(cuda, "driver", Driver())

    def check(case):
        name, precision = case
        layer, x = LAYERS[name](np.float32).to("cuda"), vr.LoDTensor.from_sequences([np.ones((2, FEATURES), "f")])
        with vr.float32_matmul_precision(precision):
            with pytest.raises(vr.PlaceError, match=f"expected 'fp32' or 'tf32', got '{precision}' .*run on the CPU"):
                layer(x.to("cuda"), *[x.to("cuda")] * 2) if name == "MultiheadAttention" else layer(x.to("cuda"))

    check_each(CASES, check)
