"""Declare the operator of a gradient, `name_grad`: its arguments and its `infer` are derived from the operator.

For `swish` with `@swish.backward("x") def _back(x, d_out, beta)`, the operator `swish_grad` has the inputs `x` and
`d_out`, the constant `beta`, and one output `d_x`.  Its `infer` runs the `infer` of `swish` on `x` and `beta`, raises
unless `d_out` has the spec of that result, and returns the spec of `x`.
"""

import inspect
from typing import NamedTuple

from varlen_rnn.errors import InputError, ProgramError, ShapeError
from varlen_rnn.tape.checks import check_kind, check_like
from varlen_rnn.tape.kinds import LOD_TENSOR
from varlen_rnn.tape.operator import Op
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply_list

_INPUTS, _OUTPUTS, _D_OUTPUTS = range(3)


class _Source(NamedTuple):
    """The source of an input of the gradient: an input or output of the operator, or the gradient of an output."""

    group: int
    position: int


def gradient_of(op, function, of, aliases, *, cost, rows):
    """Return the Op of the gradient that a function declares for `op`, and `op.grad`, the function that applies it."""
    parameters = inspect.signature(function).parameters
    attrs = {name: op.attrs[name] for name in parameters if name in op.attrs}
    check_order(f"{op.type}_grad", function, attrs)
    taken = {name: _source(op, aliases.get(name, name)) for name in parameters if name not in attrs}
    positions = [position_of_input(op, name) for name in of]
    if not of or any(_takes_rest(op, position) for position in positions[:-1]):
        expected = "names of inputs; an input `*x` comes last"
        raise ProgramError(f"gradient of {op.type!r}", expected=expected, got=of)
    inputs = tuple(_place(op, parameters[name], source) for name, source in taken.items())
    several = len(of) > 1 or _takes_rest(op, positions[-1])
    outputs = tuple(f"{'*' * _takes_rest(op, p)}d_{name}" for p, name in zip(positions, of, strict=True))
    made = Op(
        f"{op.type}_grad", inputs, outputs if several else ("out",), forward=function, attrs=attrs, shares=True,
        multiplies=op.multiplies, cost=cost, rows=rows or _rows_trait(op, list(taken.values()), positions),
        linear=tuple(name for name, source in taken.items() if source.group == _D_OUTPUTS),
        infer=_inference(op, f"{op.type}_grad", taken, positions, attrs),
        doc=inspect.getdoc(function) or f"Return the gradient of `{op.type}`.",
    )  # fmt: skip
    return made, _rule(op, made, list(taken.values()), positions)


def check_order(op_type, function, attrs):
    """Raise unless a function's parameters are its inputs, by position, and then its constants, by name."""
    before = True
    for p in inspect.signature(function).parameters.values():
        is_constant = p.name in attrs
        wrong = p.kind is (p.POSITIONAL_ONLY if is_constant else p.KEYWORD_ONLY) or p.kind is p.VAR_KEYWORD
        if wrong or p.name.startswith("_") or not (before or is_constant):
            expected = "inputs first, by position, then constants, by name, and no name that begins with _"
            raise ProgramError(f"operator {op_type!r}, parameter {p.name}", expected=expected)
        before = before and not is_constant


def _names(places):
    return [place.strip("*?") for place in places]


def _takes_rest(op, position):
    return op.inputs[position].startswith("*")


def _source(op, name):
    """Return the _Source that a parameter of the gradient names, or raise if the operator has none of this name."""
    inputs, outputs = _names(op.inputs), _names(op.outputs)
    if name in inputs:
        return _Source(_INPUTS, inputs.index(name))
    if name.removeprefix("d_") in outputs and not op.outputs[-1].startswith("*"):
        return _Source(_D_OUTPUTS if name.startswith("d_") else _OUTPUTS, outputs.index(name.removeprefix("d_")))
    known = [*inputs, *outputs, *(f"d_{output}" for output in outputs), *op.attrs]
    raise ProgramError(f"gradient of {op.type!r}, parameter", expected=f"one of {known}", got=repr(name))


def position_of_input(op, name):
    """Return the position of the input with a name, or raise if there is no such input, or it can be missing."""
    names = _names(op.inputs)
    if name not in names:
        raise ProgramError(f"gradient of {op.type!r}", expected=f"one of the inputs {names}", got=repr(name))
    position = names.index(name)
    if op.inputs[position].endswith("?"):
        hint = f"declare the gradient with @{op.type}.grad instead of @{op.type}.backward"
        got = "an input that can be missing"
        raise ProgramError(f"gradient of {op.type!r}, {name}", expected="a required input", got=got, hint=hint)
    return position


