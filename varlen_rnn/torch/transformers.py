"""Models of transformers with matrix states (Qwen3-Next, Qwen3.5, Mamba-2) on our kernels, also for packed sequences.

A layer's own `forward` runs, in a copy whose global names of kernels mean functions of this file, so that nothing
changes for other models.  For example, five rows with the positions 0, 1, 0, 1, 2 are two sequences.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from varlen_rnn.errors import ProgramError
from varlen_rnn.nn.functional import scaled_dot_product_attention
from varlen_rnn.rows.lod import LoD
from varlen_rnn.torch.axes import common_type
from varlen_rnn.torch.eager import eager
from varlen_rnn.torch.function import as_batch, function, with_lod
from varlen_rnn.torch.linear_attention import attended, lod_of_batch
from varlen_rnn.torch.mamba import causal_conv1d_update, convolved, scanned, selective_state_update, steps_of
from varlen_rnn.torch.packing import is_packed, packed_lod

_Base: Any = torch.nn.Module if TYPE_CHECKING else object  # mixins; the model's class follows them among the bases


class _Layer(_Base):
    """A mixin for layers that call the functions of fla, mamba_ssm or causal-conv1d."""

    def forward(self, hidden_states: Tensor, cache: Any = None, *args: Any, **named: Any) -> Tensor:
        """Return the outputs of all rows; the cache gets the last states of each sequence."""
        if cache is not None and is_packed():
            cache = _PackedCache(cache, packed_lod(type(self).__name__, hidden_states.shape[:2]))
        return _with_ours(type(self)._replaces.forward)(self, hidden_states, cache, *args, **named)


class _Attention(_Base):
    """A mixin for layers of attention, in which no row sees rows of another packed sequence."""

    def forward(self, *args: Any, **named: Any) -> Any:
        """Return the outputs of all rows, and weights if a function of transformers computed them."""
        return _with_ours(type(self)._replaces.forward)(self, *args, **named)


class _Model(_Base):
    """A mixin for models that have attention, too, which knows sequences by their positions alone."""

    def forward(
        self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, cache: Any = None,
        inputs_embeds: Any = None, use_cache: Any = None, **named: Any,
    ) -> Any:  # fmt: skip
        """Run the model; if positions begin anew, or inside of `packed`, no row sees rows of another sequence."""
        cache, rows = named.pop("past_key_values", cache), input_ids if inputs_embeds is None else inputs_embeds
        lod = None if rows is None else packed_lod(type(self).__name__, rows.shape[:2])
        if lod is not None:
            for argument, given in (("attention_mask", attention_mask), ("cache", cache)):
                if given is not None:
                    what, hint = f"{type(self).__name__}, {argument}", "packed sequences begin anew, and see their rows"
                    expected = "None inside of `packed`"
                    raise ProgramError(what, expected=expected, got=type(given).__name__, hint=hint)
            if use_cache and position_ids is not None and position_ids.dim() > 2:
                what, hint = f"{type(self).__name__}, use_cache", "each sequence would need its own `rope_deltas`"
                raise ProgramError(what, expected="False, with positions of several axes", got=True, hint=hint)
            position_ids = _positions(lod) if position_ids is None else position_ids
        is_new = attention_mask is None and cache is None and position_ids is not None
        seq_idx = _numbers_of_sequences(position_ids if lod is None else _positions(lod)) if is_new else None
        if seq_idx is not None:
            named = {"seq_idx": seq_idx, **named}
            if self._attends_to_rows():  # otherwise masks of all rows by all rows keep sequences apart
                attention_mask, use_cache = dict.fromkeys(self.config.layer_types), bool(use_cache and lod)
            else:
                use_cache, position_ids = False, position_ids if lod is None else _for_masks(position_ids, lod)
        if lod is not None and use_cache:
            cache = importlib.import_module("transformers").DynamicCache(config=self.config)
        named |= {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        found = super().forward(cache=cache, inputs_embeds=inputs_embeds, use_cache=use_cache, **named)
        if lod is not None and use_cache:
            _unpack(cache, lod)
        return found

    def _attends_to_rows(self) -> bool:
        """Return whether our attention runs in all layers, which is without masks and without dropout."""
        layers = [layer.self_attn for layer in self.layers if hasattr(layer, "self_attn")]
        return all(isinstance(one, _Attention) and not (one.training and one.attention_dropout) for one in layers)


@eager
def _positions(lod: LoD) -> Tensor:
    offsets = torch.from_numpy(lod.levels[0].copy())
    return (torch.arange(lod.num_rows) - offsets[:-1].repeat_interleave(offsets.diff()))[None]


def _for_masks(position_ids: Tensor, lod: LoD) -> Tensor:
    """Return positions from which transformers makes masks that keep sequences apart.

    Models of images have positions `(4, batch, rows)`, whose first ones are made into masks, or only the last three:
    time, height and width.
    """
    return _positions(lod) if position_ids.dim() < 3 else torch.cat([_positions(lod)[None], position_ids[-3:]])


def _numbers_of_sequences(position_ids: Tensor) -> Tensor | None:
    """Return the number of each row's sequence, or None if each batch entry is one sequence."""
    if position_ids.dim() == 3 and len(position_ids) == 4:
        position_ids = position_ids[0]
    if position_ids.dim() != 2 or position_ids.shape[1] < 2:
        return None
    begins = position_ids.diff(prepend=position_ids[:, :1] - 1) != 1
    return begins.cumsum(1) if begins.any() else None


