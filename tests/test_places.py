"""Tests of places: values move only when a caller moves them.  Tests of device arrays and their errors.

The device is the emulated one; `python -m pytest -m gpu` runs the tests of kernels on a GPU.
"""

import copy
import ctypes
import functools
import gc
import pickle
import re
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import varlen_rnn as vr
from tests.emulated.device import MARKS, Driver
from tests.emulated.kernels import Kernel
from tests.emulated.ledger import ALLOCATION, LAUNCH, ON_DEVICE, TO_DEVICE, TO_HOST, steady, totals
from tests.emulated.sources import ptx_of
from tests.waiting import HANGS
from varlen_rnn.kernels import pool
from varlen_rnn.kernels.copies import assign
from varlen_rnn.rows.lod import levels_of
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import (
    as_operand,
    beside,
    copy_into,
    empty,
    host_numbers,
    joined,
    stacked,
    to_device,
    zeros,
)
from varlen_rnn.runtime.device_array import DeviceArray, shared
from varlen_rnn.runtime.parameters import Parameters, types_of
from varlen_rnn.sklearn import SequenceClassifier
from varlen_rnn.tape import operator

pytestmark = MARKS


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    monkeypatch.setattr(cuda, "driver", Driver())


def counted(*kinds):
    """Return the numbers of events of these kinds so far."""
    found = totals()
    return [found.get(kind, 0) for kind in kinds]


def rows_of(*lengths, features=3):
    data = np.random.default_rng(0).standard_normal((sum(lengths), features)).astype(np.float32)
    return vr.create_lod_tensor(data, [lengths])


# Places of values.


def test_the_names_of_places():
    assert vr.device("cuda") == vr.device("cuda:0") == vr.device(vr.device("cuda")) != vr.device("cpu")
    assert [str(vr.device(name)) for name in ("cpu", "cuda")] == ["cpu", "cuda:0"]
    for name in ("cuda:1", "gpu", 3, None, ["cpu"]):
        with pytest.raises(vr.PlaceError, match="device: expected 'cpu', 'cuda' or 'cuda:0'"):
            vr.device(name)


def test_a_tensor_moves_with_its_lod():
    x = rows_of(2, 0, 3)
    assert x.device == vr.device("cpu")
    assert x.to("cpu") is x
    y = x.to("cuda")
    assert y.device == vr.device("cuda")
    assert y.to("cuda:0") is y
    assert y.structure is x.structure
    assert (y.shape, y.dtype, y.lod()) == (x.shape, x.dtype, x.lod())
    back = y.to("cpu")
    np.testing.assert_array_equal(back.data, x.data)
    back.data[...] = 0
    assert x.data.any(), "the host's array is not shared"


def test_parts_and_copies_of_a_tensor_on_the_device():
    x = rows_of(2, 0, 3)
    y = x.to("cuda")
    with steady():
        parts = y[2], y.slice(0, 0, 1), y.to_sequences()
    np.testing.assert_array_equal(parts[0].to("cpu").data, x[2].data)
    np.testing.assert_array_equal(parts[1].to("cpu").data, x.data[:2])
    assert [len(part) for part in parts[2]] == [2, 0, 3]
    np.testing.assert_array_equal(y.copy().to("cpu").data, x.data)
    assert "5 rows of (3,) float32" in repr(y)
    with pytest.raises(vr.PlaceError, match="rows on cpu"):
        y[[0, 2]]


def test_a_variable_moves_and_its_gradient_comes_back():
    x = vr.Variable(np.arange(6, dtype=np.float32).reshape(3, 2), requires_grad=True)
    assert x.to("cpu") is x
    y = x.to("cuda")
    assert (x.device, y.device) == (vr.device("cpu"), vr.device("cuda"))
    y.backward(gradient=to_device(np.full((3, 2), 2, np.float32)))
    assert type(x.grad) is np.ndarray
    np.testing.assert_array_equal(x.grad, 2)
    leaf = vr.Variable(y.detach(), requires_grad=True)
    leaf.cpu().backward(gradient=np.ones((3, 2), np.float32))
    assert isinstance(leaf.grad, DeviceArray)
    np.testing.assert_array_equal(leaf.grad.copy_to_host(), 1)


def test_a_program_has_no_place():
    with vr.program_guard(vr.Program()), pytest.raises(vr.ProgramError, match="runs on the device of its operands"):
        vr.Variable([1.0]).to("cuda")


def test_numbers_come_to_the_host_only_when_asked_for():
    x = vr.Variable(np.array([[2.5]], np.float32)).to("cuda")
    with steady():
        for use in (np.asarray, lambda x: x.numpy(), np.array, lambda x: np.asarray(x.value)):
            with pytest.raises(vr.PlaceError, match=r"on cuda:0.*x\.to\('cpu'\)"):
                use(x)
        assert repr(x) == "Variable(on cuda:0, shape=(1, 1), dtype=float32)"
        assert "cuda:0" in str(x.value)
        assert (len(x), x.shape, x.ndim, x.size) == (1, (1, 1), 2, 1)
    for use in (float, lambda x: x.item(), lambda x: float(format(x, ".1f"))):
        (before,) = counted(TO_HOST)
        assert use(x) == 2.5
        assert counted(TO_HOST) == [before + 1]
    assert bool(x)
    assert x.cpu().numpy().item() == 2.5
    with pytest.raises(vr.ShapeError, match="a single number"):
        vr.Variable(np.zeros(2)).to("cuda").item()


