"""Make a cell from its equations: run them once on a trace, derive the gradient, check it, and register the cell."""

from __future__ import annotations

import inspect
import linecache
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, overload

from varlen_rnn.cells.contract import Cell, Phase, check_name
from varlen_rnn.cells.derivation.check import check_derived
from varlen_rnn.cells.derivation.derive import OF_PRODUCTS, Derived, Step, derive
from varlen_rnn.cells.derivation.trace import FUNCTIONS, EquationError, Gate, Row, Trace
from varlen_rnn.cells.options import check_bound
from varlen_rnn.errors import DTypeError, InputError
from varlen_rnn.kernels import activations, functions
from varlen_rnn.runtime.jit import body

_CALLED = ("sigmoid", "tanh", "relu", "exp", "log", "sqrt", "multiply_add")
_SIGNATURE = "a signature such as (i, f, o, /, c, *, p): gates, a slash, states, then a star before vectors and rows"


@overload
def cell(function: Callable[..., Any], *, name: str | None = None, proj_clip: float | None = None) -> Cell: ...
@overload
def cell(
    function: None = None, *, name: str | None = None, proj_clip: float | None = None
) -> Callable[[Callable[..., Any]], Cell]: ...
def cell(function: Callable[..., Any] | None = None, *, name: str | None = None, proj_clip: float | None = None) -> Any:
    """Make a cell from its equations; derive their gradient and the numbers that each row saves for it.

    Parameters
    ----------
    function : function of scalars
        Its signature is *gates* `/` *states* `*` *vectors*.  Gates and states are one argument each; states are values
        before the step, and the first state, the output, may be left out.  A vector is a parameter with one number per
        unit.  An argument after the `*` annotated with `Row` is an input of the row that is not projected, such as a
        mask.  A gate annotated with `Row` arrives projected: its projected input is such an input, of the gate's name.
        The function returns the output, or a tuple of the output and the other states, in the order of the signature.

        A gate `n` is the sum of its projected input `n.x` and its recurrent product `n.h`.  `n.of(value)` is its
        product with a value of this step instead of the output of the step before.  A state named `h` is the output of
        the step before.  `norm(value)` normalises a value over the units of its row.
    name : str, optional
        The name in programs; by default the function's name.
    proj_clip : float, optional
        The largest absolute value of a projected output.  Outputs at the bound get the gradient 0.

    Returns
    -------
    Cell
        Its attribute `source` shows the derived functions.

    Raises
    ------
    EquationError
        If equations use anything but arithmetic, comparisons in `where`, and functions of `varlen_rnn.cells`.  The
        error names the line.

    Notes
    -----
    The function is called once, on scalars without values; the operations that it applies are the cell.  Write
    `where(condition, a, b)` to choose between two numbers.  At a tie, `maximum` and `minimum` send the gradient to the
    first operand, and `relu` has gradient 0.  No gradient passes through `constant(x)`.

    Examples
    --------
    >>> from varlen_rnn.cells import sigmoid, tanh
    >>> @cell
    ... def leaky(a, /, h, *, rate):
    ...     return h + sigmoid(rate) * (tanh(a) - h)
    >>> leaky.states, leaky.vectors, leaky.num_kept
    (('h',), ('rate',), 1)

    Source: reverse mode of automatic differentiation (Griewank and Walther, 2008), once, when a cell is made.
    """
    if function is None:
        return lambda function: cell(function, name=name, proj_clip=proj_clip)
    if not inspect.isfunction(function):
        raise DTypeError("cell", expected="a function of scalars", got=type(function).__name__)
    name = check_name(function.__name__ if name is None else name)
    return _define(function, name, check_bound(proj_clip, f"cell {name!r}, proj_clip"))


def _define(function: Callable[..., Any], name: str, proj_clip: float | None) -> Cell:
    try:
        step = _trace(function)
        derived = derive(step)
    except Exception as error:  # equations are a user's code, which may raise any error
        raise _located(error, function, name) from error
    return _made(step, derived, name, function, proj_clip)


def cell_of_step(step: Step, name: str, origin: Callable[..., Any]) -> Cell:
    """Return the cell of a step that is already traced; raise if the name belongs to the cell of another function.

    `origin` is the function from which the step comes.
    """
    return _made(step, derive(step), name, origin)


def _made(step: Step, derived: Derived, name: str, origin: Callable[..., Any], proj_clip: float | None = None) -> Cell:
    phases = _phases(derived, name)
    check_derived(name, step, derived, phases)
    made = Cell.of_phases(step, derived, phases, _gates(step, "x"), name, origin, proj_clip)
    weakref.finalize(made, _forget_source, _file_of(name), linecache.cache[_file_of(name)])
    return made


def _file_of(name: str) -> str:
    return f"<cell {name}>"


def _forget_source(file: str, entry: object) -> None:
    """Forget the source of a deleted cell, unless `linecache` now has the source of a new cell with this name."""
    if linecache.cache.get(file) is entry:
        del linecache.cache[file]


def _located(error: Exception, function: Callable[..., Any], name: str) -> EquationError:
    """Return an EquationError with the message of `error` and the line of the equations at which it was raised."""
    code = function.__code__
    line, at = code.co_firstlineno, error.__traceback__
    below: list[FrameType] = []  # frames of the functions that the equations called, the outermost first
    while at is not None:
        line = at.tb_lineno if at.tb_frame.f_code is code else line
        below = [*below, at.tb_frame] if at.tb_frame.f_code is not code else []
        at = at.tb_next
    text = linecache.getline(code.co_filename, line).strip()
    if isinstance(error, InputError) and not isinstance(error, EquationError):
        error = _of_arrays(below)
    message = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return EquationError(f"cell {name!r}, {code.co_filename}:{line}: {text}\n{message}")


