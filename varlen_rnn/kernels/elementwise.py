"""A factory of elementwise functions, whose operands broadcast.

    subtract = elementwise(np.subtract)(lambda x, y: x - y)

The equation is written once, for scalars.  On a CUDA device, a kernel that is made from it computes the result.  On the
host, a function of NumPy does, where IEEE fixes the result.  Exponentials and similar functions are loops made from the
equation, because the bits of NumPy's depend on the processor.
Numbers of an equation, such as the slope of an activation, come last and take the operands' data type: float32 stays
float32.
"""

import functools
import inspect

import numpy as np

from varlen_rnn.kernels.symbol import Symbol
from varlen_rnn.kernels.twins import launch_beside
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import as_operand, beside, empty, on_device
from varlen_rnn.runtime.jit import body, cpu_kernel, cuda_kernel
from varlen_rnn.runtime.placeholder import SAME_BITS, Placeholder

_PLAIN = {np.ndarray, float, int}
FLOATS = np.dtype(np.float32), np.dtype(np.float64)
# The functions of NumPy whose bits are fixed by IEEE 754, or by logic.
_SAME_BITS = (
    np.add, np.subtract, np.multiply, np.divide, np.negative, np.absolute, np.sqrt, np.less, np.less_equal, np.greater,
    np.greater_equal, np.equal, np.not_equal, np.logical_and, np.logical_or, np.logical_not, np.where, np.maximum,
    np.minimum, np.sign,
)  # fmt: skip
_AXES = 3  # the number of axes of a kernel's arrays, because more axes would need more divisions per element
_KERNEL = '''
def {name}_cuda({operands}, out):
    """Compute `{name}` for each element of `out`; all arrays have three axes, an operand's may have size 1."""
    i = cuda.grid(1)
    if i < out.size:
        a, b, c = unravel(i, out.shape[1], out.shape[2])
        out[a, b, c] = equation({elements})
'''
_LOOP = """
def {name}_cpu({operands}, out):
    for i in range(out.shape[0]):
        out[i] = equation({elements})
"""
_HOST = """
def {name}_host({operands}, out):
    for a in range(out.shape[0]):
        for b in range(out.shape[1]):
            found = out[a, b]
            {rows}
            {numbers}
            if {all_rows}:
                for c in range(found.shape[0]):
                    found[c] = equation({each})
            elif {first_row}:
                for c in range(found.shape[0]):
                    found[c] = equation({each_of_first})
            else:
                for c in range(found.shape[0]):
                    found[c] = equation({each_by_place})
"""
_ELEMENT = "{x}[along(a, {x}.shape[0]), along(b, {x}.shape[1]), along(c, {x}.shape[2])]"


@body
def unravel(i, rows, columns):
    """Return the index of element i in a C-contiguous array of shape `(..., rows, columns)`, as `np.unravel_index`."""
    return i // columns // rows, i // columns % rows, i % columns


@body
def along(place, size):
    """Return the place on an operand's axis for a place of the result: 0 if the axis is broadcast, with size 1."""
    return place if size > 1 else 0


def quiet(function):
    """Return a NumPy function wrapped so that infinities and NaN in its result cause no warning."""

    @functools.wraps(function)
    def call(x, *others):
        with np.errstate(divide="ignore", invalid="ignore"):
            return function(x, *others)

    return call


def elementwise(host, numbers=0, dtype=None, loop=False):
    """Return a decorator that makes a function of arrays from an equation of scalars.

    host: `host(*operands)` computes the result for NumPy arrays; None if operands are always on a device
    numbers: how many of the equation's last parameters are Python numbers; the others are arrays that broadcast
    dtype: the data type of the result, by default of the last array
    loop: whether the host computes floats by a loop made from the equation

    A constant in an equation takes the type of its operand, as in `type(x)(1)`.  The function that the decorator makes
    returns a new array on the device of the operands.  Applied to symbols, it records its name, which is the name of
    the equation, or of `host` if the equation is a lambda.
    """

    def declare(equation):
        name = host.__name__ if equation.__name__ == "<lambda>" else equation.__name__
        names = tuple(inspect.signature(equation).parameters)
        chosen = loop_over(name, names, lambda: equation, numbers, host) if loop else host
        made = function_of_arrays(name, names, chosen, lambda: equation, numbers, dtype)
        made.__doc__ = equation.__doc__
        of_numpy = host if host in _SAME_BITS else getattr(host, "__wrapped__", None)  # `quiet` wraps it
        if of_numpy in _SAME_BITS:
            SAME_BITS[of_numpy] = functools.partial(_noted, of_numpy, _host_kernel_of(name, equation, names))
        return made

    return declare


