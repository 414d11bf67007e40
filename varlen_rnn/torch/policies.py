"""Recurrent policies of sb3-contrib and TorchRL, whose episodes become sequences: a reset is an offset.

Two rollouts of 4 steps, in which an episode begins at step 2 of the first, are 3 sequences with the offsets 0, 2, 4, 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from varlen_rnn.torch.layers import GRU, LSTM

_Base: Any = torch.nn.Module if TYPE_CHECKING else object  # mixins; the policy's class follows them among the bases


class _Policy(_Base):
    """A mixin for sb3-contrib's policies: one call of a layer, where theirs is a loop over steps."""

    def _process_sequence(
        self, features: Tensor, lstm_states: Any, episode_starts: Tensor, lstm: Any
    ) -> tuple[Tensor, Any]:
        """Return the outputs of all rows, one rollout after another, and the last states.

        Parameters
        ----------
        features : Tensor, shape `(rollouts * steps, features)`
        lstm_states : pair of Tensor, shape `(layers, rollouts, units)`
        episode_starts : Tensor, shape `(rollouts * steps,)`
            1 where an episode begins, otherwise 0.
        lstm : LSTM
        """
        if not isinstance(lstm, LSTM):  # `replace` could not replace it
            return super()._process_sequence(features, lstm_states, episode_starts, lstm)
        num_rollouts = lstm_states[0].shape[1]
        begins = episode_starts.reshape(num_rollouts, -1) != 0
        kept = [torch.where(begins[:, 0, None], torch.zeros_like(state), state) for state in lstm_states]
        if begins.shape[1] == 1:  # a step of each environment
            output, last = lstm(features.unsqueeze(0), tuple(kept))
            return output[0], last
        firsts, offsets, whose = _sequences(begins)
        states = tuple(_scattered(state, firsts, len(offsets) - 1) for state in kept)
        output, last = lstm(features, states, offsets=offsets)
        return output, tuple(state.index_select(1, whose) for state in last)


def _sequences(begins: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of the first sequence of each rollout, all offsets, and the number of each last sequence."""
    num_rollouts, steps = begins.shape
    opens = begins.clone()
    opens[:, 0] = True
    offsets = torch.cat([opens.flatten().nonzero()[:, 0], torch.tensor([num_rollouts * steps])])
    counts = opens.sum(dim=1)
    return counts.cumsum(0) - counts, offsets, counts.cumsum(0) - 1


def _scattered(states: Tensor, places: Tensor, count: int) -> Tensor:
    """Return states of `count` sequences: the given ones at `places`, and zeros elsewhere."""
    shape = states.shape[0], count, states.shape[2]
    return torch.zeros(shape, dtype=states.dtype).index_copy(1, places, states)


class _Backend(_Base):
    """A mixin for TorchRL's modules with the backends "pad" and "auto": no padding where an episode begins."""

    @property
    def recurrent_backend(self) -> str:
        """The chosen backend; "scan", which does not pad, if our method runs instead of the method for "scan"."""
        return "scan" if self._takes_offsets() else vars(self)["recurrent_backend"]

    @recurrent_backend.setter
    def recurrent_backend(self, chosen: str) -> None:
        self.__dict__["recurrent_backend"] = chosen

    def _takes_offsets(self) -> bool:
        if vars(self)["recurrent_backend"] not in ("pad", "auto") or torch.compiler.is_compiling():
            return False
        return any(isinstance(layer, (LSTM, GRU)) for layer in self._modules.values())


class _LSTMModule(_Backend):
    def _lstm_scan_with_resets(self, input: Tensor, h: Tensor, c: Tensor, initial: Any, is_init: Tensor) -> Any:
        if not self._takes_offsets():
            return super()._lstm_scan_with_resets(input, h, c, initial, is_init)
        return _of_trajectories(self.lstm, input, is_init, h, c)


class _GRUModule(_Backend):
    def _gru_scan_with_resets(self, input: Tensor, h: Tensor, initial: Any, is_init: Tensor) -> Any:
        if not self._takes_offsets():
            return super()._gru_scan_with_resets(input, h, initial, is_init)
        return _of_trajectories(self.gru, input, is_init, h)


def _of_trajectories(layer: Any, input: Tensor, is_init: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
    """Return the outputs, and the last states of each trajectory at its last step, with zeros at other steps.

    `input` has the shape `(rollouts, steps, features)`; each of `states`, as each result of states, has the shape
    `(rollouts, steps, layers, units)`, and its values at the first step of a trajectory are the initial ones.
    """
    _, offsets, _ = _sequences(is_init)
    initial = [state.flatten(0, 1).index_select(0, offsets[:-1]).transpose(0, 1).contiguous() for state in states]
    hx = tuple(initial) if len(initial) > 1 else initial[0]
    output, last = layer(input.flatten(0, 1), hx, offsets=offsets)
    ends = last if isinstance(last, tuple) else (last,)
    at_ends = [
        torch.zeros_like(state.flatten(0, 1)).index_copy(0, offsets[1:] - 1, end.transpose(0, 1)).view(state.shape)
        for state, end in zip(states, ends, strict=True)
    ]
    return output.view(*is_init.shape, output.shape[1]), *at_ends


KNOWN = {  # by the full name of a class: the method that is replaced, and the mixin that has ours
    "sb3_contrib.common.recurrent.policies.RecurrentActorCriticPolicy": ("_process_sequence", _Policy),
    "torchrl.modules.tensordict_module.rnn.LSTMModule": ("_lstm_scan_with_resets", _LSTMModule),
    "torchrl.modules.tensordict_module.rnn.GRUModule": ("_gru_scan_with_resets", _GRUModule),
}