def _of_arrays(frames: list[FrameType]) -> EquationError:
    """Return the error for equations that call a function of arrays, given the frames below the equations."""
    modules = [frame.f_globals.get("__name__", "") for frame in frames]
    tape = next((k for k, module in enumerate(modules) if module.startswith("varlen_rnn.tape")), len(frames))
    ours = [k for k in range(tape) if modules[k].startswith("varlen_rnn") or frames[k].f_code.co_filename[0] == "<"]
    names = [frames[k].f_code.co_name for k in ours]
    public = [name for name in names if name.isidentifier() and name[0] != "_" and name not in ("call", "forward")]
    name = next((name for name in public if name in FUNCTIONS), public[0] if public else None)
    hint = f"write {name} of varlen_rnn.cells" if name in FUNCTIONS else f"varlen_rnn.cells has {', '.join(FUNCTIONS)}"
    got = f"{name}, a function of arrays" if name else "a function of arrays"
    return EquationError("an equation", expected="functions of numbers", got=got, hint=hint)


def _trace(function: Callable[..., Any]) -> Step:
    """Run equations once and return their Step; raise unless they read every argument and return all states."""
    parameters = inspect.signature(function).parameters
    kinds = [(p.kind, p.name) for p in parameters.values()]
    gates = tuple(n for kind, n in kinds if kind == inspect.Parameter.POSITIONAL_ONLY)
    arguments = [n for kind, n in kinds if kind == inspect.Parameter.POSITIONAL_OR_KEYWORD]
    others = [n for kind, n in kinds if kind == inspect.Parameter.KEYWORD_ONLY]
    kind_of = {
        n: parameters[n].annotation for n in (*gates, *others)
    }  # or text, by `from __future__ import annotations`
    rows = tuple(n for n, k in kind_of.items() if k is Row or (isinstance(k, str) and k.split(".")[-1] == Row.__name__))
    vectors = tuple(n for n in others if n not in rows)
    if not gates or len(gates) + len(arguments) + len(others) != len(kinds):
        raise EquationError("signature", expected=_SIGNATURE, got=str(inspect.signature(function)))
    trace, states = Trace(), ("h", *(n for n in arguments if n != "h"))
    results = function(
        *(Gate(trace, gate, gate in rows) for gate in gates),
        *(trace.node("prev", what=states.index(n)) for n in arguments),
        **{name: trace.node("row" if name in rows else "vector", what=name) for name in others},
    )
    results = results if isinstance(results, tuple) else (results,)
    if len(results) != len(states):
        expected = f"{len(states)} ({', '.join(states)})"
        raise EquationError("number of returned states", expected=expected, got=len(results))
    step = Step(trace, gates, states, vectors, rows, tuple(trace.number_of(result) for result in results))
    reached = {trace.nodes[k] for k in trace.reach(step.results)}
    used = {node.what for node in reached if node.op in ("x", "h", "of", "vector", "row")}
    if unused := [n for n in (*gates, *others) if n not in used]:
        expected, got = "equations that read every gate, vector and row", f"no use of {', '.join(unused)}"
        raise EquationError("arguments", expected=expected, got=got)
    return step


def _gates(step: Step, part: str) -> tuple[str, ...]:
    """Return the gates whose projected input (`part` "x") or recurrent product (`part` "h") the equations read."""
    nodes = step.trace.nodes
    found = {nodes[k].what for k in step.trace.reach(step.results) if nodes[k].op == part}
    return tuple(gate for gate in step.gates if gate in found)


def _phases(derived: Derived, name: str) -> tuple[Phase, ...]:
    """Execute the derived source; return its functions as Phases.  Numba compiles these when they are first called."""
    file = _file_of(name)
    linecache.cache[file] = len(derived.source), None, derived.source.splitlines(True), file
    space = {name: getattr(activations, name) for name in _CALLED} | {"__name__": f"{__name__}.{name}"}
    space |= {"expm1": functions.expm1, "log1p": functions.log1p}
    exec(compile(derived.source, file, "exec"), space)
    phases, begin, several, vector = [], 0, len(derived.columns) > 1, 0
    for number, columns in enumerate(derived.columns):
        gates, ending = derived.gates[number], f"_{number}" * several
        of_gates = [(place, column.name) for place, column in enumerate(columns, begin) if column.kind in OF_PRODUCTS]
        h_slot = of_gates[0][0] if of_gates else begin
        first, end = derived.kept[number]
        phases.append(
            Phase(
                step=body(space[f"step{ending}"]), step_grad=body(space[f"step_grad{ending}"]), gates=len(gates),
                h_slot=h_slot, order=tuple(gates.index(gate) for _, gate in of_gates),
                slots=(begin, begin + len(columns)), passes=derived.passes[number], carries=derived.carries[number],
                norms=len(derived.normed[number]), kept=(begin + first, begin + end),
                vectors=(vector, vector + len(derived.vectors[number])),
            )
        )  # fmt: skip
        vector += len(derived.vectors[number])
        begin += len(columns)
    return tuple(phases)
