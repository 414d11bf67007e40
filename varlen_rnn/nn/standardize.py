"""`Standardize`, a layer that scales features to mean 0 and variance 1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from varlen_rnn.errors import DTypeError, ShapeError, check_int, check_list, shown
from varlen_rnn.nn.layers import drawn
from varlen_rnn.nn.module import Module, Parameter, check_dtype
from varlen_rnn.rows.checks import as_rows
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.tape.variable import Variable
from varlen_rnn.typing import Rows

_AT_ONCE = 1 << 16  # the most rows that are converted to float64 at once, because data can be larger than the memory


class Standardize(Module):
    """Subtract each feature's mean and divide by its standard deviation, as `fit` computed them from data.

    Mean and standard deviation are parameters that optimizers do not train, so a saved model contains them.  Before
    `fit`, the layer returns rows unchanged.

    Parameters
    ----------
    features : int
        Features of a row.
    dtype : data type
        float32 or float64.

    Attributes
    ----------
    mean, scale : (features,)

    Examples
    --------
    >>> layer = Standardize(1).fit([np.array([[1.0], [3.0]]), np.array([[5.0]])])
    >>> np.asarray(layer(np.array([[3.0], [5.0]], np.float32))).round(4)
    array([[0.    ],
           [1.2247]], dtype=float32)
    """

    def __init__(self, features: int, dtype: DTypeLike = np.float32) -> None:
        self.features = check_int(features, "features", 1)
        dtype = check_dtype(dtype)
        self.mean = Parameter(drawn((self.features,), np.zeros).astype(dtype))
        self.scale = Parameter(drawn((self.features,), np.ones).astype(dtype))
        self.mean.requires_grad = self.scale.requires_grad = False

    def fit(self, sequences: Any) -> Standardize:
        """Compute mean and standard deviation of each feature over all rows; return the layer.

        Parameters
        ----------
        sequences : LoDTensor, or list of arrays of shape `(rows, features)`
            Memory maps are read in parts.  A constant feature gets the scale 1.  If there are no rows, the layer does
            not change.

        Raises
        ------
        ShapeError
            If rows do not have `features` columns.
        DTypeError
            If the data type is not numeric.
        """
        alone = isinstance(sequences, (LoDTensor, np.ndarray, Variable))
        parts = [sequences] if alone else check_list(sequences, "Standardize.fit, sequences", "a list of arrays")
        number, mean, squares = 0, np.zeros(self.features), np.zeros(self.features)
        for part in parts:
            for rows in self._pieces(part):
                # Combine the sums of squared deviations from the means of two sets of rows (Chan, Golub and LeVeque,
                # 1983).
                own = rows.mean(axis=0)
                difference, total = own - mean, number + len(rows)
                squares += ((rows - own) ** 2).sum(axis=0) + difference**2 * (number * len(rows) / total)
                mean, number = mean + difference * (len(rows) / total), total
        if number:
            deviation = np.sqrt(squares / number)
            # The deviation of a constant feature is rounding noise, and dividing by it would amplify the noise.
            constant = deviation <= 1e-7 * np.abs(mean)
            self.mean.assign(mean)
            scale = deviation.astype(self.scale.dtype)  # numbers near 1e-38 have a scale too, though with fewer digits
            self.scale.assign(np.where(constant | (scale == 0), 1.0, scale))
        return self

    def _pieces(self, part: Any) -> Iterable[np.ndarray]:
        """Yield the rows of a sequence in float64, at most `_AT_ONCE` at a time."""
        rows = part.value.data if isinstance(part, Variable) else part.data if isinstance(part, LoDTensor) else part
        if not isinstance(rows, np.ndarray):
            rows = as_rows(rows, "Standardize.fit")
        if rows.dtype.kind not in "fiu":
            raise DTypeError("Standardize.fit", expected="numbers", got=f"data type {rows.dtype}")
        if rows.ndim != 2 or rows.shape[1] != self.features:
            expected = f"sequences of shape (rows, {self.features})"
            raise ShapeError("Standardize.fit", expected=expected, got=f"shape {rows.shape}: {shown(part)}")
        for first in range(0, len(rows), _AT_ONCE):
            yield rows[first : first + _AT_ONCE].astype(np.float64)

    def forward(self, x: Rows) -> Variable:
        """Return rows with the shape and LoD of `x`."""
        return (x - self.mean) / self.scale

    def extra_repr(self) -> str:
        """Return the number of features as text for `repr`."""
        return str(self.features)
