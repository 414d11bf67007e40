"""Declare an operator, with everything about it in one place, from the function that computes it.

An example:

    @operator
    def swish(x, beta: float = 1.0): ...        # computes the result; its docstring is the documentation

    @swish.infer
    def _infer(x, beta): ...                    # returns the spec of the result, from specs of the inputs

    @swish.backward("x")
    def _backward(x, out, d_out, beta): ...     # the operator `swish_grad`

    @swish.examples
    def _examples(rng): ...                     # inputs for tests and `check_operator`
"""

from __future__ import annotations

import functools
import inspect
import keyword
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack, overload

import numpy as np

from varlen_rnn.errors import DTypeError, ProgramError, check_callable, check_flag, check_list, shown
from varlen_rnn.tape.constants import PLAIN, as_constant, kind_of
from varlen_rnn.tape.grad_operator import check_order, gradient_of, not_inferred, position_of_input
from varlen_rnn.tape.operator import TRAITS, Op, find, register
from varlen_rnn.tape.spec import VALUES
from varlen_rnn.tape.variable import Variable, apply_op

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
F = TypeVar("F", bound=Callable)


class Options(TypedDict, total=False):
    """The options of every operator; `operator` documents them."""

    name: str | None
    may_miss: Iterable[str]
    cost: Callable | None
    inference: Mapping[str, object]
    overwrites: Callable | None
    shares: bool
    multiplies: bool
    rows: str | Callable | None
    linear: Iterable[str]
    scalar: Callable | None
    ufunc: np.ufunc | Iterable[np.ufunc]
    onnx: str | None
    gradient: bool