def function_of_arrays(name, names, host, equation, numbers=0, dtype=None):
    """Return a function of arrays or symbols with operands of the given names.

    `equation()` returns the equation for the kernel; `elementwise` describes the other parameters.
    """
    count = len(names) - numbers

    def anywhere(*operands):
        for operand in operands[:count]:
            if type(operand) in _PLAIN:
                continue
            if on_device(operand):
                return on_cuda(operand, operands)
            if isinstance(operand, Symbol):
                return operand.apply(name, *operands)
        made = host(*operands)
        return made if isinstance(made, np.ndarray) else np.asarray(made)

    def on_cuda(like, operands):
        arrays = [array if on_device(array) else beside(np.asarray(array), like) for array in operands[:count]]
        of_numbers = like.dtype.type
        shape = np.broadcast_shapes(*[array.shape for array in arrays])
        out = empty(shape, arrays[-1], None if dtype is None else np.dtype(dtype))
        launch_on(front.twin(), arrays, [of_numbers(number) for number in operands[count:]], out)
        return out

    front = anywhere if numbers else _sooner(host, anywhere, count)
    front.__name__, front.names = name, names
    # A kernel is made at its first launch, because making all kernels takes longer than importing the package.
    front.twin = functools.cache(lambda: _kernel_of(name, equation(), names, numbers))
    return front


def _sooner(host, anywhere, count):
    """Return a faster `anywhere` for one or two operands: if they are NumPy arrays, it calls `host` at once."""
    array = np.ndarray

    def of_one(x):
        if type(x) is not array:
            return anywhere(x)
        made = host(x)
        return made if type(made) is array else np.asarray(made)

    def of_two(x, y):
        if type(x) is not array or type(y) is not array:
            return anywhere(x, y)
        made = host(x, y)
        return made if type(made) is array else np.asarray(made)

    return {1: of_one, 2: of_two}.get(count, anywhere)


def loop_over(name, names, equation, numbers=0, host=None):
    """Return a function of host arrays that computes an equation by a loop.

    The loop is for arrays of one shape, of float32 or float64.  `host` computes all other operands.  `equation()`
    returns the equation; `function_of_arrays` describes the other parameters.
    """
    count = len(names) - numbers

    @functools.cache
    def loop():
        elements = ", ".join([*(f"{of}[i]" for of in names[:count]), *names[count:]])
        space = {"equation": body(equation()), "__name__": "varlen_rnn.kernels.elementwise"}
        text = _LOOP.format(name=name, operands=", ".join(names), elements=elements)
        exec(compile(text, f"<elementwise {name}>", "exec"), space)
        return cpu_kernel(space[f"{name}_cpu"])

    def call(*operands):
        arrays, like = operands[:count], operands[0]
        # Compare data types by value: an unpickled array has its own dtype object.
        if getattr(like, "dtype", object) not in FLOATS or any(x.shape != like.shape for x in arrays[1:]):
            return host(*operands)
        if all(x.flags.fnc for x in arrays):
            return call(*[x.T for x in arrays], *operands[count:]).T
        given = [x.dtype.type(number) for x, number in zip([like] * numbers, operands[count:], strict=True)]
        out = empty((like.size,), like)
        loop()(*map(_flat, arrays), *given, out)
        return out.reshape(like.shape)

    def of_one(x):  # the same for one operand, in half the time of a small array
        if getattr(x, "dtype", object) not in FLOATS:  # not None, which equals float64
            return host(x)
        if x.flags.fnc:
            return of_one(x.T).T
        flat = _flat(x)
        out = empty(flat.shape, flat)
        loop()(flat, out)
        return out.reshape(x.shape)

    return of_one if len(names) == 1 else call


def _flat(x):
    return x.ravel() if x.flags.writeable else x.flatten()  # a kernel would be compiled again for read-only arrays


def _host_kernel_of(name, equation, names):
    """Return a function that makes the host's kernel of an equation of arrays: broadcasting, along three axes."""
    first = names[0]
    parts = {
        "name": name, "operands": ", ".join(names),
        "rows": "; ".join(f"{x}_row = {x}[along(a, {x}.shape[0]), along(b, {x}.shape[1])]" for x in names),
        "numbers": "; ".join(f"{x}_0 = {x}_row[0]" for x in names),
        "all_rows": " and ".join(f"{x}_row.shape[0] == found.shape[0]" for x in names),
        "first_row": " and ".join(
            [f"{first}_row.shape[0] == found.shape[0]", *(f"{x}_row.shape[0] == 1" for x in names[1:])]
        ),
        "each": ", ".join(f"{x}_row[c]" for x in names),
        "each_of_first": ", ".join([f"{first}_row[c]", *(f"{x}_0" for x in names[1:])]),
        "each_by_place": ", ".join(f"{x}_row[along(c, {x}_row.shape[0])]" for x in names),
    }  # fmt: skip

    @functools.cache
    def made():
        space = {"along": along, "equation": body(equation), "__name__": equation.__module__}
        exec(compile(_HOST.format(**parts), f"<elementwise {name}>", "exec"), space)
        return cpu_kernel(space[f"{name}_host"])

    return made


