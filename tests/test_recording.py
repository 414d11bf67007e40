"""What a recorded program says: kinds, shapes, names, nested blocks; and what it refuses, at the line that is wrong."""

import dataclasses
import threading

import numpy as np
import pytest

import varlen_rnn as vr
from tests.in_threads import at_once
from tests.waiting import HANGS
from varlen_rnn import LoDTensorDesc, TensorDesc, VarDesc, VarType
from varlen_rnn.nn import functional as F
from varlen_rnn.program.recorder import Recorder


def rows(name="x", width=3, level=1, dtype="float32"):
    return vr.feed_data(name, shape=[-1, width], dtype=dtype, lod_level=level)


def ops(program):
    return [op.type for op in program.desc.blocks[0].ops]


def test_the_messages_of_the_design_documents():
    image = TensorDesc(VarType.FP32, (-1, 640, 480))
    video = VarDesc("video", VarType(VarType.LOD_TENSOR, lod_tensor=LoDTensorDesc(image, lod_level=1)))
    table = VarDesc("table@GRAD", VarType(VarType.SELECTED_ROWS, selected_rows=TensorDesc(VarType.FP32, (100, 2))))
    assert (video.persistable, table.type.selected_rows.dims) == (False, (100, 2))
    assert video == VarDesc("video", VarType(VarType.LOD_TENSOR, lod_tensor=LoDTensorDesc(image, 1)), False)
    assert video != table
    with pytest.raises(AttributeError):
        video.name = "another"
    seed = """BOOL INT16 INT32 INT64 FP16 FP32 FP64 LOD_TENSOR SELECTED_ROWS FEED_MINIBATCH FETCH_LIST STEP_SCOPES
              LOD_RANK_TABLE LOD_TENSOR_ARRAY PLACE_LIST READER CHANNEL"""
    assert [VarType.Type(number).name for number in range(17)] == seed.split()
    assert VarType.CHANNEL is VarType.Type.CHANNEL
    with vr.program_guard() as program:
        vr.feed_data("video", shape=[-1, 640, 480], dtype="float32", lod_level=1)
    assert program.desc.blocks[0].var("video") == video


def test_the_gradient_of_an_embedding_is_selected_rows_and_one_operator_updates_either():
    def kinds(sparse):
        with vr.program_guard() as program:
            table = vr.nn.Embedding(10, 4, sparse=sparse)
            vr.optim.SGD(table.parameters(), lr=0.1).minimize(table(vr.feed_data("ids", [-1], "int64", 1)).sum())
        return program.desc.blocks[0].var("weight@GRAD").type, ops(program)

    (sparse, with_sparse), (dense, with_dense) = kinds(True), kinds(False)
    assert sparse == VarType(VarType.SELECTED_ROWS, selected_rows=TensorDesc(VarType.FP32, (10, 4)))
    assert dense.type == VarType.LOD_TENSOR
    assert with_sparse == with_dense
    assert with_dense[-1] == "sgd"


def test_a_sum_of_sparse_gradients_is_sparse_and_with_a_dense_one_dense():
    for tied, kind in ((False, VarType.SELECTED_ROWS), (True, VarType.LOD_TENSOR)):
        with vr.program_guard() as program:
            table = vr.nn.Embedding(10, 4)
            ids = vr.feed_data("ids", [-1], "int64", 1)
            loss = (table(ids) * table(ids)).sum()
            loss = loss + table.weight.sum() if tied else loss
            loss.backward()
        assert program.desc.blocks[0].var("weight@GRAD").type.type == kind


def test_the_recurrent_operator_gives_its_plan_to_its_gradient():
    with vr.program_guard() as program:
        y, _ = vr.nn.GRU(3, 4)(rows())
        y.sum().backward()
    forward, backward = (next(op for op in program.desc.blocks[0].ops if op.type == t) for t in
                         ("recurrent", "recurrent_grad"))  # fmt: skip
    (plan,) = [slot.arguments for slot in forward.outputs if slot.parameter == "sorted_seqs"]
    assert plan in [slot.arguments for slot in backward.inputs]
    assert program.desc.blocks[0].var(*plan).type == VarType(VarType.LOD_RANK_TABLE)
    assert forward.attr("cell") == "gru"


def test_a_step_of_the_users_own_is_a_nested_block():
    with vr.program_guard() as program:
        linear = vr.nn.Linear(3, 3)
        state = vr.feed_data("state", [-1, 3], "float32")
        y, _ = vr.nn.DynamicRNN(lambda x, h: (h, F.tanh(linear(x) + h)))(rows(), [state])
        y.sum().backward()
    root, step, gradient = program.desc.blocks
    assert (step.parent_idx, gradient.parent_idx, gradient.forward_block_idx) == (0, 0, 1)
    assert [op.type for op in step.ops] == ["matmul", "add", "tanh"]
    forward = next(op for op in root.ops if op.type == "dynamic_rnn")
    assert [attr.value for attr in forward.attrs if attr.is_block] == [1]
    assert {"weight", "bias"} < set(forward.input_names()), "what the step reads from outside is an input"
    assert not {var.name for var in root.vars} & {var.name for var in step.vars}


