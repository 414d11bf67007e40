"""The sLSTM over gates that arrive projected: the caller has multiplied the rows by the weights of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from varlen_rnn.cells.slstm import slstm_of_gates
from varlen_rnn.errors import ShapeError
from varlen_rnn.ops.recurrent.inputs import form_of
from varlen_rnn.tape.modes import grad_enabled
from varlen_rnn.tape.variable import Variable, apply, apply_list, as_variable, required
from varlen_rnn.typing import Rows

_GATES = 4


def slstm(
    gates: Rows,
    weight_hh: Rows,
    bias: Rows | None = None,
    states: Sequence[Rows | None] | None = None,
    *,
    forget: Literal["exp", "sigmoid"] = "exp",
) -> tuple[Variable, tuple[Variable, ...]]:
    """Run an sLSTM over rows of gates that arrive projected; return its outputs and last states.

    `nn.SLSTM` computes the same if its `weight_ih` projects its input to `gates`.  Here the caller projects them in
    another way: head by head, as xLSTM and TiRex do, or behind a convolution.

    Parameters
    ----------
    gates : Variable or LoDTensor, shape `(rows, 4 * hidden)`
        The projected inputs of the gates i, f, z and o, side by side.  The last LoD level gives the sequences.
    weight_hh : Variable or array, shape `(4 * hidden, hidden / heads)`
        As in `nn.SLSTM`.  Its shape determines the number of heads.
    bias : Variable or array, shape `(4 * hidden,)`, optional
    states : tuple of four, each of shape `(1, sequences, hidden)`, optional
        Initial outputs, cells, normalisers and stabilisers; None for zeros.
    forget : {"exp", "sigmoid"}
        Whether the forget gate is the exponential or the sigmoid of its argument.

    Returns
    -------
    y : Variable, shape `(rows, hidden)`, with the LoD of `gates`
    last : tuple of four Variables, with the shapes of the initial states
        For an empty sequence, these are its initial states.

    Raises
    ------
    InputError
        If shapes or data types do not fit.

    Examples
    --------
    >>> gates = vr.create_lod_tensor(np.zeros((5, 32), np.float32), [[2, 0, 3]])
    >>> y, (h, c, n, m) = slstm(gates, np.zeros((32, 4), np.float32))  # 8 units, 2 heads
    >>> y.shape, n.shape
    ((5, 8), (1, 3, 8))

    Source: Beck et al. (2024), "xLSTM: extended long short-term memory"; the equations in `varlen_rnn.cells.slstm`.
    """
    gates, cell = required(gates, "slstm, gates"), slstm_of_gates(forget=forget)
    hidden = gates.shape[1] // _GATES if gates.ndim == 2 else 0
    if hidden <= 0 or gates.shape[1] % _GATES:
        expected = "rows of four gates, of shape (rows, 4 * hidden)"
        raise ShapeError("slstm, gates", expected=expected, got=f"shape {gates.shape}")
    given = form_of(cell, gates.dtype, gates.shape[1], hidden, hidden).each("slstm", "states", states)
    parts = apply_list("split", gates, sizes=(hidden,) * _GATES, axis=-1)
    weights = None, as_variable(weight_hh), None, None if bias is None else as_variable(bias), *parts
    found = apply(
        "recurrent", gates.detach(), *(None if state is None else as_variable(state) for state in given), *weights,
        cell=cell.name, keep=grad_enabled(), reverse=(0,), all_states=False,
    )  # fmt: skip
    return found[0], tuple(found[1 : 1 + len(given)])
