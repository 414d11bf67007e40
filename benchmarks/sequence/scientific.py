"""What NumPy has for sequences of unequal length, forward only: `reduceat`, `repeat`, indices."""

import numpy as np

from benchmarks.sequence.case import FUTURE, WINDOW, Inputs


class Operator:
    """An operator on rows; indices of rows are made at each call, whatever else follows from the lengths once."""

    def __init__(self, case, threads):
        self.inputs = inputs = Inputs(case)
        self.lengths = inputs.lengths
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.inside = np.arange(case.padded[1]) < self.lengths[:, None]
        if case.operator in ("conv", "row_conv"):
            self.windows = _windows(self.starts, self.lengths, *WINDOWS[case.operator])
        self.call = getattr(self, case.operator.replace(" ", "_")) if inputs.index is None else self.moved

    def inference(self):
        """Return the result."""
        return {"y": self.call(*self.inputs.arrays.values())}

    def arrays(self, results):
        """Return results, which are arrays."""
        return results

    def moved(self, x, *others):
        """Return rows that an index names."""
        return np.take(np.concatenate([x, *others]) if others else x, self.inputs.index, axis=0)

    def expand(self, x):
        """Return the two rows of each sequence, again and again."""
        return np.repeat(x.reshape(len(self.lengths), -1), self.lengths, axis=0).reshape(-1, x.shape[1])

    def expand_as(self, x):
        """Return a row per sequence for each of its rows."""
        return np.repeat(x, self.lengths, axis=0)

    def pool_sum(self, x):
        """Return sums of sequences, none of which is empty."""
        return np.add.reduceat(x, self.starts)

    def pool_max(self, x):
        """Return maxima of sequences, none of which is empty."""
        return np.maximum.reduceat(x, self.starts)

    def softmax(self, x):
        """Return the softmax over the rows of each sequence."""
        x = np.exp(x - self.expand_as(self.pool_max(x)))
        return x / self.expand_as(self.pool_sum(x))

    def cumsum(self, x):
        """Return running sums, sequence after sequence."""
        out = np.empty_like(x)
        for start, length in zip(self.starts, self.lengths, strict=True):
            np.cumsum(x[start : start + length], axis=0, out=out[start : start + length])
        return out

    def conv(self, x, weight):
        """Return the product of windows with a weight."""
        return self.window_rows(x).reshape(len(x), -1) @ weight

    def row_conv(self, x, weight):
        """Return sums of windows, weighed element by element."""
        return np.einsum("nkd,kd->nd", self.window_rows(x), weight)

    def window_rows(self, x):
        """Return the rows of each window, zeros outside of the sequence."""
        return np.concatenate([x, np.zeros_like(x[:1])])[self.windows]

    def pad(self, x):
        """Return a padded batch."""
        out = np.zeros((*self.inside.shape, x.shape[1]), x.dtype)
        out[self.inside] = x
        return out

    def unpad(self, x):
        """Return the rows of a padded batch."""
        return x[self.inside]


WINDOWS = {"conv": (-(WINDOW // 2), WINDOW), "row_conv": (0, FUTURE + 1)}


def _windows(starts, lengths, first, size):
    """Return the rows of each row's window, and the number of all rows for one outside of its sequence."""
    total = lengths.sum()
    rows = np.arange(total)[:, None] + np.arange(first, first + size)
    inside = (rows >= np.repeat(starts, lengths)[:, None]) & (rows < np.repeat(starts + lengths, lengths)[:, None])
    return np.where(inside, rows, total)
