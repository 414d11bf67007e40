"""`load`: read a fitted estimator from a file without pickle; the content is checked, and no code in it runs."""

from __future__ import annotations

from typing import Any

from varlen_rnn import checkpoint
from varlen_rnn.errors import CheckpointError
from varlen_rnn.sklearn.estimators import SequenceClassifier, SequenceRegressor, SequenceTagger
from varlen_rnn.sklearn.forecaster import SequenceForecaster
from varlen_rnn.typing import StrPath

_ESTIMATORS = SequenceClassifier, SequenceForecaster, SequenceRegressor, SequenceTagger
_KINDS = {kind.__name__: kind for kind in _ESTIMATORS}


def load(path: StrPath) -> Any:
    """Return the estimator that `estimator.save(path)` wrote.

    Raises
    ------
    CheckpointError
        If the file is damaged, or was not written by `estimator.save`.
    FileNotFoundError

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/model"
    >>> SequenceClassifier("gru", 4, max_epochs=1).fit(["a", "bb"], ["x", "y"]).save(path)
    >>> load(path).classes_
    array(['x', 'y'], dtype='<U1')
    """
    saved = checkpoint.load(path)
    kind = _KINDS.get(str(saved.get("estimator")))
    if kind is None:
        expected = "a file that estimator.save(path) wrote"
        raise CheckpointError(f"{path}", expected=expected, got=f"a file of the groups {sorted(saved)}")
    try:
        params = {name: _param(value) for name, value in saved["params"].items()}
        estimator = kind(**params)
        estimator._restore(saved)
    except Exception as error:  # because wrong values in a file can cause any error
        raise CheckpointError(f"{path}", expected="a fitted estimator", got=str(error)[:200]) from error
    return estimator


def _param(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: number for name, number in value["pairs"]}
    return tuple(value) if isinstance(value, list) else value
