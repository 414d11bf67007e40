"""Save and load models for inference, one per folder: the operators of a program between some feeds and fetches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from varlen_rnn.errors import DTypeError, ProgramError, check_path, shown
from varlen_rnn.program import prune
from varlen_rnn.program.desc import ProgramDesc
from varlen_rnn.program.feed import EDGES
from varlen_rnn.program.program import Program, edge_names, names_of, over
from varlen_rnn.tape.spec import Symbol
from varlen_rnn.tape.variable import Variable
from varlen_rnn.typing import StrPath
from varlen_rnn.whole_file import write_file

_FILE = "model.safetensors"


def save_inference_model(
    folder: StrPath, feeds: Iterable[Variable | str], fetches: Sequence[Variable | str], program: Program | None = None
) -> None:
    """Write the operators that compute the fetched variables from the feeds, for inference, to `folder`.

    As in `Program.prune`, there are no updates and no dropout, and no values are saved for a gradient.

    Parameters
    ----------
    folder : str or path
        Created if it does not exist.  Its file `model.safetensors` is replaced once the new file is complete.
    feeds : list of Variables or str
        All feeds that a run needs, in the order of `feed_names` of the loaded program.
    fetches : list of Variables or str
        The variables that a run returns, in this order.
    program : Program, optional
        By default the program of the Variables among `fetches`.

    Raises
    ------
    ProgramError
        If `feeds` are not exactly the needed feeds, if the program lacks a variable or a variable needs a gradient, or
        if all fetches are names and no program is given.
    OSError
        If the folder cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from varlen_rnn.program.guard import feed_data, program_guard
    >>> with program_guard():
    ...     x = feed_data("x", shape=[-1, 3], dtype="float32")
    ...     y = x.sum(axis=1)
    >>> folder = tempfile.mkdtemp()
    >>> save_inference_model(folder, feeds=["x"], fetches=[y])
    >>> load_inference_model(folder)
    Program of 3 operators, 0 persistables, feeds ['x']

    Source: `save_inference_model` of PaddlePaddle Fluid.
    """
    folder = check_path(folder, "save_inference_model, folder")
    desc, persistables = _source(program, fetches)
    pruned = prune.prune(desc, names_of(desc, fetches, "fetches"))
    names, needed = names_of(desc, feeds, "feeds"), edge_names(pruned, "feed")
    if sorted(names) != sorted(needed):
        expected = f"{needed}, the feeds that {edge_names(pruned, 'fetch')} need"
        raise ProgramError("feeds", expected=expected, got=names)
    ops = [op for op in pruned.blocks[0].ops if op.type not in EDGES]
    ordered = prune.assemble(pruned, ops, names, edge_names(pruned, "fetch"))
    content = over(ordered, persistables).to_bytes()  # made first, so that an error leaves the folder as it is
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_file(Path(folder) / _FILE, content)


def _source(program: Program | None, fetches: Sequence[Variable | str]) -> tuple[ProgramDesc, Mapping[str, Variable]]:
    """Return the description and the persistables' Variables, by name, of the program that the fetches belong to."""
    if program is not None and not isinstance(program, Program):
        raise DTypeError("save_inference_model, program", expected="a Program", got=type(program).__name__)
    if not isinstance(fetches, (list, tuple)):
        raise ProgramError("fetches", expected="a list of variables or names", got=type(fetches).__name__)
    values = [getattr(variable, "value", None) for variable in fetches]
    recorders = {value.block.recorder for value in values if isinstance(value, Symbol)}
    if program is not None:
        if recorders - {program.recorder}:
            raise ProgramError("fetches", expected="variables of the program", got="a variable of another program")
        return program.desc, program.variables
    if len(recorders) != 1:
        expected = "variables of one program" if recorders else "a variable of a program, or the program itself"
        raise ProgramError("fetches", expected=expected, got=shown(fetches))
    (recorder,) = recorders
    return recorder.desc(), recorder.persistables


def load_inference_model(folder: StrPath) -> Program:
    """Return the program that `save_inference_model` wrote to a folder.

    Its `feed_names` and `fetch_names` are the saved ones, in the same order; `Executor().run(program, feed)` returns
    the fetches.

    Raises
    ------
    ProgramError, OSError
        As in `Program.load`.

    Source: `load_inference_model` of PaddlePaddle Fluid.
    """
    path = Path(check_path(folder, "load_inference_model, folder"))
    if path.is_file():
        hint = "Program.load reads files that Program.save wrote"
        raise ProgramError("load_inference_model, folder", expected="a folder", got=f"the file {path}", hint=hint)
    return Program.load(path / _FILE)
