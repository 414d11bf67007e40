"""Draw a training: losses on the left axis, other numbers on the right axis, over steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from varlen_rnn.errors import DTypeError, InputError, ShapeError, check_list, check_path, shown
from varlen_rnn.typing import StrPath

_POSITION = ("epoch", "step", "lr")


def figure_for(path: str, name: str) -> Any:
    """Return an empty figure of matplotlib, or raise if it is not installed or cannot write the suffix of a path."""
    try:
        from matplotlib.figure import Figure  # not pyplot, which would keep the figure and open a window
    except ImportError as error:
        hint = "pip install matplotlib"
        raise InputError(name, expected="matplotlib", got="no such package", hint=hint) from error
    figure = Figure(figsize=(7, 4), layout="constrained")
    suffix, known = PurePath(path).suffix, [f".{name}" for name in sorted(figure.canvas.get_supported_filetypes())]
    if suffix and suffix.lower() not in known:
        raise InputError(name, expected=f"a suffix among {', '.join(known)}", got=shown(suffix))
    return figure


def plot_history(history: Sequence[Mapping[str, float]], path: StrPath, title: str = "") -> None:
    """Draw a training's history to a file; the suffix of the path determines the format.

    Parameters
    ----------
    history : list of dict
        As `Trainer.history`.  Numbers whose name contains "loss" are drawn on the left axis, others on the right.
    path : str or path
    title : str

    Raises
    ------
    InputError
        If there are no epochs, or matplotlib is not installed.
    """
    path = check_path(path, "plot_history, path")
    history = check_list(history, "plot_history, history", "a list of records, as Trainer.history")
    for number, record in enumerate(history):
        if not isinstance(record, Mapping) or not isinstance(record.get("step"), int):
            raise DTypeError(f"history, entry {number}", expected="a dict with 'step' and numbers", got=shown(record))
    if not isinstance(title, str) or not title.isprintable():
        raise DTypeError("plot_history, title", expected="a text of one line", got=shown(title))
    if not history:
        raise ShapeError("plot_history, history", expected="at least one epoch", got="no epoch")
    figure = figure_for(path, "plot_history, path")
    left = figure.add_subplot()
    left.set(xlabel="steps", ylabel="loss", title=title)
    names = [name for name in history[-1] if name not in _POSITION]
    right = left.twinx() if any("loss" not in name for name in names) else None
    steps = [record["step"] for record in history]
    for number, name in enumerate(names):
        axes = left if "loss" in name or right is None else right
        values = [record.get(name, float("nan")) for record in history]
        axes.plot(steps, values, "o-" if axes is left else "s-", color=f"C{number}", label=name)
    if right is not None:
        right.set_ylabel(", ".join(name for name in names if "loss" not in name))
    figure.legend(loc="outside lower center", ncols=max(1, len(names)))
    figure.savefig(path, dpi=120)
