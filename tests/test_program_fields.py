"""Fields of a description: of the types that they have, and nobody's to change after the check."""

import copy

import numpy as np
import pytest

import varlen_rnn as vr


def var(name="x", dims=(-1, 2), levels=0):
    tensor = vr.TensorDesc(vr.VarType.FP32, dims)
    return vr.VarDesc(name, vr.VarType(vr.VarType.LOD_TENSOR, lod_tensor=vr.LoDTensorDesc(tensor, levels)))


def program(variable):
    return vr.ProgramDesc((vr.BlockDesc(vars=(variable,)),))


@pytest.mark.parametrize("size", [None, 2.5, "2", np.int64(2), 2**63, -2, 10**30, float("nan")])
def test_a_size_that_is_none_is_named_at_once(size):
    with pytest.raises(vr.ProgramError, match="dims"):
        vr.Program(program(var(dims=(-1, size))))


@pytest.mark.parametrize(
    "desc",
    [
        vr.ProgramDesc((None,)),
        vr.ProgramDesc(version=None),
        vr.ProgramDesc((vr.BlockDesc(idx="0"),)),
        vr.ProgramDesc((vr.BlockDesc(ops=("relu",)),)),
        vr.ProgramDesc((vr.BlockDesc(ops=(vr.OpDesc(None),)),)),
        vr.ProgramDesc((vr.BlockDesc(ops=(vr.OpDesc("relu", inputs=("x",)),)),)),
        program(None),
        program(vr.VarDesc("x", vr.VarType.FP32)),
        program(vr.VarDesc("x", vr.VarType(None))),
        program(vr.VarDesc("x", vr.VarType(vr.VarType.LOD_TENSOR, lod_tensor=vr.TensorDesc(vr.VarType.FP32)))),
        program(var(levels=None)),
        program(var(levels=0.5)),
    ],
)
def test_a_field_of_another_type_is_named(desc):
    with pytest.raises(vr.ProgramError, match="expected type"):
        vr.Program(desc)


@pytest.mark.parametrize(
    ("kind", "field"),
    [(vr.ProgramDesc, "blocks"), (vr.BlockDesc, "ops"), (vr.BlockDesc, "vars"), (vr.OpDesc, "inputs")],
)
def test_lists_become_tuples_and_anything_else_is_an_error(kind, field):
    first = {"type": "relu"} if kind is vr.OpDesc else {}
    given = []
    desc = kind(**first, **{field: given})
    given.append(None)
    assert getattr(desc, field) == ()
    assert copy.deepcopy(desc) == desc
    for wrong in (None, "relu", {}, 3):
        with pytest.raises(vr.DTypeError, match=f"{kind.__name__}, {field}"):
            kind(**first, **{field: wrong})


def test_sizes_may_come_as_a_list():
    assert var(dims=[-1, 2]) == var()
