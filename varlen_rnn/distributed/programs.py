"""Run a program on ranks (processes): it is split at its gradients, which ranks exchange between the two parts."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from varlen_rnn.communicator import Communicator, check_communicator
from varlen_rnn.distributed.buckets import DENSE, SPARSE, EngineSum, Layout, share, sums_over
from varlen_rnn.distributed.launched import connect
from varlen_rnn.errors import DTypeError, ProgramError, shown
from varlen_rnn.ops.batch_norm import summing
from varlen_rnn.program.attrs import decode
from varlen_rnn.program.desc import OpDesc, of_var
from varlen_rnn.program.executor import Executor
from varlen_rnn.program.program import Program, names_of
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.device import moved
from varlen_rnn.runtime.place import HOST
from varlen_rnn.tape.axes import divide
from varlen_rnn.tape.gradient import SUFFIX
from varlen_rnn.tape.kinds import SELECTED_ROWS
from varlen_rnn.tape.operator import find
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.values import moved_value
from varlen_rnn.tape.variable import Variable


class ReplicatedProgram:
    """A program of a training step that all ranks run, each with its part of a batch.

    All ranks get the persistables of rank 0, and keep equal ones.  The loss must be a sum or a mean over rows, such as
    the functions of `nn.functional` return.  It is computed over the rows of all ranks.

    Parameters
    ----------
    program : Program
        A program with the gradients of one loss and an optimizer's step, recorded alike on all ranks.
    comm : Communicator, optional
        By default the result of `connect()`.

    Raises
    ------
    InputError
        The program has no gradients or no updates, or its loss is no sum or mean over rows.

    Examples
    --------
    >>> import varlen_rnn as vr
    >>> model = vr.nn.Linear(2, 1)
    >>> with vr.program_guard() as program:
    ...     x, y = vr.feed_data("x", [-1, 2], "float32"), vr.feed_data("y", [-1, 1], "float32")
    ...     loss = vr.nn.functional.mse_loss(model(x), y)
    ...     vr.optim.SGD(model.parameters(), lr=0.1).minimize(loss)
    >>> replicated = ReplicatedProgram(program)
    >>> feed = {"x": np.ones((3, 2), np.float32), "y": np.ones((3, 1), np.float32)}
    >>> first, second = (replicated.run(feed, [loss])[0] for _ in range(2))
    >>> bool(second < first)
    True
    """

    def __init__(self, program: Program, comm: Communicator | None = None) -> None:
        if not isinstance(program, Program):
            raise DTypeError("ReplicatedProgram, program", expected="a Program", got=type(program).__name__)
        self.program, self._executor = program, Executor()
        self.comm = connect() if comm is None else check_communicator(comm, "ReplicatedProgram, comm")
        block = program.desc.blocks[0]
        specs = {var.name: of_var(var) for var in block.vars}
        named = {f"{name}{SUFFIX}": variable for name, variable in program.variables.items()}
        self._parameters = {name: variable for name, variable in named.items() if name in specs}
        kinds = [SPARSE if specs[name].kind == SELECTED_ROWS else DENSE for name in self._parameters]
        self._layout = Layout(list(self._parameters.values()), kinds)
        self._loss, self._reduction = _loss_of(block.ops)
        _check_rows(block.ops, self._reduction, program.feed_names, specs)
        self._seed = f"{self._loss}{SUFFIX}"
        self._parts = program.split(at=[[self._seed], list(self._parameters)])
        self._made = [{name for op in part.desc.blocks[0].ops for name in op.output_names()} for part in self._parts]
        for variable in program.variables.values():
            share(self.comm, variable)

    def run(
        self, feed: dict[str, Any] | None = None, fetch_list: Iterable[Variable | str] | None = None
    ) -> list[np.ndarray | Any]:
        """Run a step on all ranks; return the values of some variables.

        Parameters
        ----------
        feed : dict of str to LoDTensor or array
            This rank's part of the batch, which may have no sequences.
        fetch_list : list of Variables or str, optional
            By default `program.fetch_names`.  The loss is the loss of all ranks; other values are this rank's.

        Raises
        ------
        InputError
            As `Executor.run` raises.
        """
        names = names_of(
            self.program.desc, self.program.fetch_names if fetch_list is None else fetch_list,
            recorder=self.program.recorder,
        )  # fmt: skip
        if not isinstance(feed, dict | None):
            raise DTypeError("feed", expected="a dict with a value for each name", got=type(feed).__name__)
        held: dict[str, Any] = dict(feed or {})
        if unknown := [name for name in held if name not in self.program.feed_names]:
            expected, got = f"only the names {self.program.feed_names}", f"the unknown name {shown(unknown)}"
            raise ProgramError("feed", expected=expected, got=got)
        forward, backward, update = range(3)
        with summing(functools.partial(sums_over, self.comm)):  # sums the moments of layers that normalise batches
            self._run(forward, held, [*names, self._loss, *self._reduction.input_names()])
            self._over_ranks(held)
            self._run(backward, held, names)
        total = EngineSum(self.comm, self._layout)
        for name, variable in self._parameters.items():
            gradient = held.pop(name)
            total.ready(variable, gradient if isinstance(gradient, SelectedRows | LoDTensor) else LoDTensor(gradient))
        total.end_of_pass()
        sums = dict(total.finish())
        held |= {name: moved_value(sums[variable], variable.device) for name, variable in self._parameters.items()}
        self._run(update, held, names)
        return [held[name] for name in names]

    def _run(self, number: int, held: dict[str, Any], names: Iterable[str]) -> None:
        """Run part `number` on the values in `held`; add its fetches to `held`, and its other variables in `names`."""
        part = self._parts[number]
        feeds = set(part.feed_names)
        wanted = dict.fromkeys([*part.fetch_names, *(name for name in names if name in self._made[number] - feeds)])
        feed = {name: held[name] for name in part.feed_names if name in held}
        values = self._executor.run(part, feed, list(wanted))
        held |= dict(zip(wanted, values, strict=True))

    def _over_ranks(self, held: dict[str, Any]) -> None:
        """Set the loss in `held` to its value over all ranks, and its gradient to this rank's share."""
        op = find(self._reduction.type)
        inputs = [
            held[name] if name in held else self.program.persistables[name] for name in self._reduction.input_names()
        ]
        values = [value if isinstance(value, LoDTensor) else LoDTensor(value) for value in inputs]
        assert op.divisor is not None
        weight = op.divisor(*values, **decode(op, self._reduction.attrs, None))
        loss = np.asarray(moved(held[self._loss], HOST))
        share = float(loss) * (1.0 if weight is None else weight) if weight != 0 else 0.0
        every = np.array([share, 0.0 if weight is None else weight])
        self.comm.all_reduce(every)
        if weight is None:
            held[self._loss] = loss.dtype.type(every[0])
        elif every[1] and self.comm.size > 1:
            held[self._loss] = loss.dtype.type(every[0] / every[1])
            held[self._seed] = moved(held[self._seed], HOST) * loss.dtype.type(weight / every[1])


