"""Use this library in PyTorch: recurrent layers as torch modules, and other functions with torch's autograd."""

from varlen_rnn.torch.function import Module, function
from varlen_rnn.torch.layers import GRU, LSTM, RNN
from varlen_rnn.torch.linear_attention import (
    chunk_gated_delta_rule,
    chunk_simple_gla,
    fused_recurrent_gated_delta_rule,
)
from varlen_rnn.torch.mamba import (
    causal_conv1d_fn,
    causal_conv1d_update,
    mamba_chunk_scan_combined,
    mamba_split_conv1d_scan_combined,
    selective_state_update,
)
from varlen_rnn.torch.packing import packed
from varlen_rnn.torch.swap import replace, restore

__all__ = [
    "GRU", "LSTM", "RNN", "Module", "causal_conv1d_fn", "causal_conv1d_update", "chunk_gated_delta_rule",
    "chunk_simple_gla", "function", "fused_recurrent_gated_delta_rule", "mamba_chunk_scan_combined",
    "mamba_split_conv1d_scan_combined", "packed", "replace", "restore", "selective_state_update",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
