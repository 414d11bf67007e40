"""Records call kernels with the bits of ordinary calls; dry runs note calls, and refuse other work."""

import subprocess
import sys

import numpy as np
import pytest

from tests.each import check_each
from varlen_rnn.kernels.rows import gather_rows_cpu, scatter_add_rows
from varlen_rnn.products import gemm
from varlen_rnn.runtime import forms
from varlen_rnn.runtime.device import contiguous, empty, joined, zeros
from varlen_rnn.runtime.dry_run import DryRun, Records, room
from varlen_rnn.runtime.jit import cpu_kernel
from varlen_rnn.runtime.memory import CACHE_LINE
from varlen_rnn.runtime.numba_internals import address_of_code
from varlen_rnn.runtime.placeholder import Placeholder, Unbound, first_of


@cpu_kernel
def scale(x, pair, is_negative, out):
    factor, numbers = pair
    for k in range(out.shape[0]):
        out[k] = -factor * x[k] + numbers[0] if is_negative else factor * x[k] + numbers[0]


@cpu_kernel
def double(x, out):
    for k in range(out.shape[1]):
        out[0, k] = 2 * x[0, k]


@cpu_kernel
def fail_at(number, x, out):
    if x[0] == number:
        raise ValueError("a kernel's own error")
    out[0] = x[0]


@cpu_kernel
def total(x):
    return x.sum()


def ran(dry_run):
    """Run in fresh memory; return a function from a Placeholder to its array, and what `run` returned."""
    records = Records(dry_run)
    memory = room(records.size)
    memory[:] = 255
    records.place(memory)
    return lambda placeholder: records.place_of(placeholder).view(memory), records.run()


def test_a_record_calls_a_kernel_with_its_numbers_arrays_and_tuples():
    for dtype in (np.float32, np.float64):
        for factor in (2.5, np.float32(1.5), 3, np.int32(4)):
            for is_negative in (False, True):
                x, numbers, wanted = np.arange(5, dtype=dtype), np.full(2, 7, dtype), np.empty(5, dtype)
                scale(x, (factor, numbers), is_negative, wanted)
                dry_run, found = DryRun(), np.empty(5, dtype)
                scale(dry_run.around(x), (factor, dry_run.around(numbers)), is_negative, dry_run.around(found))
                assert ran(dry_run)[1] == -1
                assert found.tobytes() == wanted.tobytes()


def test_views_of_memory_keep_their_offsets_and_strides():
    x = np.arange(24.0).reshape(4, 6)
    dry_run = DryRun()
    first = dry_run.around(x).copy()
    second = empty((4,), first)
    scale(first[1:, 2:].T[1][::-1][1:], (1.0, first[0, 3:]), False, second[1:3])
    value, stopped = ran(dry_run)
    assert stopped == -1
    assert value(second)[1:3].tolist() == (x[1:, 2:].T[1][::-1][1:] + 3).tolist()


def test_zeros_are_zeroed_at_each_run():
    dry_run, gradient = DryRun(), np.ones((2, 3))
    out = zeros((4, 3), dry_run.around(gradient))
    scatter_add_rows(dry_run.around(gradient), np.frombuffer(np.array([1, 1]).tobytes(), np.int64), out)
    records = Records(dry_run)
    memory = room(records.size)
    records.place(memory)
    for _ in range(3):
        assert records.run() == -1
        assert records.place_of(out).view(memory).sum(axis=1).tolist() == [0, 6, 0, 0]


def test_a_kernel_that_raises_stops_the_run():
    dry_run, x = DryRun(), np.array([1.0])
    given = dry_run.around(x)
    outs = [empty((1,), given) for _ in range(3)]
    for number, out in enumerate(outs):
        fail_at(number, given, out)
    records = Records(dry_run)
    memory = room(records.size)
    memory[:] = 0
    records.place(memory)
    assert records.run() == 1
    assert records.names[1][0] == "fail_at"
    assert [records.place_of(out).view(memory)[0] for out in outs] == [1, 0, 0]
    x[0] = 5
    assert records.run() == -1, "a run after one that stopped is a run like any other"


