"""Calls of compiled kernels as records, which one small compiled loop runs without Python and without the GIL.

A record is the address of a trampoline and a block of words, int64 numbers: the address of the kernel's code, then its
arguments as Numba passes them.  Take `scale(x, 2.0, out)` with 3 numbers of float64.  Its words are the address of
`scale`, then 0, 0, 3, 8, the address of `x`, 3, 8 for `x`, the bits of 2.0, and 7 words for `out`.  A trampoline loads
such words and calls the kernel.  Kernels share it if their arguments have the same types, so programs of any operators
need a few trampolines, which the disk cache keeps.

`dry_run` makes records.  The last five kernels stand for assignments of NumPy, and for checks.
"""

import functools

from numba import types
from numba.extending import intrinsic

from varlen_rnn.runtime.jit import address_of_function, cpu_kernel
from varlen_rnn.runtime.numba_internals import write_call_for_number, write_call_of_words

_WORDS = types.CPointer(types.int64)


@functools.cache
def trampoline(letters):
    """Return the address of code that calls a kernel with words, and returns 1 if the kernel raised, otherwise 0.

    `letters` has the type of each argument's words, as `letters_of` returns it.
    """

    @intrinsic
    def call(typing, words):
        def write(context, builder, signature, arguments):
            return write_call_of_words(context, builder, arguments[0], letters)

        return types.int64(words), write

    def record(words):
        return call(words)  # type: ignore[call-arg]  # Numba passes the context

    # The cache on disk, and Numba's names of symbols, tell functions apart by this name.
    record.__qualname__ = f"record_{letters}"
    return address_of_function(record, (_WORDS,))


@intrinsic
def words_at(typing, address):
    """Return a pointer to the words at an address."""

    def write(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(_WORDS))

    return _WORDS(types.int64), write


@intrinsic
def call_record(typing, address, words):
    """Call the trampoline at an address with the words at another address."""

    def write(context, builder, signature, arguments):
        at = builder.inttoptr(arguments[1], context.get_value_type(_WORDS))
        return write_call_for_number(context, builder, arguments[0], _WORDS, at)

    return types.int64(types.int64, types.int64), write


@cpu_kernel
def run_records(trampolines, words):
    """Run records one after another; return the number of the first whose kernel raised, or -1 if none did.

    `trampolines[k]` and `words[k]` are the addresses of a record's trampoline and of its words.
    """
    for k in range(trampolines.shape[0]):
        if call_record(trampolines[k], words[k]):  # type: ignore[call-arg]
            return k
    return -1


@cpu_kernel
def set_words(words, varying, bases, coefficients, counts, lent, places, which, header):
    """Set the words that differ between runs: integers that follow from counts, and addresses in lent arrays.

    The words at the positions `varying` become `bases + coefficients @ counts`.  Then the address of array `which[k]`
    is added to the word at `places[k]`.  `lent` has the addresses of arrays, or of their objects if `header` is not -1;
    then word `header` of an object is the array's address.
    """
    for k in range(varying.shape[0]):
        number = bases[k]
        for j in range(counts.shape[0]):
            number += coefficients[k, j] * counts[j]
        words[varying[k]] = number
    for k in range(places.shape[0]):
        number = lent[which[k]]
        if header >= 0:
            number = words_at(number)[header]  # type: ignore[call-arg]  # Numba passes the context
        words[places[k]] += number


@cpu_kernel
def clear(out):
    """Set bytes to zero."""
    for k in range(out.shape[0]):
        out[k] = 0


@cpu_kernel
def fill(number, out):
    """Set all elements of an array of four axes to a number."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            for k in range(out.shape[2]):
                for m in range(out.shape[3]):
                    out[i, j, k, m] = number


@cpu_kernel
def copy(x, out):
    """Copy an array of four axes."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            for k in range(out.shape[2]):
                for m in range(out.shape[3]):
                    out[i, j, k, m] = x[i, j, k, m]


@cpu_kernel
def take(x, index, out):
    """`out[k] = x[index[k]]` for arrays of two axes; negative integers count from the end.  Raise if one is no row."""
    for k in range(out.shape[0]):
        row = index[k] + (x.shape[0] if index[k] < 0 else 0)
        if row < 0 or row >= x.shape[0]:
            raise IndexError("an index is outside of its axis")
        for j in range(out.shape[1]):
            out[k, j] = x[row, j]


@cpu_kernel
def expect(number, found):
    """Raise unless the first of the numbers that a check found is `number`."""
    if found[0] != number:
        raise ValueError("a check failed")


EXPECT = expect.py_func.__name__  # the kernel's name in records
