"""An operator on a batch of given lengths: what it reads, and what shape it returns."""

import dataclasses
from typing import NamedTuple

import numpy as np

WIDTH, CLASSES, TAGS, HEADS, DEPTH = 64, 32, 16, 8, 64
WINDOW, FUTURE = 3, 3  # rows of a window of `conv`; rows behind its own that `row_conv` reads


class Kind(NamedTuple):
    """Who computes an operator beside us; `forward` are those that have no gradient of it, or a wrong one."""

    peers: tuple
    forward: tuple = ()


_PADDED, _ROWS, _JAGGED, _NUMPY = "torch padded", "torch rows", "torch jagged", "NumPy"
_MOVES = Kind((_PADDED, _ROWS, _NUMPY))
KINDS = {
    "expand": _MOVES,
    "expand_as": Kind((_PADDED, _ROWS, _JAGGED, _NUMPY)),
    "pool sum": Kind((_PADDED, _ROWS, _JAGGED, _NUMPY), forward=(_JAGGED,)),
    "pool max": Kind((_PADDED, _ROWS, _JAGGED, _NUMPY)),
    "first_step": _MOVES,
    "last_step": _MOVES,
    "softmax": Kind((_PADDED, _JAGGED, _NUMPY), forward=(_JAGGED,)),  # PyTorch 2.13: wrong over the ragged dimension
    "cumsum": Kind((_PADDED, _NUMPY)),
    "conv": Kind((_PADDED, _NUMPY)),
    "row_conv": Kind((_PADDED, _NUMPY)),
    "concat": _MOVES,
    "reverse": _MOVES,
    "slice": _MOVES,
    "pad": Kind((_ROWS, _JAGGED, _NUMPY)),
    "unpad": Kind((_ROWS, _NUMPY)),
    "ctc_loss": Kind((_PADDED,)),
    "linear_chain_crf": Kind((_PADDED,)),
    "attention": Kind((_PADDED, _JAGGED)),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """An operator and its batch.

    Attributes
    ----------
    operator : str, a key of `KINDS`
    lengths : sequence of int, the rows of each sequence
    distribution : str, what the lengths are called

    Examples
    --------
    >>> Case("concat", [4, 1], "ragged").shapes()
    ({'x': (5, 64), 'z': (5, 64)}, (10, 64))
    """

    operator: str
    lengths: tuple
    distribution: str

    @property
    def rows(self):
        """Rows of the batch: time is told for each of these, also where more or fewer are read or written."""
        return sum(self.lengths)

    @property
    def out_lengths(self):
        """Rows of each sequence of the result, where it has rows."""
        factors = {"expand": 2, "concat": 2, "slice": 0.5}
        return tuple(int(factors.get(self.operator, 1) * length) for length in self.lengths)

    @property
    def padded(self):
        """Sequences and steps of the padded batch."""
        return len(self.lengths), max(self.lengths)

    def shapes(self):
        """Return the shape of each input by its name, and that of the result."""
        row, sequence, out = (self.rows, WIDTH), (len(self.lengths), WIDTH), (sum(self.out_lengths), WIDTH)
        heads = (self.rows, HEADS, DEPTH)
        given = {
            "expand": ({"x": (2 * len(self.lengths), WIDTH)}, out),
            "expand_as": ({"x": sequence}, row),
            "conv": ({"x": row, "weight": (WINDOW * WIDTH, WIDTH)}, row),
            "row_conv": ({"x": row, "weight": (FUTURE + 1, WIDTH)}, row),
            "concat": ({"x": row, "z": row}, out),
            "pad": ({"x": row}, (*self.padded, WIDTH)),
            "unpad": ({"x": (*self.padded, WIDTH)}, row),
            "ctc_loss": ({"logits": (self.rows, CLASSES)}, sequence[:1]),
            "linear_chain_crf": ({"emission": (self.rows, TAGS), "transition": (TAGS + 2, TAGS)}, sequence[:1]),
            "attention": (dict.fromkeys(("query", "key", "value"), heads), heads),
        }
        per_sequence = self.operator.endswith("step") or self.operator.startswith("pool")
        return given.get(self.operator, ({"x": row}, sequence if per_sequence else out))

    def summary(self):
        """Return what a line of results says of this case."""
        return {
            "operator": self.operator,
            "size": list(next(iter(self.shapes()[0].values()))[1:]),
            "sequences": len(self.lengths),
            "lengths": self.distribution,
            "rows": self.rows,
            "padded_rows": len(self.lengths) * max(self.lengths),
        }


class Inputs:
    """What operators read, the gradient of the result, and where rows stand: the same in every process.

    Parameters
    ----------
    case : Case

    Attributes
    ----------
    arrays : {name: array}, float32; each gets a gradient
    d_y : array like the result
    labels : a target of a quarter of its steps for each sequence, or a tag for each row
    targets : their lengths
    offset, length : the rows that `slice` takes of each sequence
    """

    def __init__(self, case):
        rng = np.random.default_rng(0)
        shapes, result = case.shapes()
        self.arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        self.d_y = rng.standard_normal(result, np.float32)
        self.lengths = np.array(case.lengths)
        self.targets = np.maximum(self.lengths // 4, 1)
        of_ctc = case.operator == "ctc_loss"
        self.labels = rng.integers(1, CLASSES, self.targets.sum()) if of_ctc else rng.integers(0, TAGS, case.rows)
        self.offset, self.length = self.lengths // 4, np.array(case.out_lengths)
        self.operator = case.operator

    @property
    def index(self):
        """The row of the input, or of both one behind the other, that each row of the result is; None of no movement.

        It is made at each call, as for each batch: the next one has other lengths.
        """
        return _index(self.operator, self)


def spans(starts, lengths):
    """Return the numbers from each start on, as many as the lengths say, one after another.

    Examples
    --------
    >>> spans(np.array([7, 0]), np.array([2, 1]))
    array([7, 8, 0])
    """
    return np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())


def _index(operator, inputs):
    """Return the row of the input that each row of the result is, or None where rows are not only moved."""
    lengths = inputs.lengths
    starts = np.cumsum(lengths) - lengths
    if operator == "reverse":
        return np.repeat(2 * starts + lengths - 1, lengths) - np.arange(lengths.sum())
    if operator == "concat":
        both = np.stack([starts, starts + lengths.sum()], 1).ravel()
        return spans(both, np.repeat(lengths, 2))
    moved = {
        "slice": lambda: spans(starts + inputs.offset, inputs.length),
        "first_step": lambda: starts,
        "last_step": lambda: starts + lengths - 1,
    }
    return moved[operator]() if operator in moved else None
