"""The inputs of a recurrent layer: their names and shapes, their checks, and the operands that the engine takes.

Only `Form` checks rows and initial states: the operator, layers, single steps, layers for inference and layers of
PyTorch use it.
"""

import functools
from types import MappingProxyType
from typing import NamedTuple

from varlen_rnn import recurrence
from varlen_rnn.errors import DTypeError, ShapeError
from varlen_rnn.runtime.device import as_operand, contiguous, copy_into, joined, stacked, unstacked, zeros
from varlen_rnn.tape.checks import check_float, check_lod_level, check_rank, check_shape, check_tensor
from varlen_rnn.tape.kinds import LOD_TENSOR
from varlen_rnn.tape.spec import Symbol, sizes_fit

_ROWS = (
    "x has the rows of all sequences, one after another: create_lod_tensor(rows, lengths), or "
    "LoDTensor.from_sequences(list of sequences, num_levels=1); for rows of one number, pass rows[:, None]; for a "
    "padded batch, sequence_unpad(x, lengths)"
)
_STATES = "(num_layers * num_directions, num_sequences, hidden_size); with proj_size, the first state has that size"
_MIXED = "data types are never mixed silently: convert it, or choose the dtype of the layer"
WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Form(NamedTuple):
    """The data type and the sizes of the rows and the initial states of a layer, or of a single step.

    Any object with a `shape` and a `dtype` can be checked: arrays, Variables, specs and tensors of PyTorch.

    features: the number of features of a row; -1 if it is unknown
    states: (str, int) for each state: its name in messages, and its number of units
    rows: the name of the rows in messages
    is_step: whether the form is of a single step; its rows and states may both lack the batch axis
    """

    dtype: object
    features: int
    states: tuple
    rows: str = "x"
    is_step: bool = False

    def each(self, where, name, given):
        """Return the values of the argument `name` as a tuple with one value per state; each is None if none is given.

        Raise ShapeError if the number of values differs.  If there is one state, its value needs no tuple.
        """
        count = len(self.states)
        if given is None:
            return (None,) * count
        kinds = (tuple, list) if count > 1 else tuple  # a list can hold the numbers of a single state
        several = tuple(given) if isinstance(given, kinds) else (given,)
        if len(several) != count:
            names = ", ".join(state for state, _ in self.states)
            got = f"{len(several)} values" if isinstance(given, kinds) else type(given).__name__
            raise ShapeError(f"{where}, {name}", expected=f"({names})" if count > 1 else names, got=got)
        return several

    def check_rows(self, where, x):
        """Raise unless rows have the data type and the number of features of this form."""
        shape = x.shape
        if shape[1:] == (self.features,) and x.dtype == self.dtype:  # the usual case, tested first
            return
        ranks = (1, 2) if self.is_step else (2,)
        if x.dtype != self.dtype or len(shape) not in ranks or not sizes_fit(shape[-1:], (self.features,)):
            features = "features" if self.features == -1 else self.features
            expected = f"(batch, {features}) or ({features},)" if self.is_step else f"(rows, {features})"
            self._refuse(f"{where}, {self.rows}", x, expected, None if self.is_step else _ROWS)

    def check_states(self, where, states, axes, first_known=False):
        """Raise unless the initial states fit; None means zeros and always fits.

        `axes` has the sizes of a state's axes before its units; the first is layers times directions, and -1 fits any
        size.  If `first_known`, the first axis must have a known size, because states beyond it would not be read.
        """
        for (name, units), state in zip(self.states, states, strict=True):
            if state is None:
                continue
            wanted, shape = (*axes, units), state.shape
            fits = sizes_fit(shape, wanted) and (not first_known or shape[0] == axes[0])
            if not fits or state.dtype != self.dtype:
                sizes = ", ".join("any" if size == -1 else str(size) for size in wanted)
                self._refuse(f"{where}, {name}", state, f"({sizes})", None if self.is_step else _STATES)

    def _refuse(self, where, given, expected, hint):
        error, hint = (ShapeError, hint) if given.dtype == self.dtype else (DTypeError, _MIXED)
        value, got = getattr(given, "value", None), f"{tuple(given.shape)} {given.dtype}"
        if isinstance(value, Symbol):
            got += f", the variable {value.name!r} of a program"
        raise error(where, expected=f"{expected} {self.dtype}", got=got, hint=hint)


