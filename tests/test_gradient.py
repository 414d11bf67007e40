"""What a backward pass reads again: what failed cannot be passed twice, and indices stay what they were."""

import numpy as np
import pytest

import varlen_rnn as vr


def test_a_pass_that_failed_is_not_passed_again():
    x = vr.create_lod_tensor(np.ones((5, 3), np.float32), [[2, 3]])
    lstm = vr.nn.LSTM(3, 4)
    y, _ = lstm(x)
    gradient = np.ones((5, 4), np.float32)
    lstm.weight_hh_l0.grad = np.zeros(3, np.float32)
    with pytest.raises(vr.ShapeError):
        y.backward(gradient)
    lstm.weight_hh_l0.grad = None
    # The gradient was written over what the layer kept: a second pass would compute from it.
    with pytest.raises(vr.ProgramError, match="expected one pass, got a second one"):
        y.backward(gradient)


@pytest.mark.parametrize("make", [np.array, list])
def test_indices_are_those_of_the_forward_pass(make):
    v = vr.Variable(np.zeros((4, 2)), requires_grad=True)
    rows, columns = make([0, 1]), make([1, 1])
    y, z = v[rows], v[:, columns]
    rows[1] = columns[1] = columns[0] = 0
    (y.sum() + z.sum()).backward()
    assert v.grad.tolist() == [[1, 3], [1, 3], [0, 2], [0, 2]]


@pytest.mark.parametrize("index", [[], [[]], np.zeros(0, bool), ([], 0), (0, [])])
def test_an_empty_index_is_one(index):
    value = np.ones((0, 2)) if isinstance(index, np.ndarray) else np.ones((4, 2))
    assert vr.Variable(value)[index].shape == value[index].shape
