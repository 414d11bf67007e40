"""Check, on an operator's own examples, that the operator keeps the promises of its declaration."""

import contextvars
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from varlen_rnn.errors import DTypeError, ProgramError, ShapeError, check_list, shown
from varlen_rnn.program.attrs import decode
from varlen_rnn.program.check_traits import Application
from varlen_rnn.program.desc import of_var
from varlen_rnn.program.executor import Executor
from varlen_rnn.program.guard import program_guard
from varlen_rnn.program.program import Program
from varlen_rnn.random import manual_seed
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.tape.declare import Operator
from varlen_rnn.tape.kinds import LOD_TENSOR, Type
from varlen_rnn.tape.modes import recorder
from varlen_rnn.tape.operator import Op, find
from varlen_rnn.tape.spec import VALUES, describe, sizes_fit
from varlen_rnn.tape.values import plain
from varlen_rnn.tape.variable import Variable, apply_list

_STEP, _TOLERANCE = 1e-6, 1e-7  # of central differences in float64: their step, and the largest error


def check_operator(operator: Operator) -> None:
    """Raise unless an operator keeps its promises on each of its examples.

    It checks, in this order:

    * outputs have the specs that `infer` returned;
    * no input changes, except inputs that the operator updates;
    * gradients equal central differences, and have the shapes and data types of their inputs;
    * a program of the operator and its gradient, with known and with unknown sizes, computes the same bits, also after
      it was saved and loaded;
    * traits hold: permuted or cut rows give the same bits or the same sums, `scalar` and `ufunc` the same numbers.

    Parameters
    ----------
    operator : function
        The function that `varlen_rnn.operator` returned.

    Raises
    ------
    ProgramError
        If a promise is broken; the error names the operator, the example and the promise.  If there are no examples.
    InputError
        If the operator itself raises it.

    Examples
    --------
    >>> import varlen_rnn as vr
    >>> vr.check_operator(vr.nn.functional.tanh)
    """
    op = operator if isinstance(operator, Op) else getattr(operator, "op", None)
    if not isinstance(op, Op):
        raise ProgramError("check_operator", expected="an operator made by vr.operator", got=shown(operator))
    found = examples_of(op)
    if not found:
        raise ProgramError(f"operator {op.type!r}", expected="examples", got="none", hint=f"@{op.type}.examples")
    # Checks run in a copy of the context, so that they do not use up numbers of its random generator.
    said = [contextvars.copy_context().run(_check, trial) for trial in found]
    if op.rows is not None and op.inputs and not any(said) and op.divisor is None:
        hint = "give an example with at least two rows, along an axis about which the trait promises something"
        expected = "an example on which the trait can be checked"
        raise ProgramError(f"operator {op.type!r}, rows", expected=expected, got="none", hint=hint)


class Trial(NamedTuple):
    """One example of an operator, to be checked: input values, and constants or a function that makes them."""

    op: Op
    number: int
    values: list
    constants: dict | Callable

    def refuse(self, what, expected, got):
        """Raise the error of a broken promise."""
        raise ProgramError(f"operator {self.op.type!r}, example {self.number}, {what}", expected=expected, got=got)

    def constants_for(self, variables):
        """Return the constants; if the operator has a nested block, a function makes them from the inputs."""
        return self.constants(*variables) if callable(self.constants) else self.constants

    def apply(self, variables):
        """Return all outputs, and the outputs that a call returns to users; each call draws the same random numbers."""
        manual_seed(0)
        constants = self.constants_for(variables)
        outputs = apply_list(self.op.type, *variables, **constants)
        places = self.op.output_places(len(variables), len(outputs), constants)
        return outputs, [o for o, place in zip(outputs, places, strict=True) if place not in self.op.intermediate]

    def differentiable(self):
        """Return the positions of the inputs that get a gradient."""
        return [n for n, value in enumerate(self.values) if self.op.grad and _is_floating(value)]

    def variables(self):
        """Return the inputs as Variables; inputs that the operator updates are copied."""
        wanted = self.differentiable()
        return [
            value if value is None else Variable(value.copy(), persistable=True) if n in self.op.in_place
            else Variable(value, requires_grad=n in wanted)
            for n, value in enumerate(self.values)
        ]  # fmt: skip