class _PackedCache:
    """Writes the last states of packed sequences into a cache, and has the other attributes of that cache."""

    def __init__(self, cache: Any, lod: LoD) -> None:
        self._cache, self._lod = cache, lod

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def get_conv_state(self, *args: Any, **named: Any) -> None:
        """Raise if the cache has states, because sequences that are packed begin anew."""
        if self._cache.get_conv_state(*args, **named) is not None:
            hint = "pass the next row of each sequence outside of `packed`, as a batch"
            raise ProgramError("packed, cache", expected="a new cache", got="a cache with states", hint=hint)

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, conv_kernel_size: int, **named: Any) -> Tensor:
        """Keep the last rows of each sequence; return all rows, of shape `(1, channels, rows)`."""
        windows = _last_rows(conv_states[..., None], self._lod, conv_kernel_size)[..., 0]
        self._cache.update_conv_state(windows, layer_idx, conv_kernel_size=conv_kernel_size, **named)
        return conv_states


@eager
def _last_rows(packed: Tensor, lod: LoD, count: int) -> Tensor:
    """Return the last `count` rows of each sequence, from `(1, a, rows, b)` to `(sequences, a, count, b)`.

    Zeros are in front of shorter sequences.
    """
    offsets = torch.from_numpy(lod.levels[0].copy())
    places = offsets[1:, None] - count + torch.arange(count)
    found = packed[0][:, places.clamp(min=0)] * (places >= offsets[:-1, None])[..., None]
    return found.transpose(0, 1)


@eager
def _unpack(cache: Any, lod: LoD) -> None:
    """Turn the keys and values of packed sequences into a batch, padded on the left."""
    longest = int(np.diff(lod.levels[0]).max(initial=0))
    for layer in cache.layers:
        if getattr(layer, "keys", None) is not None:
            layer.keys, layer.values = (_last_rows(one, lod, longest) for one in (layer.keys, layer.values))


@eager
def _lod(name: str, rows: Tensor, named: dict[str, Any]) -> LoD:
    """Return the LoD of a batch by the arguments of a model, or by `packed`; without any, an entry is a sequence."""
    cu_seqlens = named.get("cu_seqlens") if named.get("cu_seqlens") is not None else named.get("cu_seq_lens_q")
    lod = packed_lod(name, rows.shape[:2])
    return lod_of_batch(name, rows, cu_seqlens, named.get("seq_idx")) if lod is None else lod


def _rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor | None = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, **named: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    name, given = "gated_delta_rule", (query, key, value, g, beta, initial_state)
    out, last = attended(name, _lod(name, value, named), given, True, use_qk_l2norm_in_kernel)
    return out, last if output_final_state else None


def _conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **named: Any) -> Tensor:
    rows = x.transpose(1, 2)
    return convolved(_lod("causal_conv1d", rows, named), rows, weight, bias, None, activation)[0].transpose(1, 2)


