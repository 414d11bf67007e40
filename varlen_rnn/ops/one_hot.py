"""One-hot vectors of ids."""

import numpy as np

from varlen_rnn.errors import OutOfRangeError
from varlen_rnn.kernels.rows import mark
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.indices import indices
from varlen_rnn.runtime.device import empty
from varlen_rnn.tape.checks import check_integer
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

_INT64 = np.dtype(np.int64)
_MOST_CLASSES = 2**24  # without a limit, a program of a few bytes could request any amount of memory


@operator(cost=nothing, rows="each", gradient=False)
def one_hot(ids, num_classes: int):
    """Return, for each id, `num_classes` integers: 1 at the id, and 0 elsewhere."""
    flat = indices("one_hot, ids", ids, num_classes, "id", ", the number of classes")
    out = empty((len(flat), num_classes), ids.data, _INT64)
    mark(flat, out)
    return ids.like(out.reshape(*ids.shape, num_classes))


@one_hot.infer
def _infer(ids, num_classes):
    check_integer("one_hot", ids=ids)
    if not 0 <= num_classes <= _MOST_CLASSES:
        raise OutOfRangeError("one_hot, num_classes", expected=f"0 to {_MOST_CLASSES}", got=num_classes)
    return TensorSpec((*ids.shape, num_classes), _INT64, ids.lod_level)


@one_hot.examples
def _examples(rng):
    yield [rows(rng).like(rng.integers(0, 4, 6))], {"num_classes": 4}
    yield [rng.integers(0, 4, (2, 3))], {"num_classes": 5}