def test_names():
    with vr.program_guard() as program:
        x, net = rows(), vr.nn.Sequential(vr.nn.Linear(3, 4), vr.nn.Linear(4, 2))
        y = net(x)
        y.name = "logits"
        y.sum().backward()
        with pytest.raises(vr.ProgramError, match="name 'x': expected a new name"):
            y.name = "x"
        for name in ("", " a", "a\n", 3):
            with pytest.raises(vr.ProgramError, match="expected a printable name"):
                y.name = name
    names = {var.name for var in program.desc.blocks[0].vars}
    assert {"0.weight", "1.bias", "logits", "logits@GRAD", "0.weight@GRAD", "1.bias@GRAD"} <= names
    assert "x@GRAD" not in names
    assert set(program.persistables) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_constants():
    with vr.program_guard() as program:
        array = np.ones((3, 2), np.float32)
        y = rows() @ array * 3.0
        array[:] = 7
    assert ops(program) == ["feed", "matmul", "fill_constant", "mul"]
    feed = {"x": vr.create_lod_tensor(np.ones((1, 3), np.float32), [[1]])}
    np.testing.assert_array_equal(vr.Executor().run(program, feed, [y])[0], [[9, 9]])


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (lambda x: x @ np.ones((4, 2), np.float32), r"matmul, x: expected 4 features.*x is 'x', weight is 'constant'"),
        (lambda x: x + rows("y", 5), r"add: expected shapes that broadcast, got .*; x is 'x', y is 'y'"),
        (lambda x: x + rows("y", 3, dtype="float64"), "add, y: expected float32, as x has, got float64.*y is 'y'"),
        (lambda x: x.sum(axis=2), r"reduce, axis: .* x is 'x'"),
        (lambda x: vr.nn.LSTM(4, 5)(x), r"LSTM, x: expected \(rows, 4\) float32, got \(-1, 3\) .*variable 'x'"),
        (lambda x: vr.sequence_pool(rows("y", level=0), "sum"), "sequence_pool, x: expected at least one level"),
        (lambda x: vr.nn.Embedding(3, 2)(x), "embedding, ids: expected integers, got float32.* ids is 'x'"),
        (lambda x: x[:, np.array([0, 1])], "getitem"),
        (lambda x: x.item(), "variable 'x': expected a value, got a variable of a program .Executor"),
        (lambda x: np.asarray(x), "variable 'x': expected a value"),
        (lambda x: x / x.shape[0], "a size of a program's variable: expected a number to compute with.*mean"),
        (lambda x: x.shape[0] * 2, "a size of a program's variable: expected a number to compute with"),
        (lambda x: x.reshape(6, 3), "reshape: expected -1 first, for rows with a LoD"),
        (lambda x: vr.nn.GRU(3, 4)(x, vr.feed_data("h", [-1, -1, 4], "float32")), r"GRU, h_0: expected \(1, any, 4\)"),
        (lambda x: vr.Variable(np.ones((2, 2)).T, persistable=True) * 1.0, "expected an array that can be updated"),
        (lambda x: x + vr.create_lod_tensor(np.ones((2, 3), np.float32), [[2]]), "expected an array without LoD"),
        (lambda x: x + vr.Variable(np.ones(3, np.float32), True) * 2.0 @ 3, "matmul"),
        (lambda x: vr.feed_data("x", [-1], "float32"), "name 'x': expected a new name"),
        (lambda x: vr.feed_data("y", [3], "float32", lod_level=1), "data, shape: expected -1 as the first"),
        (lambda x: vr.feed_data("y", [-2], "float32"), "data, shape: expected at least -1"),
        (lambda x: vr.feed_data("y", [1], "complex64"), "expected one of"),
        (lambda x: vr.feed_data("y", [1], "nonsense"), "data, dtype: expected a data type"),
        (lambda x: vr.program_guard().__enter__(), "program_guard: expected no program_guard around it"),
        (lambda x: x.backward(), "backward: expected a variable computed from leaves"),
    ],
)
def test_a_mistake_is_an_error_at_its_line(code, error):
    with vr.program_guard() as program:
        x = rows()
        before = ops(program)
        with pytest.raises(vr.InputError, match=error):
            code(x)
        assert set(ops(program)) <= {*before, "feed", "mul", "fill_constant"}, "nothing of it is recorded"


def test_variables_stay_in_their_program():
    outside = vr.Variable(np.ones(3, np.float32), requires_grad=True) * 2.0
    with vr.program_guard():
        x = rows()
        with pytest.raises(vr.ProgramError, match="computed outside of the program"):
            x + outside
    with pytest.raises(vr.ProgramError, match="variable 'x'"):
        x + 1.0
    with vr.program_guard(), pytest.raises(vr.ProgramError, match="variable 'x': expected a variable of this program"):
        x + 1.0
    with pytest.raises(vr.ProgramError, match="data: expected a program that is being recorded"):
        vr.feed_data("y", [1], "float32")


