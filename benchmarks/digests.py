"""SHA-256 digests of outputs and gradients: every operator on its examples, every cell, every layer, in both types.

    python -m benchmarks.digests            # compare with results/digests.json, and name each difference
    python -m benchmarks.digests --write    # replace the file

A change that only moves code leaves every digest as it is.  No operator here calls BLAS, or a function of NumPy whose
bits IEEE 754 leaves open.  In float64, layers call the C library's exp, tanh and log, whose versions may differ.
"""

import hashlib
import json
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from benchmarks.machine import describe
from benchmarks.processes import options
from varlen_rnn.cells import CELLS, gru_cell, lstm_cell, rnn_cell
from varlen_rnn.program.checker import examples_of
from varlen_rnn.tape.operator import OPERATORS

FILE = Path(__file__).parent / "results" / "digests.json"
LENGTHS = [0, 3, 17, 1, 0, 40, 2, 5, 60, 1, 9]
CELL_OPTIONS = [
    lstm_cell(peepholes=True), lstm_cell(coupled=True), lstm_cell(forget_gate=False), lstm_cell(cell_clip=0.4),
    lstm_cell(activations=("hard_sigmoid", ("scaled_tanh", 1.7, 0.6), "softsign"), clip=1.5),
    gru_cell(reset_after=False), gru_cell(origin_mode=False), rnn_cell(activation="softplus"), rnn_cell(clip=0.5),
]  # fmt: skip
LAYERS = {
    "LSTM": lambda dtype: vr.nn.LSTM(6, 10, dtype=dtype),
    "LSTM of two directions": lambda dtype: vr.nn.LSTM(6, 10, bidirectional=True, dtype=dtype),
    "LSTM of two layers": lambda dtype: vr.nn.LSTM(6, 10, num_layers=2, dropout=0.3, dtype=dtype),
    "LSTM with a projection": lambda dtype: vr.nn.LSTM(6, 10, proj_size=4, dtype=dtype),
    "LSTM of 72 units": lambda dtype: vr.nn.LSTM(6, 72, dtype=dtype),
    "LSTM recomputed": lambda dtype: vr.nn.LSTM(6, 10, recompute=8, dtype=dtype),
    "GRU": lambda dtype: vr.nn.GRU(6, 10, dtype=dtype),
    "GRU backwards": lambda dtype: vr.nn.GRU(6, 70, bidirectional=True, num_layers=2, dtype=dtype),
    "RNN": lambda dtype: vr.nn.RNN(6, 10, nonlinearity="relu", dtype=dtype),
    "Linear": lambda dtype: vr.nn.Linear(6, 5, dtype=dtype),
    "LayerNorm": lambda dtype: vr.nn.LayerNorm(6, dtype=dtype),
    "RowConv": lambda dtype: vr.nn.RowConv(6, 2, dtype=dtype),
    "SequenceConv": lambda dtype: vr.nn.SequenceConv(6, 4, 3, dtype=dtype),
    "DynamicRNN, fused": lambda dtype: vr.nn.DynamicRNN(lambda x, h: (vr.nn.functional.tanh(x + h),) * 2),
    "DynamicRNN, by operators": lambda dtype: vr.nn.DynamicRNN(lambda x, h: (vr.nn.functional.softmax(x + h),) * 2),
}
WITH_STATE = ("DynamicRNN",)


def arrays_of(value):
    """Return the arrays that a value is made of; a plan is its offsets, and what only a gradient reads is left out."""
    value = getattr(value, "value", value) if isinstance(value, vr.Variable) else value
    if isinstance(value, (tuple, list)):
        return [array for item in value for array in arrays_of(item)]
    if isinstance(value, vr.LoDTensor):
        return [np.asarray(value.data), *value.structure.levels]
    if isinstance(value, vr.SelectedRows):
        return [np.asarray(value.value), value.rows]
    return (
        [value] if isinstance(value, np.ndarray) else [np.asarray(value.offsets)] if hasattr(value, "offsets") else []
    )


