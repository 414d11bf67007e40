"""The checkpoint files in a folder of a training, one per saved step."""

from __future__ import annotations

import re
from pathlib import Path

from varlen_rnn.errors import check_path
from varlen_rnn.typing import StrPath

_NAME = re.compile(r"step-(\d{9,})\.safetensors")


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step.

    Examples
    --------
    >>> checkpoint_path(Path("run"), 250).as_posix()
    'run/step-000000250.safetensors'
    """
    return folder / f"step-{step:09}.safetensors"


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder in the order of their steps; none if the folder does not exist."""
    found = [(int(match[1]), path) for path in folder.glob("step-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


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
