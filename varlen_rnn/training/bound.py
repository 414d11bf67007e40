"""`bound`: a training step, or a function for inference, recorded as a program once, and then run as this program.

An example: `step(ids, labels)` computes a loss, its gradients and an update.

    call    structure of the arguments    effect
    1       int64, 1 level; int64         the step is recorded; it runs eagerly, and the program on copies: equal bits
    2       int64, 1 level; int64         as call 1, without recording
    3       int64, 1 level; int64         the program runs
    4       int64, 1 level; int32         another structure: it is recorded, too
"""

from __future__ import annotations

import contextvars
import functools
import operator
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from varlen_rnn import random
from varlen_rnn.errors import DTypeError, InputError, ProgramError, ShapeError, check_callable
from varlen_rnn.nn.module import Module
from varlen_rnn.program.binding import is_run_both_ways
from varlen_rnn.program.executor import Executor, Ready, ready_of, run_ready
from varlen_rnn.program.guard import feed_data, program_guard
from varlen_rnn.program.program import Program
from varlen_rnn.rows.lod import LoDTensor, rows_of
from varlen_rnn.runtime import device_array
from varlen_rnn.runtime.device import on_device
from varlen_rnn.runtime.precision import get_float32_matmul_precision
from varlen_rnn.tape.modes import EVALUATING, grad_enabled, recorder
from varlen_rnn.tape.spec import VALUES, sizes_fit
from varlen_rnn.tape.values import bits_of_value
from varlen_rnn.tape.variable import Variable, as_variable, variables_of
from varlen_rnn.training.recording import StepRecorder

_MOST = 8  # programs of one step
_ARRAYS = (LoDTensor, Variable, np.ndarray, np.generic)
_NUMBERS = frozenset(map(np.dtype, "?bhilqBHILQfd"))
_METHODS = "_bound_methods"  # an attribute of instances
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, np.dtype, type)


def bound(step: Callable[..., Any]) -> Bound:
    """Return a function with the results of `step` that does not run its Python code at each call.

    The first call for each structure of arguments (data types, levels, trailing shapes) records `step` as a program,
    with the caller's parameters and states of optimizers.  Later calls run the program on the same kernels, so they
    give the same bits.  Calls 1, 2, 4, 8 and so on, and each 1024th call, run `step` itself and compare.

    Parameters
    ----------
    step : callable
        It takes LoDTensors and arrays, in any arguments, also in lists, tuples and dicts; other arguments are constants
        of the program.  It computes a whole training step, from `optimizer.zero_grad()` to `optimizer.step()`, or only
        outputs.  It returns a Variable, or a tuple, list or dict of Variables.  If it is a method, each instance has
        programs of its own, and keeps them as long as it lives.

    Returns
    -------
    Bound
        It takes the arguments of `step`, and returns its results as Variables without a gradient.  The gradients of
        parameters are afterwards as `step` leaves them.  `explain()` says how the calls run.

    Raises
    ------
    ProgramError
        By a call, if the step cannot be recorded, for example because Python reads a number of a Variable, advances a
        schedule or sets an option of an optimizer: nothing has changed.  Also by a call in which the program computed
        other bits than the step: the call has run the step itself, as later calls do.

    Notes
    -----
    The step is recorded again if a module changes its mode, a parameter is frozen, replaced, or gets another data type
    or shape, an option of an optimizer is set, or the precision of products is another one.  Learning rates are read
    at each call.  Python code of the step that changes something else runs only in the calls that are compared.  A
    number or an array that the step reads from outside, such as a global variable or a closure, is a constant of the
    program: `bound` cannot see that it changes until a call is compared.  Pass such a value as an argument.  So is a
    gradient that the step reads, if it calls neither `backward` nor an optimizer.

    Examples
    --------
    >>> vr.manual_seed(0)
    >>> model = vr.nn.Linear(3, 1)
    >>> optimizer = vr.optim.SGD(model.parameters(), lr=0.1)
    >>> @vr.bound
    ... def step(x, y):
    ...     optimizer.zero_grad()
    ...     loss = vr.nn.functional.mse_loss(model(x), y)
    ...     loss.backward()
    ...     optimizer.step()
    ...     return loss
    >>> x, y = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)
    >>> losses = [step(x, y).item() for _ in range(5)]
    >>> losses[4] < losses[0]
    True
    >>> print(step.explain())
    step(float32 [-1, 3], float32 [-1, 1]): a program of 15 operators; 2 of 5 calls ran it alone

    Source: `torch.compile` and `jax.jit` have the same purpose.
    """
    return Bound(step)