@overload
def operator(function: Callable[P, object], /) -> Operator[P, Variable]: ...
@overload
def operator(**options: Unpack[Options]) -> Callable[[Callable[P, object]], Operator[P, Variable]]: ...
@overload  # an operator with two outputs, of which a call returns one because the other is intermediate
def operator(
    *, outputs: tuple[str, str], intermediate: tuple[str], **options: Unpack[Options]
) -> Callable[[Callable[P, object]], Operator[P, Variable]]: ...
@overload
def operator(
    *,
    outputs: Iterable[str] = ("out",),
    intermediate: Iterable[str] = (),
    in_place: bool = False,
    places: Callable | None = None,
    **options: Unpack[Options],
) -> Callable[[Callable[P, object]], Operator[P, Any]]: ...
def operator(
    function: Callable | None = None,
    *,
    name: str | None = None,
    outputs: Iterable[str] = ("out",),
    intermediate: Iterable[str] = (),
    may_miss: Iterable[str] = (),
    in_place: bool = False,
    cost: Callable | None = None,
    inference: Mapping[str, object] = MappingProxyType({}),
    overwrites: Callable | None = None,
    shares: bool = False,
    multiplies: bool = False,
    places: Callable | None = None,
    rows: str | Callable | None = None,
    linear: Iterable[str] = (),
    scalar: Callable | None = None,
    ufunc: np.ufunc | Iterable[np.ufunc] = (),
    onnx: str | None = None,
    gradient: bool = True,
) -> Any:
    """Declare an operator: decorate the function that computes it, whose docstring documents it.

    The decorated function takes Variables.  A call runs it at once, or describes it in the program being recorded.  Its
    attributes `infer`, `backward` or `grad`, and `examples` decorate the other functions of the operator.

    The function's parameters are the names that the operator has in a program.  Those with an annotation are constants:
    `float`, `int`, `bool`, `str`, `tuple[int, ...]`, `tuple[str, ...]`, or one of these `| None`.  All others are
    inputs, which come as values: `LoDTensor`, `SelectedRows` or `SortedSeqs`; `x.data` are the rows.  `*x` takes any
    number of inputs.  An input whose default is None can be missing.

    The function returns an array or a value for each output.  An array gets the LoD of the input whose spec `infer`
    returned for this output, otherwise the LoD that all inputs share.  An error other than an `InputError` becomes a
    `ProgramError` with the operator's name.

    Without a declared gradient, `backward` through the operator is an error, unless the option `gradient` is False.

    Parameters
    ----------
    function : callable
        Computes the outputs from values and constants.
    name : str, optional
        By default the name of the function.  No other operator may have it.  The same function declared again, as in a
        notebook, replaces the former operator.
    outputs : tuple of str
        Names; a last name that begins with `*` takes all further outputs.  If there are several names, the function
        returns a tuple.
    intermediate : tuple of str
        Outputs that only the gradient reads.  A call does not return them, unless `places` names them.
    may_miss : tuple of str
        Inputs `*x` of which some can be missing.  An input whose default is None can always be missing.
    in_place : bool
        Whether the operator updates its inputs: each output is the input with the same name, changed in place.
    cost : callable, optional
        `cost(inputs, outputs, **constants)` returns the number of floating-point operations, given TensorSpecs, or a
        `varlen_rnn.ops.cost.Cost`.  By default 1 per element of the outputs.  Its docstring is the cost in words.
    inference : mapping
        Constants, with the values to which `Program.prune` sets them.
    overwrites : callable, optional
        `overwrites(number of inputs, **constants)` returns the positions of the inputs whose memory the operator uses
        for outputs.  In a program, the operator gets copies of these inputs.  An exception: `name_grad`, the gradient
        of `name`, overwrites an output of `name` that no other operator reads.
    shares : bool
        Whether a result can have the memory of an input, as a view has.  In a program, no update of that memory then
        moves past an operator that reads the result.
    multiplies : bool
        Whether the bits of results depend on the precision of products that `set_float32_matmul_precision` sets.  The
        gradient then runs at the precision of the forward pass, and a program stores the operator's precision.
    places : callable, optional
        `places(number of inputs, number of outputs, **constants)` returns the names of the inputs and of the outputs.
        It is needed if constants decide which inputs and outputs there are.
    rows : str or callable, optional
        How the results depend on the rows of the operands; by default nothing is assumed.

        * "each": row i of the results depends only on row i of the operands, and on operands without rows.
        * "sum": the results have no rows; they are sums of the results of single rows.
        * "sequence": the results for each sequence of the last level depend on this sequence alone.
        * "batch": the results for a batch are those for its parts, each of some outermost sequences, in any order.

        A function `rows(specs, axes, **constants)` returns one of these or None.  Its arguments are, for each operand,
        the TensorSpec and the axis that has rows, or None.  In a "batch", rows are along the first axis; a function may
        return `("batch", axis)` for another axis of the results.  The trait lets ranks divide the rows of a batch
        (`distributed.replicate`).  Except for "batch", it lets an operator leave the loop over the steps of a
        `DynamicRNN`.
    linear : tuple of str
        Names of inputs in which the operator is linear: the result for a sum of two values is the sum of both results.
    scalar : callable, optional
        `scalar(*numbers, **constants)` computes one element of the result from one element of each operand, with the
        functions of `varlen_rnn.cells`.  With it, a step of a `DynamicRNN` can be compiled into one kernel.
    ufunc : function of NumPy, or several, optional
        NumPy's functions that compute the same numbers.  Applied to a Variable, they apply the operator.
    onnx : str, optional
        The ONNX node that computes the same numbers from the same operands; its attributes have the constants' names.
    gradient : bool
        False if no result depends on the values of the inputs, or if the gradient stops here.  Then results need none.

    Returns
    -------
    function
        It takes Variables or values, and constants, and returns a Variable or a list of Variables.  Its attribute `op`
        is the operator's `Op`, which programs use.

    Raises
    ------
    ProgramError
        If the name is taken, or the function cannot be declared as an operator.

    Examples
    --------
    >>> import numpy as np
    >>> import varlen_rnn as vr
    >>> @vr.operator
    ... def halved(x, times: int = 1):
    ...     '''Return every element, halved some times.'''
    ...     return x.data * 0.5**times
    >>> @halved.infer
    ... def infer(x, times):
    ...     return x
    >>> @halved.backward("x")
    ... def backward(x, d_out, times):
    ...     return d_out.data * 0.5**times
    >>> x = vr.Variable([8.0, 4.0], requires_grad=True)
    >>> y = halved(x, times=2)
    >>> y.sum().backward()
    >>> np.asarray(y), x.grad
    (array([2., 1.]), array([0.25, 0.25]))
    """
    in_place, may_miss = check_flag(in_place, "operator, in_place"), _names("operator, may_miss", may_miss)
    options: dict[str, Any] = {
        "outputs": _names("operator, outputs", outputs), "linear": _names("operator, linear", linear),
        "intermediate": frozenset(_names("operator, intermediate", intermediate)), "cost": cost, "scalar": scalar,
        "inference": inference, "overwrites": overwrites, "places": places, "onnx": onnx,
        "shares": check_flag(shares, "operator, shares"), "multiplies": check_flag(multiplies, "operator, multiplies"),
        "rows": _rows_trait(rows), "ufunc": _ufuncs(ufunc),
    }  # fmt: skip
    if not check_flag(gradient, "operator, gradient"):
        options |= {"grad": lambda inputs, *_, **constants: [None] * len(inputs), "passed_to": frozenset()}
    for what in ("cost", "overwrites", "places", "scalar"):
        if options[what] is not None:
            check_callable(options[what], f"operator, {what}")
    if not isinstance(inference, Mapping):
        raise DTypeError("operator, inference", expected="a mapping of constants to values", got=shown(inference))
    if not isinstance(onnx, str | None):
        raise DTypeError("operator, onnx", expected="the name of an ONNX node, or None", got=shown(onnx))

    def declare(function: Callable) -> Operator:
        op_type = getattr(check_callable(function, "operator"), "__name__", None) if name is None else name
        return _declared(_op(op_type, function, may_miss, in_place, options), function)

    return declare if function is None else declare(function)