def _place(op, parameter, source):
    """Return a name for `Op.inputs` of the gradient: `*x` if it takes all further inputs, `x?` if it is optional."""
    rest = source.group == _INPUTS and _takes_rest(op, source.position)
    if rest != (parameter.kind is parameter.VAR_POSITIONAL):
        expected = f"a star {'before' if rest else 'not before'} the name, as in the operator"
        raise ProgramError(f"gradient of {op.type!r}, {parameter.name}", expected=expected)
    if source.group == _INPUTS:
        missing = op.inputs[source.position].endswith("?")
    else:  # if there are several outputs, some get no gradient
        missing = source.group == _D_OUTPUTS and len(op.outputs) - len(op.intermediate) > 1
    return "*" * rest + parameter.name + "?" * missing


def _rule(op, made, sources, positions):
    """Return the operator's `grad` (see `Op`): a function that applies the gradient's operator, `made`."""
    rest = made.inputs[-1].startswith("*")
    fixed = [tuple(source) for source in sources[: len(sources) - rest]]  # NamedTuples unpack more slowly
    all_constants = made.attrs.keys() == op.attrs.keys()

    def grad(inputs, outputs, d_outputs, **attrs):
        groups = inputs, outputs, d_outputs
        given = [groups[group][position] for group, position in fixed]
        if rest:
            given += inputs[sources[-1].position :]
        if not all_constants:
            attrs = {name: value for name, value in attrs.items() if name in made.attrs}
        gradients, position = [None] * len(inputs), -1
        for number, gradient in enumerate(apply_list(made.type, *given, **attrs)):
            position = positions[number] if number < len(positions) else position + 1
            gradients[position] = gradient
        return gradients

    return grad


def _inference(op, op_type, taken, positions, attrs):
    """Return the derived `infer` of a gradient that takes all inputs and constants of the operator."""
    sources = list(taken.values())
    wanted = [_Source(_INPUTS, position) for position in range(len(op.inputs))]
    if not set(wanted) <= set(sources) or attrs.keys() != op.attrs.keys():
        return not_inferred(op_type)
    rest = bool(op.inputs) and op.inputs[-1].startswith("*")
    order = [sources.index(source) for source in (wanted[:-1] if rest else wanted)]
    to_rest = _takes_rest(op, positions[-1])
    in_order = not rest and order == list(range(len(order)))
    checked = [(number, name, s.position) for number, (name, s) in enumerate(taken.items()) if s.group != _INPUTS]

    def infer(*specs, **constants):
        # Every gradient runs this line, and a slice takes a tenth of a comprehension's time.
        inputs = list(specs[: len(order)]) if in_order else [specs[number] for number in order]
        if rest:  # an input `*x` comes last in the gradient, too
            inputs += specs[len(taken) - 1 :]
        try:
            promised = op.infer(*inputs, **constants)
        except InputError as error:
            text = str(error)  # it begins with the name of the operator
            if text.startswith((f"{op.type},", f"{op.type}:")):
                text = op_type + text.removeprefix(op.type)
            raise type(error)(text) from error
        likes = [promised] if type(promised) is TensorSpec else promised
        for number, name, position in checked:
            spec = specs[number]
            if spec is not None and (position >= len(likes) or spec != likes[position]):
                _check_as_promised(op_type, name, spec, likes, position)
        if len(positions) == 1:
            return inputs[positions[0] :] if to_rest else inputs[positions[0]]
        found = [inputs[position] for position in (positions[:-1] if to_rest else positions)]
        return found + inputs[positions[-1] :] if to_rest else found

    return infer


def _rows_trait(op, sources, positions):
    """Return the trait `rows` of a gradient whose operator has the trait "each", as a function of specs and axes.

    The gradient of an operand with rows has its rows; the gradient of an operand without rows is a sum over rows.
    """
    wanted = [_Source(_INPUTS, position) for position in range(len(op.inputs))]
    if (op.rows != "each" and not callable(op.rows)) or not set(wanted) <= set(sources):
        return None
    order, count = [sources.index(source) for source in wanted], len(sources)

    def rows(specs, axes, **constants):
        more = range(count, len(axes))  # the positions of a last input `*x`, which may be empty
        places = [n for n in (*order, *more) if n < len(axes)]
        if callable(op.rows) and op.rows([specs[n] for n in places], [axes[n] for n in places], **constants) != "each":
            return None
        to = [order[position] for position in positions] + list(more if _takes_rest(op, positions[-1]) else ())
        have_rows = {axes[n] is not None for n in to if n < len(axes)}
        return "each" if have_rows == {True} else "sum" if have_rows == {False} else None

    return rows


def _check_as_promised(op_type, name, spec, promised, position):
    if position >= len(promised):
        raise ShapeError(f"{op_type}, {name}", expected="an output that the operator has with these constants")
    like = promised[position]
    if like.kind == LOD_TENSOR:
        check_like(op_type, name, spec, like)
    else:
        check_kind(op_type, name, spec, like.kind)


def not_inferred(op_type):
    """Return an `infer` that raises, for an operator without an `infer` of its own."""

    def infer(*specs, **attrs):
        hint = f"declare a function with @{op_type}.infer that returns the specs of the outputs"
        raise ProgramError(f"operator {op_type!r}", expected="an inference", got="none", hint=hint)

    return infer
