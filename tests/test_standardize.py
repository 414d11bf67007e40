"""`nn.Standardize` against NumPy: large and small numbers, constants, parts of memory maps, in a model's state."""

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.nn import Standardize, standardize


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_mean_and_scale_are_numpys(dtype, monkeypatch):
    monkeypatch.setattr(standardize, "_AT_ONCE", 7)  # parts that sequences do not end with
    rng = np.random.default_rng(0)
    scale = [1, 1e-3, 1e3, 0, 1e-20]
    X = [rng.standard_normal((length, 5)) * scale + [0, 1e3, 0, 7, 0] for length in (40, 0, 1, 23)]
    rows = np.concatenate(X)
    for given in (X, [x.tolist() for x in X if len(x)], vr.LoDTensor.from_sequences(X), rows, vr.Variable(rows)):
        layer = Standardize(5, dtype).fit(given)
        expected = rows.std(axis=0)
        expected[3] = 1
        np.testing.assert_allclose(layer.mean.data, rows.mean(axis=0).astype(dtype), rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(layer.scale.data, expected.astype(dtype), rtol=1e-5)
    found = np.asarray(layer(rows.astype(dtype)))
    # Rows near 1000 that differ by 0.001 are rounded to float32 before they come here.
    tolerance = 1e-6 if dtype == "float64" else 0.1
    np.testing.assert_allclose(found, (rows - rows.mean(axis=0)) / expected, atol=tolerance)


@pytest.mark.parametrize("factor", [2.0**-149, 2.0**-130, 2.0**-126, 2.0**100])
def test_numbers_at_the_ends_of_float32_have_a_scale(factor):
    rows = (np.array([[-3.0], [0.0], [5.0], [6.0]]) * factor).astype(np.float32)
    found = np.asarray(Standardize(1).fit(rows)(rows))
    expected = np.asarray(Standardize(1).fit(rows / factor)((rows / factor).astype(np.float32)))
    np.testing.assert_allclose(found, expected, rtol=0.5 if factor == 2.0**-149 else 1e-4)  # 2^-149 is the least number


def test_no_optimizer_trains_it_and_a_state_takes_it_along():
    layer = Standardize(2).fit([np.array([[1.0, 2.0], [3.0, 8.0]])])
    x = vr.create_lod_tensor(np.ones((3, 2), np.float32), [[1, 2]])
    assert not layer(x).requires_grad
    assert layer(x).lod() == [[0, 1, 3]]
    other = Standardize(2)
    np.testing.assert_array_equal(np.asarray(other(x)), x.data)
    other.load_state_dict(layer.state_dict())
    np.testing.assert_array_equal(np.asarray(other(x)), np.asarray(layer(x)))
    with vr.program_guard() as program:
        y = layer(vr.feed_data("x", [-1, 2], "float32", lod_level=1))
    np.testing.assert_array_equal(vr.Executor().run(program, {"x": x}, [y.name])[0].data, np.asarray(layer(x)))


def test_no_rows_leave_it_and_other_rows_are_named():
    layer = Standardize(2).fit([])
    assert layer.fit([np.zeros((0, 2))]).scale.data.tolist() == [1, 1]
    with pytest.raises(
        vr.ShapeError, match=r"Standardize.fit: expected sequences of shape \(rows, 2\), got shape \(4, 3\)"
    ):
        layer.fit([np.zeros((4, 3))])
    with pytest.raises(vr.DTypeError, match=r"Standardize.fit: expected numbers"):
        layer.fit([np.array([["a", "b"]])])
    with pytest.raises(vr.InputError):
        layer.fit(None)