def test_mixed_places_are_an_error_that_names_both():
    x = rows_of(2, 3).to("cuda")
    for y in (np.ones((5, 3), np.float32), rows_of(2, 3)):
        with pytest.raises(vr.PlaceError, match=r"add, y: expected values on cuda:0, where x is, got values on cpu"):
            vr.Variable(x) + y
    with pytest.raises(vr.PlaceError, match=r"matmul, weight: .* on cpu, where x is, got values on cuda:0"):
        vr.Variable(rows_of(2, 3)) @ to_device(np.ones((3, 2), np.float32))
    parameter = vr.nn.Parameter(np.ones(3, np.float32))
    parameter.grad = to_device(np.ones(3, np.float32))
    with pytest.raises(vr.PlaceError, match="gradient: expected values on cpu, where parameter is"):
        vr.optim.SGD([parameter], lr=0.1).step()
    np.testing.assert_array_equal(parameter.data, 1)
    with pytest.raises(vr.PlaceError, match="a gradient on cuda:0"):
        (vr.Variable(x, requires_grad=True)).backward(gradient=np.ones((5, 3), np.float32))


def test_an_operator_without_a_kernel_says_so_and_copies_nothing(monkeypatch):
    monkeypatch.setattr(operator, "OPERATORS", operator.OPERATORS.copy())

    @vr.operator
    def doubled_by_numpy(x):
        """Return twice `x`."""
        return np.multiply(x.data, 2)

    doubled_by_numpy.infer(lambda x: x)
    x = vr.Variable(rows_of(2, 3)).to("cuda")
    message = r"doubled_by_numpy: .*no CUDA kernel yet \(x\.to\('cpu'\)"
    with steady(), pytest.raises(vr.PlaceError, match=message) as raised:
        doubled_by_numpy(x)
    assert isinstance(raised.value.__cause__, TypeError)
    np.testing.assert_array_equal(doubled_by_numpy(x.cpu()).numpy(), 2 * x.cpu().numpy())


WITHOUT_NUMBA_CUDA = """
import sys
sys.modules |= dict.fromkeys(("numba.cuda", "numba_cuda", "cuda"))
import numpy as np, varlen_rnn as vr
for x in (vr.LoDTensor(np.ones(3)), vr.Variable(np.ones(3)), vr.nn.Linear(2, 3), vr.SelectedRows([0], [1.0], 2)):
    try:
        x.to("cuda")
    except vr.InputError as error:
        print(error)
    x.to("cpu")
"""


def test_without_numba_cuda_the_error_says_what_to_install():
    command = [sys.executable, "-c", WITHOUT_NUMBA_CUDA]
    run = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=True)
    lines = run.stdout.splitlines()
    assert len(lines) == 4
    assert all("pip install numba-cuda[cu13]" in line for line in lines)


def test_without_a_gpu_the_error_says_so(monkeypatch):
    gpu = SimpleNamespace(is_available=lambda: False, cuda_error=lambda: "no driver")
    monkeypatch.setattr(cuda, "driver", cuda.Driver())
    monkeypatch.setattr(cuda, "numba_cuda", lambda: gpu)
    with pytest.raises(vr.InputError, match="CUDA: expected a GPU that numba-cuda finds, got no driver"):
        vr.Variable([1.0]).to("cuda")


# SelectedRows.


def test_sparse_rows_on_the_device():
    rng = np.random.default_rng(0)
    one = vr.SelectedRows([4, 0, 4], rng.standard_normal((3, 2)), 5)
    two = vr.SelectedRows([3, 1], rng.standard_normal((2, 2)), 5)
    dense = rng.standard_normal((5, 2))
    on = [value.to("cuda") for value in (one, two)]
    assert on[0].device == vr.device("cuda")
    assert on[0].to("cuda") is on[0]
    (before,) = counted(TO_HOST)
    found = [
        on[0].merge().value, on[1].merge().value, on[0].to_dense(), (on[0] + on[1]).value, on[0] + to_device(dense),
        on[0].copy().value,
    ]  # fmt: skip
    assert counted(TO_HOST) == [before], "the listed rows are on the host"
    wanted = [
        one.merge().value, two.merge().value, one.to_dense(), (one + two).value, one + dense, one.value,
    ]  # fmt: skip
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a.copy_to_host(), b)
    np.testing.assert_array_equal(on[0].merge().rows, [0, 4])
    np.testing.assert_array_equal(on[0].to("cpu").to_dense(), one.to_dense())
    assert "value (3, 2) float64" in repr(on[0])
    for other in (two, dense):
        with pytest.raises(vr.PlaceError, match="values on cuda:0, got values on cpu"):
            on[0] + other


# Modules and optimizers.


def test_a_module_moves_in_place():
    linear = vr.nn.Linear(3, 2)
    model, weight = vr.nn.Sequential(linear, vr.nn.BatchNorm1d(2)), linear.weight
    weight.grad = np.ones(weight.shape, weight.dtype)
    before = model.state_dict()
    assert model.to("cuda") is model
    assert linear.weight is weight
    assert {p.device for p in model.parameters()} == {vr.device("cuda")} == {b.device for _, b in model.named_buffers()}
    assert isinstance(weight.grad, DeviceArray)
    after = model.state_dict()
    assert all(type(array) is np.ndarray for array in after.values())
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    model.load_state_dict({name: np.ones_like(array) for name, array in before.items()})
    np.testing.assert_array_equal(weight.cpu().numpy(), 1)
    weight.assign(2.0)
    assert weight.device == vr.device("cuda")
    assert type(copy.deepcopy(linear).weight.data) is DeviceArray
    model.to("cpu")
    np.testing.assert_array_equal(weight.numpy(), 2)
    assert type(weight.grad) is np.ndarray


