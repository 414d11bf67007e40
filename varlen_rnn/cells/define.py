"""A cell from its equations alone: they run once, on scalars that are not known yet, and are differentiated."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from typing import Any, overload

from varlen_rnn.cells.contract import Cell, Phase, check_name
from varlen_rnn.cells.derivation.check import check_derived
from varlen_rnn.cells.derivation.derive import OF_PRODUCTS, Derived, Step, derive
from varlen_rnn.cells.derivation.trace import EquationError, Gate, Row, Trace
from varlen_rnn.cells.options import check_bound
from varlen_rnn.errors import DTypeError, InputError
from varlen_rnn.kernels import activations
from varlen_rnn.runtime.jit import body

_CALLED = ("sigmoid", "tanh", "relu", "exp", "log", "sqrt", "multiply_add")
_SIGNATURE = "def lstm(i, f, g, o, /, c): gates, a slash, states; then a star and vectors, if there are any"


@overload
def cell(function: Callable[..., Any], *, name: str | None = None, proj_clip: float | None = None) -> Cell: ...
@overload
def cell(
    function: None = None, *, name: str | None = None, proj_clip: float | None = None
) -> Callable[[Callable[..., Any]], Cell]: ...
def cell(function: Callable[..., Any] | None = None, *, name: str | None = None, proj_clip: float | None = None) -> Any:
    """Make a cell of its equations: their gradient, and what a row keeps for it, are derived from them.

    Parameters
    ----------
    function : function of scalars
        Its signature is *gates* `/` *states* `*` *vectors*: one argument for each gate; one for each state but the
        first, before the step; one for each parameter that is a number of its own for each unit, or, annotated with
        `Row`, for each input of a row that is not projected, as a mask.  It returns the output, or a tuple of
        the output and the other states, in the order of the signature.

        A gate `n` stands for the sum of its projected input and its recurrent product; `n.x` and `n.h` are these two,
        and `n.of(value)` is its product with a value of this step in place of the output before.  A state named `h`
        is the output before.  `norm(value)` is a value normalised over the units of its row.
    name : str, optional
        What programs call it; the function's name, unless given.
    proj_clip : float, optional
        The largest absolute value of an output that a layer projects; the gradient of one that is at it is 0.

    Returns
    -------
    Cell
        Its attribute `source` shows what was derived.

    Raises
    ------
    EquationError
        Equations that do something else than arithmetic, comparisons in `where`, and the functions of
        `varlen_rnn.cells`; says the line.

    Notes
    -----
    Equations are traced: the function is called once, and what it does to its arguments is the cell.  A choice between
    two numbers is `where(condition, a, b)`.  Gradients: of `maximum`, `minimum` and `relu` at a tie, the first
    operand's, or 0; through `constant(x)`, none.

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
    except Exception as error:  # equations are a user's code, and may raise anything
        raise _located(error, function, name) from error
    return _made(step, derived, name, function, proj_clip)


def cell_of_step(step: Step, name: str, origin: Callable[..., Any]) -> Cell:
    """Return the cell of a step that was traced elsewhere; cells of one name have one `origin`."""
    return _made(step, derive(step), name, origin)


def _made(step: Step, derived: Derived, name: str, origin: Callable[..., Any], proj_clip: float | None = None) -> Cell:
    phases = _phases(derived, name)
    check_derived(name, step, derived, phases)
    return Cell.of_phases(step, derived, phases, _gates(step, "x"), name, origin, proj_clip)


def _located(error: Exception, function: Callable[..., Any], name: str) -> EquationError:
    """Return an error that says which line of the equations is wrong."""
    code = function.__code__
    line, at = code.co_firstlineno, error.__traceback__
    while at is not None:
        line = at.tb_lineno if at.tb_frame.f_code is code else line
        at = at.tb_next
    text = linecache.getline(code.co_filename, line).strip()
    message = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return EquationError(f"cell {name!r}, {code.co_filename}:{line}: {text}\n{message}")


