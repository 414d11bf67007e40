"""Arrays without numbers, with which the library's code makes a dry run: kernels do not run, but are noted.

Take `y = empty((3,), x); scale_cpu(x, 2.0, y)`.  If `x` is an array, the kernel runs.  If `x` is a `Placeholder`, so is
`y`, and the `DryRun` of both notes a call of `scale_cpu` with their addresses and shapes.  Nobody can read a number of
a `Placeholder`: each attempt of Python or NumPy raises `Unbound`, which names the attempt.  Arithmetic of NumPy whose
bits are fixed by IEEE 754 is noted as a kernel.  So the notes of a dry run depend on shapes alone, and hold for other
numbers in arrays of the same shapes.  A dry run writes no memory.
"""

import functools
import weakref
from typing import Any

import numpy as np

# Functions of NumPy that return views of their first argument.
_VIEWS = frozenset([np.flip, np.swapaxes, np.moveaxis, np.transpose, np.expand_dims, np.squeeze, np.broadcast_to])
# {function of NumPy: function of its operands that notes a kernel of the same bits}; `kernels.elementwise` fills it.
SAME_BITS: dict = {}
_AXES = 4  # axes of the arrays that the kernels for copies and numbers take
_constants: weakref.WeakValueDictionary = weakref.WeakValueDictionary()  # one array for each dtype, shape and content
_MOST_COPIES = 64  # kernels that one copy along more axes may take


class Unbound(BaseException):
    """Raised by a dry run that meets work which no record can do, such as reading a number of an array.

    It is no `Exception`, so that no code takes another way because of it.
    """


class Slot:
    """A piece of memory of a dry run.

    Attributes
    ----------
    form : array
        Its first form.  If `is_outside`, this is an array that exists already, such as a parameter; otherwise only its
        address and its size count, as addresses of views are relative to it.
    is_outside : bool
    is_constant : bool
        Whether it exists already, and its numbers never change.
    address : int
        The address of `form`.
    """

    __slots__ = ("address", "form", "is_constant", "is_outside")

    def __init__(self, form, is_outside, is_constant=False):
        self.form, self.is_outside, self.is_constant = form, is_outside, is_constant
        self.address = form.__array_interface__["data"][0]


def constant_of(array):
    """Return the array with the numbers of a Placeholder or an array if they never change, otherwise None."""
    if type(array) is not Placeholder:
        return array
    return array.form if array.slot.is_constant else None


def has_placeholder(value):
    """Return whether a value is a Placeholder, or a tuple that has one at any depth."""
    return type(value) is Placeholder or (isinstance(value, tuple) and any(map(has_placeholder, value)))


def follow(kernel, arguments):
    """Note the call of a kernel in the DryRun of its arguments."""
    _dry_run_of(arguments).call(kernel, arguments)


def first_of(found, expected):
    """Return the first number of an array that a check wrote.

    A run that follows a dry run stops at this point, unless the number is the expected one, which is returned.
    """
    if type(found) is not Placeholder:
        return int(found[0])
    found.dry_run.expect(found, expected)
    return expected


def _dry_run_of(arguments):
    for argument in arguments:
        if type(argument) is Placeholder:
            return argument.dry_run
        if isinstance(argument, tuple) and has_placeholder(argument):
            return _dry_run_of(argument)
    raise AssertionError("no argument is a placeholder")


def _refused(name):
    def refuse(self, *arguments, **named):
        self.dry_run.refuse(f"NumPy or Python computes between kernels: {name}")

    return refuse