def test_a_record_from_before_the_move_is_refused():
    model = vr.nn.Linear(3, 2)
    loss = model(np.ones((1, 3), np.float32)).sum()
    model.to("cuda")
    with pytest.raises(vr.ProgramError, match="updated since"):
        loss.backward()


def test_a_module_that_cannot_move_stays(monkeypatch):
    model = vr.nn.Linear(3, 2)

    def allocate(size):
        raise MemoryError

    monkeypatch.setattr(cuda.driver, "memory", allocate)
    with pytest.raises(MemoryError):
        model.to("cuda")
    assert {p.device for p in model.parameters()} == {vr.device("cpu")}


OPTIMIZERS = {
    "sgd": lambda p: vr.optim.SGD(p, lr=0.1),
    "momentum": lambda p: vr.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda p: vr.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    "adam": lambda p: vr.optim.Adam(p, lr=0.1),
    "lazy adam": lambda p: vr.optim.Adam(p, lr=0.1, lazy=True),
    "rmsprop": lambda p: vr.optim.RMSprop(p, lr=0.1, momentum=0.5),
    "adadelta": lambda p: vr.optim.Adadelta(p),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("sparse", [False, True])
def test_states_follow_their_parameters(name, sparse):
    rng = np.random.default_rng(0)
    start, gradients = rng.standard_normal((4, 3)), rng.standard_normal((3, 4, 3))

    def gradient(step, place):
        listed = vr.SelectedRows([2, 0, 2, 1], gradients[step], 4)
        return listed.to(place) if sparse else gradients[step] if place == "cpu" else to_device(gradients[step])

    on_host, moving = (vr.nn.Parameter(start) for _ in range(2))
    optimizers = [OPTIMIZERS[name]([parameter]) for parameter in (on_host, moving)]
    module = vr.nn.Module()
    module.weight = moving
    for step, place in enumerate(("cpu", "cuda", "cpu")):
        module.to(place)
        for parameter, optimizer, there in zip((on_host, moving), optimizers, ("cpu", place), strict=True):
            parameter.grad = gradient(step, there)
            (before,) = counted(TO_HOST)
            optimizer.step()
            copies = 0 if step != 2 or parameter is on_host else len(optimizer.state_dict()) - 1
            assert counted(TO_HOST)[0] - before <= copies
        assert moving.device == vr.device(place)
        states, wanted = (optimizer.state_dict() for optimizer in (optimizers[1], optimizers[0]))
        assert states.keys() == wanted.keys()
        for key in states:
            np.testing.assert_allclose(states[key], wanted[key], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(moving.numpy(), on_host.numpy(), rtol=1e-12, atol=1e-14)


def test_states_are_loaded_to_their_parameters():
    parameter = vr.nn.Parameter(np.ones((2, 2)))
    optimizer = vr.optim.Adam([parameter])
    parameter.grad = np.ones((2, 2))
    optimizer.step()
    saved = optimizer.state_dict()
    module = vr.nn.Module()
    module.weight = parameter
    module.to("cuda")
    for other in (optimizer, vr.optim.Adam([parameter])):
        other.load_state_dict(saved)
        parameter.grad = to_device(np.ones((2, 2)))
        other.step()
        assert other.state_dict()["0.step"] == 2


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_moments_on_the_device(momentum):
    states = []
    for place in ("cpu", "cuda"):
        rng, layer = np.random.default_rng(0), vr.nn.BatchNorm1d(3, momentum=momentum).to(place)
        for count in (5, 1, 4):
            x = vr.Variable(rng.standard_normal((count, 3))).to(place)
            layer.weight.grad = None
            layer(x.astype(np.float32)).sum().backward()
        states.append(layer.state_dict())
    with steady():
        layer(x.astype(np.float32))
    assert states[1]["num_batches_tracked"] == 3
    for name, array in states[0].items():
        np.testing.assert_allclose(states[1][name], array, rtol=1e-5)


@pytest.mark.parametrize("max_norm", [2.0, 100.0])
def test_gradients_of_several_types_are_clipped_by_one_norm(max_norm):
    rng, found = np.random.default_rng(0), []
    sparse = vr.SelectedRows([2, 0, 2], rng.standard_normal((3, 2)).astype(np.float32), 4)
    given = [sparse, rng.standard_normal(70), rng.standard_normal(3).astype(np.float32), np.zeros((0, 2))]
    for place in ("cpu", "cuda"):
        module = vr.nn.Module()
        parameters = [vr.nn.Parameter(np.zeros(gradient.shape, gradient.dtype)) for gradient in given]
        for parameter, gradient in zip(parameters, given, strict=True):
            module.weight = parameter
            module.to(place)
            parameter.grad = vr.LoDTensor(gradient).to(place).data if gradient is not sparse else sparse.to(place)
        norm = vr.optim.clip_grad_norm_(parameters, max_norm)
        found.append([np.array(float(norm))])
        for parameter in parameters:
            here = parameter.grad.to_dense() if isinstance(parameter.grad, vr.SelectedRows) else parameter.grad
            found[-1].append(here.copy_to_host() if place == "cuda" else here)
    for there, here in zip(*reversed(found), strict=True):
        assert there.dtype == here.dtype
        np.testing.assert_allclose(there, here, rtol=1e-6)


# One upload.


def test_a_lod_is_copied_to_the_device_once():
    x = rows_of(3, 0, 2)
    y, scale = x.to("cuda").data, np.ones(3, np.float32)
    for lod in (x.structure, vr.LoD(x.lod())):
        out = empty((3, 3), y)
        pool.pool_sum(y, levels_of(lod)[-1], scale, out)
        np.testing.assert_allclose(out.copy_to_host()[0], x.data[:3].sum(0), rtol=1e-6)
    out = empty((3, 3), y)
    with steady():
        pool.pool_sum(y, levels_of(lod)[-1], scale, out)
    before = counted(TO_DEVICE)
    pool.pool_sum(y, np.array([0, 2, 2, 5]), scale, out)
    assert counted(TO_DEVICE) == [before[0] + 1]


def test_copies_that_are_remembered_are_those_of_the_numbers_as_they_are():
    like, index = to_device(np.zeros(1)), np.arange(3)
    first = beside(index, like)
    assert beside(index, like) is first is beside(np.arange(3), like)
    index[0] = 7
    np.testing.assert_array_equal(beside(index, like).copy_to_host(), [7, 1, 2])
    np.testing.assert_array_equal(first.copy_to_host(), [0, 1, 2])
    assert beside(np.arange(3, dtype=np.int32), like).dtype == np.int32
    assert beside(np.arange(3).reshape(3, 1), like).shape == (3, 1)
    assert beside(index, index) is index
    assert beside(first, like) is first
    assert np.signbit(beside(np.array(-0.0), like).item()) != np.signbit(beside(np.array(0.0), like).item())


def test_remembered_copies_have_a_limit(monkeypatch):
    monkeypatch.setattr("varlen_rnn.runtime.device._MOST_COPIES", 3)
    monkeypatch.setattr("varlen_rnn.runtime.device._MOST_OF_ALL", 100)
    monkeypatch.setattr("varlen_rnn.runtime.device._MOST_OF_ONE", 80)
    like = to_device(np.zeros(1))
    for k in range(5):
        beside(np.array([k]), like)
    assert [copy.copy_to_host().item() for copy in cuda.driver.uploads.values()] == [2, 3, 4]
    beside(np.zeros(10), like)
    assert [copy.size for copy in cuda.driver.uploads.values()] == [1, 1, 10]
    beside(np.ones(10), like)
    assert [copy.size for copy in cuda.driver.uploads.values()] == [10]
    beside(np.ones(11), like)
    assert [copy.size for copy in cuda.driver.uploads.values()] == [10]


# Arrays.

KEYS = [
    0, -1, slice(1, 3), slice(None, None, 2), slice(None, None, -1), (1, 2), (..., 1), (slice(None), 2), (0, ..., None),
    None, ..., (2, 3, 1), (slice(5, 9),),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_views_are_those_of_numpy(key):
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    y = to_device(x)
    (before,) = counted(TO_DEVICE)
    for view, wanted in (
        (y[key], x[key]),
        (y.T[..., 0], x.T[..., 0]),
        (y.transpose(1, 0, 2)[1], x.transpose(1, 0, 2)[1]),
    ):
        wanted = np.asarray(wanted)
        assert (view.shape, view.dtype, view.size) == (wanted.shape, wanted.dtype, wanted.size)
        np.testing.assert_array_equal(view.copy_to_host(), wanted)
        np.testing.assert_array_equal(as_operand(view).copy_to_host(), wanted)
        assert as_operand(view).flags.carray
    assert counted(TO_DEVICE) == [before]
    assert y.reshape(12, 5).shape == y.reshape((12, -1)).shape == (12, 5)
    assert y.ravel().shape == (60,)
    assert y.view().memory is y.memory
    assert len(y) == 3


def test_what_would_read_numbers_is_refused():
    x = to_device(np.arange(6.0).reshape(2, 3))
    uses = [
        np.asarray, list, bool, float, lambda x: x[[0, 1]], lambda x: x[np.array([True, False])], lambda x: x[True],
        lambda x: np.ones(3) + x, lambda x: x**2, lambda x: x.T.reshape(6), lambda x: x.__setitem__(0, 1), hash,
        pickle.dumps, lambda x: np.add(x, 1), lambda x: x.T.clear(),
        lambda x: x[0] == 1 or x.T.copy_to_device(np.zeros((3, 2))), np.from_dlpack, memoryview,
    ]  # fmt: skip
    with steady():
        for use in uses:
            with pytest.raises((TypeError, BufferError, RuntimeError)):
                use(x)
    with pytest.raises(vr.ShapeError, match=r"shape \(2, 3\)"):
        x.copy_to_device(np.zeros(3))
    with pytest.raises(vr.DTypeError, match="float64"):
        x.copy_to_device(np.zeros((2, 3), np.float32))
    with pytest.raises(IndexError):
        x[2]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 2)])