def _trace(function: Callable[..., Any]) -> Step:
    """Run the equations once; raise unless they read all that the signature names, and return all states."""
    parameters = inspect.signature(function).parameters
    kinds = [(p.kind, p.name) for p in parameters.values()]
    gates = tuple(n for kind, n in kinds if kind == inspect.Parameter.POSITIONAL_ONLY)
    arguments = [n for kind, n in kinds if kind == inspect.Parameter.POSITIONAL_OR_KEYWORD]
    others = [n for kind, n in kinds if kind == inspect.Parameter.KEYWORD_ONLY]
    rows = tuple(n for n in others if _is_row(parameters[n].annotation))
    vectors = tuple(n for n in others if n not in rows)
    if not gates or len(gates) + len(arguments) + len(others) != len(kinds):
        raise EquationError("signature", expected=_SIGNATURE, got=str(inspect.signature(function)))
    trace, states = Trace(), ("h", *(n for n in arguments if n != "h"))
    results = function(
        *(Gate(trace, gate) for gate in gates),
        *(trace.node("prev", what=states.index(n)) for n in arguments),
        **{name: trace.node("row" if name in rows else "vector", what=name) for name in others},
    )
    results = results if isinstance(results, tuple) else (results,)
    if len(results) != len(states):
        raise EquationError("result", expected=f"{len(states)}: {', '.join(states)}", got=len(results))
    step = Step(trace, gates, states, vectors, rows, tuple(trace.number_of(result) for result in results))
    reached = {trace.nodes[k] for k in trace.reach(step.results)}
    used = {node.what for node in reached if node.op in ("x", "h", "of", "vector", "row")}
    if unused := [n for n in (*gates, *others) if n not in used]:
        raise EquationError("gates, vectors and rows", expected="each to be read", got=f"no use of {', '.join(unused)}")
    return step


def _is_row(annotation: Any) -> bool:
    """Return whether an annotation is `Row`, which is text where the file puts off annotations, as `cells.Row`."""
    return annotation is Row or (isinstance(annotation, str) and annotation.rpartition(".")[2] == Row.__name__)


def _gates(step: Step, part: str) -> tuple[str, ...]:
    """Return the gates of which the equations read a part: "x", the projected input, or another leaf of a trace."""
    nodes = step.trace.nodes
    found = {nodes[k].what for k in step.trace.reach(step.results) if nodes[k].op == part}
    return tuple(gate for gate in step.gates if gate in found)


def _phases(derived: Derived, name: str) -> tuple[Phase, ...]:
    """Return the phases, their functions compiled when they are first used."""
    file = f"<cell {name}>"
    linecache.cache[file] = len(derived.source), None, derived.source.splitlines(True), file
    space = {name: getattr(activations, name) for name in _CALLED} | {"__name__": f"{__name__}.{name}"}
    exec(compile(derived.source, file, "exec"), space)
    phases, begin, several, vector = [], 0, len(derived.columns) > 1, 0
    for number, columns in enumerate(derived.columns):
        gates, ending = derived.gates[number], f"_{number}" * several
        of_gates = [(place, column.name) for place, column in enumerate(columns, begin) if column.kind in OF_PRODUCTS]
        h_slot = of_gates[0][0] if of_gates else begin
        order, slots = tuple(gates.index(gate) for _, gate in of_gates), (begin, begin + len(columns))
        functions = body(space[f"step{ending}"]), body(space[f"step_grad{ending}"])
        first, end = derived.kept[number]
        counts = derived.passes[number], derived.carries[number], len(derived.normed[number])
        windows = (begin + first, begin + end), (vector, vector + len(derived.vectors[number]))
        phases.append(Phase(*functions, len(gates), h_slot, order, slots, *counts, *windows))
        vector += len(derived.vectors[number])
        begin += len(columns)
    return tuple(phases)
