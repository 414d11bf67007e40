"""The sLSTM and the mLSTM of xlstm, transformers and TiRex on our kernels, also for sequences that are packed.

Parameters stay in the layouts of their packages.  A head of an sLSTM of `d` units has a block of `(4 d, d)` numbers in
`weight_hh` here, TiRex has its transpose, and xlstm's kernel "vanilla" has the same numbers with other axes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from varlen_rnn.cells.slstm import slstm_of_gates
from varlen_rnn.errors import ProgramError, ShapeError
from varlen_rnn.nn.functional import log_sigmoid
from varlen_rnn.nn.matrix.mlstm import recalled
from varlen_rnn.rows.lod import LoD
from varlen_rnn.torch.axes import common_type
from varlen_rnn.torch.eager import eager, is_transformed
from varlen_rnn.torch.function import as_batch, function, with_lod
from varlen_rnn.torch.layouts import lod_of_equal
from varlen_rnn.torch.mamba import convolved
from varlen_rnn.torch.packing import is_packed, packed_lod
from varlen_rnn.torch.recurrence import Step, layer

_Base: Any = torch.nn.Module if TYPE_CHECKING else object  # mixins; the package's class follows them among the bases
_SLSTM = Step(slstm_of_gates(forget="sigmoid"), (False,))


def _can_run(module: Any, rows: Tensor, can: bool = True) -> bool:
    """Return whether our kernels can run a module on these rows; raise inside of `packed` if they cannot."""
    runs = can and rows.device.type == "cpu" and not is_transformed() and not torch.jit.is_tracing()
    if is_packed() and not runs:
        expected = "a layer and rows that our kernels run, inside of `packed`"
        got = f"rows on {rows.device}" if can else "options that our kernels lack"
        raise ProgramError(f"{type(module).__name__}, packed", expected=expected, got=got)
    return runs


def _lod(name: str, axes: Any, state: Tensor | None, axis: int) -> LoD:
    """Return the LoD of a batch `(sequences, rows)`; raise unless a given state has as many sequences along an axis."""
    lod = packed_lod(name, axes)
    lod = lod_of_equal(*axes) if lod is None else lod
    if state is not None and state.shape[axis] != len(lod.levels[0]) - 1:
        count = len(lod.levels[0]) - 1
        hint = "inside of `packed`, pass a cache for as many sequences as there are, or use_cache=False"
        raise ShapeError(f"{name}, states", expected=f"{count} sequences", got=f"{state.shape[axis]}", hint=hint)
    return lod


def _slstm(name: str, gates: Tensor, weight: Tensor, bias: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the outputs `(batch, steps, units)` of an sLSTM, and its last states `(4, sequences, units)`.

    `gates` has the shape `(batch, steps, 4 * units)`; `weight` and `bias` have the layout of `functional.slstm`.
    """
    lod, dtype = _lod(name, gates.shape[:2], state, 1), common_type(gates, weight)
    given = [None] * 4 if state is None else list(state.to(dtype).unsqueeze(1))
    rows = gates.to(dtype).flatten(0, 1)
    y, *last = layer(
        _SLSTM, lod, rows.detach()[:, :0], *given, None, weight.to(dtype), None, bias.to(dtype).reshape(-1), rows
    )
    return y.view(*gates.shape[:2], y.shape[1]).to(gates.dtype), torch.cat(last).to(gates.dtype)