def test_small_arrays(shape):
    x = np.zeros(shape, np.float32)
    y = to_device(x)
    np.testing.assert_array_equal(y.copy_to_host(), x)
    np.testing.assert_array_equal(y.copy().copy_to_host(), x)
    np.testing.assert_array_equal(as_operand(y.T).copy_to_host(), x.T)
    assert zeros(shape, y).shape == empty(shape, y).shape == shape
    assert empty(shape, y, np.int64).dtype == np.int64
    assert shared(SimpleNamespace(__cuda_array_interface__=y.__cuda_array_interface__)).shape == shape


def test_integers_are_known_on_the_host_too():
    ids = np.array([[3, 1], [2, 5]])
    x = to_device(ids)
    ids[0, 0] = 9
    with steady():
        for view, wanted in (
            (x, [[3, 1], [2, 5]]),
            (x[1], [2, 5]),
            (x.T, [[3, 2], [1, 5]]),
            (x.reshape(4)[1:], [1, 2, 5]),
        ):
            np.testing.assert_array_equal(host_numbers(view), wanted)
    with pytest.raises(ValueError, match="read-only"):
        host_numbers(x)[0] = 1
    np.testing.assert_array_equal(host_numbers(x.copy()), host_numbers(x))
    assert host_numbers(to_device(np.array([True, False]))).tolist() == [True, False]
    view = x[1:]
    view.copy_to_device(np.array([[7, 8]]))
    for array in (x, view, to_device(np.ones(2)), empty((2,), x)):
        with pytest.raises(vr.PlaceError, match="computed on the device"):
            host_numbers(array)