def test_a_check_stops_the_run():
    dry_run, found, out = DryRun(), np.array([-1]), np.zeros(1)
    assert first_of(dry_run.around(found), -1) == -1
    scale(dry_run.around(np.ones(1)), (1.0, dry_run.around(np.ones(1))), False, dry_run.around(out))
    records = Records(dry_run)
    records.place(room(records.size))
    assert [records.run(), *out] == [-1, 2]
    found[0], out[0] = 7, 0
    assert [records.run(), *out] == [0, 0]
    assert first_of(found, -1) == 7


def test_products_and_rows_have_the_bits_of_ordinary_calls():
    rng = np.random.default_rng(0)
    for rows in (1, 5, 47, 48, 49, 200):
        table, weight, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((9, 13), (13, 21), (21,)))
        ids = rng.integers(0, 9, rows)

        def product(table, weight, bias, ids):
            x = empty((len(ids), 13), table)
            gather_rows_cpu(table, ids, x)
            y = empty((len(ids), 21), x)
            gemm.product(x, weight, y, bias=bias)
            return y

        wanted, dry_run = product(table, weight, bias, ids), DryRun()
        found = product(*map(dry_run.around, (table, weight, bias, ids)))
        value, stopped = ran(dry_run)
        assert stopped == -1
        assert value(found).tobytes() == wanted.tobytes(), rows


def test_memory_can_be_placed_again():
    dry_run, x = DryRun(), np.arange(3.0)
    found = dry_run.around(x).copy()
    records = Records(dry_run)
    for _ in range(3):
        memory = room(records.size)
        records.place(memory)
        assert records.run() == -1
        assert records.place_of(found).view(memory).tolist() == [0, 1, 2]


def test_assignments_of_numpy_become_records():
    x, wide = np.arange(6, dtype=np.float32).reshape(2, 3), np.linspace(0, 1, 3)
    dry_run = DryRun()
    given, doubles = dry_run.around(x), dry_run.around(wide)
    y = empty((4, 3), given)
    y[:2], y[2], y[3], y[1, 0] = given, 0.1, doubles, -2
    both, turned = joined([given, y], axis=0), contiguous(given.T)
    value, stopped = ran(dry_run)
    wanted = np.concatenate([x, x, np.full((1, 3), 0.1, np.float32), wide.astype(np.float32)[None]])
    wanted[3, 0] = -2
    assert stopped == -1
    assert value(both).tobytes() == wanted.tobytes()
    assert value(turned).tobytes() == x.T.tobytes()


REFUSED = {
    "number": lambda x: float(x[0]),
    "item": lambda x: x.item(),
    "list": lambda x: x.tolist(),
    "sum": lambda x: x.sum(),
    "function": lambda x: np.cumsum(x),
    "arrays of two kinds": lambda x: np.concatenate([x, np.ones(3)]),
    "array": lambda x: np.asarray(x),
    "contiguous": lambda x: np.ascontiguousarray(x),
    "into an array": lambda x: np.empty(3).__setitem__(..., x),
    "list of arrays": lambda x: np.array([x, x]),
    "mask": lambda x: x[np.array([True, False, True])],
    "listed": lambda x: x[[0, 1]],
    "truth": lambda x: bool(x),
    "in": lambda x: 1.0 in x,
    "address": lambda x: x.__array_interface__,
    "memory": lambda x: x.ctypes,
    "sort": lambda x: x.sort(),
    "max": lambda x: max(x),
    "converted": lambda x: x.astype(np.int32),
    "bytes": lambda x: x.tobytes(),
    "where": lambda x: np.where(x, 1, 0),
    "out": lambda x: np.add(np.ones(3), 1, out=x),
    "number of a kernel": lambda x: total(x),
    "array of NumPy": lambda x: scale(np.empty(3), (1.0, x), False, x),
    "writes to an array of NumPy": lambda x: scale(x, (1.0, x), False, np.empty(3)),
    "text": lambda x: scale(x, ("a", x), False, x),
}


def test_an_array_may_be_assigned_to_a_part_of_itself():
    dry_run = DryRun()
    x = dry_run.around(np.arange(6.0)).copy()
    x[1:] = x[:-1]
    x[::2] = x[::2]
    view, _ = ran(dry_run)
    assert view(x).tolist() == [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]


def test_constants_that_a_run_changed_are_restored():
    dry_run = DryRun()
    x = dry_run.around(np.ones(2))
    constant = x.constant(np.array([3.0, 4.0]))
    constant[...] = x
    records = Records(dry_run)
    records.place(room(records.size))
    assert not records.restore_constants()
    assert records.run() == -1
    assert records.restore_constants()
    assert constant.form.tolist() == [3.0, 4.0]
    assert not records.restore_constants()