def examples_of(op):
    """Return a Trial for each example that an operator declares."""
    made = () if op.examples is None else op.examples(np.random.default_rng(0))
    what = f"operator {op.type!r}, examples"
    return [_trial(op, number, example) for number, example in enumerate(check_list(made, what))]


def _trial(op, number, example):
    what = f"operator {op.type!r}, example {number}"
    pair = check_list(example, what, "a pair of inputs and constants")
    if len(pair) != 2:
        raise ShapeError(what, expected="a pair of inputs and constants", got=shown(example))
    values, constants = check_list(pair[0], f"{what}, inputs"), pair[1]
    named = isinstance(constants, Mapping) and all(isinstance(name, str) for name in constants)
    if not named and not callable(constants):
        raise DTypeError(f"{what}, constants", expected="a dict of str to value", got=shown(constants))
    return Trial(op, number, list(map(_as_value, values)), constants)


def _is_floating(value):
    return value is not None and describe(value).kind == LOD_TENSOR and value.dtype.kind == "f"


def compute_trial(trial):
    """Return the outputs that users see, the gradients of their weighted sum, and its random weights."""
    variables = trial.variables()
    _, shown = trial.apply(variables)
    weights = [np.random.default_rng(n).standard_normal(o.shape) for n, o in enumerate(_sources(shown))]
    _send_back(trial, shown, weights)
    return shown, [v.grad for v in variables if v is not None and v.requires_grad], weights


def _check(trial):
    before = [None if value is None else _parts(value) for value in trial.values]
    for position in trial.differentiable():
        if (dtype := trial.values[position].dtype) != np.float64:
            trial.refuse(trial.op.input_name(position), "float64, so that central differences are exact", dtype)
    _check_inference(trial)
    shown, gradients, weights = compute_trial(trial)
    _check_gradients(trial, gradients, weights)
    wanted = [plain(output.value) for output in shown] + [gradient for gradient in gradients if gradient is not None]
    for unknown_rows in (False,) if trial.op.in_place else (True, False):
        program, found = _check_program(trial, weights, unknown_rows, wanted)
    for n, (value, parts) in enumerate(zip(trial.values, before, strict=True)):
        if value is not None and not _are_same(_parts(value), parts):
            trial.refuse(trial.op.input_name(n), "an unchanged input", "a value that the operator changed")
    said = _check_traits(trial, program, found)
    _check_memory(trial, [output.value for output in shown])
    return said


def _check_memory(trial, outputs):
    """Raise if an output has the memory of an input, and the operator does not say so."""
    given = [value.data for value in trial.values if isinstance(value, LoDTensor)]
    found = [value.data for value in outputs if isinstance(value, LoDTensor)]
    if not trial.op.shares and any(np.shares_memory(x, y) for x in given for y in found):
        got = "the memory of an input (copy it, or declare the operator with shares=True)"
        trial.refuse("shares=False", "outputs with memory of their own", got)


def _check_traits(trial, program, values):
    """Raise if a trait of the operator, or of an operator that its gradient applies, does not hold for an example.

    Return whether the operator's trait `rows` promises anything for this example.
    """
    said = False
    for described in program.desc.blocks[0].ops:
        op = find(described.type)
        if op is trial.op or (op.examples is None and (op.rows is not None or op.linear)):
            given = [_as_value(values[name]) if name else None for name in described.input_names()]
            attrs = trial.constants if op is trial.op else decode(op, described.attrs, None)
            refuse = lambda what, *given, op=op: trial.refuse(f"{what} of {op.type}", *given)
            said |= Application(op, given, attrs, refuse).check() and op is trial.op
    return said


def _as_value(value):
    return value if value is None or isinstance(value, VALUES) else LoDTensor(value)


def _check_inference(trial):
    variables = trial.variables()
    outputs, _ = trial.apply(variables)
    known = [None if value is None else describe(value) for value in trial.values]
    promised = trial.op.specs(known, trial.constants_for(variables))
    for n, (spec, output) in enumerate(zip(promised, outputs, strict=True)):
        _check_as_described(trial, f"output {n}", output.value, spec)


def _check_as_described(trial, what, value, spec):
    found = describe(value)
    if found._replace(shape=()) != spec._replace(shape=()) or not sizes_fit(found.shape, spec.shape):
        trial.refuse(what, f"{spec}, as infer says", found)


def _sources(shown):
    return [output for output in shown if _is_floating(output.value)]