class Placeholder:
    """An array without numbers; it has the class of NumPy's arrays for `isinstance`, a shape, and views.

    Attributes
    ----------
    form : array
        An array of the same data type, shape, strides and flags.  Its numbers mean nothing.
    dry_run : DryRun of `runtime.dry_run`
    slot : Slot
    base : Placeholder or None
        The Placeholder that owns the memory, as `base` of NumPy's arrays.
    """

    __slots__ = ("__weakref__", "base", "dry_run", "form", "slot")

    def __init__(self, dry_run, slot, form, base):
        self.dry_run, self.slot, self.form, self.base = dry_run, slot, form, base

    # Code that asks `isinstance(x, np.ndarray)` takes the way of arrays on the host.  NumPy's own C code asks the type
    # itself, so that it cannot read the numbers.
    __class__ = property(lambda self: np.ndarray)
    shape = property(lambda self: self.form.shape)
    strides = property(lambda self: self.form.strides)
    dtype = property(lambda self: self.form.dtype)
    ndim = property(lambda self: self.form.ndim)
    size = property(lambda self: self.form.size)
    nbytes = property(lambda self: self.form.nbytes)
    itemsize = property(lambda self: self.form.itemsize)
    flags = property(lambda self: self.form.flags)
    T = property(lambda self: self._view(self.form.T))

    def _view(self, form):
        return Placeholder(self.dry_run, self.slot, form, self if self.base is None else self.base)

    def constant(self, array):
        """Return a Placeholder in the same dry run with the numbers that an ordinary array has now."""
        key = array.dtype, array.shape, array.tobytes()
        found = _constants.setdefault(key, np.array(array, order="C"))
        self.dry_run.constants.append((found, key[2]))
        return self.dry_run.around(found)

    def __len__(self):
        return len(self.form)

    def __iter__(self):
        return (self[number] for number in range(len(self.form)))

    def __getitem__(self, key):
        first = key[0] if isinstance(key, tuple) and key[1:] in ((), (Ellipsis,)) else key
        if isinstance(first, np.ndarray) and first.ndim and first.dtype.kind in "iu":
            return self._taken(first)
        return self._view(self.form[self._checked(key)])

    def _taken(self, index):
        """Return the rows at integers, an array or a Placeholder."""
        index = (self.constant(index) if type(index) is np.ndarray else index).astype(np.int64, copy=False)
        made = self.dry_run.empty((*index.shape, *self.shape[1:]), self.dtype)
        if made.size:
            rows = [
                array.reshape(len(array), -1).view(f"u{self.itemsize}")
                for array in (self, made.reshape(index.size, -1))
            ]
            self.dry_run.take(rows[0], index.reshape(-1), rows[1])
        return made

    def _checked(self, key):
        """Return an index of NumPy that makes a view, also of a single number; raise if NumPy would make a copy."""
        parts = key if isinstance(key, tuple) else (key,)
        for part in parts:
            if not (part is None or part is Ellipsis or isinstance(part, (int, np.integer, slice))) or part is True:
                self.dry_run.refuse("NumPy takes elements at computed places")
        return parts if any(part is Ellipsis for part in parts) else (*parts, ...)

    def __pow__(self, exponent):
        if self.dtype.kind == "f" and type(exponent) in (int, float) and exponent in _POWERS:
            return _POWERS[exponent](self)
        self.dry_run.refuse("NumPy or Python computes between kernels: pow")

    def __setitem__(self, key, value):
        target = self[key]
        if isinstance(value, (bool, int, float, np.bool_, np.number)):
            one = np.empty(1, self.dtype)
            one[0] = value
            bits = int.from_bytes(one.tobytes(), "little")
            self.dry_run.fill(_wide(target, target.form), bits - (bits >> 63 << 64))
        else:
            target.assign(value)

    def assign(self, source):
        """Copy an array, which broadcasts, into this one, and convert its type as NumPy does."""
        source = self.constant(source) if type(source) is np.ndarray else source
        if type(source) is not Placeholder or not self.flags.writeable:
            self.dry_run.refuse(f"NumPy assigns {type(source).__name__} to an array")
        kinds = source.dtype, self.dtype
        if kinds[0].kind == "f" and kinds[1].kind in "iu":  # C leaves open which integer a large number becomes
            self.dry_run.refuse(f"NumPy converts {kinds[0]} to {kinds[1]}")
        if source.slot is self.slot or (source.slot.is_outside and self.slot.is_outside):
            places = [(_bounds(form), form.strides) for form in (source.form, self.form)]
            if places[0] != places[1] and np.may_share_memory(source.form, self.form):
                source = source.copy()  # because the kernel would read elements that it has written already
        self._copy(source, np.broadcast_to(source.form, self.shape), self.form, kinds[0] == kinds[1])

    def _copy(self, source, given, form, bits):
        if form.ndim <= _AXES or not form.size:
            if form.size:
                self.dry_run.copy(_wide(source, given, bits), _wide(self, form, bits))
            return
        if len(form) > _MOST_COPIES:
            self.dry_run.refuse("NumPy copies along many axes")
        for number in range(len(form)):
            self._copy(source, given[number], form[number], bits)

    def astype(self, dtype, copy=True):
        """Return a C-contiguous copy of another type; return the array itself if it has this type and not `copy`."""
        if not copy and self.dtype == dtype:
            return self
        made = self.dry_run.empty(self.shape, np.dtype(dtype))
        made.assign(self)
        return made

    def copy(self, order="C"):
        """Return a C-contiguous copy."""
        return self.astype(self.dtype)

    def reshape(self, *shape, order="C"):
        """Return a view of another shape, or a copy, as NumPy does."""
        form = self.form.reshape(*shape, order=order)
        if not form.size or (order == "C" and self.form.flags.c_contiguous):
            return self._view(form)
        (first, last), (begin, end) = _bounds(form), _bounds(self.slot.form)
        if begin <= first <= last <= end:
            return self._view(form)
        if order != "C":
            self.dry_run.refuse("NumPy copies an array to reshape it")
        return self.copy().reshape(form.shape)

    def transpose(self, *axes):
        """Return a view with axes in another order."""
        return self._view(self.form.transpose(*axes))

    def view(self, *kind):
        """Return a view, of another data type if one is given."""
        return self._view(self.form.view(*kind))

    def swapaxes(self, *axes):
        """Return a view with two axes exchanged."""
        return self._view(self.form.swapaxes(*axes))

    def ravel(self):
        """Return a flat view, or a copy, as NumPy does."""
        return self.reshape(-1)

    def flatten(self):
        """Return a flat copy."""
        return self.copy().reshape(-1)

    def __array_ufunc__(self, ufunc, method, *operands, out=None, **named):
        return self._computed(ufunc if method == "__call__" else None, ufunc.__name__, operands, out, named)

    def __array_function__(self, function, kinds, arguments, named):
        if function is np.concatenate and len(arguments) == 1 and set(named) <= {"axis"}:
            return self._joined(*arguments, **named)
        if function is np.stack and len(arguments) == 1 and set(named) <= {"axis"}:
            parts, axis = arguments[0], named.get("axis", 0)
            axis %= parts[0].ndim + 1
            return self._joined([part[(*(slice(None),) * axis, None)] for part in parts], axis)
        if function is np.zeros_like and not named:
            return self.dry_run.zeros(self.shape, self.dtype)
        if function in _VIEWS and type(arguments[0]) is Placeholder:
            return self._view(function(arguments[0].form, *arguments[1:], **named))
        return self._computed(function, function.__name__, arguments, None, named)

    def _joined(self, parts, axis=0):
        """Return a new array of `parts` along an axis, as `np.concatenate` does."""
        if not all(type(part) is Placeholder and part.dtype == self.dtype for part in parts):
            self.dry_run.refuse("NumPy joins arrays of several kinds")
        axis, ends = axis % parts[0].ndim, [0]
        if len({(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}) > 1:
            self.dry_run.refuse("NumPy joins arrays of several shapes")
        for part in parts:
            ends.append(ends[-1] + part.shape[axis])
        shape = list(parts[0].shape)
        shape[axis] = ends[-1]
        out, before = self.dry_run.empty(tuple(shape), self.dtype), (slice(None),) * axis
        for part, first, end in zip(parts, ends, ends[1:], strict=False):
            out[(*before, slice(first, end))] = part
        return out

    def _computed(self, function, name, operands, out, named):
        """Note the kernel with the same bits as a function of NumPy, and return its result; raise if there is none."""
        kernel = None if named else SAME_BITS.get(function)
        found = None if kernel is None else kernel(*operands)
        if found is None:
            self.dry_run.refuse(f"NumPy or Python computes between kernels: {name}")
        if out is None:
            return found
        out[0].assign(found)
        return out[0]

    def __getattr__(self, name):  # all other methods and attributes of arrays
        if name == "_numba_type_":  # Numba asks for it, and then asks `numba_internals`
            raise AttributeError(name)
        self.dry_run.refuse(f"NumPy or Python computes between kernels: {name}")

    def __repr__(self):
        return f"Placeholder({self.dtype} {list(self.shape)})"


def _set_operators():
    names = "array bool int float complex index hash contains matmul rmatmul imatmul divmod rdivmod invert pos"
    names += " delitem buffer round rpow ipow"
    for name in "floordiv mod and or xor lshift rshift".split():
        names += f" {name} r{name} i{name}"
    for name in names.split():
        setattr(Placeholder, f"__{name}__", _refused(name))
    for name in ("__array_interface__", "__array_struct__", "__dlpack__", "__cuda_array_interface__"):
        setattr(Placeholder, name, property(_refused("the address of an array")))
    for name, ufunc in _ARITHMETIC.items():
        setattr(Placeholder, f"__{name}__", functools.partialmethod(_apply, ufunc))
        setattr(Placeholder, f"__r{name}__", functools.partialmethod(_apply_reversed, ufunc))
        setattr(Placeholder, f"__i{name}__", functools.partialmethod(_apply_in_place, ufunc))
    for name, ufunc in _OTHER.items():
        setattr(Placeholder, f"__{name}__", functools.partialmethod(_apply, ufunc))


def _apply(self, ufunc, *other):
    return ufunc(self, *other)


def _apply_reversed(self, ufunc, other):
    return ufunc(other, self)


def _apply_in_place(self, ufunc, other):
    return ufunc(self, other, out=self)


_ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide}
_OTHER = {"neg": np.negative, "abs": np.absolute, "eq": np.equal, "ne": np.not_equal}
_OTHER |= {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
# Exponents at which NumPy calls another function than `pow`.
_POWERS: dict[float, Any] = {2: lambda x: x * x, 1: lambda x: x.copy(), 0.5: np.sqrt, -1: lambda x: 1 / x}
_set_operators()


def _bounds(form):
    return np.lib.array_utils.byte_bounds(form)


def _wide(array, form, bits=True):
    """Return an array with as many axes as the kernels for copies take, as unsigned integers of its size if `bits`."""
    if form.ndim > _AXES or form.dtype.kind == "c":
        array.dry_run.refuse("NumPy assigns complex numbers, or along many axes")
    form = form[(None,) * (_AXES - form.ndim)]
    return Placeholder(array.dry_run, array.slot, form.view(f"u{form.itemsize}") if bits else form, array)