def _loss_of(ops: Iterable[OpDesc]) -> tuple[str, OpDesc]:
    """Return the name of a program's loss, and the operator that computes it; raise if it is no sum or mean."""
    ops = list(ops)
    made = {name: op for op in ops for name in op.output_names()}
    seeds = [name for op in ops if not op.input_names() for name in op.output_names() if name.endswith(SUFFIX)]
    losses = [name.removesuffix(SUFFIX) for name in seeds]
    if len(losses) != 1 or losses[0] not in made:
        got, hint = f"{len(losses)} losses", "record optimizer.minimize(loss) once; name the loss before it"
        raise ProgramError("ReplicatedProgram", expected="the gradients of one loss", got=got, hint=hint)
    op = made[losses[0]]
    if find(op.type).divisor is None or op.attr("axis") not in (None, 0):
        expected, hint = "a loss that is one sum or mean over rows", "distributed.replicate takes other losses"
        raise ProgramError("ReplicatedProgram", expected=expected, got=f"the result of {op.type!r}", hint=hint)
    if not any(find(op.type).in_place for op in ops):
        raise ProgramError("ReplicatedProgram", expected="updates of parameters, by optimizer.minimize", got="none")
    return losses[0], op


def _check_rows(
    ops: Iterable[OpDesc], reduction: OpDesc, feeds: Iterable[str], specs: Mapping[str, TensorSpec]
) -> None:
    """Raise if rows of a batch depend on each other before the sum or mean that is the loss."""
    # axes: {value with rows: axis of rows}; mixing: {value that depends on mixed rows: operator that mixed them}
    axes, mixing = {}, dict[str, str]()
    for name in feeds:
        shape, _, level, _ = specs[name]
        axes[name] = shape.index(-1) if not level and -1 in shape else 0
    for op in ops:
        given, outputs, declared = op.input_names(), op.output_names(), find(op.type)
        if op is reduction:
            # Only the first operand is checked: the second operand of a weighted mean is a sum of weights.
            if (found := mixing.get(given[0])) is not None:
                expected, got = "rows that do not depend on each other before the loss", f"{found!r}, which mixes rows"
                raise ProgramError("ReplicatedProgram", expected=expected, got=got)
            return
        if not any(name in axes for name in given):
            continue
        found, trait = next((mixing[name] for name in given if name in mixing), op.type), None
        if mixing.keys().isdisjoint(given):
            attrs = decode(declared, op.attrs, lambda block: None)
            operands = [specs.get(name) for name in given], [axes.get(name) for name in given]
            trait, results = divide(declared, attrs, *operands, len(outputs))
        if trait in (None, "sum"):
            axes |= dict.fromkeys(outputs, 0)
            mixing |= dict.fromkeys(outputs, found)
        else:
            axes |= {name: 0 if one is None else one.axis or 0 for name, one in zip(outputs, results, strict=True)}
