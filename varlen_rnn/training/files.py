"""The files of a run's folder: checkpoints by step, newest last."""

from __future__ import annotations

import re
from pathlib import Path

from varlen_rnn.errors import check_path
from varlen_rnn.typing import StrPath

_NAME = re.compile(r"step-(\d{9,})\.safetensors")


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of a step's checkpoint.

    Examples
    --------
    >>> checkpoint_path(Path("run"), 250).as_posix()
    'run/step-000000250.safetensors'
    """
    return folder / f"step-{step:09}.safetensors"


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, by step; none where there is no such folder."""
    found = [(int(match[1]), path) for path in folder.glob("step-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def forget(folder: Path) -> None:
    """Remove the checkpoints of a folder, and the folder if there is nothing else in it."""
    for path in checkpoints(folder):
        path.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def newest(folder: StrPath) -> Path | None:
    """Return the checkpoint of the last step, or None.

    Examples
    --------
    >>> newest("/no/such/folder") is None
    True
    """
    found = checkpoints(Path(check_path(folder, "folder")))
    return found[-1] if found else None