def _scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, dt_bias: Tensor, initial_states: Tensor | None,
    dt_limit: tuple[float, float], return_final_states: bool, **named: Any,
) -> Any:  # fmt: skip
    lod, dt = _lod("mamba_chunk_scan", x, named), steps_of(dt, dt_bias, True, dt_limit)
    y, last = scanned(lod, x, dt, A, B, C, D, initial_states)
    return (y, last) if return_final_states else y


def _step(*args: Any, **named: Any) -> Tensor:
    return selective_state_update(*args, **{name: named[name] for name in ("z", "dt_bias", "dt_softplus")})


class _Interfaces:
    """Has the place of transformers' table of functions of attention."""

    @staticmethod
    def get_interface(name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        """Return our function, which calls theirs if sequences are not packed."""
        theirs = importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
        return functools.partial(_attention, theirs.get_interface(name, default))


def _attention(
    theirs: Callable[..., Any],
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    **named: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return outputs `(batch, steps, heads, depth)`, and no weights; operands have heads before steps."""
    if mask is not None or named.get("seq_idx") is None:
        return theirs(module, query, key, value, mask, **named)
    shared = query.shape[1] // key.shape[1]
    operands = query, *(one.repeat_interleave(shared, dim=1) if shared > 1 else one for one in (key, value))
    rows = query.transpose(1, 2)
    flat = [one.to(common_type(query)).transpose(1, 2).flatten(0, 1) for one in operands]
    out = _attended(_lod("attention", rows, named), *flat, named["scaling"])
    return out.reshape(*rows.shape[:3], out.shape[-1]).to(query.dtype), None


@function
def _attended(lod: LoD, query: Any, key: Any, value: Any, scale: float) -> Any:
    query, key, value = with_lod(lod, query, key, value)
    return as_batch(scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale))


_FUNCTIONS: dict[str, Any] = {  # by their names in transformers
    "ALL_ATTENTION_FUNCTIONS": _Interfaces,
    "causal_conv1d_fn": _conv,
    "causal_conv1d_update": causal_conv1d_update,
    "mamba2_chunk_scan": _scan,
    "mamba2_selective_state_update": _step,
    "mamba2_split_conv1d_scan_combined": lambda *args, **named: None,  # so that the functions of its parts are called
    "torch_chunk_gated_delta_rule": _rule,
    "torch_recurrent_gated_delta_rule": _rule,
}


@eager
@functools.cache
def _with_ours(call: FunctionType) -> Callable[..., Any]:
    """Return a copy of a function that calls ours by the names of transformers; decorators are copied, too."""
    inner = getattr(call, "__wrapped__", None)
    names, closure = call.__globals__, call.__closure__
    if inner is None:
        names = {**names, **{name: ours for name, ours in _FUNCTIONS.items() if name in names}}
    else:
        copy = _with_ours(inner)
        closure = tuple(CellType(copy) if cell.cell_contents is inner else cell for cell in closure or ())
    found = FunctionType(call.__code__, names, call.__name__, call.__defaults__, closure)
    found.__kwdefaults__ = call.__kwdefaults__
    return found


_LAYERS = {
    "mamba2": "Mamba2Mixer",
    "qwen3_next": "Qwen3NextGatedDeltaNet",
    "qwen3_5": "Qwen3_5GatedDeltaNet",
    "qwen3_5_moe": "Qwen3_5MoeGatedDeltaNet",
}
_ATTENTION = {"qwen3_next": "Qwen3NextAttention", "qwen3_5": "Qwen3_5Attention", "qwen3_5_moe": "Qwen3_5MoeAttention"}
_MODELS = {"qwen3_next": "Qwen3NextModel", "qwen3_5": "Qwen3_5TextModel", "qwen3_5_moe": "Qwen3_5MoeTextModel"}
KNOWN = {  # by the full name of a class: the method that is replaced, and the mixin that has ours
    f"transformers.models.{name}.modeling_{name}.{cls}": ("forward", mixin)
    for mixin, classes in ((_Layer, _LAYERS), (_Attention, _ATTENTION), (_Model, _MODELS))
    for name, cls in classes.items()
}
