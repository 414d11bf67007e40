"""Instructions of a GPU for which numba-cuda has no function.

Only kernels call these functions.  This module imports `numba.cuda`, so it is imported only where such a kernel is
made.

Source: NVIDIA's PTX ISA, sections `mma`, `cvt`, `ld` and `red`.
"""

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils as numba_cgutils  # type: ignore[attr-defined]
from numba.cuda import types as numba_types
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature

types: Any = numba_types  # Any, because type checkers may see Numba's own numba.cuda, which lacks some names
cgutils: Any = numba_cgutils
_FLOAT, _INT = ir.FloatType(), ir.IntType(32)


def _assembly(builder, result, kinds, text, constraints, arguments, effect=True):
    function = ir.InlineAsm(ir.FunctionType(result, kinds), text, constraints, side_effect=effect)
    return builder.call(function, arguments)


def _pointer(context, builder, kind, array, index):
    """Return a pointer to an element of an array of one axis."""
    return builder.gep(context.make_array(kind)(context, builder, value=array).data, [index])


def _items(builder, count, item):
    return cgutils.pack_array(builder, [item(number) for number in range(count)])


@intrinsic
def to_tf32(typing, x):
    """Return a float32 rounded to the nearest tf32 number, as 32 bits."""

    def write(context, builder, signature, arguments):
        return _assembly(builder, _INT, [_FLOAT], "cvt.rna.tf32.f32 $0, $1;", "=r,f", arguments, effect=False)

    return signature(types.int32, types.float32), write


@intrinsic
def load_four(typing, array, index):
    """Return elements `index` to `index + 3` of an array; the address of the first must be a multiple of 16 bytes."""

    def write(context, builder, signature, arguments):
        pointer = _pointer(context, builder, signature.args[0], *arguments)
        of_four = ir.VectorType(pointer.type.pointee, 4).as_pointer(pointer.type.addrspace)
        loaded = builder.load(builder.bitcast(pointer, of_four), align=16)
        return _items(builder, 4, lambda number: builder.extract_element(loaded, _INT(number)))

    return signature(types.UniTuple(array.dtype, 4), array, index), write


@intrinsic
def multiply_tf32(typing, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
    """Return this thread's elements of `a b + c`, which a warp computes: `a` 16 x 8 and `b` 8 x 8 of tf32, `c` float32.

    Thread `4 r + q` passes `a[r, q]`, `a[r + 8, q]`, `a[r, q + 4]`, `a[r + 8, q + 4]`, `b[q, r]`, `b[q + 4, r]`, `c[r,
    2 q]`, `c[r, 2 q + 1]`, `c[r + 8, 2 q]` and `c[r + 8, 2 q + 1]`.  It gets the elements of the result at the four
    places where its elements of `c` were.
    """

    def write(context, builder, signature, arguments):
        result, kinds = ir.LiteralStructType([_FLOAT] * 4), [_INT] * 6 + [_FLOAT] * 4
        text = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        text += "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
        constraints = ",".join(["=f"] * 4 + ["r"] * 6 + ["f"] * 4)
        found = _assembly(builder, result, kinds, text, constraints, arguments, effect=False)
        return _items(builder, 4, lambda number: builder.extract_value(found, number))

    return signature(types.UniTuple(types.float32, 4), *[types.int32] * 6, *[types.float32] * 4), write


@intrinsic
def load_acquire(typing, array, index):
    """Return an element of an int32 array in global memory.

    If another thread's `add_release` made the value, later reads see all writes of that thread before the call.
    """

    def write(context, builder, signature, arguments):
        pointer = _pointer(context, builder, signature.args[0], *arguments)
        text = "ld.acquire.gpu.global.u32 $0, [$1];"
        return _assembly(builder, _INT, [pointer.type], text, "=r,l,~{memory}", [pointer])

    return signature(types.int32, array, index), write


@intrinsic
def add_release(typing, array, index, number):
    """Add to an element of an int32 array in global memory.

    A thread that then reads the element by `load_acquire` sees all earlier writes of this thread.
    """

    def write(context, builder, signature, arguments):
        pointer = _pointer(context, builder, signature.args[0], *arguments[:2])
        text = "red.release.gpu.global.add.u32 [$0], $1;"
        _assembly(builder, ir.VoidType(), [pointer.type, _INT], text, "l,r,~{memory}", [pointer, arguments[2]])
        return context.get_dummy_value()

    return signature(types.none, array, index, types.int32), write