def _noted(function, kernel, *operands):
    """Note the kernel of a function of NumPy in a dry run, and return its result; None if NumPy would convert types."""
    arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
    kinds = {array.dtype for array in arrays if array.dtype.kind != "b"} or {np.dtype(bool)}
    like, kind = next((array for array in arrays if type(array) is Placeholder), None), next(iter(kinds))
    of_numbers = [operand for operand in operands if not isinstance(operand, np.ndarray)]
    if like is None or len(kinds) > 1 or any(np.result_type(kind, number) != kind for number in of_numbers):
        return None
    with np.errstate(all="ignore"):
        dtype = function(*[np.ones(1, x.dtype) if isinstance(x, np.ndarray) else x for x in operands]).dtype
    if dtype not in (kind, np.bool_):
        return None
    shape = np.broadcast_shapes(*[array.shape for array in arrays])
    out, given = empty(shape, like, dtype), []
    for operand in operands:
        given.append(beside(operand, like) if isinstance(operand, np.ndarray) else empty((), like, kind))
        if not isinstance(operand, np.ndarray):
            given[-1][...] = operand
    if out.size:
        _note(kernel(), given, out)
    return out


def _note(kernel, operands, out):
    sizes, are_broadcast = merged_axes([operand.shape for operand in operands], out.shape)
    shapes = [
        tuple(1 if is_broadcast else size for size, is_broadcast in zip(sizes, of_array, strict=True))
        for of_array in are_broadcast
    ]
    _note_parts(kernel, [as_operand(x).reshape(s) for x, s in zip(operands, shapes, strict=True)], out.reshape(sizes))


def _note_parts(kernel, operands, out):
    if out.ndim > _AXES:
        for place in range(out.shape[0]):
            _note_parts(kernel, [x[place if x.shape[0] > 1 else 0] for x in operands], out[place])
        return
    kernel(*operands, out)


def _kernel_of(name, equation, names, numbers):
    """Return the kernel of an equation, made from source text because equations have different parameters."""
    arrays = names[: len(names) - numbers]
    elements = ", ".join(_ELEMENT.format(x=name) if name in arrays else name for name in names)
    text = _KERNEL.format(name=name, operands=", ".join(names), elements=elements)
    space = {"cuda": cuda, "unravel": unravel, "along": along, "equation": body(equation)}
    space["__name__"] = equation.__module__
    exec(compile(text, f"<elementwise {name}>", "exec"), space)
    return cuda_kernel(space[f"{name}_cuda"])


def launch_on(kernel, arrays, numbers, out):
    """Launch an elementwise kernel on device arrays that broadcast to the shape of `out`, which is C-contiguous."""
    sizes, are_broadcast = merged_axes([array.shape for array in arrays], out.shape)
    shapes = [
        [1 if is_broadcast else size for size, is_broadcast in zip(sizes, of_array, strict=True)]
        for of_array in are_broadcast
    ]
    operands = [as_operand(array).reshape(tuple(shape)) for array, shape in zip(arrays, shapes, strict=True)]
    _launch(kernel, operands, numbers, out.reshape(tuple(sizes)))


def merged_axes(shapes, shape):
    """Merge axes of the result `shape`; return their sizes, and for each operand whether each axis is broadcast.

    Neighbouring axes become one if the same operands are broadcast along them.  At least three axes are returned.

    Examples
    --------
    >>> merged_axes([(4, 3, 2), (2,)], (4, 3, 2))
    ([1, 12, 2], [(False, False, False), (False, True, False)])
    """
    sizes, patterns = [], []
    for axis in range(-len(shape), 0):
        if shape[axis] == 1:
            continue
        pattern = tuple([axis < -len(given) or given[axis] != shape[axis] for given in shapes])
        if patterns and patterns[-1] == pattern:
            sizes[-1] *= shape[axis]
        else:
            sizes.append(shape[axis])
            patterns.append(pattern)
    missing = max(0, _AXES - len(sizes))
    patterns = [(False,) * len(shapes)] * missing + patterns
    return [1] * missing + sizes, list(zip(*patterns, strict=True))


def _launch(kernel, operands, numbers, out):
    if out.ndim > _AXES:  # rare: an operand is broadcast along some axes, but not along an axis between them
        for place in range(out.shape[0]):
            parts = [operand[place if operand.shape[0] > 1 else 0] for operand in operands]
            _launch(kernel, parts, numbers, out[place])
        return
    launch_beside(kernel, out.size, *operands, *numbers, out)
