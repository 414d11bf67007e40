"""`DynamicRNN`, a recurrent layer whose step is a user's function, written with ordinary operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from varlen_rnn.errors import DTypeError, ShapeError, check_int, shown
from varlen_rnn.nn.module import Module
from varlen_rnn.nn.recurrent.carries import Carries
from varlen_rnn.nn.recurrent.cells import LSTMCell, Step
from varlen_rnn.steps.describe import describe_step, explain
from varlen_rnn.tape.checks import FLOATS, check_lod_level
from varlen_rnn.tape.modes import grad_enabled
from varlen_rnn.tape.spec import describe
from varlen_rnn.tape.variable import Variable, apply, required
from varlen_rnn.typing import Rows

State: TypeAlias = Rows | tuple[int, ...]  # the values of a state, or sizes, which mean zeros


class DynamicRNN(Module):
    """Run a cell, written with ordinary operators, over the steps of a batch of sequences.

    The batch shrinks as sequences end.

    Parameters
    ----------
    cell : Module or callable
        `cell(x_t, *states) -> (output, *next_states)`.  Each argument has one row per sequence that has not ended yet,
        longest sequence first.  The cell is called once per forward pass, with variables that have no values, to record
        the operators of a step.  Parameters and outer variables that it reads are the same at every step.  To give each
        sequence its own constant, pass it as a state that the cell returns unchanged.
    level : int
        The LoD level whose entries are the steps.  At the last level, -1, a step is one row of each sequence.  At an
        upper level it is one sub-sequence of each sequence, which the cell can pool, attend to or run a layer over.  A
        sub-sequence may be empty.

    Examples
    --------
    >>> from varlen_rnn.rows.lod import create_lod_tensor
    >>> def count(x, total):
    ...     return total + x, total + x
    >>> x = create_lod_tensor(np.ones((5, 1)), [[2, 3]])
    >>> y, total = DynamicRNN(count)(x, [np.zeros((2, 1))])
    >>> np.asarray(y).ravel(), np.asarray(total).ravel()
    (array([1., 2., 1., 2., 3.]), array([2., 3.]))

    Source: the step scopes of the design document "Variable-length supported RNN"; `DynamicRNN` of PaddlePaddle Fluid.
    """

    def __init__(self, cell: Callable[..., Any], level: int = -1) -> None:
        if not callable(cell):
            raise DTypeError("DynamicRNN, cell", expected="a Module or a function", got=type(cell).__name__)
        if isinstance(cell, (Carries, Step)):
            raise _no_step(cell)
        self.cell, self.level = cell, check_int(level, "DynamicRNN, level")
        self._explanation = "has not run yet: call it once"

    def forward(self, x: Rows | tuple[Rows, ...], states: Sequence[State]) -> tuple[Variable, ...]:
        """Return `y, *last`: the outputs of all steps, and each state after the last step of every sequence.

        `y` has the LoD levels of `x` from the first down to the level of the steps.

        Parameters
        ----------
        x : Variable or LoDTensor, or a tuple of them
            Rows with a LoD.  Each item of a tuple is an argument of the cell; all items must have the same LoD levels
            down to the level of the steps.
        states : list of Variable or array, shape `(num_sequences, ...)`, or tuples of sizes
            The states before the first step, in the caller's order of sequences.  They are also the last states of an
            empty sequence.  A tuple of sizes stands for zeros in the data type of `x`.  A Variable with a LoD has
            several rows per sequence, such as the encoder outputs that a decoder attends to; a step may change the
            values of these rows, but not their number.
        """
        xs = [required(item, "DynamicRNN, x") for item in (x if isinstance(x, tuple) else (x,))]
        if not xs:
            raise ShapeError("DynamicRNN, x", expected="at least one Variable", got="an empty tuple")
        for item in xs:
            check_lod_level("DynamicRNN", "x", describe(item.value))
        if isinstance(states, np.ndarray) or not isinstance(states, (list, tuple)):
            raise DTypeError("DynamicRNN, states", expected="a list with an entry per state", got=type(states).__name__)
        states = [_initial(state, xs[0], self.level, number) for number, state in enumerate(states)]
        step, xs, captured, early = describe_step(self.cell, xs, states, self.level)
        try:
            y, *rest = apply("dynamic_rnn", *xs, *states, *captured, keep=grad_enabled(), **step)
        except BaseException:
            step["block"].recorder.drop(step["block"].idx)
            raise
        self._explanation = explain(early, **step)
        return y, *rest[: len(states)]

    def explain(self) -> str:
        """Return how the step of the last call runs: fused like a layer's cell, or why not, with a remedy.

        A step runs fused if its output is one of its next states, and it consists of products of its input or states
        with outer weights, of elementwise operators on these products, states, numbers, and vectors with one number per
        unit, and of `RNNCell`, `GRUCell` and `LSTMCell`.  If steps are sub-sequences, operators that read no state
        (layers, poolings, attention) run before the loop, on the sub-sequences of all steps at once.

        Examples
        --------
        >>> from varlen_rnn.rows.lod import create_lod_tensor
        >>> from varlen_rnn.nn import functional as F
        >>> w, u = Variable(np.ones((2, 3))), Variable(np.ones((3, 3)))
        >>> layer = DynamicRNN(lambda x, h: (F.tanh(x @ w + h @ u),) * 2)
        >>> y, last = layer(create_lod_tensor(np.ones((5, 2)), [[2, 3]]), [(3,)])
        >>> layer.explain()
        'runs fused as a cell of gates g0 (input + product); 1 state; a row keeps 1 per unit'
        """
        return self._explanation


def _no_step(layer: Carries | Step) -> DTypeError:
    """Return the error for a layer that was given instead of a function of one step."""
    name, expected = type(layer).__name__, "a function or Module that computes one step: step(x, *states)"
    hint = f"nn.Recurrent, nn.LSTM and nn.GRU run over steps themselves: call {name.lower()}(x)"
    if isinstance(layer, LSTMCell):
        hint = "def step(x, h, c): h, c = cell(x, (h, c)); return h, h, c"
    elif isinstance(layer, Step):
        hint = "def step(x, h): h = cell(x, h); return h, h"
    return DTypeError("DynamicRNN, cell", expected=expected, got=name, hint=hint)


def _initial(state: State, x: Variable, level: int, number: int) -> Variable:
    """Return a state before the first step as a Variable: zeros if `state` is a tuple of sizes."""
    what = f"DynamicRNN, states[{number}]"
    if isinstance(state, tuple) and all(type(size) is int for size in state):
        if x.dtype not in FLOATS:
            hint = "x.astype(np.float32), or np.zeros((num_sequences, ...), np.float32) for the state"
            expected, got = "an array, because zeros get the data type of x", f"sizes, and x of {x.dtype}"
            raise DTypeError(what, expected=expected, got=got, hint=hint)
        return apply("zeros_of_sequences", x, shape=state, level=level)
    if isinstance(state, int) or (isinstance(state, list) and all(type(size) is int for size in state)):
        sizes = (state,) if isinstance(state, int) else tuple(state)
        hint = f"for zeros of these sizes, pass the tuple {shown(sizes)}"
        raise DTypeError(what, expected="an array, or a tuple of sizes", got=shown(state), hint=hint)
    return required(state, what)