def _names(what: str, names: Any) -> tuple[str, ...]:
    """Return the names of an option as a tuple, or raise unless all are strings."""
    found = [None] if isinstance(names, str) else check_list(names, what, "a tuple of names")
    if any(not isinstance(name, str) for name in found):
        raise ProgramError(what, expected="a tuple of names", got=shown(names))
    return tuple(found)


def _rows_trait(rows: Any) -> str | Callable | None:
    """Return the option `rows` of an operator, or raise unless it is a trait or a function."""
    if rows is None or callable(rows) or (isinstance(rows, str) and rows in TRAITS):
        return rows
    raise ProgramError("operator, rows", expected=f"one of {TRAITS}, or a function of specs and axes", got=shown(rows))


def _ufuncs(given: Any) -> tuple[np.ufunc, ...]:
    """Return the option `ufunc` of an operator as a tuple, or raise unless it holds only functions of NumPy."""
    found = [given] if isinstance(given, np.ufunc) else check_list(given, "operator, ufunc", "functions of NumPy")
    if not all(isinstance(ufunc, np.ufunc) for ufunc in found):
        raise DTypeError("operator, ufunc", expected="functions of NumPy", got=shown(given))
    return tuple(found)


class Operator(Generic[P, R]):
    """The type of a declared operator for type checkers: a function whose methods decorate its other functions."""

    __call__: Callable[P, R]

    def __init__(self, op: Op) -> None:
        self.op = op

    def infer(self, function: F) -> F:
        """Decorate the function that describes the outputs without computing them.

        It alone checks the inputs' specs.  Only checks that need values belong in the operator's own function.

        Parameters
        ----------
        function : callable
            `function(*specs, **constants)` returns a TensorSpec, or several, one for each output, and raises an error
            of `varlen_rnn` if inputs do not fit.  The spec of a missing input is None.  A size of -1 is unknown until
            the operator runs.
        """
        self.op.infer = check_callable(function, f"operator {self.op.type!r}, infer")
        return function

    def grad(self, function: F) -> F:
        """Decorate the function that composes the gradient from operators.

        Parameters
        ----------
        function : callable
            `function(inputs, outputs, d_outputs, **constants)` returns a list of a Variable or None for each input.  It
            applies operators to Variables, so it serves values and programs.  `d_outputs` has None where no gradient
            arrived.
        """
        self._check_no_gradient()
        self.op.grad = check_callable(function, f"operator {self.op.type!r}, grad")
        return function

    def backward(
        self,
        *of: str,
        aliases: Mapping[str, str] = MappingProxyType({}),
        cost: Callable | None = None,
        rows: str | Callable | None = None,
    ) -> Callable[[Callable], Operator]:
        """Decorate the function that computes the gradient from values; it becomes an operator `name_grad`.

        The names of the function's parameters decide its arguments: inputs, outputs, constants, or gradients of
        outputs, such as `d_out`.  It returns the gradients of the inputs `of`, one value or a tuple.  If there are
        several outputs, the gradient of an output is None if none arrived.

        If the function takes all inputs and constants, its `infer` is derived: outputs and their gradients must be as
        the operator's `infer` says, and the results are like the inputs.  Otherwise declare an `infer` for the operator
        that the decorator returns.

        Parameters
        ----------
        *of : str
            Names of the inputs that get a gradient.  Other inputs, such as an input of which only the LoD is read,
            never make a result require a gradient.
        aliases : mapping of str to str
            Maps a parameter with another name to the name of its input, output or constant.
        cost, rows
            As in `operator`.  By default `rows` follows from the operator's trait if the gradient takes its inputs.

        Returns
        -------
        function
            The operator of the gradient.
        """
        self._check_no_gradient()
        if cost is not None:
            check_callable(cost, f"gradient of {self.op.type!r}, cost")

        def declare(function: Callable) -> Operator:
            _check_function(f"{self.op.type}_grad", function)
            _names(f"gradient of {self.op.type!r}", of)
            op, rule = gradient_of(self.op, function, of, aliases, cost=cost, rows=_rows_trait(rows))
            made = _declared(op, function)
            self.op.grad, self.op.grad_operator = rule, op.type
            if len(of) < len(self.op.inputs):
                self.op.passed_to = frozenset(position_of_input(self.op, name) for name in of)
            return made

        return declare

    def _check_no_gradient(self) -> None:
        what = f"operator {self.op.type!r}, gradient"
        if self.op.in_place:
            raise ProgramError(what, expected="none, because the operator updates its inputs", got="one")
        if self.op.grad is not None:
            hint = "to change the gradient, declare the operator again, and then its gradient"
            raise ProgramError(what, expected="one declaration", got="a second one", hint=hint)

    def examples(self, function: F) -> F:
        """Decorate the function that yields example inputs for tests.

        Parameters
        ----------
        function : callable
            `function(rng)`, where `rng` is a NumPy generator, yields pairs `(inputs, constants)`: a list of arrays or
            values, with None for a missing input, and a dict.  Use float64, small sizes, and no values near jumps of
            the gradient.
        """
        self.op.examples = check_callable(function, f"operator {self.op.type!r}, examples")
        return function