def _send_back(trial, shown, weights):
    """Run or record `backward` from a weighted sum of the outputs; integer outputs are left out."""
    sources = _sources(shown)
    if any(source.requires_grad for source in sources):
        sum((output * weight).sum() for output, weight in zip(sources, weights, strict=True)).backward()


def _check_gradients(trial, gradients, weights):
    for position, gradient in zip(trial.differentiable(), gradients, strict=True):
        value, what = trial.values[position], f"gradient of {trial.op.input_name(position)}"
        direction = np.random.default_rng(position).standard_normal(value.shape)
        numeric = _difference(trial, position, direction, weights)
        dense = gradient.to_dense() if isinstance(gradient, SelectedRows) else gradient
        if dense is not None and isinstance(dense, LoDTensor) != (value.num_levels > 0):
            trial.refuse(what, f"the LoD of the input, {value.lod()}", getattr(dense, "lod", list)())
        ours = 0.0 if dense is None else float((np.asarray(dense) * direction).sum())
        if not abs(numeric - ours) <= _TOLERANCE * max(1, abs(numeric)):
            trial.refuse(what, f"the slope {numeric} in a random direction, by a central difference", ours)


def _difference(trial, position, direction, weights):
    ends = []
    for sign in (1, -1):
        moved = list(trial.values)
        moved[position] = moved[position].like(moved[position].data + sign * _STEP * direction)
        _, shown = trial.apply([None if value is None else Variable(value) for value in moved])
        pairs = zip(_sources(shown), weights, strict=True)
        ends.append(sum(float((np.asarray(output) * weight).sum()) for output, weight in pairs))
    return (ends[0] - ends[1]) / (2 * _STEP)


def _check_program(trial, weights, unknown_rows, wanted):
    program, feed, fetches = describe_trial(trial, weights, unknown_rows)
    content = program.to_bytes()  # saved before the run updates persistables
    what = f"in a program of {'unknown' if unknown_rows else 'known'} rows"
    names = [var.name for var in program.desc.blocks[0].vars if var.type.type != Type.FEED_MINIBATCH]
    for where, ran in ((what, program), (f"{what}, saved and loaded", Program.from_bytes(content))):
        manual_seed(0)
        found = dict(zip(names, Executor().run(ran, feed, names), strict=True))
        for name in names:
            described = of_var(ran.desc.blocks[0].var(name))
            _check_as_described(trial, f"{where}, {name!r}", _as_value(found[name]), described)
        for name, value in zip(fetches, wanted, strict=True):
            if not _are_same(_parts(found[name]), _parts(value)):
                trial.refuse(f"{where}, {name!r}", "the bits that eager mode computes", "other bits")
    return program, found


def describe_trial(trial, weights, unknown_rows):
    """Return a program of an operator and its gradient, its feed, and the names of the outputs and gradients."""
    manual_seed(0)
    feed, inputs = {}, []
    with program_guard() as program:
        for n, variable in enumerate(trial.variables()):
            if variable is not None and n not in trial.op.in_place:
                name, spec = f"x{n}", describe(variable.value)
                if unknown_rows and spec.kind == LOD_TENSOR and spec.shape:
                    spec = spec._replace(shape=(-1, *spec.shape[1:]))
                feed[name] = variable.value
                variable = Variable(recorder().feed(name, spec), requires_grad=variable.requires_grad)
            inputs.append(variable)
        _, shown = trial.apply(inputs)
        _send_back(trial, shown, weights)
    gradients = [variable.grad for variable in inputs if variable is not None and variable.requires_grad]
    return program, feed, [variable.name for variable in [*shown, *gradients] if variable is not None]


def _parts(value):
    if isinstance(value, LoDTensor):
        return [np.array(value.data), *value.structure.levels]
    if isinstance(value, SelectedRows):
        return [np.array(value.value), value.rows]
    if isinstance(value, np.ndarray):
        return [np.array(value)]
    return [value.offsets] if hasattr(value, "offsets") else []  # a plan; the saved values of steps are not compared


def _are_same(parts, others):
    """Return whether arrays have the same shapes, data types and bits."""
    alike = [(part.shape, part.dtype) for part in parts] == [(other.shape, other.dtype) for other in others]
    return alike and all(part.tobytes() == other.tobytes() for part, other in zip(parts, others, strict=True))