def test_a_trace_refuses_what_no_record_can_do():
    def check(name):
        dry_run = DryRun()
        with pytest.raises(Unbound):
            REFUSED[name](dry_run.around(np.arange(3.0)))
        assert dry_run.refusal

    check_each(REFUSED, check)


def test_ordinary_calls_do_not_notice():
    x, out = np.ones(3), np.zeros(3)
    scale(x, (2.0, x), False, out)
    assert out.tolist() == [3, 3, 3]
    assert isinstance(DryRun().around(x), np.ndarray)
    assert type(DryRun().around(x)) is Placeholder


_PROCESS = """
import time, numpy as np
from varlen_rnn.runtime import dry_run as records
from varlen_rnn.runtime.numba_internals import CPUDispatcher
began = time.process_time()
dry_run = records.DryRun()
x = dry_run.around(np.arange(3.0)).copy()
made = records.Records(dry_run)
memory = records.room(made.size)
made.place(memory)
assert made.run() == -1 and made.place_of(x).view(memory).tolist() == [0, 1, 2]
from varlen_rnn.runtime.jit import _KEPT
print(sum(sum(kernel.stats.cache_misses.values()) for kernel in _KEPT))
"""


def test_saved_code_is_loaded_once_and_right():
    """Code that Python does not call is loaded without a function of Numba, at one address for all kinds of arrays."""
    x, found = np.arange(3.0).reshape(1, 3), np.zeros((1, 3))
    double(x, found)  # now its code is on disk
    again = cpu_kernel(double.py_func)
    kinds = tuple(again.typeof_pyval(array) for array in (x, found))
    assert address_of_code(again, kinds) == address_of_code(again, kinds)
    dry_run, given = DryRun(), np.full((1, 3), 4.0)
    again(dry_run.around(x), dry_run.around(given))
    assert ran(dry_run)[1] == -1
    assert given.tolist() == found.tolist()
    assert not again.overloads


def test_trampolines_are_kept_on_disk():
    run = [subprocess.run([sys.executable, "-c", _PROCESS], capture_output=True, text=True) for _ in range(2)]
    assert all(one.returncode == 0 for one in run), run[0].stderr
    assert run[1].stdout.split() == ["0"]


def test_arrays_that_no_call_needs_at_the_same_time_share_memory():
    dry_run, x = DryRun(), np.arange(6.0)
    given = dry_run.empty((6,), x.dtype)
    second = given.copy()
    third = second.copy()
    fourth = third.copy()
    records = Records(dry_run, kept=[given, fourth])
    assert records.size == 4 * CACHE_LINE  # `fourth` may lie where `second` was
    memory = room(records.size)
    records.place(memory)
    before, after = (records.place_of(one).view(memory) for one in (given, fourth))
    before[...] = x
    assert records.run() == -1
    assert after.tolist() == before.tolist() == x.tolist()


def move_memory(x):
    shape = x.shape
    x.resize((2**20, 3), refcheck=False)
    others = [np.empty(shape, x.dtype) for _ in range(99)]  # one takes the memory that `x` had
    x.resize(shape, refcheck=False)
    del others


@pytest.mark.parametrize("is_fast", [True, False])
def test_changes_of_arrays_in_place_are_noticed(is_fast, monkeypatch):
    monkeypatch.setattr(forms, "is_readable", lambda: is_fast)
    changes = {
        "shape": lambda x: setattr(x, "shape", (3, 2)),
        "axes": lambda x: setattr(x, "shape", (1, 1, 1, 6)),
        "data type": lambda x: setattr(x, "dtype", np.int32),
        "flags": lambda x: setattr(x.flags, "writeable", False),
        "memory": move_memory,
    }
    for what, change in changes.items():
        arrays = [np.zeros((2, 3), np.float32), np.zeros(()), np.zeros((2, 3), np.float32)]
        found = forms.Forms(arrays)
        arrays[0][...] = 1
        assert found.hold(), what
        change(arrays[2])
        assert (found.hold(), found.hold()) == (False, False), what
    assert forms.Forms([]).hold()
    assert forms.is_readable() == is_fast