def test_integers_that_a_kernel_overwrites_are_not_known_on_the_host():
    source = to_device(np.full((3, 4), 5))
    for overwrites in (lambda x: copy_into(x[:, ::2], source[:, ::2]), lambda x: assign(source, x)):
        x = to_device(np.arange(12).reshape(3, 4))
        overwrites(x)
        assert x.host is None
        assert x[0].copy_to_host()[0] == 5


def test_copies_of_views_are_contiguous():
    x, ids = np.arange(6.0).reshape(2, 3), np.arange(6).reshape(2, 3)
    for view, wanted in ((to_device(x).T, x.T), (to_device(x)[:, ::-2], x[:, ::-2]), (to_device(ids).T, ids.T)):
        for made in (view.copy(), copy.deepcopy(view), vr.LoDTensor(view).copy().data, as_operand(view)):
            assert made.flags.c_contiguous
            assert made.memory is not view.memory
            np.testing.assert_array_equal(made.copy_to_host(), wanted)
            if wanted.dtype.kind == "i":
                np.testing.assert_array_equal(host_numbers(made), wanted)
    np.testing.assert_array_equal(vr.nn.Parameter(to_device(x).T).cpu().numpy(), x.T)


def test_strided_copies():
    x = np.arange(24.0).reshape(2, 3, 4)
    y = to_device(x)
    out = zeros((4, 2, 5), y)
    copy_into(out[:, :, 1:4], y.transpose(2, 0, 1))
    wanted = np.zeros((4, 2, 5))
    wanted[:, :, 1:4] = x.transpose(2, 0, 1)
    np.testing.assert_array_equal(out.copy_to_host(), wanted)
    for axis in range(3):
        np.testing.assert_array_equal(joined([y, y], axis).copy_to_host(), np.concatenate([x, x], axis))
        np.testing.assert_array_equal(stacked([y, y], axis).copy_to_host(), np.stack([x, x], axis))
        np.testing.assert_array_equal(joined([x, x], axis), np.concatenate([x, x], axis))
    with pytest.raises(vr.PlaceError, match="at most 4 axes"):
        as_operand(to_device(np.zeros((1, 2, 1, 1, 2))).T)


# Memory.


def test_memory_is_used_again():
    x = to_device(np.ones(1000))
    address, view = x.address, x[10:]
    del x
    gc.collect()
    assert to_device(np.ones(1000)).address != address, "a view holds the memory"
    del view
    before = counted(ALLOCATION)
    assert to_device(np.zeros(1010)).address == address
    assert counted(ALLOCATION) == before
    vr.release_memory()
    to_device(np.zeros(1000))
    assert counted(ALLOCATION)[0] == before[0] + 1


def test_idle_memory_is_given_back_before_the_device_has_none(monkeypatch):
    held = [to_device(np.ones(2000)) for _ in range(3)]
    del held
    driver, tries = cuda.driver, []
    allocate = driver._pool._allocate

    def full_at_first(size):
        tries.append(size)
        if len(tries) == 1:
            raise MemoryError
        return allocate(size)

    monkeypatch.setattr(driver._pool, "_allocate", full_at_first)
    x = to_device(np.zeros(9000))
    assert len(tries) == 2
    assert not any(driver._pool._idle.values())
    assert x.size == 9000


class Limited:
    """An allocation of at most some bytes at a time, as on a device with little memory."""

    def __init__(self, monkeypatch, most):
        self.most, self.held, allocate = most, 0, cuda.driver._pool._allocate

        def limited(size):
            if self.held + size > self.most:
                raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY")
            block = allocate(size)
            self.held += size
            weakref.finalize(block.owner, self._free, size)
            return block

        monkeypatch.setattr(cuda.driver._pool, "_allocate", limited)

    def _free(self, size):
        self.held -= size


def test_remembered_copies_and_idle_memory_make_room(monkeypatch):
    memory, like = Limited(monkeypatch, 40_000), to_device(np.zeros(1))
    beside(np.arange(1000), like)  # 8,000 bytes that only save a copy
    idle = to_device(np.ones(2000))
    del idle
    assert memory.held > 24_000
    x = to_device(np.ones(4000))
    assert memory.held < 40_000
    assert not cuda.driver.uploads
    np.testing.assert_array_equal(x.copy_to_host(), 1)
    np.testing.assert_array_equal(beside(np.arange(500), like).copy_to_host(), np.arange(500))


def test_an_error_says_how_much_memory_arrays_hold(monkeypatch):
    memory, held = Limited(monkeypatch, 40_000), to_device(np.ones(4000))
    message = r"CUDA memory: expected room for [0-9,]+ bytes, got .* arrays hold 3[2-9],[0-9]+ bytes"
    with pytest.raises(MemoryError, match=message) as raised:
        to_device(np.ones(4000))
    assert "OUT_OF_MEMORY" in str(raised.value.__cause__)
    del held, raised
    gc.collect()
    assert to_device(np.ones(4000)).size == 4000
    assert memory.held <= 40_000


