"""The checkpoint files in a folder of a training, one per saved step."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from varlen_rnn.communicator import Communicator
from varlen_rnn.errors import CheckpointError, check_path
from varlen_rnn.typing import StrPath

_NAME = re.compile(r"step-\d{9,}\.safetensors")


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step.

    Examples
    --------
    >>> checkpoint_path(Path("run"), 250).as_posix()
    'run/step-000000250.safetensors'
    """
    return folder / f"step-{step:09}.safetensors"


def step_of(path: Path) -> int:
    """Return the step of a checkpoint.

    Examples
    --------
    >>> step_of(Path("run/step-000000250.safetensors"))
    250
    """
    return int(path.name[len("step-") : -len(".safetensors")])


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder in the order of their steps; none if the folder does not exist."""
    return sorted((path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)), key=step_of)


def forget(folder: Path) -> None:
    """Remove the checkpoints of a folder, and the folder if it is empty then."""
    for path in checkpoints(folder):
        path.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def newest(folder: StrPath) -> Path | None:
    """Return the checkpoint of the last step, or None if there is none.

    Examples
    --------
    >>> newest("/no/such/folder") is None
    True
    """
    found = checkpoints(Path(check_path(folder, "folder")))
    return found[-1] if found else None


def on_first_rank(comm: Communicator, write: Callable[[], None], path: str) -> None:
    """Write a file on rank 0 while the other ranks wait; if it fails there, raise on all ranks.

    Examples
    --------
    >>> on_first_rank(Communicator(), lambda: print("written"), "file")
    written
    """
    error = None
    if comm.rank == 0:
        try:
            write()
        except Exception as caught:
            error = caught
    failures = np.array([error is not None], np.int64)
    comm.all_reduce(failures)
    if error is not None:
        raise error
    if failures[0]:
        raise CheckpointError(path, expected="a file that rank 0 can write", got="an error on rank 0, which says more")
