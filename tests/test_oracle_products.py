"""Products of oracles: where BLAS tells of an invalid value, the numbers decide."""

import re

import numpy as np
import pytest

from tests.oracles.products import matmul


def flagged(change):
    """Return a product that sets the flag of an invalid value, and of which one number is changed."""

    def multiply(a, b):
        np.subtract(np.inf, np.inf)
        result = np.asarray(np.matmul(a, b))
        result[..., -1] += change
        return result

    return multiply


def operands(dtype, *shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shapes", [((3, 400), (400, 5)), ((400,), (400, 5)), ((3, 400), (400,)), ((2, 3, 4), (4, 2))])
def test_right_numbers_are_told_and_kept(dtype, shapes, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    a, b = operands(dtype, *shapes)
    with pytest.warns(UserWarning, match="right numbers, though BLAS told of an invalid value") as told:
        result = matmul(a, b, flagged(0))
    np.testing.assert_array_equal(result, a @ b)
    assert told[0].filename == __file__
    (path,) = tmp_path.iterdir()
    assert str(path) in str(told[0].message)
    with np.load(path) as kept:
        assert kept.keys() == {"a", "b", "result", "expected", "blas", "processor"}
        np.testing.assert_array_equal(kept["a"], a)
        np.testing.assert_allclose(kept["expected"], a.astype(float) @ b.astype(float), rtol=1e-12, atol=1e-12)
        assert re.search("openblas|mkl|blis|accelerate|flexiblas", "".join(kept["blas"]).lower())
        assert str(kept["processor"])


@pytest.mark.parametrize("change", [0.1, np.nan, np.inf])
def test_a_wrong_number_fails(change, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(AssertionError, match="wrong numbers, and an invalid value in a product of float32"):
        matmul(*operands(np.float32, (3, 400), (400, 5)), flagged(change))


def test_an_invalid_value_of_the_operands_is_right(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.warns(UserWarning, match="right numbers"):
        result = matmul(np.array([[np.inf, 1.0]]), np.array([[0.0, 1.0], [1.0, 2.0]]), flagged(0))
    assert np.isnan(result[0, 0])


def test_nothing_is_told_of_a_product_without_the_flag(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    a, b = operands(np.float32, (3, 4), (4, 5))
    np.testing.assert_array_equal(matmul(a, b), a @ b)
    assert not list(tmp_path.iterdir())
