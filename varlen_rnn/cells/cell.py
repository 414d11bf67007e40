"""What a cell is: its equations for one unit of one sequence at one step, and the names of what they pass on.

A cell knows no device, no batch and no LoD.  `recurrence/` holds the shrinking batch, once for all cells, and inlines
the two bodies of a cell into its CPU loop and its CUDA kernel.

A step sees, for its unit, the projected inputs `x` (one a gate: `W_ih x_t + b_ih`), the recurrent products `h` (one a
gate: `W_hh h' + b_hh`) and the previous states `prev`.  It returns the new states and its slots: what the gradient
needs, kept for every row.  The gradient overwrites the slots with the gradients of the gates.  Since weights see those
as one matrix, the slots are ordered so that the gradients of the projected inputs (`x_slot` and on, in the order of
`gates`) and those of the recurrent products (slot 0 and on, in the order of `h_gates`) each stand side by side.
"""

from collections.abc import Callable
from typing import NamedTuple


class Cell(NamedTuple):
    """The equations of a recurrent cell.

    Attributes
    ----------
    name : str
    gates : tuple of str
        Gates in the order of the rows of `weight_ih` and `weight_hh`.
    states : tuple of str
        States; the first is the output, and the operand of the recurrent product.
    slots : tuple of str
        What `step` keeps for `step_grad`, at least one a gate.
    x_slot : int
        The slot where the gradients of the projected inputs begin.
    h_gates : tuple of int
        The gate whose recurrent product's gradient stands in slot 0, 1, ...
    step : body
        `step(x, h, prev) -> (states, slots)`, each a tuple of scalars.
    step_grad : body
        `step_grad(slots, prev, states, d_states) -> (d_slots, d_prev)`; `d_prev` without the recurrent product.
        It may not read `states[0]`, the output: what it needs of that stands in a slot.
    reads_output : bool
        Whether the equations read the output of the step before, `prev[0]`; otherwise it is not brought to them.
    """

    name: str
    gates: tuple[str, ...]
    states: tuple[str, ...]
    slots: tuple[str, ...]
    x_slot: int
    h_gates: tuple[int, ...]
    step: Callable
    step_grad: Callable
    reads_output: bool

    @property
    def num_kept(self):
        """How many numbers of a unit a row keeps for its gradient: the slots, then the states but the output."""
        return len(self.slots) + len(self.states) - 1
