"""Record a program: under `program_guard`, the same model code describes operators instead of running them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import DTypeLike

from varlen_rnn.errors import DTypeError, ProgramError, ShapeError, check_int, check_list, shown
from varlen_rnn.program.desc import to_var
from varlen_rnn.program.program import Program
from varlen_rnn.program.recorder import Recorder
from varlen_rnn.tape.modes import recorder, recording
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import Variable


@contextlib.contextmanager
def program_guard(program: Program | None = None) -> Iterator[Program]:
    """Record the operators that are applied inside the `with` block as a program, in this context only.

    A mode belongs to one thread: threads that are started inside the block run their operators and record none.

    Parameters
    ----------
    program : Program, optional
        An unfinished program to which operators are added; by default a new program.

    Yields
    ------
    Program

    Examples
    --------
    >>> with program_guard() as program:
    ...     x = feed_data("x", shape=[-1, 3], dtype="float32")
    ...     y = x * 2.0
    >>> [op.type for op in program.desc.blocks[0].ops]
    ['feed', 'fill_constant', 'mul']

    Source: `program_guard` of PaddlePaddle Fluid.
    """
    if recorder() is not None:
        raise ProgramError("program_guard", expected="no program_guard around it", got="a program_guard in another")
    program = Program() if program is None else program
    if not isinstance(program, Program):
        raise DTypeError("program_guard, program", expected="a Program", got=type(program).__name__)
    if program.recorder is None:
        if program.desc.blocks[0].ops or program.desc.blocks[0].vars:
            got = "a complete program, such as a file has"
            raise ProgramError("program_guard", expected="a new program", got=got)
        program.recorder = Recorder()
    with recording(program.recorder):
        yield program


def feed_data(
    name: str, shape: Iterable[int], dtype: DTypeLike, lod_level: int = 0, requires_grad: bool = False
) -> Variable:
    """Return a variable that is fed when the program runs.

    Parameters
    ----------
    name : str
    shape : list of int
        -1 is a size that is known only when the program is fed, such as the number of rows.
    dtype : data type
    lod_level : int
        Levels of detail of the feed.
    requires_grad : bool
        Whether `backward` describes the gradient of this variable, `name@GRAD`.

    Raises
    ------
    ProgramError
        If called outside of `program_guard`, or if the name is taken.

    Examples
    --------
    >>> with program_guard() as program:
    ...     x = feed_data("x", shape=[-1, 3], dtype="float32", lod_level=1)
    >>> program.feed_names, x.shape
    (['x'], (-1, 3))

    Source: `fluid.data` of PaddlePaddle Fluid.
    """
    into = recorder()
    if into is None:
        hint = "call it under `with vr.program_guard():`"
        raise ProgramError("feed_data", expected="a program that is being recorded", hint=hint)
    what = "feed_data, shape"
    sizes = tuple(check_int(size, what, -1) for size in check_list(shape, what, "a list of sizes"))
    if check_int(lod_level, "feed_data, lod_level", 0) and (not sizes or sizes[0] != -1):
        hint = "with a lod_level, the feed of each run decides the number of rows"
        raise ShapeError(what, expected="-1 as the first size", got=list(sizes), hint=hint)
    try:
        known = np.dtype(dtype)
    except TypeError as error:
        raise DTypeError("feed_data, dtype", expected="a data type", got=shown(dtype)) from error
    if requires_grad and known.kind != "f":
        raise DTypeError("feed_data, requires_grad", expected="float32 or float64, to have a gradient", got=known)
    spec = TensorSpec(sizes, known, lod_level)
    to_var("feed_data", spec)  # this raises if a description cannot hold the data type
    return Variable(into.feed(name, spec), requires_grad=requires_grad)
