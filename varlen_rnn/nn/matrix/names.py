"""The layers whose states are matrices, by the names that estimators and the command line give them."""

from typing import Any

from varlen_rnn.nn.matrix.delta_net import DeltaNet, GatedDeltaNet
from varlen_rnn.nn.matrix.gla import GatedLinearAttention
from varlen_rnn.nn.matrix.mamba2 import Mamba2
from varlen_rnn.nn.matrix.mlstm import MLSTM

BY_NAME: dict[str, type[Any]] = {
    "gated_delta": GatedDeltaNet, "delta": DeltaNet, "mamba2": Mamba2, "mlstm": MLSTM, "gla": GatedLinearAttention,
}  # fmt: skip