class Bound:
    """The result of `bound`."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = check_callable(step, "bound, step")
        self._recorded: dict[Any, list[_Recorded]] = {}  # {structure: the programs, the newest last}
        functools.update_wrapper(self, step, updated=())

    def __reduce__(self) -> str | tuple[Callable[..., Bound], tuple[Callable[..., Any]]]:
        name, found = getattr(self._step, "__qualname__", ""), sys.modules.get(getattr(self._step, "__module__", ""))
        for part in name.split("."):
            found = getattr(found, part, None)
        # What a decorator made is pickled by its name, as functions are.  Another copy records the step itself.
        return name if found is self else (bound, (self._step,))

    def __get__(self, instance: Any, owner: type | None = None) -> Callable[..., Any]:
        """Return the Bound of a method of an instance, which the instance keeps."""
        if instance is None or not hasattr(type(self._step), "__get__"):
            return self
        if isinstance(instance, type):  # a class method
            return types.MethodType(self, instance)
        if not hasattr(instance, "__dict__"):
            hint = "__slots__ needs an entry '__dict__'"
            got = f"{type(instance).__name__}, which has none"
            raise DTypeError("bound, method", expected="an object that has a __dict__", got=got, hint=hint)
        kept = vars(instance).get(_METHODS)
        if kept is None or kept.of is not instance:  # the second after `copy.copy`
            kept = vars(instance)[_METHODS] = _Methods(instance)
        return kept.found.get(self) or kept.found.setdefault(self, Bound(self._step.__get__(instance, owner)))

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return the results of the step; see `bound`."""
        if recorder() is not None:
            return self._step(*args, **named)
        feeds: list[Any] = []
        try:
            key = _structure(args, feeds), _structure(named, feeds) if named else ()
        except RecursionError as error:
            expected, got = "arrays, in lists and dicts that do not contain themselves", "one that does, or a deep one"
            raise DTypeError("bound, arguments", expected=expected, got=got) from error
        group = self._recorded.setdefault(key, [])
        for found in reversed(group):
            if found.holds(feeds):
                break
        else:
            if len(self._programs()) >= _MOST:
                return _detached(self._step(*args, **named))
            group.append(made := _Recorded(self._step, args, named, feeds))
            found = next((one for one in group if one.holds(feeds)), made)
            if found is not made:  # another thread has recorded it meanwhile
                group.remove(made)
        return found.call(self._step, args, named, feeds)

    def _programs(self) -> list[_Recorded]:
        return [one for group in list(self._recorded.values()) for one in group]

    def explain(self) -> str:
        """Return a text with a line for each program: its arguments, its operators, and how the calls ran."""
        name = getattr(self._step, "__name__", "step")
        programs = self._programs()
        lines = [f"{name}({', '.join(map(_told, one.declared))}): {one.told()}" for one in programs]
        if len(programs) >= _MOST:
            lines.append(f"calls of other structures run {name} itself, because there are {_MOST} programs")
        return "\n".join(lines) or f"{name}: not called yet"


class _Methods:
    """The Bounds of an instance's methods, by the Bounds of the class; copies of the instance get others."""

    def __init__(self, of: Any = None) -> None:
        self.of, self.found = of, dict[Bound, Bound]()

    def __reduce__(self) -> tuple[type[_Methods], tuple[()]]:
        return _Methods, ()


