"""A loop whose end depends on data: a body of operators runs as long as a condition holds, in a program, too."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from varlen_rnn.errors import DTypeError, LoDError, ProgramError, ShapeError, check_callable, check_list
from varlen_rnn.ops.cost import costs_of_block
from varlen_rnn.ops.examples import rows
from varlen_rnn.program.recorder import Recorder
from varlen_rnn.tape.checks import check_like, check_tensor
from varlen_rnn.tape.constants import Block, Strs
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.modes import recorder, recording
from varlen_rnn.tape.spec import describe
from varlen_rnn.tape.variable import Variable, apply_list, required
from varlen_rnn.typing import Rows

_NAME = "while_loop"


def while_loop(cond: Callable[..., Any], body: Callable[..., Any], loop_vars: Sequence[Rows]) -> list[Variable]:
    """Run `body` on some variables as long as `cond` holds for them; return the final variables.

    In eager mode, it is a Python loop, and gradients pass through it.  In a program, or in a step of `nn.DynamicRNN`,
    `cond` and `body` are called once, with variables that have no values.  The operators that they apply run
    again and again.  Such a loop has no gradient: it is for decoding and searching.

    Parameters
    ----------
    cond : callable
        `cond(*variables)` returns a single number or bool, which says whether to go on.
    body : callable
        `body(*variables)` returns the next variables: the same number, with the same data types and numbers of levels.
        The number of rows and the LoD may change, so a variable can hold sequences that grow.  Other sizes must stay.
    loop_vars : list of Variable or array
        The variables before the first iteration.

    Returns
    -------
    list of Variable

    Raises
    ------
    ShapeError, DTypeError, LoDError
        If a result of `body` does not fit its variable, or the condition is not a single number.

    Examples
    --------
    >>> zeros = [np.array(0), np.array(0)]
    >>> n, total = while_loop(lambda n, total: n < 4, lambda n, total: [n + 1, total + n], zeros)
    >>> int(total)
    6

    Source: `fluid.layers.while_loop` of PaddlePaddle Fluid.
    """
    check_callable(cond, f"{_NAME}, cond")
    check_callable(body, f"{_NAME}, body")
    given = check_list(loop_vars, f"{_NAME}, loop_vars", "a list of Variables or arrays")
    variables = [required(value, f"{_NAME}, loop_vars[{number}]") for number, value in enumerate(given)]
    if not variables:
        raise ShapeError(f"{_NAME}, loop_vars", expected="at least one variable", got="an empty list")
    if recorder() is not None:
        inputs, constants = describe_loop(cond, body, variables)
        return apply_list(_NAME, *inputs, **constants)
    likes = [_changing(describe(variable.value)) for variable in variables]
    while _holds(required(cond(*variables), f"{_NAME}, cond").value):
        variables = _checked_results(body(*variables), len(likes))
        for number, (variable, like) in enumerate(zip(variables, likes, strict=True)):
            _check_next(number, describe(variable.value), like)
    return variables


def describe_loop(cond, body, variables):
    """Trace the condition and the body of a loop into blocks; return the inputs and constants of `_while_loop`."""
    into = recorder() or Recorder()
    if recorder() is not None:
        variables = [into.admit(variable) for variable in variables]
    specs = [_changing(describe(variable.value)) for variable in variables]
    (test_block, *of_test), seen = _described(into, lambda *given: [cond(*given)], specs)
    (body_block, *of_body), read = _described(into, lambda *given: _checked_results(body(*given), len(specs)), specs)
    names = ("cond_vars", "cond_captured", "test"), ("body_vars", "body_captured", "next_vars")
    constants = {"cond": test_block, "body": body_block}
    constants |= dict(zip(sum(names, ()), (*of_test, *of_body), strict=True))
    return [*variables, *seen, *read], constants | {"test": constants["test"][0]}


def _described(into, function, specs):
    """Trace a function; return a tuple and the values that the function captured.

    The tuple has its block, and the names of its arguments, of the captured values, and of its results.
    """
    with recording(into), into.block() as block:
        given = [block.take("loop", spec) for spec in specs]
        results = [into.admit(required(result, _NAME)) for result in function(*given)]
    outside, own = zip(*block.captures.values(), strict=True) if block.captures else ((), ())
    block.captures = {}
    names = [tuple(variable.name for variable in group) for group in (given, own, results)]
    return (block, *names), outside


def _checked_results(results, count):
    if not isinstance(results, (tuple, list, Variable)):
        expected = f"a function that returns a list of {count} variables, as loop_vars"
        raise DTypeError(f"{_NAME}, body", expected=expected, got=type(results).__name__)
    results = [results] if isinstance(results, Variable) else results
    if len(results) != count:
        raise ShapeError(f"{_NAME}, body", expected=f"{count} results, as many as loop_vars", got=len(results))
    return [required(result, f"{_NAME}, body") for result in results]


def _changing(spec):
    """Return the spec of a loop variable with an unknown number of rows, because it can change in each iteration."""
    check_tensor(_NAME, "loop_vars", spec)
    return spec._replace(shape=(-1, *spec.shape[1:]) if spec.shape else ())


def _check_next(number, spec, like):
    name = f"variable {number} of the next iteration"
    check_like(_NAME, name, spec._replace(lod_level=like.lod_level), like)
    if spec.lod_level != like.lod_level:
        expected, hint = f"{like.lod_level} LoD levels, as in loop_vars", "variable.with_lod(offsets) attaches a LoD"
        raise LoDError(f"{_NAME}, {name}", expected=expected, got=spec.lod_level, hint=hint)


def _holds(value):
    if describe(value).dtype is None or value.data.size != 1:
        got = f"shape {value.shape}"
        hint = "functional.where(condition, 1.0, 0.0).sum() > 0.0 asks whether any of several conditions holds"
        raise ShapeError(f"{_NAME}, cond", expected="a single number", got=got, hint=hint)
    return bool(value.data.item())  # copies the number from the device to the host, because Python decides


def _cost(inputs, outputs, cond: Any, body: Any, **names):
    """The arithmetic operations of one run of the condition and the body."""
    return sum(cost.flops for block in (cond, body) for _, cost in costs_of_block(block.nested))


@operator(name=_NAME, outputs=("*out",), cost=_cost, rows="batch", shares=True)
def _while_loop(
    *x,
    cond: Block,
    body: Block,
    cond_vars: Strs,
    cond_captured: Strs,
    test: str,
    body_vars: Strs,
    body_captured: Strs,
    next_vars: Strs,
):
    """Run a body (a nested block) while a condition (another nested block) holds; return the final variables."""
    count, middle = len(cond_vars), len(cond_vars) + len(cond_captured)
    values, likes = list(x[:count]), [_changing(describe(value)) for value in x[:count]]
    of_test = dict(zip(cond_captured, x[count:middle], strict=True))
    of_body = dict(zip(body_captured, x[middle:], strict=True))
    asks, goes_on = (block.nested.instructions for block in (cond, body))  # type: ignore[attr-defined]
    while _holds(asks.run(of_test | dict(zip(cond_vars, values, strict=True)))[asks.place[test]]):
        held = goes_on.run(of_body | dict(zip(body_vars, values, strict=True)))
        values = [held[goes_on.place[name]] for name in next_vars]
        for number, (value, like) in enumerate(zip(values, likes, strict=True)):
            _check_next(number, describe(value), like)
    return tuple(values)


@_while_loop.infer
def _infer(*x, cond, body, cond_vars, cond_captured, test, body_vars, body_captured, next_vars):
    likes, middle = [_changing(spec) for spec in x[: len(cond_vars)]], len(cond_vars) + len(cond_captured)
    if not len(cond_vars) == len(body_vars) == len(next_vars) == len(likes) > 0:
        got = f"{cond_vars}, {body_vars}, {next_vars}"
        raise ProgramError(_NAME, expected="as many variables before an iteration as after it", got=got)
    if len(x) != middle + len(body_captured):
        expected = f"{middle + len(body_captured)} inputs, as many as its blocks read"
        raise ProgramError(_NAME, expected=expected, got=len(x))
    _check_taken(cond.nested, (*cond_vars, *cond_captured), (*likes, *x[len(likes) : middle]))
    _check_taken(body.nested, (*body_vars, *body_captured), (*likes, *x[middle:]))
    asked = cond.nested.spec(test)
    check_tensor(_NAME, "cond", asked)
    if any(size not in (1, -1) for size in asked.shape):
        raise ShapeError(f"{_NAME}, cond", expected="a single number", got=f"shape {asked.shape}")
    for number, (name, like) in enumerate(zip(next_vars, likes, strict=True)):
        _check_next(number, body.nested.spec(name), like)
    return likes


def _check_taken(nested, names, likes):
    """Raise unless the arguments of a block have these names, and each fits the spec of the value that is passed."""
    if len(set(names)) != len(names) or set(names) != set(nested.arguments):
        raise ProgramError(f"{_NAME}, block", expected=f"a block with the arguments {names}", got=nested.arguments)
    for name, like in zip(names, likes, strict=True):
        spec = nested.spec(name)
        check_like(_NAME, name, spec, like)
        if spec.lod_level != like.lod_level:
            raise ProgramError(f"{_NAME}, {name}", expected=f"{like.lod_level} LoD levels", got=spec.lod_level)


@_while_loop.examples
def _examples(rng):
    def constants(x, limit, weight):
        loop = lambda x: (x * x).sum() < limit, lambda x: x + x @ weight
        return describe_loop(*loop, [x])[1]

    yield [rows(rng, 2), np.array([50.0]), np.eye(2)], constants