def digest(values):
    """Return the first 16 hexadecimal digits of the SHA-256 of values: shapes, data types and bits."""
    total = hashlib.sha256()
    for array in arrays_of(values):
        total.update(f"{array.shape} {array.dtype}".encode() + np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def of_type(value, dtype, updates):
    """Return a value in another floating-point type; an operator that updates takes its learning rate in float64."""
    if isinstance(value, vr.LoDTensor) and value.dtype.kind == "f" and (value.shape or not updates):
        return value.like(value.data.astype(dtype))
    if isinstance(value, vr.SelectedRows):
        return vr.SelectedRows(value.rows, value.value.astype(dtype), value.height)
    return value


def run_once(trial):
    """Return the outputs of an operator on an example, and the gradients of its inputs, from one weighted sum."""
    variables = trial.variables()
    _, shown = trial.apply(variables)
    sources = [output for output in shown if getattr(output, "dtype", None) is not None and output.dtype.kind == "f"]
    if trial.differentiable() and sources:
        rng = np.random.default_rng(0)
        weighted = [(output * rng.standard_normal(output.shape).astype(output.dtype)).sum() for output in sources]
        sum(weighted[1:], weighted[0]).backward()
    return shown, [v.grad for v in variables if v is not None and v.requires_grad]


def of_operators(dtype):
    """Yield the name of each operator, and the digests of outputs and gradients, one for each example."""
    for name, op in sorted(OPERATORS.items()):
        found = []
        for trial in examples_of(op):
            given = trial._replace(values=[of_type(value, dtype, op.in_place) for value in trial.values])
            try:
                found.append(digest(run_once(given)))
            except (vr.InputError, ValueError) as error:  # an operator may take float64 alone
                found.append(type(error).__name__)
        if found:  # gradients have no examples of their own
            yield f"{name}, {dtype}", " ".join(found)


def of_layers(dtype):
    """Yield the name of each cell and layer, and the digests of outputs and gradients with one thread and two."""
    cells = {cell.name: cell for cell in [*CELLS.values(), *CELL_OPTIONS]}
    made = {name: (lambda dtype, cell=cell: vr.nn.Recurrent(cell, 6, 10, dtype=dtype)) for name, cell in cells.items()}
    for name, make in (made | LAYERS).items():
        found = []
        for threads in (1, 2):
            vr.set_num_threads(threads)
            vr.manual_seed(0)
            try:
                found.append(digest(train_once(make(dtype), dtype, name)))
            except vr.InputError as error:  # a cell with inputs of its own
                found.append(type(error).__name__)
        yield f"layer {name}, {dtype}", " ".join(found)


def of_bfloat16():
    """Yield the name of each layer, and the digest of outputs and gradients, at each precision in bfloat16."""
    for name, make in LAYERS.items():
        for precision in ("bf16", "bf16-avx512"):
            vr.manual_seed(0)
            with vr.float32_matmul_precision(precision):
                yield f"layer {name}, {precision}", digest(train_once(make("float32"), "float32", name))


def train_once(layer, dtype, name):
    """Return outputs of a layer, and the gradients of its input and parameters, from one weighted sum."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((sum(LENGTHS), 6)).astype(dtype)
    x = vr.Variable(vr.create_lod_tensor(data, [LENGTHS]), requires_grad=True)
    outputs = layer(x, [(6,)]) if name.startswith(WITH_STATE) else layer(x)
    y = outputs[0] if isinstance(outputs, tuple) else outputs
    (y * rng.standard_normal(y.shape).astype(dtype)).sum().backward()
    return [outputs, x.grad, [p.grad for p in layer.parameters()] if hasattr(layer, "parameters") else []]


def main():
    """Compare or write the digests."""
    given = options(__doc__)
    found = {}
    for dtype in ("float64", "float32"):
        found |= of_operators(dtype)
        found |= of_layers(dtype)
    found |= of_bfloat16()
    if given.write:
        FILE.write_text(json.dumps({"machine": describe(threads=2), "digests": found}, indent=0, sort_keys=True) + "\n")
    known = json.loads(FILE.read_text())["digests"]
    for name in sorted(set(known) | set(found)):
        if known.get(name) != found.get(name):
            print(f"{name}: {known.get(name, 'missing')} in the file, {found.get(name, 'missing')} now")
    same = sum(known.get(name) == value for name, value in found.items())
    print(f"{same} of {len(known)} operators and layers have equal digests")
    return 0 if same == len(known) == len(found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
