"""Make functions of arrays from equations of scalars: `forward` from an equation, `derived` from its gradient.

A gradient is derived when it is first needed.  For `y = tanh(x)`, its source for arrays of the host is

    def tanh_grad(y, d_y):
        return d_y * (1 - y * y)

In the source for kernels, constants are converted to the type of an operand, as in `one = type(y)(1)`.
"""

import functools
import inspect
from typing import Any

from varlen_rnn.cells.derivation.gradient import differentiate
from varlen_rnn.cells.derivation.source import function, write
from varlen_rnn.cells.derivation.trace import Trace
from varlen_rnn.kernels import activations, arithmetic, functions
from varlen_rnn.kernels.elementwise import function_of_arrays, loop_over, quiet


def forward(equation, name=None, host=None, loop=False):
    """Return a function of arrays that computes an equation; the equation's annotated parameters are numbers.

    On the host, the arrays are passed to `host`, by default the equation itself.  If `loop`, the host computes floats
    by a loop instead.  For a device and for the loop, a kernel is compiled from the equation's trace.

    Examples
    --------
    >>> import numpy as np
    >>> forward(lambda x: x * arithmetic.sigmoid(x), "silu")(np.array([0.0, np.inf]))
    array([ 0., inf])
    """
    name, (names, numbers) = name or equation.__name__, operands_of(equation)

    def for_kernel():
        trace = Trace()
        leaves = {operand: trace.node("row", what=operand) for operand in names}
        given = {leaf.number: operand for operand, leaf in leaves.items()}
        return _written(name, names, trace, given, equation(**leaves).number, names[0])

    on_host = loop_over(name, names, for_kernel, numbers, equation) if loop else host or equation
    return function_of_arrays(name, names, on_host, for_kernel, numbers)


def derived(equation, name):
    """Return the gradient of an equation of one operand: a function of the operand, the result, `d_y` and numbers."""
    operand, *constants = operands_of(equation)[0]
    names = (operand, "y", "d_y", *constants)

    @functools.cache
    def derive():
        trace = Trace()
        leaves = {of: trace.node("row", what=of) for of in (operand, *constants)}
        result, d_y = equation(**leaves), trace.node("d_state", what=0)
        gradient = differentiate(trace, [(result.number, d_y)])["row", operand].number
        given = {result.number: "y", d_y.number: "d_y"} | {leaf.number: of for of, leaf in leaves.items()}
        reached = {given.get(k) for k in trace.reach([gradient], given)}
        places = [place for place, of in enumerate(names) if of in reached]
        used = tuple(names[place] for place in places)
        on_arrays = _written(name, used, trace, given, gradient, None)
        for_kernel = functools.partial(_written, name, used, trace, given, gradient, used[0])
        count = len(set(used) & set(constants))
        on_arrays = (
            quiet(on_arrays) if any(trace.nodes[k].op == "divide" for k in trace.reach([gradient])) else on_arrays
        )
        return function_of_arrays(name, used, on_arrays, for_kernel, count), places

    def call(*operands):
        front, places = derive()
        return front(*[operands[place] for place in places])

    gradient: Any = call
    gradient.names, gradient.twin = names, lambda: derive()[0].twin()
    return gradient


def operands_of(equation):
    """Return the names of an equation's operands, and how many operands at the end are numbers, which are annotated."""
    parameters = inspect.signature(equation).parameters.values()
    return tuple(p.name for p in parameters), sum(p.annotation is not p.empty for p in parameters)


def _written(name, names, trace, given, result, probe):
    """Return a function that computes node `result` of a trace: for a kernel, or for host arrays if `probe` is None.

    Constants are converted to the type of the operand named `probe`.
    """
    lines, texts = write(trace, given, [result], probe)
    modules = (arithmetic,) if probe is None else (activations, functions)
    space = {key: value for module in modules for key, value in vars(module).items()}
    space["__name__"] = __name__
    source = function(name, ", ".join(names), "", lines, [texts[result]])
    exec(compile(source, f"<equation {name}>", "exec"), space)
    return space[name]
