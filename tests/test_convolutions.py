"""Random convolutions: the kernel equals its oracle, and a sequence's features depend on that sequence only."""

import itertools

import numpy as np
import pytest
from oracles import convolutions as oracle

import varlen_rnn as vr
from tests.test_kernels import by_number, by_trouble, check, values
from varlen_rnn.kernels import convolutions

TABLE = np.array([[0, 1, 2, 1, 1], [3, 4, 8, 1, 0], [0, 4, 8, 3, 0], [1, 2, 7, 3, 1]])
CHANNELS = np.array([[0, -1], [1, 0], [1, -1], [0, 1]])


@pytest.mark.twins
@by_number
@by_trouble
def test_shares_above_thresholds(device, dtype, offsets):
    """Numbers are small integers, so that every sum is exact and many values equal a threshold."""
    offsets = np.array([*offsets, *(offsets[-1] + np.array([9, 10, 40]))])
    x = np.random.default_rng(1).integers(-3, 4, (offsets[-1], 2)).astype(dtype)
    thresholds = np.array([[-5, 0, 3]] * 4, dtype)
    out = np.full((len(offsets) - 1, 12), np.nan, dtype)
    check(device, convolutions.shares_above, oracle.shares_above, x, offsets, TABLE, CHANNELS, thresholds, out)


@by_number
def test_one_convolution(dtype):
    for length, k in itertools.product((0, 1, 8, 30), range(4)):
        x, out = values((length, 2), dtype), np.full(length, np.nan, dtype)
        convolutions.convolve(x, TABLE, CHANNELS, k, out)
        *taps, dilation, _ = TABLE[k]
        expected = oracle.convolve(x.astype(np.float64), taps, dilation, [c for c in CHANNELS[k] if c >= 0])
        np.testing.assert_allclose(out, expected, rtol=0, atol=(1e-12 if dtype == np.float64 else 2e-6) * 40)


def test_a_sequence_has_the_same_bits_alone_in_any_batch_and_on_any_number_of_threads():
    lengths = [30, 0, 1, 200, 7] * 20
    offsets = np.cumsum([0, *lengths])
    x, thresholds = values((offsets[-1], 2), np.float32), values((4, 5), np.float32, 1)

    def shares(rows, offsets):
        out = np.empty((len(offsets) - 1, 20), np.float32)
        convolutions.shares_above(rows, offsets, TABLE, CHANNELS, thresholds, out)
        return out

    together = []
    for number in (1, 3):
        vr.set_num_threads(number)
        together.append(shares(x, offsets))
    np.testing.assert_array_equal(*together)
    alone = [shares(x[a:b], np.array([0, b - a])) for a, b in itertools.pairwise(offsets)]
    np.testing.assert_array_equal(np.concatenate(alone), together[0])
