"""The counter-based generator: published vectors, masks on each device and any threads, and their shares."""

import numpy as np
import pytest
from oracles import philox as oracle

from varlen_rnn.kernels import philox
from varlen_rnn.runtime import threads
from varlen_rnn.runtime.jit import cpu_kernel

NONE = np.empty(0, np.int64)

# `kat_vectors` of Random123, the authors' library: counter, key, result.
PUBLISHED = """
00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8
ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd
243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1
"""


@cpu_kernel
def _one(words):
    c0, c1, c2, c3, k0, k1 = words
    return philox.philox4x32(c0, c1, c2, c3, k0, k1)


@pytest.mark.parametrize("line", PUBLISHED.split("\n")[1:-1])
def test_words_are_those_that_are_published(line):
    words = [int(word, 16) for word in line.split()]
    assert oracle.philox4x32(words[:4], words[4:6]) == tuple(words[6:])
    assert _one(tuple(map(np.uint64, words[:6]))) == tuple(words[6:])


@pytest.mark.parametrize("given", [(0, 0, 0), (1, 2, 3), (2**62 + 5, 2**40, 2**33 + 1)])
def test_keys_follow_from_seed_step_and_call(given):
    assert philox.key_of(*given) == oracle.key_of(*given)


@pytest.mark.twins
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [0, 1, 3, 4, 7, 31, 32, 35])
@pytest.mark.parametrize("count", [0, 1, 3, 70])
def test_masks(device, dtype, width, count):
    rng = np.random.default_rng(0)
    key, threshold = int(rng.integers(2**63)), int(0.3 * 2**32)
    positions, rows = rng.integers(0, 2**40, count), rng.integers(0, 2**32, count)
    for given in ((positions, rows), (positions, NONE), (NONE, NONE)):
        mask, right = device.put(np.full((count, width), np.nan, dtype)), np.empty((count, width), dtype)
        philox.draw_mask(*given, key, threshold, 0.0, 1 / 0.7, mask)
        oracle.draw_mask(*given, key, threshold, 0.0, 1 / 0.7, right)
        np.testing.assert_array_equal(device.get(mask), right)


@pytest.mark.parametrize(("threshold", "share"), [(0, 0), (2**32, 1)])
def test_nothing_and_all_are_below(threshold, share):
    mask = np.empty((50, 9))
    philox.draw_mask(NONE, NONE, philox.key_of(3, 0, 0), threshold, 1.0, 0.0, mask)
    assert (mask == share).all()


@pytest.mark.parametrize("width", [5, 100])
def test_threads_change_no_bit(width, monkeypatch):
    monkeypatch.setattr(threads, "SMALL_WORK", 1)
    before, found = threads.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            threads.set_num_threads(number)
            mask = np.full((1001, width), np.nan)
            philox.draw_mask(NONE, NONE, 7, 2**30, 1.0, 0.0, mask)
            found.append(mask)
    finally:
        threads.set_num_threads(before)
    for mask in found[1:]:
        np.testing.assert_array_equal(mask, found[0])


@pytest.mark.parametrize("p", [0.01, 0.3, 0.5])
def test_masks_have_their_share_and_no_pattern(p):
    """Shares within 5 standard deviations: of all, of columns, of rows, and of neighbours in each direction."""
    mask = np.empty((2000, 64))
    philox.draw_mask(NONE, NONE, philox.key_of(1, 2, 3), round(p * 2**32), 1.0, 0.0, mask)
    spread = np.sqrt(p * (1 - p))
    for axis in (None, 0, 1):
        shares = mask.mean(axis)
        assert np.abs(shares - p).max() < 5 * spread / np.sqrt(mask.size / np.size(shares))
    other = np.empty_like(mask)
    philox.draw_mask(NONE, NONE, philox.key_of(1, 2, 4), round(p * 2**32), 1.0, 0.0, other)
    for a, b in ((mask[1:], mask[:-1]), (mask[:, 1:], mask[:, :-1]), (mask[:, 4:], mask[:, :-4]), (mask, other)):
        assert np.mean((a - p) * (b - p)) == pytest.approx(0, abs=5 * spread**2 / np.sqrt(a.size))
