"""The backward pass: a loop over records (applied operators), the last one first, that ends in the leaves' gradients.

There is no global tape.  Variables refer to the record that produced them, and a record refers only to its inputs.  So
records are freed with their Variables, and a loop that forgets `no_grad` leaks nothing.  A pass releases each record
after using it, because the recurrence reuses the buffers of its record for gradients.

Several threads can run passes at the same time.  A pass takes all its records at once, so no other pass gets them.  It
adds a gradient to a leaf's `grad` by compare and swap, so no gradient is lost.
"""

import itertools
import os
import threading
import weakref
from collections import Counter

from varlen_rnn.errors import InputError, ProgramError
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.tape.hooks import Hooks, shown_to_hooks
from varlen_rnn.tape.operator import PASSED_ON
from varlen_rnn.tape.spec import Symbol
from varlen_rnn.tape.values import memory_of, own, plain

SUFFIX = "@GRAD"  # the end of a gradient's name in a program
_numbers = itertools.count()
_updates: dict = {}  # {id of an array's memory: [weak reference to the memory, number of its last update]}
_last_update = -1

# Held while records are taken, or while one `grad` is compared and set; no operator runs meanwhile.  Always take it by
# `with`: Python then handles no interrupt between locking and entering the block, so none leaves the lock locked.
_swapping = threading.RLock()


def _forget_lock():
    global _swapping
    _swapping = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)  # the thread that held the lock does not exist in the child


class Record:
    """One applied operator: its inputs, its outputs, and its number in the order of applications and updates."""

    __slots__ = ("attrs", "inputs", "number", "op", "values")

    def __init__(self, op, inputs, values, attrs):
        self.op, self.inputs, self.values, self.attrs = op, inputs, values, attrs
        self.number = next(_numbers)

    def check(self):
        """Raise if the values that the gradient needs were released, or were updated after the operator used them."""
        inputs = self.inputs
        if inputs is None:
            hint = "compute the loss again, or call backward once for the sum of losses; detach() states of old batches"
            raise ProgramError(f"backward through {self.op.type!r}", expected="one pass", got="a second one", hint=hint)
        if _last_update < self.number:
            return
        for position, variable in enumerate(inputs):
            if variable is not None and _updated_at(variable) > self.number:
                raise _updated(self, f"input {self.op.input_name(position)}")


def _updated(record, which):
    what, hint = f"backward through {record.op.type!r}, {which}", "call backward before the update, or update a copy"
    return ProgramError(what, expected="the value that the forward pass used", got="a value updated since", hint=hint)


class _Outputs(list):
    """A list of a record's outputs for its gradient function: reading an output that was updated meanwhile raises."""

    def __init__(self, record, num_inputs, outputs):
        super().__init__(outputs)
        self._record, self._count = record, num_inputs

    def __getitem__(self, index):
        found = super().__getitem__(index)
        for output in found if isinstance(index, slice) else (found,):
            if _memory_updated_at(output.value) > self._record.number:
                places = self._record.op.output_places(self._count, len(self), self._record.attrs)
                raise _updated(self._record, f"output {places[output.position]}")
        return found

    def __iter__(self):
        return iter(self[:])


def was_updated(*variables, updates=None):
    """Note that memory of variables was updated, also for their views; records that used old values then raise.

    updates: the result of `updates_of` for more variables, if the caller keeps it
    """
    global _last_update
    updates = updates_of(variables) if updates is None else updates
    with _swapping:
        number = _last_update = next(_numbers)
        for variable in variables:
            variable.updated_at = number
        for update in updates:
            update[1] = number


def updates_of(variables):
    """Return the entries of `_updates` for the memory of variables, which must live as long as they are used."""
    memories = [memory_of(variable.value) for variable in variables]
    with _swapping:
        return [
            _updates.get(id(memory)) or _updates.setdefault(id(memory), [weakref.ref(memory, _forget(id(memory))), -1])
            for memory in memories
            if memory is not None
        ]


def _forget(key):
    return lambda _: _updates.pop(key, None)


def _updated_at(variable):
    """Return the number of the last update of a variable or of memory that it shares; -1 if there was no update."""
    if variable.updated_at is None:
        return -1
    return max(variable.updated_at, _memory_updated_at(variable.value))


def _memory_updated_at(value):
    return _updates.get(id(memory_of(value)), (None, -1))[1]


def let_change(variable):
    """Allow updates of a variable whose value no gradient reads, so that they raise no error; return the variable."""
    variable.updated_at = None
    return variable


def hooks_of(variable):
    """Return the Hooks of a Variable; create them if it has none."""
    with _swapping:
        if variable.hooks is None:
            variable.hooks = Hooks()
        return variable.hooks


def watch(variable, watcher):
    """Let `watcher.take(a_pass, pairs, records)`, instead of `Pass.over`, run each pass that reaches a leaf.

    `take` calls `a_pass.over`, at once or later, with a function that receives each watched leaf's final gradient.
    """
    global _is_watched
    _is_watched = True
    hooks_of(variable).watcher = watcher


