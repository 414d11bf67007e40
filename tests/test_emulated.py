"""The emulated device itself: it computes as a GPU does, and sees races, wrong addresses, deadlocks, hidden copies."""

import itertools
import math
import re

import numpy as np
import pytest
from numba import float32, int32, int64, types

import varlen_rnn.runtime.device
from tests.emulated import device, figures
from tests.emulated.device import MARKS, Driver, float_types
from tests.emulated.figures import count_float64, faults_of
from tests.emulated.kernels import Kernel, LaunchError, Schedule
from tests.emulated.ledger import COUNTS, TO_DEVICE, steady
from tests.emulated.mutants import SCHEDULES, mutants, schedules_that_see, survivors
from tests.emulated.ptx import Unsupported
from tests.emulated.sources import digest_of, ptx_of
from varlen_rnn.kernels import pool, rows
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.parameters import Parameters, types_of

pytestmark = MARKS
F1, I1, L1 = float32[::1], int32[::1], int64[::1]
TABLE = np.array([7, -3, 2**40, 11], np.int64)


@pytest.fixture
def on_device(monkeypatch):
    """Put the emulated device in the place of a GPU."""
    monkeypatch.setattr(cuda, "driver", Driver())
    return varlen_rnn.runtime.device.to_device


def compiled(function, *kinds):
    return Kernel(ptx_of(cuda.Kernel(function).source, kinds))


def written(body, arrays, numbers=(), shared=0, registers=""):
    """Return PTX: `%a` holds the address of an array `a`, `%n` a number `n`, `%i` the thread in its block."""
    parameters = [f".param .u64 {name}_{k}" for name in arrays for k in range(7)]
    parameters += [f".param .u32 {name}" for name in numbers]
    loads = [f"ld.param.u64 %{name}, [{name}_4];" for name in arrays]
    loads += [f"ld.param.u32 %{name}, [{name}];" for name in numbers]
    return f"""
.version 8.0
.target sm_90
.address_size 64
{f".shared .align 16 .b8 memory[{shared}];" if shared else ""}
.visible .entry written({", ".join(parameters)})
{{
.reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %rd<16>; .reg .f32 %f<16>; .reg .u32 %i, %block; {registers}
{"".join(f".reg .b64 %{name}; " for name in arrays)}{"".join(f".reg .b32 %{name}; " for name in numbers)}
{" ".join(loads)}
mov.u32 %i, %tid.x; mov.u32 %block, %ctaid.x;
{body}
ret;
}}
"""


# Computing.