def _structure(value: Any, feeds: list[Any]) -> Any:
    """Return a key that is equal for values of one structure, and append the arrays among them to `feeds`."""
    kind = type(value)
    if kind is tuple or kind is list:  # before the others, because most calls have a tuple of arrays
        return kind, *[_structure(item, feeds) for item in value]
    if kind is np.ndarray and value.dtype in _NUMBERS:  # as most arrays, so the constructor need not check it
        value, kind = LoDTensor.wrap(value), LoDTensor
    elif kind is not LoDTensor and (isinstance(value, _ARRAYS) or on_device(value)):
        value = value.value if isinstance(value, Variable) else value
        value = value if isinstance(value, LoDTensor) else LoDTensor(value)
    if kind is LoDTensor or isinstance(value, LoDTensor):
        feeds.append(value)
        rows, levels = rows_of(value), value.num_levels
        shape = rows.shape
        axes = len(shape)
        return rows.dtype, levels, shape[2 if axes == 3 and not levels else 1 :], axes  # as `_may_be_states`
    if isinstance(value, (tuple, list)):
        return type(value), *[_structure(item, feeds) for item in value]
    if isinstance(value, dict):
        return dict, tuple((name, _structure(item, feeds)) for name, item in value.items())
    if isinstance(value, _CONSTANTS):
        return type(value), repr(value) if isinstance(value, float) else value  # 0.0 equals -0.0, and NaN not itself
    return "object", _Same(value)


def _may_be_states(value: LoDTensor) -> bool:
    """Return whether an array has the axes of a layer's states, so that its sequences may be along the second axis."""
    return value.num_levels == 0 and rows_of(value).ndim == 3


class _Same:
    """A key that is equal only for the same object, which it keeps alive."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _with(value: Any, variables: Any) -> Any:
    """Return a copy of arguments in which the next of `variables` replaces each array."""
    if isinstance(value, _ARRAYS) or on_device(value):
        if isinstance(value, Variable) and value.requires_grad:
            hint = "detach() it, or compute it inside the step"
            raise ProgramError("bound, argument", expected="values without a gradient", got="a Variable", hint=hint)
        return next(variables)
    if isinstance(value, (tuple, list)):
        items = [_with(item, variables) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {name: _with(item, variables) for name, item in value.items()}
    return value


def _results(value: Any, found: list[Any]) -> Any:
    """Append the Variables of a step's results to `found`; return the results with their numbers in `found`."""
    if isinstance(value, (tuple, list)):
        return type(value), [_results(item, found) for item in value]
    if isinstance(value, dict):
        return dict, {name: _results(item, found) for name, item in value.items()}
    if value is None:
        return type(None), None
    if not isinstance(value, (Variable, LoDTensor, np.ndarray, float)):
        expected = "a Variable, or a tuple, list or dict of Variables"
        raise ProgramError("bound, result of the step", expected=expected, got=type(value).__name__)
    found.append(as_variable(value))
    return Variable, len(found) - 1


def _rebuilt(form: Any, found: list[Variable]) -> Any:
    kind, content = form
    if kind is dict:
        return {name: _rebuilt(item, found) for name, item in content.items()}
    if kind is Variable:
        return found[content]
    if kind is type(None):
        return None
    items = [_rebuilt(item, found) for item in content]
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def _detached(result: Any) -> Any:
    """Return a step's results without their gradients, as a program's are."""
    found: list[Any] = []
    form = _results(result, found)
    return _rebuilt(form, [Variable(one.value) for one in found])


def _modes() -> tuple[bool, bool, str]:
    """Return the modes of the context that decide a step's operators and their bits."""
    return grad_enabled(), bool(EVALUATING.get()), get_float32_matmul_precision()


