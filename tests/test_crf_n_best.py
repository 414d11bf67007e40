"""The n best labellings of a linear-chain CRF, against the scores of all labellings."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.oracles import structured as oracle
from varlen_rnn.kernels.n_best import search_labellings
from varlen_rnn.nn import LinearChainCRF

LENGTHS = [[3, 0, 1, 5], [0, 0], [], [2], [0, 4]]


def case(lengths, dtype=np.float64, tags=3, seed=0):
    rng, count = np.random.default_rng(seed), sum(lengths)
    emission = vr.create_lod_tensor(2 * rng.standard_normal((count, tags)).astype(dtype), [lengths])
    layer = LinearChainCRF(tags, dtype=dtype)
    layer.transition.value.data[...] = rng.standard_normal((tags + 2, tags))
    return emission, layer


def found_by(layer, emission, n):
    tags, scores = layer.n_best(emission, n)
    assert tags.lod()[:-1] == scores.lod()
    assert (tags.dtype, scores.dtype) == (np.int64, emission.dtype)
    pairs = zip(tags.value.to_sequences(), scores.value.to_sequences(), strict=True)
    return [([path.tolist() for path in paths], np.asarray(known)) for paths, known in pairs]


def transition_of(layer):
    return np.asarray(layer.transition).astype(float)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 7, 300])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)], ids=["float64", "float32"])
def test_are_the_best_of_all_labellings(lengths, n, dtype, tolerance):
    emission, layer = case(lengths, dtype)
    for (paths, scores), rows in zip(found_by(layer, emission, n), emission.to_sequences(), strict=True):
        wanted = oracle.crf_labellings(rows.astype(float), transition_of(layer))[:n]
        assert paths == [list(path) for path, _ in wanted]
        np.testing.assert_allclose(scores, [score for _, score in wanted], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seed", range(4))
def test_equal_scores_are_sorted_by_their_last_tags(seed):
    """Scores 0, 1 and 2 have exact sums, so many labellings are equally probable."""
    rng = np.random.default_rng(seed)
    emission, layer = case([5, 4])
    emission = emission.like(rng.integers(0, 3, (9, 3)).astype(float))
    layer.transition.value.data[...] = rng.integers(0, 2, (5, 3))
    for (paths, _), rows in zip(found_by(layer, emission, 60), emission.to_sequences(), strict=True):
        assert paths == [list(path) for path, _ in oracle.crf_labellings(rows, transition_of(layer))[:60]]


def test_the_first_is_the_labelling_of_decode_and_its_score_is_minus_its_cost():
    emission, layer = case([40, 3, 0, 25], np.float32)
    tags, scores = layer.n_best(emission, 3)
    first = np.concatenate([paths[0] for paths in tags.value.to_sequences()])
    assert np.array_equal(first, np.asarray(layer.decode(emission)))
    costs = np.asarray(layer(emission, first))
    assert np.array_equal([-known[0] for known in scores.value.to_sequences()], costs)


def test_labellings_that_cannot_be_are_left_out():
    emission, layer = case([2, 1, 2, 2])
    emission.data[4:5], emission.data[6] = np.nan, -np.inf
    layer.transition.value.data[2, 1] = -np.inf  # tag 1 never follows tag 0
    found = found_by(layer, emission, 20)
    assert [len(paths) for paths, _ in found] == [8, 3, 0, 0]
    assert [0, 1] not in found[0][0]
    np.testing.assert_allclose([np.exp(known).sum() for _, known in found[:2]], 1)


def test_batch_mates_and_long_sequences():
    emission, layer = case([3000, 5, 0, 700], np.float32)
    together = found_by(layer, emission, 4)
    for (paths, scores), rows in zip(together, emission.to_sequences(), strict=True):
        ((alone, same),) = found_by(layer, vr.create_lod_tensor(rows, [[len(rows)]]), 4)
        assert alone == paths
        assert np.array_equal(same, scores)
        costs = [
            -np.asarray(layer(vr.create_lod_tensor(rows, [[len(rows)]]), np.array(path, int)))[0] for path in paths
        ]
        np.testing.assert_allclose(scores, costs, rtol=1e-5, atol=1e-5)


def test_levels_above_are_kept():
    emission, layer = case([2, 1])
    tags, scores = layer.n_best(vr.LoDTensor(emission.data, [[0, 0, 2], [0, 2, 3]]), 2)
    assert tags.lod()[:2] == scores.lod() == [[0, 0, 2], [0, 2, 4]]


@pytest.mark.twins
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_labellings_on_every_device(device, dtype):
    emission, layer = case([3, 0, 2], dtype)
    n, weights = 4, np.asarray(layer.transition)
    memory, totals = device.put(np.zeros((3, 2, 3, n), dtype)), device.put(np.zeros((3, n), dtype))
    back, heads, last = (device.put(np.zeros(shape, int)) for shape in ((5, 3, n), (3, 3), (3, n)))
    offsets = emission.structure.levels[0]
    search_labellings(device.put(emission.data), offsets, device.put(weights), memory, back, heads, totals, last)
    for i, rows in enumerate(emission.to_sequences()):
        wanted = oracle.crf_labellings(rows.astype(float), transition_of(layer))[:n]
        assert np.count_nonzero(device.get(totals)[i] > -np.inf) == len(wanted)
        assert [place // n for place in device.get(last)[i] if place >= 0] == [path[-1] for path, _ in wanted if path]


@pytest.mark.parametrize("n", [0, 4097])
def test_a_number_of_labellings_out_of_range_is_told(n):
    emission, layer = case([2])
    with pytest.raises(vr.OutOfRangeError, match=f"n: expected 1 to 4096 labellings, got {n}"):
        layer.n_best(emission, n)