_is_watched = False  # whether `watch` was ever called: passes look for watchers only then


def _watcher_of(pairs, records):
    """Return the watcher of the leaves that a pass reaches, or None if none of them has a watcher."""
    reached = itertools.chain([v for v, _ in pairs], *(record.inputs or () for record in records))
    found = list(dict.fromkeys(filter(None, map(_watcher, reached))))
    if len(found) > 1:
        hint = "put the models into one module, and replicate this module"
        raise ProgramError("backward", expected="leaves of one replica", got=f"{len(found)} replicas", hint=hint)
    return found[0] if found else None


def _watcher(variable):
    return None if variable is None or variable.hooks is None else variable.hooks.watcher


class Leaves:
    """The sink of a pass: it adds gradients to the `grad` of leaves, no two of which share memory."""

    def __init__(self, apply, gradient_like):
        self._apply, self._gradient_like = apply, gradient_like
        self.scales = {}  # {number of a record: factor of the gradients that arrive at its outputs}
        self._late = {}  # {leaf: gradients} to sum at the end
        self._owned = {}  # {id: array that a leaf or a caller holds}, so that no two leaves share memory

    def begin(self, pairs, taken):
        """Begin a pass: note the memory of the caller's gradients, so that no leaf shares it."""
        for _, gradient in pairs:
            own(gradient.value, self._owned)

    def take(self, leaf, gradient):
        """Add a gradient to the leaf's `grad`, or keep it until the pass ends."""
        if isinstance(gradient.value, Symbol):
            total = gradient if leaf.grad is None else self._apply("sum", leaf.grad, gradient)
            # Several variables can share one gradient, which has the first variable's name; others get a named copy.
            leaf.grad = self._apply("assign", total) if SUFFIX in total.name else total
            leaf.grad.value.take_name(leaf.name + SUFFIX)
        elif isinstance(gradient.value, SelectedRows) or leaf.hooks is not None:
            # Sparse gradients are summed once, at the end, because each addition copies all rows.  Hooks get the sum.
            self._late.setdefault(leaf, []).append(gradient)
        else:
            self.add(leaf, gradient)

    def passed(self, variables):
        """Note that a record, or the caller, has sent all its gradients for `variables`."""

    def end(self):
        """End a pass: add the gradients that were kept until now."""
        for leaf, gradients in self._late.items():
            self.add(leaf, self._whole(leaf, gradients))

    def _whole(self, leaf, gradients):
        gradient = gradients[0] if len(gradients) == 1 else self._apply("sum", *gradients)
        return gradient if leaf.hooks is None else self.after_hooks(leaf, gradient)

    def after_hooks(self, variable, gradient):
        """Run the hooks of a Variable on its gradient, and return the result; add it to `grad` after `retain_grad`."""
        for hook in list(variable.hooks.values()):  # a hook may remove hooks
            shown = shown_to_hooks(own(gradient.value, self._owned))  # a copy if shared: the hook may keep it
            given = hook(shown)
            if given is not None and given is not shown:
                name = f" of {variable.name!r}" if variable.name else ""
                gradient = self._gradient_like(given, gradient, f"gradient that a hook{name} returned")
                own(gradient.value, self._owned)  # note the hook's memory, so that no leaf shares it
        if variable.hooks.retains and variable.record is not None:
            self.add(variable, gradient)
        return gradient

    def add(self, variable, gradient):
        """Add a gradient to `variable.grad`; if another thread added to it meanwhile, compute the sum again."""
        first = None  # kept for a second try, because `own` would then return a copy
        while True:
            before = variable.grad
            if before is not None:
                after = plain(self._sum(variable, before, gradient).value)
            else:
                after = first = plain(own(gradient.value, self._owned)) if first is None else first
            with _swapping:
                if variable.grad is before:
                    variable.grad = after
                    return

    def _sum(self, variable, before, gradient):
        try:
            return self._apply("sum", before, gradient)
        except InputError as error:
            name = f" of {variable.name!r}" if variable.name else ""
            raise type(error)(f"grad{name}, to which backward adds: {error}") from error


class Watched(Leaves):
    """A sink that calls `on_ready(leaf, gradient or None)` once a watched leaf will get no more gradients."""

    def __init__(self, leaves, on_ready, scales):
        super().__init__(leaves._apply, leaves._gradient_like)
        self._on_ready, self.scales = on_ready, scales

    def begin(self, pairs, taken):
        """Begin a pass: count the gradients that each watched leaf will get."""
        super().begin(pairs, taken)
        self._coming = Counter(filter(_watcher, itertools.chain([v for v, _ in pairs], *(i for _, i, _ in taken))))

    def passed(self, variables):
        """Call `on_ready` for the watched leaves among `variables` that will get no more gradients."""
        for leaf in variables:
            if leaf in self._coming:
                self._coming[leaf] -= 1
                if not self._coming[leaf]:
                    gradients = self._late.pop(leaf, ())
                    self._on_ready(leaf, self._whole(leaf, gradients).value if gradients else None)