def test_a_guard_can_go_on_with_its_program_and_gradients_leave_the_parameters_alone():
    layer = vr.nn.Linear(3, 1)
    with vr.program_guard() as program:
        loss = layer(rows()).sum()
    with vr.program_guard(program):
        loss.backward()
    assert layer.weight.grad is None
    assert program.desc.blocks[0].var("weight@GRAD")


def test_two_threads_record_two_programs():
    programs, together = {}, threading.Barrier(2)

    def record(name):
        with vr.program_guard() as program:
            x = rows(name)
            together.wait(HANGS)
            for _ in range(50):
                x = x + 1.0
            programs[name] = program

    at_once(record, [(name,) for name in ("a", "b")])
    assert [len(ops(programs[name])) for name in ("a", "b")] == [101, 101]
    assert [programs[name].feed_names for name in ("a", "b")] == [["a"], ["b"]]


def test_names_are_counted_in_constant_time():
    recorder = Recorder()
    assert [recorder.fresh("a"), recorder.fresh("a"), recorder.fresh("b")] == ["a", "a_1", "b"]


def test_a_step_that_fails_leaves_nothing_behind():
    with vr.program_guard() as program:
        x, state = rows(), vr.feed_data("state", [-1, 3], "float32")
        before = program.desc
        for cell in (lambda row, h: (row.sum(axis=7), h), lambda row, h: (row, h @ np.ones((3, 2), np.float32))):
            with pytest.raises(vr.InputError):
                vr.nn.DynamicRNN(cell)(x, [state])
        assert [len(block.ops) for block in program.desc.blocks] == [len(before.blocks[0].ops)]
        vr.nn.DynamicRNN(lambda row, h: (row, h))(x, [state])
    assert vr.Program(program.desc, program.persistables).desc == program.desc


def test_a_loss_of_a_program_outside_of_it():
    with vr.program_guard():
        layer = vr.nn.Linear(3, 1)
        loss = layer(rows()).sum()
    with pytest.raises(vr.ProgramError, match=r"call it under vr\.program_guard"):
        vr.optim.SGD(layer.parameters(), lr=0.1).minimize(loss)


def test_unknown_sizes_pass_through_reshape():
    with vr.program_guard() as program:
        x = rows()
        y = x.reshape(x.shape[0], 3, 1)
    assert y.shape == (-1, 3, 1)
    assert y.value.spec.lod_level == 1
    assert ops(program)[-1] == "reshape"


def test_a_block_cannot_stand_inside_itself():
    with vr.program_guard() as program:
        x, state = rows(), vr.feed_data("state", [-1, 3], "float32")
        vr.nn.DynamicRNN(lambda row, h: (row, vr.nn.DynamicRNN(lambda r, s: (r, s * r))(x, [h])[1] * 0.0 + h))(
            x, [state]
        )
    root, outer, inner = program.desc.blocks
    (nested,) = [op for op in outer.ops if op.type == "dynamic_rnn"]
    attrs = tuple(dataclasses.replace(attr, value=1) if attr.is_block else attr for attr in nested.attrs)
    ops = tuple(dataclasses.replace(op, attrs=attrs) if op is nested else op for op in outer.ops)
    for forward in (-1, 0):
        looped = dataclasses.replace(outer, ops=ops, forward_block_idx=forward)
        with pytest.raises(vr.ProgramError, match="block"):
            vr.Program(vr.ProgramDesc((root, looped, inner)))


@pytest.mark.parametrize(
    "code",
    [
        lambda weight: weight[np.array([True, False])],
        lambda weight: vr.nn.Embedding(4, 2)(np.array([1, 2], np.uint32)),
        lambda weight: list(rows()[:, 0]),
        lambda weight: [row for row in rows()],
        lambda weight: iter(weight.sum()),
    ],
)
def test_what_no_description_can_hold_is_an_error_at_its_line(code):
    with vr.program_guard() as program:
        with pytest.raises(vr.InputError):
            code(vr.nn.Parameter(np.ones((3, 2), np.float32)))
        assert program.desc


def test_a_variable_may_be_called_as_a_list_of_edges_is():
    with vr.program_guard() as program:
        y = rows(level=0) * 2.0
        y.name = "fetch"
    pruned = program.prune([y])
    np.testing.assert_array_equal(vr.Executor().run(pruned, {"x": np.ones((1, 3), np.float32)})[0], [[2, 2, 2]])


def test_outputs_whose_name_is_taken_are_not_declared_by_halves():
    with vr.program_guard():
        x = vr.feed_data("x", [-1, 3], "float32", lod_level=1)
        vr.feed_data("recurrent.h_n", [-1], "float32")
        layer = vr.nn.GRU(3, 2)
        with pytest.raises(vr.ProgramError, match=r"recurrent\.h_n"):
            layer(x)
        vr.feed_data("recurrent.y", [-1], "float32")  # still free
        assert layer(x)[0].name == "recurrent_1.y"
