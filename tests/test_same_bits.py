"""Functions of NumPy that dry runs replace by kernels: the records of a dry run have NumPy's bits."""

import numpy as np
import pytest

from varlen_rnn.runtime.dry_run import DryRun, Records, room
from varlen_rnn.runtime.placeholder import SAME_BITS, Unbound

SPECIAL = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e-40, -3e38, 7.0, 0.1]
SHAPES = [((11,), (11,)), ((5, 11), (11,)), ((5, 11), (5, 1)), ((5, 11), ()), ((), (5, 11)), ((2, 3, 11), (3, 1))]
LOGICAL = (np.logical_and, np.logical_or, np.logical_not)
by_function = pytest.mark.parametrize("function", list(SAME_BITS), ids=lambda f: f.__name__)


def run(compute, *arrays):
    """Return the result of a computation on arrays, run by the records of its dry run."""
    dry_run = DryRun()
    made = compute(*map(dry_run.around, arrays))
    records = Records(dry_run)
    memory = room(records.size)
    records.place(memory)
    assert records.run() == -1
    return records.place_of(made).view(memory).copy()


def numbers(shape, dtype, seed):
    found = np.resize(np.random.default_rng(seed).permutation(SPECIAL), shape)
    return np.array(found, dtype) if dtype is not bool else np.array(found > 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@by_function
def test_a_record_has_the_bits_of_numpy(function, dtype):
    count = 3 if function is np.where else function.nin
    for first, second in SHAPES:
        dtypes = [bool] * count if function in LOGICAL else [bool, dtype, dtype] if count == 3 else [dtype] * count
        shapes = [first, first, second] if count == 3 else [first, second][:count]
        arrays = [numbers(*both, seed) for seed, both in enumerate(zip(shapes, dtypes, strict=True))]
        with np.errstate(all="ignore"):
            expected = np.asarray(function(*arrays))
        found = run(function, *arrays)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
        kept = found.dtype == bool or ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found[kept]), np.signbit(expected[kept]))


def test_python_numbers_and_updates_in_place():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(run(lambda x: 1 - 0.1 * x, x), 1 - 0.1 * x)
    np.testing.assert_array_equal(run(lambda x: abs(-x) / 3, x), x / 3)

    def in_place(x):
        y = x.copy()
        y -= x * x
        return y

    np.testing.assert_array_equal(run(in_place, x), x - x * x)


def test_views_copies_conversions_and_constants():
    x, places = np.arange(-12, 12, dtype=np.float32).reshape(2, 3, 4), np.arange(12.0).reshape(3, 4)
    for compute in (
        lambda x: x[::-1, :, ::-2].reshape(-1),
        lambda x: x.transpose(2, 0, 1).reshape(4, 6),
        lambda x: np.flip(np.moveaxis(x, 0, -1), 1).copy(),
        lambda x: x.swapaxes(0, 2)[..., None].ravel(),
        lambda x: x[None, :, None, :, None].astype(np.float64),
        lambda x: (x > 0).astype(np.float32),
        lambda x: (x > 0).astype(np.int64).astype(bool),
        lambda x: x[np.array([1, -1, 0])],
        lambda x: x**2 + np.zeros_like(x),
        lambda x: x.astype(np.float32, copy=False) * places.astype(np.float32),
    ):
        found, expected = run(compute, x), compute(x)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_other_types_and_functions_are_refused():
    x, dry_run = np.ones(3, np.float32), DryRun()
    given = dry_run.around(x)
    integers = dry_run.around(np.arange(3))
    for compute in (
        lambda: given + np.float64(1),
        lambda: integers / 2,
        lambda: np.where(given, 1, 0),
        lambda: np.add.reduce(given),
        lambda: given**1.5,
        lambda: given.astype(np.int64),
        lambda: ~given,
    ):
        with pytest.raises(Unbound):
            compute()
