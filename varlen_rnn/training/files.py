"""The checkpoint files in a folder of a training, one per saved step."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from varlen_rnn.communicator import Communicator
from varlen_rnn.errors import CheckpointError, check_path
from varlen_rnn.typing import StrPath

_NAME = re.compile(r"step-\d{9,}\.safetensors")


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return folder / f"step-{step:09}.safetensors"


def step_of(path: Path) -> int:
    """Return the step of a checkpoint."""
    return int(path.name[len("step-") : -len(".safetensors")])


def checkpoints(folder: Path) -> list[Path]:
    """Return the paths of a folder's checkpoints, sorted by their steps; [] if the folder does not exist."""
    return sorted((path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)), key=step_of)


def forget(folder: Path) -> None:
    """Remove the checkpoints of a folder, and the folder if it is empty then."""
    for path in checkpoints(folder):
        remove(path)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def newest(folder: StrPath) -> Path | None:
    """Return the path of the checkpoint with the largest step, or None if the folder has no checkpoint."""
    found = checkpoints(Path(check_path(folder, "folder")))
    return found[-1] if found else None


def part_path(path: Path, step: int, rank: int, size: int) -> Path:
    """Return the path of a rank's part of a checkpoint: its rows of tables that ranks divide.

    Its name has the step, so that the parts of an older checkpoint stay until the new checkpoint is complete.
    """
    return path.with_name(f"{path.name}.{step}.{rank}-of-{size}")


def remove(path: Path) -> None:
    """Remove a checkpoint and its parts."""
    path.unlink(missing_ok=True)  # first, because a checkpoint without its parts would be incomplete
    remove_parts(path, [])


def remove_parts(path: Path, kept: Sequence[Path]) -> None:
    """Remove the parts of a checkpoint, except for those that are kept."""
    for part in path.parent.glob(f"{glob.escape(path.name)}.*-of-*"):
        if part not in kept:
            part.unlink(missing_ok=True)


def together(comm: Communicator, write: Callable[[], object], path: Path) -> None:
    """Call `write` on each rank; return once all files are written, or raise on all ranks if one rank raises."""
    error = None
    try:
        write()
    except Exception as caught:
        error = caught
    failures = np.array([error is not None], np.int64)
    comm.all_reduce(failures)
    if error is not None:
        raise error
    if failures[0]:
        got = "an error on another rank, which prints it"
        raise CheckpointError(f"{path}", expected="a file that all ranks can write", got=got)