def test_a_step_that_finds_no_memory_leaves_the_model_as_it_was(monkeypatch):
    model, x = vr.nn.GRU(3, 40).to("cuda"), rows_of(30, 20).to("cuda")
    before = model.state_dict()
    memory = Limited(monkeypatch, 0)
    with pytest.raises(MemoryError, match="expected room for"):
        model(x)[0].sum().backward()
    memory.most = 10**9
    model(x)[0].sum().backward()
    for name, array in before.items():
        np.testing.assert_array_equal(model.state_dict()[name], array)


def test_released_memory_is_that_of_remembered_copies_too():
    like = to_device(np.zeros(1))
    beside(np.arange(9), like)
    vr.release_memory()
    assert not cuda.driver.uploads


# Other libraries.


class Foreign:
    """Memory of another library, such as PyTorch, on the emulated device; it has one of the two protocols."""

    def __init__(self, array, protocol):
        self.array = to_device(array)
        if protocol == "dlpack":
            self.__dlpack_device__ = lambda: (2, 0)
            self.__dlpack__ = lambda **options: self.array.__dlpack__(**options)
        else:
            self.__cuda_array_interface__ = self.array.__cuda_array_interface__


@pytest.mark.parametrize("protocol", ["dlpack", "interface"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32, np.uint8, np.bool_])
def test_memory_of_another_library_is_shared(protocol, dtype):
    foreign = Foreign(np.arange(6).reshape(3, 2).astype(dtype), protocol)
    with steady():
        x = vr.Variable(foreign)
        tensor = vr.LoDTensor(foreign, [[0, 1, 3]])
    assert x.device == tensor.device == vr.device("cuda")
    assert x.value.data.address == tensor.data.address == foreign.array.address
    assert (x.dtype, x.shape) == (dtype, (3, 2))
    foreign.array.copy_to_device(np.ones((3, 2), dtype))
    np.testing.assert_array_equal(x.cpu().numpy(), 1)


def test_shared_memory_lives_as_long_as_its_user():
    foreign = Foreign(np.arange(6.0), "dlpack")
    x, before = vr.Variable(foreign), cuda.driver._pool._lent.copy()
    del foreign
    gc.collect()
    assert cuda.driver._pool._lent == before
    np.testing.assert_array_equal(x.cpu().numpy(), np.arange(6.0))
    del x
    gc.collect()
    assert any(cuda.driver._pool._idle.values())


def test_a_capsule_that_nobody_takes_frees_its_memory():
    x = to_device(np.ones(3))
    capsule = x.__dlpack__()
    del x
    gc.collect()
    assert not any(cuda.driver._pool._idle.values())
    del capsule
    assert any(cuda.driver._pool._idle.values())


def given_out():
    parameter = vr.nn.Parameter(np.arange(6, dtype=np.float32).reshape(3, 2)).to("cuda").detach()
    tensor = rows_of(2, 1).to("cuda")
    return [(v, getattr(v, "data", v)) for v in (tensor, tensor.data, tensor.data[:, 1:], tensor.data.T)] + [
        (parameter, parameter.value.data)
    ]


def test_other_libraries_get_the_memory_by_dlpack():
    """cuda.core reads the capsules, as numba-cuda does; it needs no GPU for that."""
    view = pytest.importorskip("cuda.core.utils").StridedMemoryView
    for value, data in given_out():
        with steady():
            found = view.from_dlpack(value, stream_ptr=-1)
        assert (found.ptr, tuple(found.shape), found.dtype) == (data.address, data.shape, data.dtype)
        assert found.strides is None or [4 * step for step in found.strides] == list(data.strides)
        assert found.device_id == 0


def test_other_libraries_get_the_memory_by_its_address():
    """NumPy reads the same dictionary under another name, and, here, the memory of the emulated device."""
    for value, data in given_out():
        about = value.__cuda_array_interface__
        assert about["data"] == (data.address, False)
        assert about["stream"] == 1
        read = np.asarray(SimpleNamespace(__array_interface__=about))
        np.testing.assert_array_equal(read, data.copy_to_host())


def test_what_other_libraries_cannot_have():
    for value in (rows_of(2), vr.Variable([1.0])):
        assert not hasattr(value, "__cuda_array_interface__")
    leaf = vr.Variable(to_device(np.ones(2)), requires_grad=True)
    assert not hasattr(leaf, "__cuda_array_interface__")
    with pytest.raises(BufferError, match="requires a gradient"):
        leaf.__dlpack__()
    with pytest.raises(BufferError, match="to\\('cpu'\\)"):
        leaf.detach().__dlpack__(dl_device=(1, 0))
    assert leaf.__dlpack_device__() == (2, 0)
    about = to_device(np.ones(2)).__cuda_array_interface__
    for wrong in ({"data": (about["data"][0], True)}, {"mask": about}, {"typestr": ">f4"}):
        with pytest.raises(vr.PlaceError, match="memory of another library"):
            vr.Variable(SimpleNamespace(__cuda_array_interface__=about | wrong))


def test_integers_that_another_library_may_change_are_not_known_on_the_host():
    x = to_device(np.arange(3))
    host_numbers(x)
    assert x.__cuda_array_interface__["version"] == 3
    assert x.host is None
    y = to_device(np.arange(3))
    y.__dlpack__()
    assert y.host is None


