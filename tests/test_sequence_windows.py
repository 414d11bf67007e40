"""Operators along a sequence: each equals its oracle, whatever stands beside the sequence and however many threads."""

import itertools

import numpy as np
import pytest
from oracles import windows as oracle

import varlen_rnn as vr
from tests.test_kernels import by_features, by_number, by_trouble, check, values
from varlen_rnn.kernels import softmax

LENGTHS = [2, 0, 3, 60, 1, 0, 130]


def rows(lengths, *element, dtype=np.float64, seed=0):
    data = np.random.default_rng(seed).standard_normal((sum(lengths), *element)).astype(dtype)
    return vr.create_lod_tensor(data, [lengths])


def bytes_of_sequences(rows, lengths):
    ends = np.cumsum([0, *lengths])
    return [np.asarray(rows)[a:b].tobytes() for a, b in itertools.pairwise(ends)]


def check_that_sequences_stand_alone(function, element, of_result, dtype):
    """Assert that a sequence's rows and their gradients have the same bits alone, and whatever the order."""
    x, d = rows(LENGTHS, *element, dtype=dtype), rows(LENGTHS, *of_result, dtype=dtype, seed=1)

    def run(chosen):
        given, lengths = vr.Variable(x[chosen], requires_grad=True), [LENGTHS[i] for i in chosen]
        out = function(given)
        out.backward(d[chosen].data)
        return list(zip(*(bytes_of_sequences(a, lengths) for a in (out, given.grad.data)), strict=True))

    everyone = list(range(len(LENGTHS)))
    together = run(everyone)
    assert run(everyone[::-1])[::-1] == together
    assert [run([i])[0] for i in everyone] == together


# Softmax.


@pytest.mark.twins
@by_number
@by_features
@by_trouble
def test_softmax(device, dtype, features, offsets):
    x, y, d = (values((offsets[-1], features), dtype, seed) for seed in range(3))
    check(device, softmax.softmax, oracle.softmax, x * 9, np.array(offsets), y, exact=False)
    check(device, softmax.softmax_grad, oracle.softmax_grad, y, d, np.array(offsets), x, exact=False)


@pytest.mark.twins
@by_number
def test_softmax_of_long_sequences(device, dtype):
    """Of more rows than a block of the sum has."""
    offsets = np.array([0, 48, 97, 110])
    x, y, d = (values((110, 2), dtype, seed) for seed in range(3))
    check(device, softmax.softmax, oracle.softmax, x, offsets, y, exact=False)
    check(device, softmax.softmax_grad, oracle.softmax_grad, y, d, offsets, x, exact=False)


@by_number
@pytest.mark.parametrize("element", [(), (1,), (5,), (2, 3)], ids=str)
def test_the_softmax_of_a_sequence_stands_alone(element, dtype):
    check_that_sequences_stand_alone(vr.sequence_softmax, element, element, dtype)


@by_number
def test_softmax_at_the_edges(dtype):
    largest = np.finfo(dtype).max
    x = np.array([largest, largest, 3.0, -largest, 0.0, 5.0, np.inf, 1.0, np.nan, 2.0], dtype)
    y = np.asarray(vr.sequence_softmax(vr.create_lod_tensor(x, [[2, 1, 2, 1, 2, 2]])))
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, [0.5, 0.5, 1, 0, 1, 1, *[np.nan] * 4])


def test_softmax_is_over_the_last_level():
    x = vr.create_lod_tensor(np.zeros(5), [[2, 1], [2, 0, 3]])
    y = vr.sequence_softmax(x)
    np.testing.assert_allclose(y, [1 / 2] * 2 + [1 / 3] * 3, rtol=1e-15)
    assert y.lod() == x.lod()


@pytest.mark.parametrize("rank", [1, 2])
def test_softmax_equals_pytorch(rank):
    torch = pytest.importorskip("torch", reason="PyTorch is in the `parity` extra")
    x, d = rows([4, 7], *[3] * (rank - 1)), rows([4, 7], *[3] * (rank - 1), seed=1)
    ours = vr.Variable(x, requires_grad=True)
    y = vr.sequence_softmax(ours)
    y.backward(d.data)
    for a, b in ((0, 4), (4, 11)):
        theirs = torch.tensor(x.data[a:b], requires_grad=True)
        theirs.softmax(0).backward(torch.tensor(d.data[a:b]))
        np.testing.assert_allclose(np.asarray(y)[a:b], theirs.softmax(0).detach(), atol=1e-12)
        np.testing.assert_allclose(ours.grad.data[a:b], theirs.grad, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(3), "sequence_softmax, x: expected at least one level"),
        (vr.create_lod_tensor(np.arange(3), [[3]]), "sequence_softmax, x: expected float32 or float64, got int64"),
    ],
)
def test_what_has_no_softmax(x, message):
    with pytest.raises(vr.InputError, match=message):
        vr.sequence_softmax(x)