class _Recorded:
    """A program of a step, for one structure of arguments and one state of modules and optimizers."""

    def __init__(self, step: Callable[..., Any], args: Any, named: Any, feeds: list[LoDTensor]) -> None:
        self._modes = _modes()
        self._names = [f"x{number}" for number in range(len(feeds))]
        self.declared = [_declared(feed) for feed in feeds]
        states = {number for number, feed in enumerate(feeds) if _may_be_states(feed)}
        try:
            self._record(step, args, named)
        except ShapeError as error:
            if not states:
                raise
            for number in states:  # a layer must know the number of layers, and not the number of sequences
                layers, _, units = feeds[number].shape
                self.declared[number] = (layers, -1, units), *self.declared[number][1:]
            try:
                self._record(step, args, named)
            except ShapeError:
                raise error from None
        self._states = [(number, self.declared[number][0]) for number in states]
        leaves = self._recorder.trained()
        self._with_grad = [(leaf, own.grad.name) for leaf, own in leaves if own.grad is not None]
        cleared = self._recorder.cleared
        self._without = [leaf for leaf, own in leaves if own.grad is None and id(leaf) in cleared]
        self._at_once = [leaf for leaf, _ in leaves if id(leaf) in self._recorder.cleared_at_once]
        # A step that only computes outputs leaves gradients alone.
        uses = self._with_grad or self._recorder.updates
        self._adds_to = [leaf for leaf, _ in leaves if uses and id(leaf) not in self._recorder.cleared_first]
        self._count = len(self._fetches)  # of the results; the gradients follow
        self._fetches += [name for _, name in self._with_grad]
        self._ready: Ready | None = None
        self._watched = self._recorder.watched()
        self._held = list(self.program.variables.values())
        self._values, self._specs = list(map(_value_of, self._held)), list(map(_spec_of, self._held))
        self.calls = self.alone = self.added = 0
        self._twin: Program | None = None  # the same program, to run on copies
        self.refused: str | None = None  # why all calls run the step itself

    def _record(self, step: Callable[..., Any], args: Any, named: Any) -> None:
        """Record the step, with the feeds as they are declared now."""
        self.program = Program()
        found: list[Any] = []
        self._recorder = self.program.recorder = StepRecorder()
        if isinstance(owner := getattr(step, "__self__", None), Module):
            self._recorder.suggest(owner)
        try:
            with program_guard(self.program):
                inputs = [feed_data(name, *about) for name, about in zip(self._names, self.declared, strict=True)]
                args, named = _with((args, named), iter(inputs))
                self._form = _results(step(*args, **named), found)
                self._fetches = [self._recorder.admit(one).name for one in found]
        except (InputError, MemoryError):
            raise
        except Exception as error:
            hint = "a bound step is called with variables that have no values; vr.nn.functional has operators for them"
            got = f"{type(error).__name__}: {error}"[:300]
            raise ProgramError("bound, step", expected="code that can be recorded", got=got, hint=hint) from error
        finally:
            self._recorder.undo_changes()
        self._recorder.check_changes()

    def holds(self, feeds: list[LoDTensor]) -> bool:
        """Return whether modules, parameters, optimizers and modes are as they were when the step was recorded."""
        if self._modes != _modes():
            return False
        if self._states and not all(sizes_fit(feeds[number].shape, shape) for number, shape in self._states):
            return False
        if (values := list(map(_value_of, self._held))) != self._values:  # a value equals only itself
            if list(map(_spec_of, self._held)) != self._specs:
                return False
            self._values = values
        return self._watched.holds()

    def told(self) -> str:
        """Return a text that says how the calls ran."""
        count = len(self.program.desc.blocks[0].ops)
        if self.refused is not None:
            return f"calls run the step itself, because {self.refused}"
        added = f"; {self.added} ran the step itself, which adds to gradients" if self.added else ""
        for binding in [ready.binding for ready in self.program.prepared.values()]:
            if binding.runs:
                added += f"; {binding.runs} without Python"
            elif binding.refusal is not None:
                added += f"; none without Python, because {binding.refusal}"
        return f"a program of {count} operators; {self.alone} of {self.calls} calls ran it alone{added}"

    def call(self, step: Callable[..., Any], args: Any, named: Any, feeds: list[LoDTensor]) -> Any:
        """Return the results of the program, or of the step itself."""
        self.calls += 1
        if self.refused is not None:
            return _detached(step(*args, **named))
        if self._adds_to and any(leaf.grad is not None for leaf in self._adds_to):
            self.added += 1
            return _detached(step(*args, **named))
        feed = dict(zip(self._names, feeds, strict=True))
        if is_run_both_ways(self.calls):
            return self._compared(step, args, named, feed)
        for leaf in self._at_once:
            leaf.grad = None
        if device_array.in_use:
            found = Executor().run(self.program, feed, self._fetches)
        else:  # feeds of one structure need no checks
            self._ready = self._ready or ready_of(self.program, self._fetches)
            found = run_ready(self._ready, feed)
        self.alone += 1
        results = found[: self._count]
        for (leaf, _), value in zip(self._with_grad, found[self._count :], strict=True):
            leaf.grad = value
        for leaf in self._without:
            leaf.grad = None
        values: list[Any] = [value if type(value) in VALUES else LoDTensor.wrap(value) for value in results]
        return _rebuilt(self._form, variables_of(values))

    def _compared(self, step: Callable[..., Any], args: Any, named: Any, feed: dict[str, LoDTensor]) -> Any:
        """Run the step itself, and the program on copies; raise unless both give the same bits."""
        variables = self.program.variables
        copies = {name: variable.value.copy() for name, variable in variables.items()}
        feed = {name: value.copy() for name, value in feed.items()}
        before = random.get_state()
        result = step(*args, **named)
        after = random.get_state()
        found: list[Any] = []
        form = _results(result, found)
        wanted = [one.value for one in found] + [leaf.grad for leaf, _ in self._with_grad]
        try:
            run = functools.partial(self._run_on, copies, feed, before)
            others, drawn = contextvars.copy_context().run(run)
        except InputError as error:
            self._refuse("the run", f"an error: {error}")
        if form != self._form:
            self._refuse("the form", "results of another form")
        names = [*(f"result {n}" for n in range(len(found))), *(f"the gradient of {n!r}" for _, n in self._with_grad)]
        pairs = list(zip(names, wanted, others, strict=True))
        pairs += [(f"{name!r}", variables[name].value, copies[name]) for name in copies]
        for name, one, other in pairs:
            if bits_of_value(one) != bits_of_value(other):
                self._refuse(name, "other bits")
        if any(leaf.grad is not None for leaf in self._without):
            self._refuse("gradients", "none")
        if drawn != after:
            self._refuse("random numbers", "other draws")
        return _rebuilt(form, [Variable(one.value) for one in found])

    def _run_on(self, copies: dict[str, Any], feed: dict[str, LoDTensor], state: str) -> tuple[list[Any], str]:
        """Run the program on copies of its persistables; return the fetches, and the random state after the run."""
        if self._twin is None:
            self._twin = Program(self.program.desc, copies)
        random.set_state(state)
        try:
            for name, variable in self._twin.variables.items():
                variable.value = copies[name]
            ready_of(self._twin, self._fetches).binding.give_up()  # records of copies would serve no other call
            return Executor().run(self._twin, feed, self._fetches), random.get_state()
        finally:
            for name, variable in self._twin.variables.items():  # so that no copies stay in memory
                variable.value = self.program.variables[name].value

    def _refuse(self, name: str, got: str) -> NoReturn:
        """Let all later calls run the step itself, and raise an error."""
        hint = "a number or an array from outside of the step may have changed, or Python code chose by one"
        self.refused = f"{name} of the program differed from the step's in call {self.calls}"
        raise ProgramError(f"bound, call {self.calls}, {name}", expected="the bits of the step", got=got, hint=hint)


_value_of = operator.attrgetter("value")


def _spec_of(variable: Variable) -> tuple[np.dtype, tuple[int, ...]]:
    return variable.dtype, variable.shape


def _declared(value: LoDTensor) -> tuple[tuple[int, ...], np.dtype, int]:
    """Return the shape, the data type and the levels of a feed; only the number of rows differs from call to call."""
    return ((-1, *value.shape[1:]) if value.shape else ()), value.dtype, value.num_levels


def _told(declared: tuple[tuple[int, ...], np.dtype, int]) -> str:
    shape, dtype, levels = declared
    return f"{dtype} {list(shape)}" + (f", {levels} level{'s' * (levels > 1)}" if levels else "")
