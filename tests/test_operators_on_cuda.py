"""Every operator on its own examples, forward and backward, on the device, beside the CPU's results."""

import warnings

import numpy as np
import pytest

import varlen_rnn as vr
from tests.emulated.device import MARKS, Driver
from varlen_rnn.program.checker import examples_of
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import to_host
from varlen_rnn.runtime.device_array import DeviceArray
from varlen_rnn.tape.operator import OPERATORS

pytestmark = MARKS
NAMES = [name for name, op in OPERATORS.items() if op.examples and op.forward.__module__.startswith("varlen_rnn.")]


def moved(variable):
    """Return a Variable on the device; single numbers may stay, and plans have no place."""
    if variable is None or not isinstance(variable.value, (vr.LoDTensor, vr.SelectedRows)) or not variable.shape:
        return variable
    return vr.Variable(variable.value.to("cuda"), requires_grad=variable.requires_grad)


def arrays_of(value):
    """Return the arrays of a value, or of a gradient."""
    if isinstance(value, vr.SelectedRows):
        return [value.rows, value.value]
    if isinstance(value, vr.LoDTensor):
        return [value.data]
    return [value] if isinstance(value, (np.ndarray, DeviceArray)) else []


def results(trial, place):
    """Return the arrays that an operator and its gradient make of an example."""
    variables = trial.variables()
    variables = variables if place == "cpu" else list(map(moved, variables))
    _, shown = trial.apply(variables)
    found = [array for output in shown for array in arrays_of(output.value)]
    differentiable = [output for output in shown if output.requires_grad]
    for output in differentiable[:1]:
        ones = np.random.default_rng(1).standard_normal(output.shape).astype(output.dtype)
        output.backward(gradient=vr.Variable(ones).to(place) if output.shape else ones)
    return found + [array for v in variables if v is not None for array in arrays_of(v.grad)]


def compare(name):
    """Raise unless an operator computes on the device as on the host, for each example."""
    for trial in examples_of(OPERATORS[name]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted, found = results(trial, "cpu"), results(trial, "cuda")
        has_operands = any(value is not None and getattr(value, "shape", ()) for value in trial.values)
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            if b.ndim and has_operands:
                assert isinstance(a, DeviceArray) or b.dtype.kind != "f", f"{name}: a result came to the host"
            assert a.shape == b.shape
            assert a.dtype == b.dtype
            np.testing.assert_allclose(to_host(a), b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_runs_where_its_operands_are(name, monkeypatch):
    monkeypatch.setattr(cuda, "driver", Driver())
    compare(name)
