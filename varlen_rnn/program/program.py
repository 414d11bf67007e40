"""A program: the description of a computation, and the values that outlive its runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

from varlen_rnn.errors import DTypeError, ProgramError, alike, check_list, shown
from varlen_rnn.program import dot, prune, validate
from varlen_rnn.program.desc import ProgramDesc
from varlen_rnn.program.format import files
from varlen_rnn.program.recorder import Recorder
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.runtime.place import Place
from varlen_rnn.runtime.place import device as as_place
from varlen_rnn.tape.gradient import was_updated
from varlen_rnn.tape.kinds import Type
from varlen_rnn.tape.operator import find
from varlen_rnn.tape.spec import Symbol
from varlen_rnn.tape.values import moved_value
from varlen_rnn.tape.variable import Variable
from varlen_rnn.typing import Rows, StrPath

_MOST_COMPARED = 1000  # the most names that are compared with an unknown name, for the hint of an error


class Program:
    """A computation that can be run, saved, cut and sent.

    Parameters
    ----------
    desc : ProgramDesc, optional
        By default an empty description, for `program_guard` to record into.
    persistables : dict of str to array, LoDTensor or Variable
        The values of the variables that outlive a run; used in place, not copied.

    Attributes
    ----------
    desc : ProgramDesc
    persistables : dict of str to LoDTensor
        Parameters, the states of optimizers, and constants; updates change them in place, and `to` moves them.

    Raises
    ------
    ProgramError
        If the description has a fault (a name is undefined or defined twice, an operator is unknown, inputs do not
        fit), or a persistable is missing or is not as described.

    Examples
    --------
    >>> from varlen_rnn.program.guard import feed_data, program_guard
    >>> with program_guard() as program:
    ...     y = feed_data("x", shape=[-1, 2], dtype="float32").sum()
    >>> print(program)
    program, version 1
    block 0
      feed        FEED_MINIBATCH
      x           float32 [-1, 2]
      reduce_sum  float32 []
      x = feed(feed=feed; col=0)
      reduce_sum = reduce_sum(x=x; keepdims=False)
    """

    stream_type: ClassVar[Any]  # ProgramStream; its module sets it, because a stream runs programs

    def __init__(self, desc: ProgramDesc | None = None, persistables: Mapping[str, Rows] | None = None) -> None:
        self.recorder: Recorder | None = None  # None unless `program_guard` records into the program
        if not isinstance(desc, (ProgramDesc, type(None))):
            raise DTypeError("Program, desc", expected="a ProgramDesc", got=type(desc).__name__)
        if not isinstance(persistables, (Mapping, type(None))):
            got = type(persistables).__name__
            raise DTypeError("Program, persistables", expected="a dict of str to array", got=got)
        self._desc = ProgramDesc() if desc is None else desc
        values = {} if persistables is None else dict(persistables)
        self._variables = {k: v if isinstance(v, Variable) else Variable(v) for k, v in values.items()}
        self.prepared: dict[tuple[str, ...] | None, Any] = {}  # {fetched names: prepared instructions}
        self.is_frozen = False  # whether the numbers of the persistables never change
        if desc is not None:
            self._check()
        # Keeps the objects that constants name, such as cells, alive; a name that was read from a file keeps none.
        ops = [op for block in self._desc.blocks for op in block.ops]
        self._held = [found(op.attr(name)) for op in ops for name, found in find(op.type).finds.items()]

    def __reduce__(self) -> tuple[Callable[[bytes], Program], tuple[bytes]]:
        return type(self).from_bytes, (self.to_bytes(),)  # a copy has its own persistables

    def _check(self) -> None:
        validate.check_program(self.desc)
        validate.check_persistables(self.desc, self.persistables)

    @property
    def desc(self) -> ProgramDesc:
        """The description."""
        return self._desc if self.recorder is None else self.recorder.desc()

    @property
    def persistables(self) -> MappingProxyType[str, LoDTensor]:
        """The values that outlive a run, by name: a view, whose arrays may be written to."""
        return MappingProxyType({name: variable.value for name, variable in self.variables.items()})

    @property
    def variables(self) -> dict[str, Variable]:
        """The Variables of the persistables, by name; a recorded program has the parameters of its model."""
        return self._variables if self.recorder is None else self.recorder.persistables

    @property
    def feed_names(self) -> list[str]:
        """The names of the variables that a run must be given, in the order of their declaration."""
        return edge_names(self.desc, "feed")

    @property
    def fetch_names(self) -> list[str]:
        """The names of the variables that a run returns by default."""
        return edge_names(self.desc, "fetch")

    def prune(self, fetch_list: Iterable[Variable | str]) -> Program:
        """Return a program for inference that computes only the variables `fetch_list`.

        It has no updates and no dropout, and saves no values for a gradient.

        Parameters
        ----------
        fetch_list : list of Variables or str

        Returns
        -------
        Program
            It shares the persistables of this program: they are not copied, and `to` moves them for both.

        Raises
        ------
        ProgramError
            If the program lacks a name, or a variable needs values that are saved only for a gradient.
        """
        desc = prune.prune(self.desc, names_of(self.desc, fetch_list, recorder=self.recorder))
        return self.part(desc)

    def split(self, at: Iterable[Variable | str | list[Any] | tuple[Any, ...]]) -> list[Program]:
        """Split the program into programs that run one after another; each feeds variables to later programs.

        Parameters
        ----------
        at : list of Variables or str, or of lists of them
            A new program begins after the operator that computes the variable, or all variables of a list.

        Returns
        -------
        list of Program, one more than `at`
            The `feed_names` of each are the feeds of this program that it reads, then variables of earlier programs.
            Its `fetch_names` are the variables that later programs read.  Persistables are shared, not copied.
        """
        groups = [cut if isinstance(cut, (list, tuple)) else [cut] for cut in _list_of(at, "split, at")]
        cuts = [names_of(self.desc, group, "split, at", self.recorder) for group in groups]
        return [self.part(desc) for desc in prune.split(self.desc, cuts)]

    def part(self, desc: ProgramDesc) -> Program:
        """Return a program with the description `desc` and the persistables of this program that it declares."""
        return over(desc, self.variables)

    def frozen(self) -> Program:
        """Return a program with copies of the persistables, whose numbers never change; nobody may write to them.

        Work on persistables alone, such as packing the weights of a recurrent layer, is then done once.
        """
        made = over(self.desc, {name: Variable(variable.value.copy()) for name, variable in self.variables.items()})
        made.is_frozen = True
        return made

    def to(self, device: str | Place) -> Self:
        """Move the persistables to a device, in place; return the program.

        The parameters of the recorded model, the states of the optimizer, and the programs that `prune` and `split`
        made move with it.  Learning rates and counts of steps stay on the host.  Later runs take feeds on the device,
        and return values there.

        Parameters
        ----------
        device : {"cpu", "cuda"} or the result of `vr.device`

        Raises
        ------
        PlaceError
            If there is no such device.
        InputError
            If numba-cuda is not installed, or finds no GPU.

        Examples
        --------
        >>> from varlen_rnn.program.guard import feed_data, program_guard
        >>> with program_guard() as program:
        ...     y = feed_data("x", shape=[-1, 2], dtype="float32").sum()
        >>> program.to("cpu") is program
        True
        """
        place, stay = as_place(device), _on_host(self.desc)
        kept = [v for name, v in self.variables.items() if name not in stay and v.device != place]
        # All copies are made before any is used, so that an error leaves the program where it is.
        values = [(variable.value.to(place), moved_value(variable.grad, place)) for variable in kept]
        for variable, (value, gradient) in zip(kept, values, strict=True):
            variable.value, variable.grad = value, gradient
            was_updated(variable)
        return self

    def save(self, path: StrPath) -> None:
        """Write the description and the persistables to one safetensors file, which appears whole or not at all.

        Raises
        ------
        ProgramError
            If `load` would refuse the file: too many blocks, or a persistable whose shape was changed in place.
        OSError
            If the path cannot be written.
        """
        self._check()
        files.save(path, self.desc, self.persistables)

    @classmethod
    def load(cls, path: StrPath) -> Self:
        """Return the program that `save` wrote, without running it.

        Raises
        ------
        ProgramError
            If the file is damaged, is no program, comes from a newer version, or describes a program that cannot run.
        OSError
            If the path cannot be read.
        """
        return cls(*files.load(path))

    def to_bytes(self) -> bytes:
        """Return the content of the file that `save` writes.

        Examples
        --------
        >>> import numpy as np
        >>> from varlen_rnn.tape.variable import Variable
        >>> from varlen_rnn.program.guard import program_guard
        >>> with program_guard() as program:
        ...     weight = Variable(np.ones(3), name="weight", persistable=True) * 2.0
        >>> Program.from_bytes(program.to_bytes()).persistables["weight"].data
        array([1., 1., 1.])
        """
        self._check()
        return files.to_bytes(self.desc, self.persistables)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Return the program that `to_bytes` wrote; raises the same errors as `load`."""
        return cls(*files.from_bytes(content))

    def stream(self, states: Mapping[str, str], num_sequences: int = 1) -> Any:
        """Return a stream that carries the states which the program takes and returns, one row per call.

        Parameters
        ----------
        states : dict of str to str
            For each feed that is a state, the fetch with the state after the row.
        num_sequences : int
            The number of streams.

        Returns
        -------
        ProgramStream
            It has copies of the persistables, so later changes of the program do not reach it.
        """
        return self.stream_type(self, states, num_sequences)

    def to_dot(self) -> str:
        """Return the program as Graphviz text: operators are boxes, variables ellipses.

        Persistables are shaded; feeds and fetches have a double line.  `dot -Tsvg` draws the picture.
        """
        return dot.to_dot(self.desc)

    def __str__(self) -> str:
        return str(self.desc)

    def __repr__(self) -> str:
        ops = sum(len(block.ops) for block in self.desc.blocks)
        return f"Program of {ops} operators, {len(self.persistables)} persistables, feeds {self.feed_names}"


