"""The sum of gradients, dense or sparse (SelectedRows).  Only this file adds sparse and dense gradients together."""

from varlen_rnn.errors import DTypeError
from varlen_rnn.kernels.arithmetic import add
from varlen_rnn.ops.cost import size
from varlen_rnn.ops.examples import rows
from varlen_rnn.rows.lod import NO_LOD, LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows, append
from varlen_rnn.tape.checks import check_shape
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import LOD_TENSOR, SELECTED_ROWS


def sum_values(values):
    """Add gradients in the order given, dense ones first; the sum is sparse if all gradients are sparse."""
    dense = [value for value in values if isinstance(value, LoDTensor)]
    sparse = [value for value in values if isinstance(value, SelectedRows)]
    if not dense:
        return sparse[0] if len(sparse) == 1 else append(sparse)
    data = dense[0].data
    for value in dense[1:]:
        data = add(data, value.data)
    for value in sparse:
        data = value + data
    lods = [value.structure for value in dense if value.num_levels]
    return LoDTensor.wrap(data, lods[0] if lods else NO_LOD)


def _additions(inputs, outputs):
    """1 operation per element for each input except the first."""
    return (len(inputs) - 1) * size(outputs[0])


@operator(name="sum", cost=_additions, rows="each", linear=("x",))
def _sum(*x):
    """Add gradients in the order given, dense ones first; the sum is sparse if all gradients are sparse."""
    return sum_values(x)


@_sum.infer
def _infer(*descs):
    for number, desc in enumerate(descs):
        if desc.kind not in (LOD_TENSOR, SELECTED_ROWS):
            raise DTypeError(f"sum, x[{number}]", expected="rows or SelectedRows", got=desc.kind.name)
        if desc.dtype != descs[0].dtype:
            raise DTypeError(f"sum, x[{number}]", expected=f"{descs[0].dtype}, as x[0] has", got=desc.dtype)
        check_shape("sum", f"x[{number}]", desc, descs[0].shape)
    dense = [desc for desc in descs if desc.kind == LOD_TENSOR]
    shape = tuple(max(sizes) for sizes in zip(*(desc.shape for desc in descs), strict=True))  # a known size replaces -1
    if not dense:
        return descs[0]._replace(shape=shape)
    return dense[0]._replace(shape=shape, lod_level=max(desc.lod_level for desc in dense))


@_sum.examples
def _examples(rng):
    sparse = SelectedRows([4, 1, 4], rng.standard_normal((3, 2)), 6)
    yield [rows(rng, 2), rng.standard_normal((6, 2)), rows(rng, 2)], {}
    yield [sparse, rows(rng, 2), sparse], {}
    yield [sparse, sparse], {}
