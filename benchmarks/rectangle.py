"""Rows as other engines want them: a padded, time-major rectangle, longest sequence first."""

import numpy as np


class Rectangle:
    """Where the row of each sequence and step stands in a rectangle of `(steps, sequences, ...)`.

    Parameters
    ----------
    lengths : array_like of int

    Attributes
    ----------
    order : (sequences,) the caller's index of each column; the longest sequence comes first
    lengths : (sequences,) the length of each column

    Examples
    --------
    >>> rectangle = Rectangle([1, 2])
    >>> rectangle.pad(np.array([7, 8, 9]))
    array([[8, 7],
           [9, 0]])
    >>> rectangle.unpad(rectangle.pad(np.array([7, 8, 9])))
    array([7, 8, 9])
    """

    def __init__(self, lengths):
        lengths = np.asarray(lengths)
        self.order = np.argsort(-lengths, kind="stable")
        self.lengths = lengths[self.order]
        starts = (np.cumsum(lengths) - lengths)[self.order]
        inside = np.arange(self.lengths.max(initial=0))[:, None] < self.lengths
        self.shape = inside.shape
        self._places = np.nonzero(inside)
        step, column = self._places
        self._rows = starts[column] + step

    def pad(self, rows):
        """Return rows `(rows, ...)` in a rectangle, zeros elsewhere."""
        padded = np.zeros(self.shape + rows.shape[1:], rows.dtype)
        padded[self._places] = rows[self._rows]
        return padded

    def unpad(self, padded):
        """Return the rows that stand in a rectangle, in the caller's order."""
        rows = np.empty((len(self._rows), *padded.shape[2:]), padded.dtype)
        rows[self._rows] = padded[self._places]
        return rows