def _on_host(desc: ProgramDesc) -> set[str]:
    """Return the names of the numbers that updates always read on the host: learning rates and counts of steps."""
    updates = [op for op in desc.blocks[0].ops if find(op.type).in_place]
    return {name for op in updates for var in op.inputs if var.parameter in ("lr", "step") for name in var.arguments}


def over(desc: ProgramDesc, values: Mapping[str, Variable]) -> Program:
    """Return a program with the description `desc` and, from `values`, the Variables that it declares persistable."""
    return Program(desc, {var.name: values[var.name] for var in desc.blocks[0].vars if var.persistable})


def edge_names(desc: ProgramDesc, kind: str) -> list[str]:
    """Return the names of the variables of the `feed` or `fetch` operators, in the order of their columns."""
    ops = sorted((op for op in desc.blocks[0].ops if op.type == kind), key=lambda op: op.attr("col"))
    return [(op.output_names() if kind == "feed" else op.input_names())[0] for op in ops]


def _list_of(variables: Any, what: str) -> list[Any]:
    try:
        return check_list(variables, what)
    except DTypeError as error:
        raise ProgramError(what, expected="a list of variables or names", got=shown(variables)) from error


def names_of(
    desc: ProgramDesc, variables: Iterable[Variable | str], what: str = "fetch_list", recorder: Recorder | None = None
) -> list[str]:
    """Return the names of `variables`; raise unless each is a variable of the outermost block that has a value.

    If a recorder is given, Variables must belong to it, because most programs have names such as `reduce_sum`.
    """
    variables = _list_of(variables, what)
    known = {var.name for var in desc.blocks[0].vars if var.type.type not in (Type.FEED_MINIBATCH, Type.FETCH_LIST)}
    names = []
    for number, variable in enumerate(variables):
        value = getattr(variable, "value", None)
        name = value.name if isinstance(value, Symbol) else variable
        if recorder is not None and isinstance(value, Symbol) and value.block.recorder is not recorder:
            expected = "a variable of this program"
            raise ProgramError(f"{what}, entry {number}", expected=expected, got=f"{name!r} of another program")
        if not isinstance(name, str) or name not in known:
            hint = alike(name, itertools.islice(known, _MOST_COMPARED))
            expected = "a variable of the program, or its name"
            raise ProgramError(f"{what}, entry {number}", expected=expected, got=shown(variable), hint=hint)
        names.append(name)
    return names