def integers(x, y, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        a, b = x[i], y[i]
        out[0, i], out[1, i], out[2, i] = a + b, a - b, a * b
        out[3, i], out[4, i] = a >> (b & 31), a << (b & 31)
        out[5, i], out[6, i], out[7, i] = a & b, a | b, a ^ b
        out[8, i], out[9, i] = min(a, b), max(a, b)
        if b != 0:
            out[10, i], out[11, i] = a // b, a % b


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
def test_integers_are_those_of_numpy(dtype):
    kind = types.int32 if dtype is np.int32 else types.int64 if dtype is np.int64 else types.uint64
    ends = [0, 1, 2, 7, 2**31 - 1, np.iinfo(dtype).max]
    ends += [] if dtype is np.uint64 else [-1, -2, -7, np.iinfo(dtype).min + 1]
    x, y = (np.array(column, dtype) for column in zip(*itertools.product(ends, ends), strict=True))
    out = np.zeros((12, len(x)), dtype)
    compiled(integers, kind[::1], kind[::1], kind[:, ::1]).launch((1,), (128,), [x, y, out])
    with np.errstate(over="ignore"):
        wanted = [x + y, x - y, x * y, x >> (y & 31), x << (y & 31), x & y, x | y, x ^ y]
    wanted += [np.minimum(x, y), np.maximum(x, y)]
    wanted += [np.where(y != 0, f(x, np.where(y == 0, 1, y)), 0).astype(dtype) for f in (np.floor_divide, np.remainder)]
    np.testing.assert_array_equal(out, np.array(wanted, dtype))


def floats(x, y, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        a, b = x[i], y[i]
        out[0, i], out[1, i], out[2, i], out[3, i] = a + b, a - b, a * b, a / b
        out[4, i], out[5, i] = int64(a), abs(a)
        out[6, i], out[7, i], out[8, i], out[9, i] = a < b, a <= b, a == b, a != b


@pytest.mark.parametrize(("dtype", "kind"), [(np.float32, types.float32), (np.float64, types.float64)])
def test_floats_are_those_of_numpy(dtype, kind):
    numbers = [0.0, -0.0, 1.5, -2.75, 1e-30, 3e20, -1e9, np.inf, -np.inf, np.nan]
    x, y = (np.array(column, dtype) for column in zip(*itertools.product(numbers, numbers), strict=True))
    out = np.zeros((10, len(x)), dtype)
    compiled(floats, kind[::1], kind[::1], kind[:, ::1]).launch((1,), (128,), [x, y, out])
    with np.errstate(all="ignore"):
        wanted = np.array([x + y, x - y, x * y, x / y, out[4], abs(x), x < y, x <= y, x == y, x != y], dtype)
    np.testing.assert_array_equal(out, wanted)
    held = np.isfinite(x) & (abs(x) < 2**62)
    np.testing.assert_array_equal(out[4][held], np.trunc(x)[held])


def from_a_table(i, out):
    k = cuda.grid(1)
    if k < i.shape[0]:
        out[k] = TABLE[i[k]]


def test_tables_of_constants():
    out = np.zeros(4, np.int64)
    compiled(from_a_table, L1, L1).launch((1,), (32,), [np.arange(4)[::-1].copy(), out])
    np.testing.assert_array_equal(out, TABLE[::-1])


def warps(x, out):
    i = cuda.threadIdx.x
    positive = x[i] > float32(0)
    out[0, i] = cuda.ballot_sync(0xFFFFFFFF, positive)
    out[1, i] = cuda.any_sync(0xFFFFFFFF, positive)
    out[2, i] = cuda.all_sync(0xFFFFFFFF, positive)
    out[3, i] = cuda.match_any_sync(0xFFFFFFFF, int32(x[i] * float32(2)))
    out[4, i] = cuda.syncthreads_count(int32(positive))
    out[5, i] = cuda.lanemask_lt()
    out[6, i] = cuda.shfl_sync(0xFFFFFFFF, i, 3)
    out[7, i] = cuda.shfl_up_sync(0xFFFFFFFF, i, 2)
    out[8, i] = cuda.shfl_down_sync(0xFFFFFFFF, i, 5)
    out[9, i] = cuda.shfl_xor_sync(0xFFFFFFFF, i, 9)
    out[10, i] = cuda.popc(int32(i)) + 100 * cuda.clz(int32(i))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_lanes_of_a_warp_exchange_numbers(schedule):
    x, out = np.linspace(-1, 1, 64).astype(np.float32), np.zeros((11, 64), np.int64)
    compiled(warps, F1, int64[:, ::1]).launch((1,), (64,), [x, out], schedule=schedule)
    lanes, positive, twice = np.arange(64), x > 0, (x * 2).astype(int)
    of_warp = lanes // 32 * 32
    mask = lambda held: (held.reshape(2, 32) << np.arange(32)).sum(1).repeat(32)
    signed = lambda words: words.astype(np.uint32).astype(np.int32)
    np.testing.assert_array_equal(signed(out[0]), signed(mask(positive)))
    np.testing.assert_array_equal(out[1], positive.reshape(2, 32).any(1).repeat(32))
    np.testing.assert_array_equal(out[2], positive.reshape(2, 32).all(1).repeat(32))
    same = [mask(twice == t)[k] for k, t in enumerate(twice)]
    np.testing.assert_array_equal(signed(out[3]), signed(np.array(same)))
    np.testing.assert_array_equal(out[4], positive.sum())
    np.testing.assert_array_equal(signed(out[5]), signed((1 << lanes % 32) - 1))
    np.testing.assert_array_equal(out[6], of_warp + 3)
    np.testing.assert_array_equal(out[7], np.where(lanes % 32 < 2, lanes, lanes - 2))
    np.testing.assert_array_equal(out[8], np.where(lanes % 32 > 26, lanes, lanes + 5))
    np.testing.assert_array_equal(out[9], of_warp + (lanes % 32 ^ 9))
    np.testing.assert_array_equal(out[10], [k.bit_count() + 100 * (32 - k.bit_length()) for k in lanes.tolist()])


def count_up(x, out):
    cuda.atomic.add(out, 0, x[cuda.grid(1)])
    cuda.atomic.max(out, 1, x[cuda.grid(1)])


def test_atomics_of_many_threads():
    x, out = np.arange(256, dtype=np.int64), np.zeros(2, np.int64)
    compiled(count_up, L1, L1).launch((4,), (64,), [x, out], schedule=Schedule(seed=1, preempt=3))
    assert out.tolist() == [x.sum(), 255]


@pytest.mark.parametrize(("shape", "depth", "rounding"), [("m16n8k8", 8, 2**-10), ("m16n8k16", 16, 2**-7)])
def test_products_of_a_warp(shape, depth, rounding):
    """Fragments as in the PTX manual, "Matrix Fragments for mma"; a lane of number 4 g + q holds rows g and g + 8."""
    kind, of = ("tf32", ".b32") if depth == 8 else ("bf16", ".b32")
    loads = "".join(f"ld.global{of} %r{k}, [%rd1+{4 * k}]; " for k in range(4))
    loads += "".join(f"ld.global{of} %r{4 + k}, [%rd2+{4 * k}]; " for k in range(2))
    stores = "".join(f"st.global.f32 [%rd3+{4 * k}], %f{k}; " for k in range(4))
    places = "".join(
        f"mul.wide.u32 %rd4, %i, {size}; add.s64 %rd{k}, %{name}, %rd4; "
        for k, name, size in ((1, "a", 16), (2, "b", 8))
    )
    places += "mul.wide.u32 %rd4, %i, 16; add.s64 %rd3, %d, %rd4; "
    product = f"mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32 "
    product += "{%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%f4, %f5, %f6, %f7}; "
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((16, depth)).astype(np.float32), rng.standard_normal((depth, 8)).astype(np.float32)
    g, q = np.divmod(np.arange(32), 4)
    if depth == 8:
        pieces = [a[g, q], a[g + 8, q], a[g, q + 4], a[g + 8, q + 4]]
        of_b = [b[q, g], b[q + 4, g]]
    else:
        halves = lambda m: (m.view(np.uint32) + 0x8000) >> 16  # as bf16
        pair = lambda m, row, k: (halves(m)[row, k] | halves(m)[row, k + 1] << 16).view(np.float32)
        turned = np.ascontiguousarray(b.T)
        pieces = [pair(a, g, 2 * q), pair(a, g + 8, 2 * q), pair(a, g, 2 * q + 8), pair(a, g + 8, 2 * q + 8)]
        of_b = [pair(turned, g, 2 * q), pair(turned, g, 2 * q + 8)]
    given = [np.stack(parts, 1).astype(np.float32).ravel() for parts in (pieces, of_b)]
    out = np.zeros(128, np.float32)
    Kernel(written(places + loads + product + stores, ["a", "b", "d"])).launch((1,), (32,), [*given, out])
    d = np.zeros((16, 8), np.float32)
    for k, (row, column) in enumerate(((g, 2 * q), (g, 2 * q + 1), (g + 8, 2 * q), (g + 8, 2 * q + 1))):
        d[row, column] = out.reshape(32, 4)[:, k]
    np.testing.assert_allclose(d, a @ b, atol=4 * rounding * np.sqrt(depth))
    assert np.abs(d - a @ b).max() > 0, "operands are rounded"


# Waiting for one another.


def reverse(x, out):
    shared = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    shared[i] = x[i]
    cuda.syncthreads()
    out[i] = shared[63 - i]


def run_reverse(kernel, schedule):
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    kernel.launch((1,), (64,), [x, out], schedule=schedule)
    np.testing.assert_array_equal(out, x[::-1])


def test_a_barrier_that_is_removed_is_seen():
    ptx = ptx_of(cuda.Kernel(reverse).source, (F1, F1))
    assert len(mutants(ptx)) == 1
    assert survivors(ptx, run_reverse) == []
    (mutant,) = mutants(ptx).values()
    assert schedules_that_see(mutant, run_reverse) == len(SCHEDULES)


MESSAGE = """
setp.ne.u32 %p0, %i, 0; @%p0 bra DONE;
setp.ne.u32 %p1, %block, 0; @%p1 bra READ;
mov.u32 %r1, 41; st.global.u32 [%x], %r1;
mov.u32 %r2, 1; st.release.gpu.global.u32 [%flag], %r2;
bra DONE;
READ:
ld.acquire.gpu.global.u32 %r3, [%flag]; setp.eq.u32 %p2, %r3, 0; @%p2 bra READ;
ld.global.u32 %r4, [%x]; add.u32 %r4, %r4, 1; st.global.u32 [%out], %r4;
DONE:
"""
FENCES = MESSAGE.replace("st.release.gpu", "fence.acq_rel.gpu; st.relaxed.gpu").replace(
    "setp.eq.u32 %p2, %r3, 0; @%p2 bra READ;", "setp.eq.u32 %p2, %r3, 0; @%p2 bra READ; fence.acq_rel.gpu;"
)
FENCES = FENCES.replace("ld.acquire", "ld.relaxed")


def run_message(kernel, schedule):
    x, flag, out = (np.zeros(1, np.uint32) for _ in range(3))
    limited = Schedule(seed=schedule.seed, preempt=schedule.preempt, limit=20_000)
    kernel.launch((2,), (1,), [x, flag, out], schedule=limited)
    assert out[0] == 42


@pytest.mark.parametrize("body", [MESSAGE, FENCES], ids=["release and acquire", "fences"])
def test_a_release_or_an_acquire_that_is_relaxed_is_seen(body):
    ptx = written(body, ["x", "flag", "out"])
    assert len(mutants(ptx)) == 2
    assert survivors(ptx, run_message) == []


def test_a_kernel_that_fails_has_no_mutants_to_judge():
    with pytest.raises(AssertionError, match="without any change"):
        survivors(written(MESSAGE.replace("41", "40"), ["x", "flag", "out"]), run_message)


def test_a_mutant_that_is_right_survives():
    """A barrier between reads orders nothing."""
    body = "mul.wide.u32 %rd1, %i, 4; add.s64 %rd2, %out, %rd1; bar.sync 0; st.global.u32 [%rd2], %i;"

    def run(kernel, schedule):
        kernel.launch((1,), (32,), [np.zeros(32, np.uint32)], schedule=schedule)

    (survivor,) = survivors(written(body, ["out"]), run)
    assert re.match(r"line \d+: bar.sync 0; removed", survivor)


def race_in_memory(x, out):
    i = cuda.grid(1)
    out[i // 2] = x[i]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_race_between_threads_that_never_meet_is_seen(schedule):
    x, kernel = np.arange(64, dtype=np.float32), compiled(race_in_memory, F1, F1)
    assert kernel.source.is_plain
    with pytest.raises(LaunchError, match="race: write after an unordered write of thread"):
        kernel.launch((1,), (64,), [x, x.copy()], schedule=schedule)
    kernel.launch((1,), (64,), [x, x.copy()], schedule=Schedule(races=False))


def test_races_between_bytes():
    """Threads may write neighbouring bytes of a word, but not the same byte."""
    bytes_of = types.uint8[::1]
    x = np.arange(64, dtype=np.uint8)
    with pytest.raises(LaunchError, match="race: write after an unordered write of thread"):
        compiled(race_in_memory, bytes_of, bytes_of).launch((1,), (64,), [x, x.copy()])
    out = np.zeros(64, np.uint8)
    compiled(copy_in_memory, bytes_of, bytes_of).launch((1,), (64,), [x, out])
    assert (out == x).all()


def copy_in_memory(x, out):
    i = cuda.grid(1)
    out[i] = x[i]


def power_in_memory(x, out):
    i = cuda.grid(1)
    out[i] = math.pow(x[i], 2.5) + math.pow(-x[i], 3.0)


def test_functions_that_a_kernel_calls():
    """The power of float64 is a function of its own in PTX, called twice here."""
    kernel, x = compiled(power_in_memory, types.float64[::1], types.float64[::1]), np.linspace(0, 9, 32)
    assert [function.name for function in kernel.source.functions] == ["__internal_accurate_pow"]
    out = np.empty(32)
    kernel.launch((1,), (32,), [x, out])
    np.testing.assert_allclose(out, x**2.5 - x**3, rtol=1e-13, atol=1e-11)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("bar.sync 1, 64;", "deadlock"),
        ("AGAIN: ld.acquire.gpu.global.u32 %r1, [%x]; setp.eq.u32 %p0, %r1, 0; @%p0 bra AGAIN;", "no end after"),
        ("ld.global.u32 %r1, [%x+2];", "misaligned"),
        ("ld.global.u32 %r1, [%x+8];", "out-of-bounds"),
        ("st.global.u32 [%x+-4], %i;", "out-of-bounds"),
        ("ld.global.v2.u32 {%r1, %r2}, [%x+4];", "misaligned"),
        ("mov.u32 %r1, memory; st.shared.u32 [%r1+64], %i;", "out-of-bounds"),
        ("st.global.u32 [%x], %i; ld.global.nc.u32 %r1, [%x];", "race|non-coherent"),
        ("mov.u32 %r1, 5; shfl.sync.idx.b32 %r2, %i, 40, 31, 1;", "mask leaves out"),
    ],
)
def test_a_launch_that_goes_wrong_says_so(body, problem):
    kernel = Kernel(written(body, ["x"], shared=64))
    with pytest.raises(LaunchError, match=problem):
        kernel.launch((1,), (32,), [np.zeros(2, np.uint32)], schedule=Schedule(limit=10_000))


COPY = """
mov.u32 %r1, memory; shl.b32 %r2, %i, 4; add.u32 %r1, %r1, %r2;
mul.wide.u32 %rd1, %i, 16; add.s64 %rd2, %x, %rd1;
cp.async.ca.shared.global [%r1], [%rd2], 16; cp.async.wait_all;
bar.sync 0;
mov.u32 %r3, memory; mov.u32 %r4, 496; sub.u32 %r4, %r4, %r2; add.u32 %r3, %r3, %r4;
add.s64 %rd3, %out, %rd1;
ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r3]; st.global.v4.f32 [%rd3], {%f1, %f2, %f3, %f4};
"""


def run_copy(kernel, schedule):
    x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    kernel.launch((1,), (32,), [x, out], schedule=schedule)
    np.testing.assert_array_equal(out.reshape(32, 4), x.reshape(32, 4)[::-1])


def test_an_asynchronous_copy_must_be_waited_for():
    ptx = written(COPY, ["x", "out"], shared=512)
    assert [name.split(": ")[1] for name in mutants(ptx)] == ["cp.async.wait_all; removed", "bar.sync 0; removed"]
    assert survivors(ptx, run_copy) == []


CLUSTER = """
mov.u32 %r1, memory; mov.u32 %r6, %cluster_ctarank; xor.b32 %r2, %r6, 1; mapa.shared::cluster.u32 %r3, %r1, %r2;
add.u32 %r4, %block, 10; st.shared::cluster.u32 [%r3], %r4;
barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
ld.shared.u32 %r5, [%r1]; mul.wide.u32 %rd1, %block, 4; add.s64 %rd2, %out, %rd1; st.global.u32 [%rd2], %r5;
"""


def run_cluster(kernel, schedule):
    out = np.zeros(4, np.uint32)
    kernel.launch((4,), (1,), [out], cluster=2, schedule=schedule)
    assert out.tolist() == [11, 10, 13, 12]


def test_blocks_of_a_cluster_write_to_each_others_memory():
    ptx = written(CLUSTER, ["out"], shared=16)
    assert schedules_that_see(ptx, run_cluster) == 0
    wait = ptx.replace("barrier.cluster.wait.acquire.aligned;", "")
    assert schedules_that_see(wait, run_cluster) == len(SCHEDULES)


def test_an_instruction_without_a_translation_is_an_error():
    with pytest.raises(Unsupported, match="wgmma"):
        Kernel(written("wgmma.fence.sync.aligned;", ["x"]))


# Arrays, launches of the package, and what they cost.


def test_a_device_array_does_not_come_to_the_host_unseen(on_device):
    x = on_device(np.arange(6.0).reshape(2, 3))
    for use in (np.asarray, list, bool, lambda x: x[[0, 1]], lambda x: np.ones(3) + x):
        with pytest.raises(TypeError):
            use(x)
    np.testing.assert_array_equal(x.copy_to_host(), np.arange(6.0).reshape(2, 3))
    x[1:].copy_to_device(np.zeros((1, 3)))
    np.testing.assert_array_equal(x.T.copy_to_host()[:, 1], 0)
    for _ in range(2):  # the second array has the memory of the first one
        made = varlen_rnn.runtime.device.empty((2, 3), x)
        assert np.isnan(made.copy_to_host()).all()
        varlen_rnn.runtime.device.copy_into(made, x)


def test_a_kernel_takes_no_array_of_the_host(on_device):
    with pytest.raises(TypeError, match="arrays on a CUDA device"):
        rows.gather_rows_cuda[1, 32](np.ones((2, 2)), on_device(np.array([0])), on_device(np.zeros((1, 2))))


def test_views_have_the_types_of_their_layout(on_device):
    x = on_device(np.zeros((4, 6)))
    kinds = types_of(Parameters((x, x[:, 1:], x.T, x[0], np.float32(1), 1, True)).kinds)
    assert kinds == (*(types.Array(types.float64, 2, layout) for layout in "CAF"), types.float64[::1], *kinds[4:])
    assert kinds[4:] == (types.float32, types.int64, types.boolean)


def test_a_wrong_index_is_an_error_that_names_the_kernel(on_device):
    table, out = on_device(np.ones((2, 3))), on_device(np.zeros((2, 3)))
    rows.gather_rows(table, np.array([0, 1]), out)
    with pytest.raises(LaunchError, match=r"gather_rows_cuda.*out-of-bounds"):
        rows.gather_rows(table, np.array([0, 2]), out)


def test_steady_names_the_line_that_copies(on_device):
    x, out, scale = on_device(np.ones((3, 2))), on_device(np.zeros((1, 2))), on_device(np.ones(1))
    offsets = np.array([0, 3])
    with pytest.raises(AssertionError, match=r"allocation at kernels/twins\.py:\d+"), steady():
        pool.pool_sum(x, offsets, scale, out)
    offsets = on_device(offsets)
    with steady():
        pool.pool_sum(x, offsets, scale, out)
    assert out.copy_to_host().tolist() == [[3, 3]]
    assert COUNTS[TO_DEVICE, "elsewhere"] >= 3


# Figures of ptxas, and whether it is as new as NVVM.


def test_a_ptxas_that_refuses_all_kernels_is_named_before_any_launch(tmp_path, monkeypatch):
    """An older one does, such as that of another CUDA toolkit, also after figures of a newer one were kept."""
    monkeypatch.setenv("VARLEN_RNN_EMULATED", str(tmp_path / "kept"))
    assert device.missing.__wrapped__() is None
    older = tmp_path / "ptxas"
    older.write_text(
        "#!/bin/sh\necho \"ptxas fatal: Unsupported .version 9.5; current version is '9.0'\" >&2\nexit 1\n"
    )
    older.chmod(0o755)
    monkeypatch.setattr(figures, "find_ptxas", lambda: str(older))
    monkeypatch.setattr(device, "find_ptxas", lambda: str(older))
    reason = device.missing.__wrapped__()
    assert "a ptxas as new as NVVM: pip install --upgrade nvidia-cuda-nvcc nvidia-nvvm" in reason
    assert f"{older} says sm_75: ptxas fatal: Unsupported .version 9.5" in reason


def test_figures_are_those_of_the_version_of_ptxas(tmp_path, monkeypatch):
    """An upgrade keeps the path, and another version may refuse what the former one took."""
    monkeypatch.setenv("VARLEN_RNN_EMULATED", str(tmp_path / "kept"))
    ptxas, ptx = tmp_path / "ptxas", written("", ["x"])
    monkeypatch.setattr(figures, "find_ptxas", lambda: str(ptxas))
    for version, said in (("13.5", "Used 4 registers"), ("13.0", "Used 5 registers")):
        ptxas.write_text(f"#!/bin/sh\n[ $1 = --version ] && echo {version} || echo {said}\n")
        ptxas.chmod(0o755)
        figures._version.cache_clear()
        assert f"Used {figures.figures_of(ptx)[90]['registers']} registers" == said
    figures._version.cache_clear()


def test_an_nvvm_that_compiles_nothing_is_named(monkeypatch):
    def fail(function, signature):
        raise OSError("libnvvm.so: not found")

    monkeypatch.setattr(device, "ptx_of", fail)
    assert device.missing.__wrapped__().endswith(
        "needs an NVVM that compiles: pip install numba-cuda[cu13]; got libnvvm.so: not found"
    )


def with_a_literal(x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] = x[i] * 0.3


def with_a_stack(x):
    held = cuda.local.array(64, float32)
    i = cuda.grid(1)
    for k in range(x.shape[0]):
        held[k & 63] = x[k] + held[k + 1 & 63]
    x[i] = held[i & 63]


def test_float64_in_a_kernel_of_float32_is_a_fault():
    ptx = ptx_of(cuda.Kernel(with_a_literal).source, (F1,))
    assert count_float64(ptx) >= 2
    assert any("float64 instructions" in fault for fault in faults_of(ptx, True))
    assert faults_of(ptx, False) == []


def test_a_stack_is_a_fault_on_every_architecture():
    found = faults_of(ptx_of(cuda.Kernel(with_a_stack).source, (F1,)), True)
    assert [fault.split(":")[0] for fault in found] == ["sm_75", "sm_80", "sm_90"]
    assert all("bytes of stack" in fault for fault in found)


def test_ptx_that_ptxas_refuses_is_a_fault():
    assert "sm_90" in faults_of(written("add.u32 %r1, %f1, 1;", ["x"]), True)[-1]


def test_a_launch_with_a_fault_is_an_error(on_device):
    with pytest.raises(AssertionError, match="float64 instructions"):
        cuda.Kernel(with_a_literal)[1, 32](on_device(np.ones(3, np.float32)))


def test_types_of_floats_of_a_launch():
    assert float_types((F1, types.float64, L1)) == {"float32"}
    assert float_types((L1, types.float64)) == {"float64"}
    assert float_types((L1, types.int64)) == set()


def test_a_digest_covers_all_that_a_kernel_is_made_of():
    def make(number, helper):
        return lambda x: helper(x) + number

    def half(x):
        return x / 2

    def third(x):
        return x / 3

    found = [digest_of(make(*given)) for given in ((1, half), (2, half), (1, third), (1.0, half), (1, half))]
    assert found[0] == found[4]
    assert len(set(found)) == 4