class _Cell(_Base):
    """A mixin for the sLSTM cell of xlstm, with its backend "vanilla"."""

    @eager
    def forward(self, input: Tensor, state: Tensor | None = None, lengths: None = None) -> tuple[Tensor, Tensor]:
        """Return outputs in the layout of the cell's options, and the last states."""
        if not _can_run(self, input, self.config.function == "slstm"):
            return super().forward(input, state, lengths)
        self._check_input(input)
        gates = self._permute_input(input).transpose(0, 1)
        heads = self._recurrent_kernel_.unflatten(1, (4, -1))
        weight = heads.transpose(0, 1).flatten(0, 2)
        y, last = _slstm(type(self).__name__, gates, weight, self._bias_, state)
        return self._permute_output(y.transpose(0, 1)), last

    def step(self, input: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the output of one row for each sequence, and its states."""
        return self(input, state)


class _TiRexCell(_Base):
    """A mixin for the sLSTM cell of TiRex, with its backend "torch"; it computes in float32, not in bfloat16."""

    @eager
    def forward(self, input: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return outputs `(batch, heads, steps, units of a head)`, and the last states."""
        if not _can_run(self, input, self.backend == "torch"):
            return super().forward(input, state)
        heads = self._recurrent_kernel_.unflatten(2, (4, -1))
        weight, bias = heads.permute(2, 0, 3, 1).flatten(0, 2), self._bias_.view(len(heads), 4, -1).transpose(0, 1)
        y, last = _slstm(type(self).__name__, input, weight, bias, state)
        return y.unflatten(2, (len(heads), -1)).transpose(1, 2), last


class _Conv(_Base):
    """A mixin for xlstm's causal convolution, which keeps its own code unless its rows are packed."""

    def forward(self, x: Tensor, conv_state: Tensor | None = None, return_last_state: bool = False) -> Any:
        """Return rows, and the last windows if asked."""
        if self.conv is None or not is_packed() or not _can_run(self, x, self.conv.groups == x.shape[2]):
            return super().forward(x, conv_state, return_last_state)
        lod = _lod(type(self).__name__, x.shape[:2], conv_state, 0)
        first = None if conv_state is None else conv_state.transpose(1, 2)
        y, last = convolved(lod, x, self.conv.weight[:, 0], self.conv.bias, first, None)
        return (y, last.transpose(1, 2)) if return_last_state else y


@function
def _recalled(
    lod: LoD, query: Any, key: Any, value: Any, log_input: Any, forget: Any, c: Any, n: Any, m: Any, eps: float
) -> Any:
    query, log_input, forget = with_lod(lod, query, log_input, forget)
    y, *last = recalled(query, key, value, log_input, log_sigmoid(forget), (c, n, m), eps)
    return as_batch(y), *last


def _mlstm(
    name: str, rows: tuple[Tensor, ...], states: tuple[Tensor | None, ...], eps: float
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the outputs `(batch, heads, steps, numbers)` of an mLSTM, and its last states.

    `rows` has queries, keys and values of this shape, and the arguments of the input and the forget gate,
    `(batch, heads, steps)`.  States are matrices, normalisers and stabilisers, `(sequences, heads, 1)`.
    """
    query, dtype, (c, n, m) = rows[0], common_type(*rows), states
    lod = _lod(name, (query.shape[0], query.shape[2]), c, 0)
    of_rows = [part.to(dtype).transpose(1, 2).flatten(0, 1) for part in rows]
    given = [None if state is None else state.to(dtype) for state in (c, n, m if m is None else m[..., 0])]
    y, c, n, m = _recalled(lod, *of_rows, *given, eps)
    return y.view(query.shape[0], query.shape[2], *y.shape[2:]).transpose(1, 2).to(query.dtype), (c, n, m[..., None])


class _Parallel(_Base):
    """A mixin for xlstm's mLSTM cell, whose own function compares all pairs of rows."""

    @property
    def backend_fn(self) -> Any:
        """Our function in place of xlstm's `parallel_stabilized_simple`; any other function stays."""
        theirs = vars(self)["backend_fn"]
        return self._outputs if theirs.__name__ == "parallel_stabilized_simple" else theirs

    @eager
    def _outputs(
        self, queries: Tensor, keys: Tensor, values: Tensor, igate_preact: Tensor, fgate_preact: Tensor, **named: Any
    ) -> Tensor:
        gates = igate_preact.squeeze(-1), fgate_preact.squeeze(-1)
        if not _can_run(self, queries):
            return vars(self)["backend_fn"](queries, keys, values, igate_preact, fgate_preact, **named)
        return _mlstm(type(self).__name__, (queries, keys, values, *gates), (None,) * 3, 1e-6)[0]


class _Backend(_Base):
    """A mixin for the backend of the mLSTM of xlstm's large models and of transformers."""

    @eager
    def _returned(self, rows: tuple[Any, ...], states: tuple[Any, ...], wants_states: bool | None, mode: Any) -> Any:
        """Return outputs, with the last states in inference or if they are wanted."""
        mode = self.config.mode if mode is None else mode
        can = mode in ("train", "train_with_padding", "inference") and "siging" not in self.config.chunkwise_kernel
        if not _can_run(self, rows[0], can):
            return super().forward(*rows, *states, wants_states, mode)
        h, last = _mlstm(type(self).__name__, rows, states, self.config.eps)
        wants_states = self.config.return_last_states if wants_states is None else wants_states
        return (h, last) if wants_states or mode == "inference" else h


class _LargeBackend(_Backend):
    def forward(
        self, q: Any, k: Any, v: Any, i: Any, f: Any, c_initial: Any = None, n_initial: Any = None,
        m_initial: Any = None, return_last_states: bool | None = None, mode: Any = None,
    ) -> Any:  # fmt: skip
        return self._returned((q, k, v, i, f), (c_initial, n_initial, m_initial), return_last_states, mode)


class _TransformersBackend(_Backend):
    def forward(
        self, query: Any, key: Any, value: Any, igate: Any, fgate: Any, c_initial: Any = None, n_initial: Any = None,
        m_initial: Any = None, return_last_states: bool | None = None, mode: Any = None,
    ) -> Any:  # fmt: skip
        rows = query, key, value, igate, fgate
        return self._returned(rows, (c_initial, n_initial, m_initial), return_last_states, mode)


KNOWN = {  # by the full name of a class: the method that is replaced, and the mixin that has ours
    "mlstm_kernels.torch.backend_module.mLSTMBackend": ("forward", _LargeBackend),
    "tirex.models.slstm.cell.sLSTMCell": ("forward", _TiRexCell),
    "transformers.models.xlstm.modeling_xlstm.xLSTMBackend": ("forward", _TransformersBackend),
    "xlstm.blocks.mlstm.cell.mLSTMCell": ("forward", _Parallel),
    "xlstm.blocks.slstm.cell.sLSTMCell_vanilla": ("forward", _Cell),
    "xlstm.components.conv.CausalConv1d": ("forward", _Conv),
}