class Pass:
    """One backward pass, which sends gradients from some Variables back to the leaves that require one.

    The functions come from `variable.py` and `backward.py`, which import this file.  `variables_of(values)` makes new
    Variables of a record's outputs, because a record that held its own outputs would be freed late.
    """

    def __init__(self, apply, variables_of, gradient_like):
        self._apply, self._variables_of = apply, variables_of
        self.leaves = Leaves(apply, gradient_like)
        self._arrived = {}  # {number of a record: {position of an output: gradients}}
        self._hooked = {}  # {(number of a record, position of an output): Variable with hooks}

    def run(self, pairs):
        """Send the gradients of `(variable, gradient)` pairs back to the leaves."""
        records = reachable([variable for variable, _ in pairs])  # the pass begins with the last one
        watcher = _watcher_of(pairs, records) if _is_watched else None
        if watcher is None:
            self.over(pairs, records)
        else:
            watcher.take(self, pairs, records)

    def over(self, pairs, records, on_ready=None, scales=None):
        """Send the gradients over the records, the last one first; see `Watched` for `on_ready` and `scales`."""
        with _swapping:
            for record in records:
                record.check()
            taken = self._take(records)
        leaves = self.leaves = self.leaves if on_ready is None else Watched(self.leaves, on_ready, scales)
        leaves.begin(pairs, taken)
        for variable, gradient in pairs:
            self._send(variable, gradient)
        leaves.passed(variable for variable, _ in pairs)
        while taken:  # popping a record releases it after its turn
            record, inputs, values = taken.pop()
            self._over(record, inputs, values)
            leaves.passed(inputs)
        leaves.end()

    def _take(self, records):
        """Return `(record, inputs, values)` of each record; remove inputs and values from it: a second pass raises."""
        taken = [(record, record.inputs, record.values) for record in records]
        for record in records:
            record.inputs = record.values = None
        return taken

    def _send(self, variable, gradient):
        if variable.record is None:
            self.leaves.take(variable, gradient)
            return
        number, position = variable.record.number, variable.position
        self._arrived.setdefault(number, {}).setdefault(position, []).append(gradient)
        if variable.hooks is not None:
            self._hooked[number, position] = variable

    def _over(self, record, inputs, values):
        """Compute the gradients of a record's inputs from those that arrived at its outputs, and send them on."""
        arrived = self._arrived.pop(record.number, None)
        if arrived is None:
            return
        summed = [None] * len(values)
        for position, gradients in arrived.items():
            gradient = gradients[0] if len(gradients) == 1 else self._apply("sum", *gradients)
            if record.number in self.leaves.scales:
                gradient = gradient * self.leaves.scales[record.number]
            if self._hooked and (variable := self._hooked.pop((record.number, position), None)) is not None:
                gradient = self.leaves.after_hooks(variable, gradient)
            summed[position] = gradient
        wanted = [n for n, variable in enumerate(inputs) if variable is not None and variable.requires_grad]
        if not wanted:  # the inputs were frozen since the forward pass
            return
        given = self._gradients(record, inputs, self._variables_of(values), summed)
        for position in wanted:
            if given[position] is not None:
                self._send(inputs[position], given[position])

    def _gradients(self, record, inputs, outputs, summed):
        """Return the gradients of a record's inputs: a list of one Variable or None per input."""
        if record.op.grad is None:
            other = f"declare it with @{record.op.type}.backward or .grad"
            if "block" in record.op.attrs.values():
                other = "use nn.DynamicRNN, nn.LSTM or a loop of Python, which have a gradient"
            hint = f"{other}; or detach() the inputs of {record.op.type}"
            raise ProgramError(f"backward through {record.op.type!r}", expected="a gradient", got="none", hint=hint)
        if isinstance(outputs[0].value, Symbol):
            for output, gradient in zip(outputs, summed, strict=True):
                if gradient is not None and SUFFIX not in gradient.name:
                    gradient.value.take_name(output.name + SUFFIX)
        if _last_update > record.number:
            outputs = _Outputs(record, len(inputs), outputs)
        try:
            given = record.op.grad(inputs, outputs, summed, **record.attrs)
            if len(given) != len(inputs):
                raise ValueError(f"{len(given)} gradients for {len(inputs)} inputs")
        except PASSED_ON:
            raise
        except Exception as error:
            raise record.op.failed(error) from error
        return given


def reachable(targets):
    """Return the records that led to the targets, in the order in which they were applied."""
    found, stack = {}, [variable.record for variable in targets if variable.record]
    while stack:
        record = stack.pop()
        if record.number not in found:
            found[record.number] = record
            for variable in record.inputs or ():
                if variable is not None and variable.record is not None:
                    stack.append(variable.record)
    return [found[number] for number in sorted(found)]
