"""An operator that multiplies keeps its precision: on the tape, in a program, in its file, and in a step."""

import threading

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.program.format import schema

pytestmark = pytest.mark.usefixtures("fp32_again")

X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def leaf():
    return vr.Variable(X, requires_grad=True)


def test_a_gradient_runs_at_the_precision_of_its_forward_pass(asking):
    for inside, outside in [("bf16", "fp32"), ("fp32", "bf16"), ("bf16-avx512", "bf16")]:
        vr.set_float32_matmul_precision(outside)
        with vr.float32_matmul_precision(inside):
            loss = asking(leaf()).sum()
        loss.backward()
        assert asking.noted == [inside, inside]
        assert vr.get_float32_matmul_precision() == outside
        asking.noted.clear()


def test_a_gradient_in_another_thread_runs_at_the_precision_of_its_forward_pass(asking):
    with vr.float32_matmul_precision("bf16"):
        loss = asking(leaf()).sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert asking.noted == ["bf16", "bf16"]


def test_an_operator_that_raises_restores_the_precision(asking, monkeypatch):
    op = asking.op
    with vr.float32_matmul_precision("bf16"):
        asking(X)
        vr.set_float32_matmul_precision("tf32")
        monkeypatch.setattr(op, "forward", lambda x: 1 / 0)
        with pytest.raises(vr.ProgramError, match="ZeroDivisionError"):
            asking(X)
        assert vr.get_float32_matmul_precision() == "tf32"


def recorded(asking, precision):
    """Return a program of `asking` and its gradient, recorded at a precision, and what to fetch."""
    with vr.program_guard() as program:
        x = vr.feed_data("x", shape=[-1, 2], dtype="float32", requires_grad=True)
        with vr.float32_matmul_precision(precision):
            loss = (asking(x) * 3.0).sum()
        vr.backward(loss)
    return program, [loss.name, x.grad.name]


def test_a_program_stores_the_precision_with_operators_that_multiply(asking):
    for stored, at_run in [("bf16", "fp32"), ("fp32", "bf16")]:
        program, fetches = recorded(asking, stored)
        operators = program.desc.blocks[0].ops
        assert {op.precision for op in operators if op.type.startswith("asking")} == {stored}
        assert {op.precision for op in operators if not op.type.startswith("asking")} == {"fp32"}
        assert ("precision='bf16'" in str(program.desc)) == (stored == "bf16") == ("bf16" in program.to_dot())
        for one in (program, vr.Program.from_bytes(program.to_bytes())):
            vr.set_float32_matmul_precision(at_run)
            for _ in range(3):
                vr.Executor().run(one, {"x": X}, fetches)
            assert set(asking.noted) == {stored}
            asking.noted.clear()


def test_a_file_without_a_precision_is_a_program_in_float32(asking):
    program, _ = recorded(asking, "fp32")
    text = schema.to_json(program.desc)
    assert "precision" not in text
    assert {op.precision for block in schema.from_json(text).blocks for op in block.ops} == {"fp32"}


def test_a_file_with_a_wrong_precision_is_refused(asking):
    program, _ = recorded(asking, "bf16")
    text = schema.to_json(program.desc)
    for wrong in ("bf17", "", "highest"):
        desc = schema.from_json(text.replace('"bf16"', f'"{wrong}"'))
        with pytest.raises(vr.ProgramError, match=r"asking.*precision.*expected one of 'fp32'"):
            vr.Program(desc)
    desc = schema.from_json(text.replace('"type":"mul"', '"type":"mul","precision":"bf16"'))
    with pytest.raises(vr.ProgramError, match=r"mul.*precision: expected 'fp32'"):
        vr.Program(desc)


def step(x, h):
    h = vr.nn.functional.tanh(x @ WEIGHT + h @ WEIGHT)
    return h, h


WEIGHT = np.array([[0.5, 0.25], [-0.25, 1.0]], np.float32)


def test_a_step_keeps_the_precision_of_its_products():
    x = vr.create_lod_tensor(X, [[2]])
    rnn, h = vr.nn.DynamicRNN(step), np.zeros((1, 2), np.float32)
    with vr.float32_matmul_precision("bf16"):
        rnn(x, [h])
        assert rnn.explain().endswith("; products in bf16")
    rnn(x, [h])
    assert "bf16" not in rnn.explain()


def test_a_step_of_two_precisions_runs_operator_by_operator():
    def mixed(x, h):
        with vr.float32_matmul_precision("bf16"):
            given = x @ WEIGHT
        h = vr.nn.functional.tanh(given + h @ WEIGHT)
        return h, h

    rnn = vr.nn.DynamicRNN(mixed)
    rnn(vr.create_lod_tensor(X, [[2]]), [np.zeros((1, 2), np.float32)])
    assert rnn.explain().startswith("runs operator by operator: its products have different precisions: bf16, fp32")