def test_what_another_library_wrote_is_not_taken_for_a_remembered_copy():
    lengths = vr.Variable(np.array([1, 3])).to("cuda")
    before = vr.sequence_mask(lengths, 3).value.data
    for give in (lambda x: x.__cuda_array_interface__, lambda x: x.__dlpack__(), lambda x: x.copy_to_device(x.copy())):
        found = vr.sequence_mask(lengths, 3).value.data
        give(found)
        ctypes.memset(found.address, 7, found.nbytes)  # as another library may, on the emulated device
        again = vr.sequence_mask(lengths, 3).value.data
        np.testing.assert_array_equal(again.copy_to_host(), [[1, 0, 0], [1, 1, 1]])
        np.testing.assert_array_equal(host_numbers(again), [[1, 0, 0], [1, 1, 1]])
    assert before.shape == (2, 3)


def test_results_and_gradients_never_share_a_remembered_copy():
    lengths = vr.Variable(np.array([1, 3])).to("cuda")
    weight = vr.Variable(vr.sequence_mask(lengths, 3, dtype="float32").detach().value, requires_grad=True)
    (weight * 1.0).sum().backward()
    vr.optim.SGD([weight], lr=1.0).step()  # in place
    again = vr.sequence_mask(lengths, 3, dtype="float32")
    np.testing.assert_array_equal(again.cpu().numpy(), [[1, 0, 0], [1, 1, 1]])
    first, second = (vr.sequence_mask(lengths, 3).value.data for _ in range(2))
    assert first.memory is not second.memory
    np.testing.assert_array_equal(host_numbers(second), [[1, 0, 0], [1, 1, 1]])
    leaves = [vr.Variable(to_device(np.array([2.0])), requires_grad=True) for _ in range(2)]
    for leaf in leaves:
        leaf.backward()
    ctypes.memset(leaves[0].grad.address, 7, 8)  # as a kernel of the user may
    assert leaves[1].grad.item() == 1
    assert (leaves[1] * 1.0).sum().backward() is None
    assert leaves[1].grad.item() == 2


def test_another_stream_waits_for_launches(monkeypatch):
    waits, x = [], to_device(np.ones(3))
    monkeypatch.setattr(cuda.driver, "synchronize", lambda: waits.append(1))
    for stream, wanted in ((None, 0), (1, 0), (-1, 0), (2, 1), (12345, 2)):
        x.__dlpack__(stream=stream)
        assert len(waits) == wanted
    vr.Variable(SimpleNamespace(__cuda_array_interface__=x.__cuda_array_interface__ | {"stream": 77}))
    assert len(waits) == 3


class Dispatcher:
    """A kernel of numba-cuda's `jit`, which takes arrays by their interface; here the emulated device runs it."""

    def __init__(self, dispatcher):
        self.dispatcher = dispatcher

    def __getitem__(self, configuration):
        return functools.partial(self._launch, configuration)

    def _launch(self, configuration, *arguments):
        array, *numbers = arguments
        assert str(self.dispatcher.typeof_pyval(array)) == "array(float32, 2d, C)"
        about = SimpleNamespace(__cuda_array_interface__=array.__cuda_array_interface__)
        kernel, parameters = cuda.Kernel(self.dispatcher.py_func), Parameters((shared(about), *numbers))
        Kernel(ptx_of(kernel.source, types_of(parameters.kinds))).run(*configuration, parameters)


def test_the_page_gives_memory_to_kernels_and_tensors_without_a_copy(monkeypatch):
    from numba import cuda as numba_cuda

    page = (Path(__file__).parent.parent / "docs" / "gpu.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    jit = numba_cuda.jit
    monkeypatch.setattr(numba_cuda, "jit", lambda function: Dispatcher(jit(function)))
    tensor = Foreign(np.arange(6, dtype=np.float32).reshape(2, 3), "interface")
    torch = SimpleNamespace(as_tensor=lambda x, device: x.__cuda_array_interface__)
    vr.manual_seed(0)
    weight, bias = (parameter.data for parameter in vr.nn.Linear(3, 2).parameters())
    vr.manual_seed(0)
    names, before = {"np": np, "vr": vr, "torch": torch, "tensor": tensor}, counted(TO_HOST, TO_DEVICE, ON_DEVICE)
    exec(compile(block, "gpu.md", "exec"), names)
    assert counted(TO_HOST, TO_DEVICE, ON_DEVICE) == [before[0], before[1] + 2, before[2]]
    assert names["x"].value.data.address == tensor.array.address
    y = shared(SimpleNamespace(__cuda_array_interface__=names["y"]))
    np.testing.assert_array_equal(names["layer"].weight.data.copy_to_host(), weight * np.float32(0.5))
    wanted = tensor.array.copy_to_host() @ (weight * np.float32(0.5)).T + bias
    np.testing.assert_allclose(y.copy_to_host(), wanted, rtol=1e-6)


# A layer.


@pytest.mark.parametrize("kind", [vr.nn.LSTM, vr.nn.GRU, vr.nn.RNN])
def test_a_recurrent_layer_copies_nothing_the_second_time(kind):
    vr.manual_seed(0)
    x, layer = rows_of(3, 0, 2, 4), kind(3, 4, bidirectional=True)

    def step(model, x):
        for parameter in model.parameters():
            parameter.grad = None
        x = vr.Variable(x, requires_grad=True)
        y, _ = model(x)
        y.backward(gradient=y.detach().value.data)
        return [
            y.value.data,
            x.grad.data if isinstance(x.grad, vr.LoDTensor) else x.grad,
            *(p.grad for p in model.parameters()),
        ]

    wanted = step(layer, x)
    layer.to("cuda")
    on_device = x.to("cuda")
    step(layer, on_device)
    gc.collect()
    launches = counted(LAUNCH)[0]
    with steady():
        found = step(layer, on_device)
    assert counted(LAUNCH)[0] - launches < 200
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.copy_to_host(), b, rtol=1e-5, atol=1e-6)


