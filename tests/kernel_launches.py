"""Launch every CUDA kernel of the package at least once, in float32 where it has floats."""

import warnings

import numpy as np

import varlen_rnn as vr
from tests.test_operators_on_cuda import NAMES
from varlen_rnn.cells import LN_LSTM, lstm_cell
from varlen_rnn.kernels.arithmetic import expm1, log1p, sign
from varlen_rnn.kernels.convolutions import shares_above
from varlen_rnn.kernels.edit_distance import edit_distance
from varlen_rnn.kernels.pool import pick_rows
from varlen_rnn.kernels.updates import shrink
from varlen_rnn.products.tile_cuda import LARGE
from varlen_rnn.program.checker import examples_of
from varlen_rnn.runtime.device import to_device
from varlen_rnn.tape.operator import OPERATORS

LAYERS = [
    lambda: vr.nn.LSTM(3, 4, proj_size=2), lambda: vr.nn.GRU(3, 4), lambda: vr.nn.GRU(3, 4, reset_after=False),
    lambda: vr.nn.RNN(3, 4), lambda: vr.nn.RNN(3, 4, nonlinearity="relu"),
    lambda: vr.nn.Recurrent(lstm_cell(peepholes=True), 3, 4), lambda: vr.nn.Recurrent(LN_LSTM, 3, 4),
]  # fmt: skip


def launch_all():
    """Run layers of all cells, the examples of all operators, and kernels that neither of them launches."""
    for make in LAYERS:
        x = vr.create_lod_tensor(np.ones((3, 3), np.float32), [[2, 1]]).to("cuda")
        make().to("cuda")(x)[0].sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in NAMES:
            for trial in examples_of(OPERATORS[name]):
                _run(trial)
    _launch_alone()


def _run(trial):
    """Run an example with floats of float32; single numbers, such as a learning rate, may have to stay in float64."""
    try:
        _, found = trial.apply([_on_device(variable, True) for variable in trial.variables()])
    except vr.DTypeError:
        _, found = trial.apply([_on_device(variable, False) for variable in trial.variables()])
    for output in [output for output in found if output.requires_grad][:1]:
        ones = np.ones(output.shape, output.dtype)
        output.backward(gradient=vr.Variable(ones).to("cuda") if output.shape else ones)


def _on_device(variable, converts_numbers):
    """Return a Variable with arrays of float32 on the device; single numbers stay, and plans have no place."""
    value = getattr(variable, "value", None)
    if not isinstance(value, (vr.LoDTensor, vr.SelectedRows)) or not (variable.shape or converts_numbers):
        return variable
    if isinstance(value, vr.SelectedRows):
        value = vr.SelectedRows(value.rows, value.value.astype(np.float32), value.height)
    elif value.dtype == np.float64:
        value = vr.LoDTensor(value.data.astype(np.float32), value.lod())
    return vr.Variable(value.to("cuda") if variable.shape else value, requires_grad=variable.requires_grad)


def _launch_alone():
    floats, ids = lambda *shape: to_device(np.ones(shape, np.float32)), lambda *numbers: to_device(np.array(numbers))
    vr.Variable(floats(5000)).sum()
    vr.Variable(floats(8 * LARGE.rows, 1)) @ vr.Variable(floats(1, 2 * LARGE.columns))
    pick_rows(floats(2, 2), ids([1, 0], [-1, 1]), floats(2, 2))
    shrink(ids(1), 0.5, floats(2, 1))
    for curve in (expm1, log1p, sign):
        curve(floats(2))
    edit_distance(ids(1, 2), ids(0, 2), ids(2, 1), ids(0, 2), ids(0, 0, 0), ids(0))
    shares_above(floats(11, 1), ids(0, 11), ids([0, 1, 2, 1, 0]), ids([0]), floats(1, 2), floats(1, 2))
