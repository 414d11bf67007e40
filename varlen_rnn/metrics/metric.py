"""The base of all metrics: counts of batches, which add up, and a result that is computed from their sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from varlen_rnn.checkpoint import state_arrays
from varlen_rnn.communicator import Communicator, check_communicator
from varlen_rnn.errors import CheckpointError, DTypeError, ProgramError, ShapeError, check_int, shown
from varlen_rnn.rows.checks import check_unmasked
from varlen_rnn.tape.spec import sizes_fit
from varlen_rnn.tape.variable import Variable, apply_detached
from varlen_rnn.typing import Rows


class Metric:
    """The base of metrics: it holds the options, and the sum of the counts of batches.

    The counts of a batch are an array of float64, which is added to the sum of earlier batches.  So a metric needs the
    memory of one batch's counts (but see `AUC`), and metrics of several processes can be merged.
    """

    _counts: np.ndarray
    _hint: str | None = None  # the hint of the error for counts of another shape

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.reset()

    def update_counts(self, counts: ArrayLike | Variable) -> None:
        """Add counts that `counts` returned, or that a run of a program fetched.

        Raises
        ------
        ShapeError, DTypeError
            If the counts are not those that such a metric computes.
        """
        self._counts = self._sum(self._counts, self._checked(counts))

    def merge(self, other: Metric) -> None:
        """Add the counts of another metric with the same kind and options.

        Raises
        ------
        DTypeError
            If the other metric has another kind or other options.
        """
        if type(other) is not type(self) or other._options != self._options:
            expected = f"another {type(self).__name__} with the same options"
            raise DTypeError("metric, merge", expected=expected, got=shown(other))
        self.update_counts(other._counts)

    def all_reduce(self, comm: Communicator) -> None:
        """Sum the counts of all ranks, so that `compute` returns the result of all their batches; every rank calls it.

        Parameters
        ----------
        comm : Communicator
            As `distributed.connect` returns it.

        Examples
        --------
        >>> import varlen_rnn as vr
        >>> mean = vr.metrics.Mean()
        >>> mean.update(3.0)
        >>> mean.all_reduce(vr.distributed.connect())
        >>> mean.compute()
        3.0
        """
        parts = check_communicator(comm, "metric, all_reduce, comm").all_gather(self._counts.reshape(-1))
        self.reset()
        for part in parts:
            self.update_counts(part.reshape(self._shape()))

    def compute(self) -> Any:
        """Return the result of all batches since the metric was made or reset."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget all batches."""
        self._counts = self._nothing()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return a copy of the counts."""
        return {"counts": self._counts.copy()}

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """Continue from the result of `state_dict`; an error changes nothing.

        Raises
        ------
        CheckpointError
            If `state` is not the state of such a metric.
        """
        arrays = state_arrays(state, "metric, state")
        if set(arrays) != {"counts"}:
            got = f"the names {shown(sorted(arrays))}"
            raise CheckpointError("metric, state", expected="only the name 'counts'", got=got)
        try:
            self._counts = self._checked(arrays["counts"])
        except (ShapeError, DTypeError) as error:
            raise CheckpointError(f"metric, state, {error}") from error

    def _nothing(self) -> np.ndarray:
        """Return the counts before the first batch."""
        raise NotImplementedError

    def _sum(self, counts: np.ndarray, added: np.ndarray) -> np.ndarray:
        return counts + added

    def _checked(self, counts: ArrayLike | Variable) -> np.ndarray:
        """Return a copy of counts as an array; raise unless they fit this metric."""
        try:
            check_unmasked(counts, "metric, counts")
            found = np.asarray(counts)
        except (ProgramError, DTypeError):
            raise
        except Exception as error:  # NumPy may raise any error for objects
            raise DTypeError("metric, counts", expected="an array", got=shown(counts)) from error
        if found.dtype != np.float64:
            raise DTypeError("metric, counts", expected="an array of float64", got=f"an array of {found.dtype}")
        if not sizes_fit(found.shape, shape := self._shape()):
            raise ShapeError("metric, counts", expected=f"shape {shape}", got=f"shape {found.shape}", hint=self._hint)
        return found.copy()

    def _shape(self) -> tuple[int, ...]:
        return tuple(size or -1 for size in self._nothing().shape)  # -1 means any size; `AUC` keeps all scores


class TargetMetric(Metric):
    """The base of metrics that compare predictions with targets; `op` names the operator that counts a batch."""

    op: str

    def update(self, predictions: Rows, targets: Rows, sample_weight: Rows | None = None) -> None:
        """Count a batch; an error changes nothing.

        Parameters
        ----------
        predictions, targets : Variables, LoDTensors or arrays
            As described for the metric.  If both have a LoD, it must be the same.
        sample_weight : numbers, shape `(rows,)`, or `(sequences,)` of a metric with `per="sequence"`, optional
            The weight of each entry, finite and at least 0; by default 1.

        Raises
        ------
        InputError
            If an argument does not fit.
        """
        self.update_counts(self.counts(predictions, targets, sample_weight))

    def counts(self, predictions: Rows, targets: Rows, sample_weight: Rows | None = None) -> Variable:
        """Return the counts of a batch; in a program, a variable to fetch and pass to `update_counts`."""
        return apply_detached(self.op, predictions, targets, sample_weight, **self._options)


class Share(Metric):
    """The base of metrics whose counts are a weighted sum, and the sum of the weights."""

    def compute(self) -> float:
        """Return the mean of all batches since the metric was made or reset, or NaN if nothing counts."""
        part, whole = self._counts
        return float(part / whole) if whole else float("nan")

    def _nothing(self) -> np.ndarray:
        return np.zeros(2)


def check_ignored(name: str, ignore_index: int | None) -> int | None:
    """Return the option `ignore_index`; raise unless it is None or an integer that int64 holds."""
    index = None if ignore_index is None else check_int(ignore_index, f"{name}, ignore_index")
    if index is not None and not -(2**63) <= index < 2**63:
        raise ShapeError(f"{name}, ignore_index", expected="an integer that fits int64", got=shown(index))
    return index