def test_a_product_and_its_gradient():
    layer, x = vr.nn.Linear(3, 2), np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    layer.bias = None  # the sum of its gradient is a reduction
    wanted = layer(x)
    wanted.backward(gradient=np.ones((5, 2), np.float32))
    d_weight, layer.weight.grad = layer.weight.grad, None
    found = layer.to("cuda")(vr.Variable(x).to("cuda"))
    found.backward(gradient=to_device(np.ones((5, 2), np.float32)))
    np.testing.assert_allclose(found.cpu().numpy(), wanted.numpy(), rtol=1e-6)
    np.testing.assert_allclose(layer.weight.grad.copy_to_host(), d_weight, rtol=1e-5)


def test_steps_over_sub_sequences_and_over_states_with_rows():
    vr.manual_seed(0)
    table, rng = vr.nn.Embedding(7, 3, dtype=np.float64), np.random.default_rng(0)
    paragraphs = vr.create_lod_tensor(rng.integers(0, 7, 9), [[2, 0, 3], [2, 1, 1, 3, 2]])
    looked_at = vr.create_lod_tensor(rng.standard_normal((6, 3)), [[3, 1, 2]])

    def step(words, memory, state):
        sentence = vr.sequence_pool(table(words), "sum")
        state = state + sentence * vr.sequence_pool(memory, "mean")
        return state, memory * 0.5, state

    found = []
    for place in ("cpu", "cuda"):
        table.to(place)
        memory = vr.Variable(looked_at.to(place), requires_grad=True)
        y, _, last = vr.nn.DynamicRNN(step, level=0)(
            paragraphs.to(place), [memory, vr.Variable(np.zeros((3, 3))).to(place)]
        )
        ((y * y).sum() + last.sum()).backward()
        found.append(
            [y.cpu().numpy(), last.cpu().numpy(), table.weight.grad.to("cpu").to_dense(), memory.grad.to("cpu").data]
        )
        table.weight.grad = None
    for there, here in zip(*found, strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("decay", [0.5, None])
def test_averages_follow_their_parameters(decay):
    found = []
    for places in (("cpu",) * 3, ("cpu", "cuda", "cpu"), ("cuda",) * 3):
        vr.manual_seed(0)
        model = vr.nn.Sequential(vr.nn.Linear(3, 2), vr.nn.BatchNorm1d(2)).to(places[0])
        average = vr.optim.AveragedModel(model, decay)
        for number, place in enumerate(places):
            model.to(place)
            for parameter in model.parameters():
                parameter.assign(np.random.default_rng(number).standard_normal(parameter.shape))
            average.update()
        own = model.state_dict()
        before = counted(TO_HOST, TO_DEVICE)
        with average.applied():
            assert counted(TO_HOST, TO_DEVICE) == before
            assert {p.device for p in model.parameters()} == {vr.device(places[-1])}
            found.append(model.state_dict())
        for name, array in own.items():
            np.testing.assert_array_equal(model.state_dict()[name], array)
        state = average.state_dict()
        assert {type(array) for array in state.values()} == {np.ndarray}
        again = vr.optim.AveragedModel(model.to("cuda"), decay)
        again.load_state_dict(state)
        with again.applied():
            found.append(model.state_dict())
        again.update()
        assert again.n_averaged == 4
    for other in found[1:]:
        for name, array in found[0].items():
            np.testing.assert_allclose(other[name], array, rtol=1e-6)


# Inference.


def test_a_prepared_module_runs_where_it_is():
    vr.manual_seed(0)
    table = vr.nn.Embedding(7, 3)
    model = vr.nn.Sequential(table, vr.nn.GRU(3, 4, num_layers=2, dropout=0.5))
    ids = vr.create_lod_tensor(np.array([1, 6, 2, 0, 1]), [[2, 0, 3]])
    wanted, _ = model.prepare()(ids)
    run = model.to("cuda").prepare()
    model.to("cpu")
    table.weight.assign(0.0)
    found, _ = run(ids.to("cuda"))
    assert (found.device, found.requires_grad) == (vr.device("cuda"), False)
    np.testing.assert_allclose(found.cpu().numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(vr.PlaceError, match="values on"):
        run(ids)


def test_packed_layers_and_estimators_say_that_they_are_on_the_host():
    layer, x, there = vr.nn.GRU(3, 4), rows_of(2, 1), rows_of(2, 1).to("cuda")
    run, stream = layer.prepare(), layer.stream()
    calls = [
        lambda: run(there), lambda: run(x, to_device(np.zeros((1, 2, 4), np.float32))),
        lambda: stream(to_device(np.ones((1, 3), np.float32))),
    ]  # fmt: skip
    layer.to("cuda")
    (before,) = counted(TO_HOST)
    for call in (*calls, layer.prepare, layer.stream):
        with pytest.raises(vr.PlaceError, match=r"on cpu, got .* on cuda:0 \(move it by to\('cpu'\)\)"):
            call()
    of_four = rows_of(2, 1, 1, 1).to("cuda")
    for given in ([to_device(np.ones((2, 3)))] * 4, vr.Variable(to_device(np.ones((4, 3)))), of_four):
        with pytest.raises(vr.PlaceError, match=r"to\('cpu'\)"):
            SequenceClassifier().fit(given, [0, 1, 0, 1])
    assert counted(TO_HOST) == [before]