def _declared(op: Op, function: Callable) -> Operator:
    """Add an operator to the table, and return the function of Variables that applies it."""
    register(op)
    applying, made = _applying(op, function), Operator[Any, Any](op)
    applying.op, applying.infer, applying.examples = op, made.infer, made.examples
    applying.grad, applying.backward = made.grad, made.backward
    return applying


def _applying(op: Op, function: Callable) -> Any:
    """Return a function with the signature of `function` that applies the operator.

    It is compiled from source text, as dataclasses compile their methods, so that Python itself binds its arguments.
    """
    parameters = inspect.signature(function).parameters.values()
    taken: list[str] = []
    inputs: list[str] = []
    attrs: list[str] = []
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not any(text.startswith("*") for text in taken):
            taken.append("*")
        taken.append("*" * (p.kind is p.VAR_POSITIONAL) + p.name)
        if p.name in op.attrs:
            attrs.append(f"{p.name!r}: {_taking(op.attrs[p.name], p.name, f'{op.type}, {p.name}')}")
        else:
            inputs.append(taken[-1])
    applied = f"_apply(_find({op.type!r}), ({''.join(f'{name}, ' for name in inputs)}), {{{', '.join(attrs)}}})"
    result = applied if op.places or not op.intermediate else f"_shown({applied})"
    given = {"_apply": apply_op, "_find": find, "_shown": _shown_of(op), "_take": as_constant, "_type": type}
    given |= {f"_{kind}": its_type for kind, its_type in PLAIN.items()}
    text = f"def declare({', '.join(given)}):\n def applying({', '.join(taken)}): return {result}\n return applying"
    found: dict[str, Any] = {}
    exec(compile(text, f"<operator {op.type}>", "exec"), inspect.unwrap(function).__globals__, found)
    applying = found["declare"](**given)
    applying.__code__ = applying.__code__.replace(co_name=op.type)  # tracebacks show the operator's name
    with_default = [p for p in parameters if p.default is not p.empty]
    applying.__defaults__ = tuple(p.default for p in with_default if p.kind is not p.KEYWORD_ONLY)
    applying.__kwdefaults__ = {p.name: p.default for p in with_default if p.kind is p.KEYWORD_ONLY}
    return functools.update_wrapper(applying, function)


