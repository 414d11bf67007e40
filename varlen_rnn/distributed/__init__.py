"""Training on several ranks (processes that `mpiexec` or `torchrun` launches), each with its part of a batch."""

from varlen_rnn.communicator import Communicator
from varlen_rnn.distributed.gloo import TorchCommunicator
from varlen_rnn.distributed.launched import connect
from varlen_rnn.distributed.mpi import MpiCommunicator
from varlen_rnn.distributed.programs import ReplicatedProgram
from varlen_rnn.distributed.replica import Replica, Shard, replicate

__all__ = [
    "Communicator", "MpiCommunicator", "Replica", "ReplicatedProgram", "Shard", "TorchCommunicator", "connect",
    "replicate",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