# Each application of a layer calls the cached functions below.  Their keys are fields of a cell, because a cache whose
# keys are cells would keep the cells alive.


def form_of(cell, dtype, features, hidden, outputs):
    """Return the Form of a layer; `outputs` is the number of units of its output, `hidden` if it is not projected."""
    return _form_of(cell.states, dtype, features, hidden, outputs)


@functools.lru_cache(maxsize=256)
def _form_of(states, dtype, features, hidden, outputs):
    sizes = tuple((f"{state}_0", hidden if number else outputs) for number, state in enumerate(states))
    return Form(dtype, features, sizes)


def weight_shapes(cell, features, hidden, outputs=None, heads=1):
    """Return the shapes of the weights of a direction by name, in the order in which the operator takes them.

    `outputs` is the number of units of a projected output, otherwise None.  With `heads`, `weight_hh` has the columns
    of one head.  A weight that the cell does not use has 0 rows, and is None among the inputs.  Raise ShapeError if a
    vector or a row input has the name of another input.
    """
    sizes = len(cell.x_gates), len(cell.h_gates), features, hidden, outputs, heads
    found = _weight_shapes(cell.states, cell.vectors, cell.row_inputs, sizes)
    if isinstance(found, list):
        expected, got = f"vectors and rows with names other than {found}", cell.vectors + cell.row_inputs
        hint = "inputs of the layer have these names"
        raise ShapeError(f"cell {cell.name!r}", expected=expected, got=got, hint=hint)
    return found