def _taking(kind: str, name: str, what: str) -> str:
    """Return source text that checks a constant; it calls no function if the value already has the right type."""
    plain = kind.rstrip("?")
    text = f"_take({kind!r}, {name}, {what!r})"
    return f"{name} if _type({name}) is _{plain} else {text}" if plain in PLAIN else text


def _shown_of(op: Op) -> Callable:
    """Return a function that removes intermediate outputs, which only gradients read, from the results of `apply`."""
    positions = [number for number, place in enumerate(op.outputs) if place not in op.intermediate]

    def shown(outputs: Any) -> Any:
        if not isinstance(outputs, list):
            return outputs
        return outputs[positions[0]] if len(positions) == 1 else [outputs[n] for n in positions if n < len(outputs)]

    return shown


def _op(op_type: Any, function: Callable, may_miss: Iterable[str], in_place: bool, options: dict[str, Any]) -> Op:
    """Return the Op (the record of an operator) that a function declares."""
    if not isinstance(op_type, str) or not op_type.isidentifier() or keyword.iskeyword(op_type):
        raise ProgramError("operator, name", expected="an identifier of Python", got=shown(op_type))
    inputs, attrs = [], {}
    for parameter in _parameters(op_type, function):
        if parameter.annotation is parameter.empty or parameter.annotation in VALUES:
            inputs.append(_place(op_type, parameter, may_miss))
        else:
            attrs[parameter.name] = _kind(op_type, parameter)
    check_order(op_type, function, attrs)
    names, outputs = [place.strip("*?") for place in inputs], options["outputs"]
    fits = set(outputs) <= set(names) if in_place else set(outputs).isdisjoint(names)
    if not fits or not outputs or len(set(outputs)) < len(outputs):
        expected = f"at least one name, each once, and {'only' if in_place else 'no'} names of the inputs {names}"
        raise ProgramError(f"operator {op_type!r}, outputs", expected=expected, got=outputs)
    positions = tuple(map(names.index, outputs)) if in_place else ()
    return Op(op_type, tuple(inputs), forward=function, infer=not_inferred(op_type), attrs=attrs,
              in_place=positions, doc=inspect.getdoc(function) or "", **options)  # fmt: skip


def _parameters(op_type: str, function: Callable) -> Iterable[inspect.Parameter]:
    _check_function(op_type, function)
    try:
        return inspect.signature(function, eval_str=True).parameters.values()
    except Exception as error:  # evaluating an annotation may raise any error
        expected = "annotations that Python can evaluate"
        raise ProgramError(f"operator {op_type!r}", expected=expected, got=str(error)[:80]) from error


def _check_function(op_type: str, function: Callable) -> None:
    """Raise unless an operator's function is written in Python, so that its parameters are known."""
    if not inspect.isfunction(inspect.unwrap(function)):
        got = type(function).__name__
        raise ProgramError(f"operator {op_type!r}", expected="a function that is written in Python", got=got)


def _place(op_type: str, parameter: inspect.Parameter, may_miss: Iterable[str]) -> str:
    """Return an input's name as in `Op.inputs`: `*x` if it takes all further inputs, `x?` if it can be missing."""
    if parameter.default not in (parameter.empty, None):
        hint = f"a constant needs its type: {parameter.name}: {type(parameter.default).__name__}"
        raise ProgramError(f"operator {op_type!r}, {parameter.name}", expected="an annotation", got="none", hint=hint)
    star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    return star + parameter.name + ("?" if parameter.default is None or parameter.name in may_miss else "")


def _kind(op_type: str, parameter: inspect.Parameter) -> str:
    kind = kind_of(parameter.annotation)
    if kind is None:
        expected = "float, int, bool, str, tuple[int, ...], tuple[str, ...], or one of them | None"
        what, hint = f"operator {op_type!r}, {parameter.name}", "leave the annotation out if this is an input"
        raise ProgramError(what, expected=expected, got=parameter.annotation, hint=hint)
    return kind
