"""Products at the precisions "bf16" and "bf16-avx512": the bits of their oracles, from the instruction and emulated."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.each import check_each
from tests.oracles import bfloat16 as oracle
from varlen_rnn.products import bfloat16, gemm, row_sums
from varlen_rnn.recurrence import cpu, layer

SUMS = {"bf16": oracle.amx_product, "bf16-avx512": oracle.avx512_product}
EDGES = np.array(
    [0, -0.0, np.inf, -np.inf, np.nan, 2**-126, -(2**-126), 2**-126 - 2**-149, 2**-149, -(2**-130), 3.4e38, -3.4e38, 1,
     1 + 2**-9, 1 + 3 * 2**-9, 2**-126 * (1 + 2**-9), 3.3895e38, 3.396e38],
    np.float32,
)  # fmt: skip


@pytest.fixture(params=["bf16", "bf16 emulated", "bf16-avx512", "bf16-avx512 emulated"])
def precision(request, monkeypatch):
    """Each order of additions, and its emulation; both are the same on a processor without the instruction."""
    name, _, emulated = request.param.partition(" ")
    if emulated and not bfloat16.has_instruction(name):
        pytest.skip("this processor has no instruction: the emulation runs in any case")
    if emulated:
        monkeypatch.setattr(bfloat16, "has_instruction", lambda precision: False)
        _forget_addresses()
    with vr.float32_matmul_precision(name):
        yield name
    if emulated:
        _forget_addresses()


def _forget_addresses():
    gemm.addresses_of.cache_clear()
    cpu.loop_of.cache_clear()
    layer._made_once.cache_clear()


def values(rng, shape, share):
    """Return rows of numbers of several magnitudes; in half of the rows, a `share` of the numbers is odd."""
    numbers = rng.standard_normal(shape)
    small = numbers * 2.0 ** rng.integers(-130, -60, shape)
    is_odd = (rng.random(shape) < share) & (rng.random((shape[0], 1)) < 0.5)
    rows = np.where(rng.random((shape[0], 1)) < 0.5, numbers, small)
    return np.where(is_odd, rng.choice(EDGES, shape), rows).astype(np.float32)


def same_bits(got, wanted):
    """Check that numbers are equal to the sign of zero; which NaN it is, no processor promises."""
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(np.signbit(got) & ~np.isnan(got), np.signbit(wanted) & ~np.isnan(wanted))


def test_the_oracle_rounds_to_nearest_even():
    given = [
        1 + 2**-8,
        1 + 3 * 2**-8,
        1 + 2**-8 + 2**-23,
        3.39e38,
        3.4e38,
        2**-126 - 2**-149,
        -(2**-149),
        -0.0,
        -np.inf,
    ]
    wanted = [1, 1 + 2**-6, 1 + 2**-7, 255 * 2.0**120, np.inf, 0, -0.0, -0.0, -np.inf]
    same_bits(oracle.rounded(given), np.array(wanted, np.float32))
    assert np.isnan(oracle.rounded(np.nan))


def test_sums_below_the_least_normal_number_become_zero_after_rounding(precision):
    """2^-126 - 2^-151 rounds to 2^-126 with 24 bits and any exponent; 2^-126 - 2^-150 does not; products stay exact."""
    terms = [
        (2**-126, -(2**-51), 2**-126), (2**-126, -(2**-50), 0), (-(2**-126), 2**-50, 0), (2**-125, 2**-27, 5 * 2**-127)
    ]  # fmt: skip
    for first, of_second, wanted in terms:
        a, weight = np.zeros((1, 3), np.float32), np.zeros((3, 1), np.float32)
        a[0, 0], weight[0], a[0, 2], weight[2] = first, 1, 2**-100, of_second
        got, start = np.empty((1, 1), np.float32), np.zeros((1, 1), np.float32)
        gemm.product(a, weight, got)
        same_bits(got, SUMS[precision](a, weight, start))
        assert got[0, 0] == wanted


def test_products_have_the_bits_of_the_oracle(precision):
    """Sizes that are no multiples of 16 or 32, more values of k than are rounded at once, no rows, and no depth."""

    def check(size):
        (rows, depth, columns), rng = size, np.random.default_rng(7)
        a, weight = values(rng, (rows, depth), 0.02), values(rng, (depth, columns), 0.02)
        bias, c, again = values(rng, (1, columns), 0.1)[0], *np.empty((2, rows, columns), np.float32)
        gemm.product(a, weight, c, bias=bias)
        same_bits(c, SUMS[precision](a, weight, np.broadcast_to(bias, c.shape)))
        gemm.product(a, np.ascontiguousarray(weight.T), again, transposed=True, bias=bias)
        same_bits(again, c)
        gemm.product(a, weight, again, accumulate=True)
        same_bits(again, SUMS[precision](a, weight, c))
        for row in range(0, rows, 9):  # one row has the bits that it has among others
            gemm.product(a[row : row + 1], weight, again[:1], bias=bias)
            same_bits(again[0], c[row])

    check_each(
        [
            (1, 5, 7),
            (3, 99, 40),
            (50, 1030, 65),
            (4, 65, 128),
            (2, 31, 150),
            (2, 0, 9),
            (0, 4, 4),
            (61, 64, 130),
            (13, 1, 1),
        ],
        check,
    )


def test_sums_over_rows_have_the_bits_of_the_oracle(precision):
    def check(size):
        (rows, depth, columns), rng = size, np.random.default_rng(8)
        a, b = values(rng, (rows, depth), 0.001), values(rng, (rows, columns), 0.001)
        same_bits(row_sums.row_product(a, b), oracle.row_product(a, b, SUMS[precision]))

    check_each([(1, 5, 7), (127, 20, 33), (129, 40, 70), (530, 61, 65), (0, 3, 4), (8500, 3, 2)], check)


def test_sums_over_a_million_rows_lose_at_most_a_rounding_per_block(precision):
    rows = 1_000_001
    a, b = np.full((rows, 1), 0.1, np.float32), np.full((rows, 1), 3, np.float32)
    wanted = rows * float(oracle.rounded(a[0, 0])) * 3
    np.testing.assert_allclose(row_sums.row_product(a, b), wanted, rtol=rows / 128 * 2**-24)


def results_of(cell, size, lengths, **options):
    """Return the outputs and the gradients of a layer as a list."""
    vr.manual_seed(3)
    rng, net = np.random.default_rng(3), cell(*size, **options)
    data = rng.standard_normal((sum(lengths), size[0])).astype(np.float32)
    x = vr.Variable(vr.create_lod_tensor(data, [lengths]), requires_grad=True)
    y = net(x)[0]
    (y * y).sum().backward()
    return [np.asarray(array) for array in (y, x.grad, *(p.grad for p in net.parameters()))]


def test_layers_are_near_float32_and_rows_do_not_depend_on_their_batch(precision):
    """70 units are no whole panels; heads share a panel; one step of each sequence runs on its own (`OneStep`)."""
    two_phases = {"reset_after": False, "bidirectional": True, "recompute": 4}

    def check(case):
        cell, size, options = case
        got = results_of(cell, size, [3, 0, 17, 1], **options)
        with vr.float32_matmul_precision("fp32"):
            wanted = results_of(cell, size, [3, 0, 17, 1], **options)
        for array, right in zip(got, wanted, strict=True):
            assert 1e-5 < np.linalg.norm(array - right) / np.linalg.norm(right) < 0.02
        same_bits(results_of(cell, size, [1], **options)[0], results_of(cell, size, [1, 2], **options)[0][:1])

    cases = [{}, {"num_heads": 2}, {"proj_size": 33}]
    check_each([*((vr.nn.LSTM, (9, 70), options) for options in cases), (vr.nn.GRU, (5, 33), two_phases)], check)


@pytest.mark.parametrize("name", ["bf16", "bf16-avx512"])
def test_the_emulation_of_a_layer_has_the_bits_of_the_instruction(name, monkeypatch):
    if not bfloat16.has_instruction(name):
        pytest.skip("this processor has no instruction")
    with vr.float32_matmul_precision(name):
        wanted = results_of(vr.nn.LSTM, (9, 70), [3, 0, 17, 1])
        monkeypatch.setattr(bfloat16, "has_instruction", lambda precision: False)
        _forget_addresses()
        got = results_of(vr.nn.LSTM, (9, 70), [3, 0, 17, 1])
    _forget_addresses()
    for array, right in zip(got, wanted, strict=True):
        same_bits(array, right)


def test_float64_ignores_the_precision(precision):
    a, weight = np.random.default_rng(0).standard_normal((2, 5, 5))
    c = np.empty((5, 5))
    gemm.product(a, weight, c)
    np.testing.assert_allclose(c, a @ weight, rtol=1e-12)
    np.testing.assert_allclose(row_sums.row_product(a, weight), a.T @ weight, rtol=1e-12)