@functools.lru_cache(maxsize=256)
def _weight_shapes(states, vectors, row_inputs, sizes):
    """Return the shapes by name; if several inputs have the same name, return a list of such names instead."""
    x_gates, h_gates, features, hidden, outputs, heads = sizes
    inputs = {"x", "weight_hr", *WEIGHTS, *(f"{state}_0" for state in states)}
    if taken := inputs.intersection(vectors + row_inputs):
        return sorted(taken)
    of_x, of_h = x_gates * hidden, h_gates * hidden
    shapes = (of_x, features), (of_h, hidden // heads if outputs is None else outputs), (of_x,), (of_h,)
    named = dict(zip(WEIGHTS, shapes, strict=True)) | ({} if outputs is None else {"weight_hr": (outputs, hidden)})
    return MappingProxyType(named | dict.fromkeys(vectors, (hidden,)))


class Layer(NamedTuple):
    """The inputs of a layer, as values or as specs, and its sizes.

    x: the rows
    states: the initial states; a missing state is None
    directions: the weights of each direction by name
    hidden: the number of units of a state
    outputs: the number of units of the output, less than `hidden` if the output is projected
    heads: the number of heads, which follows from the shape of `weight_hh`
    """

    x: object
    states: tuple
    directions: list
    hidden: int
    outputs: int
    heads: int

    @property
    def projects(self):
        """Whether the outputs are projected."""
        return "weight_hr" in self.directions[0]

    def units(self, number):
        """Return the number of units of a state; the first state is the output, which can be projected."""
        return self.hidden if number else self.outputs

    def weight_shapes(self, cell, features):
        """Return the shapes of the weights of a direction by name; rows have `features` numbers."""
        return weight_shapes(cell, features, self.hidden, self.outputs if self.projects else None, self.heads)


def layer_of(cell, inputs):
    """Return the inputs of an operator as a Layer; raise unless their number is right for the cell."""
    cut = 1 + len(cell.states)
    names, weights = names_of_weights(cell, len(inputs) - cut), inputs[cut:]
    directions = [
        dict(zip(names, weights[first : first + len(names)], strict=True))
        for first in range(0, len(weights), len(names))
    ]
    hidden, heads = _hidden_and_heads(cell, directions[0])
    projection = directions[0].get("weight_hr")
    outputs = hidden if projection is None else projection.shape[0]
    return Layer(inputs[0], inputs[1:cut], directions, hidden, outputs, heads)


def names_of_weights(cell, count):
    """Return the names of one direction's weights and row inputs; `count` is their number in all directions."""
    return _names_of_weights(cell.vectors + cell.row_inputs, count)


@functools.lru_cache(maxsize=256)
def _names_of_weights(others, count):
    plain, projected = (*WEIGHTS, *others), (*WEIGHTS, "weight_hr", *others)
    for names in (plain, projected):
        if count in (len(names), 2 * len(names)):
            return names
    expected = f"for each of one or two directions {plain}, or {projected}"
    raise ShapeError("recurrent, weights", expected=expected, got=f"{count} weights")


def names_of_inputs(cell, count):
    """Return the names of a layer's `count` inputs, and the suffix of each direction's weights ("" or "_reverse")."""
    of_weights = count - 1 - len(cell.states)
    names = names_of_weights(cell, of_weights)
    ends = ("", "_reverse")[: of_weights // len(names)]
    return ("x", *(f"{state}_0" for state in cell.states), *(name + end for end in ends for name in names)), ends


def _hidden_and_heads(cell, weights):
    """Return the hidden size and the number of heads, read from the shape of one weight of a direction."""
    if "weight_hr" in weights:
        name, axis, parts = "weight_hr", 1, 1
    elif cell.h_gates:
        name, axis, parts = "weight_hh", 1, 1
    elif cell.x_gates:
        name, axis, parts = "weight_ih", 0, len(cell.x_gates)
    else:
        name, axis, parts = cell.vectors[0], 0, 1
    if weights[name] is None:
        raise ShapeError(f"recurrent, {name}", expected="a weight for each direction", got="None")
    check_rank("recurrent", name, weights[name], 1 if name in cell.vectors else 2)
    shape = weights[name].shape
    heads = recurrence.heads_of(*shape, len(cell.h_gates)) if name == "weight_hh" else 1
    return heads * shape[axis] // parts, heads


def ways_of(reverse, directions):
    """Return a bool for each direction: whether it runs backward."""
    if reverse is None:
        return (False, True)[:directions]
    if len(reverse) != directions or not set(reverse) <= {0, 1}:
        expected = f"one number, 0 or 1, for each of the directions, {directions} in all"
        raise ShapeError("recurrent, reverse", expected=expected, got=reverse)
    return tuple(map(bool, reverse))  # kernels are compiled for bools


def check_layer(cell, layer):
    """Raise unless all inputs of a layer have the right shapes, data types and levels."""
    x, weight_ih, features = layer.x, layer.directions[0]["weight_ih"], -1
    check_float("recurrent", x=x)
    if cell.x_gates and weight_ih is not None:
        check_rank("recurrent", "weight_ih", weight_ih, 2)
        features = weight_ih.shape[1]
    form = form_of(cell, x.dtype, features, layer.hidden, layer.outputs)
    form.check_rows("recurrent", x)
    check_lod_level("recurrent", "x", x)
    if layer.projects:
        _check_projection(cell, layer)
    check_heads("recurrent, heads", cell, layer.heads)
    shapes = layer.weight_shapes(cell, features if cell.x_gates else x.shape[1])
    for weights in layer.directions:
        for name, shape in shapes.items():
            _check_weight(x, name, weights[name], shape)
        for name in cell.row_inputs:
            _check_rows(x, name, weights[name], layer.hidden)
    for (name, _), state in zip(form.states, layer.states, strict=True):
        if state is not None:
            check_tensor("recurrent", name, state)
    form.check_states("recurrent", layer.states, (len(layer.directions), -1))


def _check_projection(cell, layer):
    if not cell.may_project:
        hint = "its equations, or its later products, read the output before a projection"
        expected = f"None, because the cell {cell.name!r} cannot project"
        raise ShapeError("recurrent, weight_hr", expected=expected, got="a weight", hint=hint)
    if -1 not in (layer.outputs, layer.hidden) and not 0 < layer.outputs < layer.hidden:
        expected = f"1 to {layer.hidden - 1} rows, fewer than hidden units"
        raise ShapeError("recurrent, weight_hr", expected=expected, got=layer.outputs)


def check_heads(where, cell, heads):
    """Raise if a cell normalises values over the units of all heads, or has no recurrent product for heads."""
    if heads > 1 and (not cell.h_gates or any(phase.norms for phase in cell.phases)):
        reason = "normalises values over all units" if cell.h_gates else "has no recurrent weights"
        raise ShapeError(where, expected=f"1, because the cell {cell.name!r} {reason}", got=heads)


def _check_rows(x, name, rows, hidden):
    """Raise unless a row input of the cell has `hidden` numbers for each row of `x`."""
    if rows is None:
        raise ShapeError(f"recurrent, {name}", expected=f"shape {(x.shape[0], hidden)}", got="None")
    check_float("recurrent", x=x, **{name: rows})
    check_shape("recurrent", name, rows, (x.shape[0], hidden), "one row for each row of x")


def _check_weight(x, name, weight, shape):
    """Raise unless a weight has its shape; a bias may be None, and a weight that the cell does not use must be None."""
    if weight is None:
        if shape[0] and not name.startswith("bias"):
            raise ShapeError(f"recurrent, {name}", expected=f"shape {shape}", got="None")
    elif not shape[0]:
        expected = "None, because the cell has no gates for it"
        raise ShapeError(f"recurrent, {name}", expected=expected, got=weight.shape)
    else:
        if weight.shape != shape or weight.dtype != x.dtype or weight.kind is not LOD_TENSOR:
            check_float("recurrent", x=x, **{name: weight})
            check_shape("recurrent", name, weight, shape)


def operands_of(cell, layer, plan):
    """Return the rows, the Directions and the initial states for the engine; the states are None if none is given.

    Zeros replace a missing bias, and a missing state if another state is given.
    """
    weights = [_direction(cell, layer, of_direction) for of_direction in layer.directions]
    if all(state is None for state in layer.states):
        return as_operand(layer.x.data), weights, None
    return as_operand(layer.x.data), weights, full_states("recurrent", "{}_0", cell, layer, plan, layer.states)


def _direction(cell, layer, weights):
    arrays = [None if weight is None else as_operand(weight.data) for weight in weights.values()]
    end = len(arrays) - len(cell.row_inputs)
    of_rows, arrays = arrays[end:], arrays[:end]
    if None in weights.values():
        shapes = layer.weight_shapes(cell, layer.x.shape[1])
        pairs = zip(arrays, shapes.values(), strict=True)
        arrays = [zeros(shape, layer.x.data) if array is None else array for array, shape in pairs]
    projection = arrays[4] if layer.projects else None
    vectors = stacked(arrays[len(arrays) - len(cell.vectors) :]) if cell.vectors else None
    return recurrence.Direction(*arrays[:4], projection, vectors, joined(of_rows, 1) if of_rows else None)


def flat(cell, directions):
    """Return the weights (or gradients) of Directions as one list, in the order of the operator's inputs."""
    arrays = []
    for direction in directions:
        *four, projection, vectors, of_rows = direction
        arrays += [*four, *(() if projection is None else (projection,))]
        arrays += () if vectors is None else unstacked(vectors)
        if of_rows is not None:
            hidden = of_rows.shape[1] // len(cell.row_inputs)
            columns = range(0, of_rows.shape[1], hidden)
            arrays += [contiguous(of_rows[:, first : first + hidden]) for first in columns]
    return arrays


def full_states(op, name, cell, layer, plan, given):
    """Return states, or their gradients, as one array with `hidden` units per state and zeros for a missing state.

    `name` is the format of a state's name in errors, such as "d_{}_n".
    """
    full = zeros((len(given), len(layer.directions), plan.num_sequences, layer.hidden), layer.x.data)
    for number, state in enumerate(given):
        if state is not None:
            part = full[number, ..., : layer.units(number)]
            check_shape(op, name.format(cell.states[number]), state, part.shape, "one row for each sequence")
            copy_into(part, state.data)
    return full


def of_outputs(layer, states):
    """Return the engine's states (or gradients) as a list; if the output is projected, cut the first to its units."""
    first = contiguous(states[0][..., : layer.outputs]) if layer.projects else states[0]
    return [first, *(states[number] for number in range(1, len(layer.states)))]
