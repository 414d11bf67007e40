"""Programs as text, as a graph, on the command line; what they cost."""

import re
import subprocess
import sys

import numpy as np
import pytest

import varlen_rnn as vr
from tests import recorded
from tests.recorded import OPTIMIZERS
from tests.waiting import HANGS
from varlen_rnn.cli import main
from varlen_rnn.ops.cost import costs
from varlen_rnn.program.layout import WIDTH
from varlen_rnn.tape.operator import OPERATORS

PROGRAM, _ = recorded.train_program(OPTIMIZERS["adam"])


def test_a_listing_is_aligned_and_its_lines_are_short():
    lines = str(PROGRAM).splitlines()
    assert max(map(len, lines)) <= WIDTH + 2
    begins = {line.index("float32") for line in lines if re.fullmatch(r"  \S+ +float32 .*", line)}
    assert len(begins) == 1
    desc = PROGRAM.desc.blocks[0]
    assert all(any(line.split()[0] == var.name for line in lines) for var in desc.vars)
    text = " ".join(str(PROGRAM).split())
    for op in desc.ops:
        assert str(op) in text
    assert "dropout(x=recurrent.y; p=0.3; training=True)" in text, "with its constants"
    assert "none" not in text, "an input that is missing is left out"


def test_the_listing_of_a_small_program():
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 2], "float32", lod_level=1)
        vr.sequence_pool(x, "max") @ vr.Variable(np.ones((2, 3), np.float32), name="w", persistable=True)
    assert str(program).splitlines() == [
        "program, version 1",
        "block 0",
        "  feed                 FEED_MINIBATCH",
        "  x                    float32 [-1, 2]  lod_level 1",
        "  sequence_pool.out    float32 [-1, 2]",
        "  sequence_pool.index  int64 [-1, -1]",
        "  w                    float32 [2, 3]                persistable",
        "  matmul               float32 [-1, 3]",
        "  x = feed(feed=feed; col=0)",
        "  sequence_pool.out, sequence_pool.index",
        "      = sequence_pool(x=x; pool_type='max'; pad_value=0.0; level=-1)",
        "  matmul = matmul(x=sequence_pool.out; weight=w; transposed=False)",
    ]


def test_a_graph_has_every_operator_and_variable():
    lines = PROGRAM.to_dot().splitlines()
    assert (lines[0], lines[-1]) == ("digraph program {", "}")
    node = re.compile(r'  (\w+) \[label="((?:[^"\\]|\\.)*)", shape=(ellipse|box)(.*)\]')
    nodes = {found[1]: found for line in lines if (found := node.fullmatch(line))}
    edges = [found for line in lines if (found := re.fullmatch(r'  (\w+) -> (\w+) \[label="\w+"\]', line))]
    assert len(lines) == 2 + len(nodes) + len(edges), "nothing else"
    assert {end for edge in edges for end in edge.groups()} == nodes.keys()
    block = PROGRAM.desc.blocks[0]
    computing = [op for op in block.ops if op.type not in ("feed", "fetch")]
    assert [n[2].split("\\n")[0] for n in nodes.values() if n[3] == "box"] == [op.type for op in computing]
    shaded = {n[2].split("\\n")[0] for n in nodes.values() if "style=filled" in n[4]}
    assert shaded == {var.name for var in block.vars if var.persistable}
    assert {n[2].split("\\n")[0] for n in nodes.values() if "peripheries=2" in n[4]} == {"ids", "labels"}
    assert len(edges) == sum(len([*filter(None, op.input_names()), *op.output_names()]) for op in computing)


def test_names_are_quoted_in_a_graph():
    with vr.program_guard() as program:
        y = vr.feed_data('a "b"\\n', [2], "float32") * 2.0
        y.name = "\\"
    text = program.to_dot()
    assert 'label="a \\"b\\"\\\\n\\nfloat32 [2]"' in text
    assert 'label="\\\\\\nfloat32 [2]"' in text


def cost_of(record, op_type):
    (found,) = [cost for op, cost in costs(record) if op.type == op_type]
    return found


def layer(rows, cell="LSTM", directions=2):
    with vr.program_guard() as program:
        x = vr.feed_data("x", [rows, 3], "float32", lod_level=int(rows == -1), requires_grad=True)
        if rows != -1:
            x = vr.tape.variable.apply("take_rows", x, vr.create_lod_tensor(np.arange(rows), [[rows]]))
        y, _ = getattr(vr.nn, cell)(3, 5, bidirectional=directions == 2)(x)
        y.sum().backward()
    return program.desc


@pytest.mark.parametrize(("cell", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("directions", [1, 2])
def test_the_cost_of_a_layer(cell, gates, directions):
    desc = layer(-1, cell, directions)
    forward, backward = cost_of(desc, "recurrent"), cost_of(desc, "recurrent_grad")
    assert forward.flops == directions * 2 * gates * 5 * (3 + 5)
    assert backward.flops == directions * 2 * gates * 5 * (3 + 5 + 5 + 3)
    slots = {"LSTM": 4, "GRU": 4, "RNN": 1}[cell] * 5
    states = 2 if cell == "LSTM" else 1
    weights = gates * 5 * (3 + 5 + 1 + 1)
    rows = 3 + directions * 5 + directions * 5 * states  # x, y and the last states, of one sequence
    assert forward.bytes == 4 * (rows + directions * (weights + slots + 5 * (states - 1)))


def test_the_cost_of_products_and_the_rest():
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 3], "float64", requires_grad=True)
        w, b = (vr.Variable(np.ones(s), requires_grad=True, persistable=True) for s in ((4, 3), (4,)))
        y = vr.tape.variable.apply("matmul", x, w, b, transposed=True)
        vr.nn.functional.tanh(y).sum().backward()
    found = {}
    for op, cost in costs(program.desc):
        found.setdefault(op.type, []).append(tuple(cost))
    assert found["matmul"] == [(2 * 3 * 4 + 4, 8 * (3 + 12 + 4 + 4)), (2 * 4 * 3, 8 * (4 + 12 + 3))]
    assert found["row_product"] == [(2 * 4 * 3, 8 * (4 + 3 + 12))]
    assert found["row_sum"] == [(4, 8 * 8)]
    assert found["tanh"] == [(4, 8 * 8)]
    assert found["tanh_grad"] == [(4, 8 * 16)]
    assert found["reduce_sum"] == [(4, 8 * 5)]
    assert found["reduce_grad"] == [(0, 8 * 9)]


@pytest.mark.slow
def test_every_operator_has_a_cost():
    seen = set()
    for name, record in recorded.everything():
        for op, cost in costs(record().program.desc):
            assert cost.flops >= 0, name
            assert cost.bytes >= 0, name
            seen.add(op.type)
    of_package = {name: op for name, op in OPERATORS.items() if op.forward.__module__.startswith("varlen_rnn.")}
    ours = {name for name, op in of_package.items() if "<doctest" not in op.forward.__code__.co_filename}
    assert ours - seen <= {"feed", "fetch", "assign"}


def test_show_a_program_that_trains(tmp_path, capsys):
    PROGRAM.save(tmp_path / "p")
    assert main(["show", str(tmp_path / "p")]) == 0
    shown = capsys.readouterr().out
    assert str(PROGRAM) in shown
    assert "feeds    ids, labels\nfetches  none of its own\n" in shown
    rows = {line.split("  ")[1]: line.split()[-6:] for line in shown.splitlines() if " numbers " in line}
    trained = [value for name, value in PROGRAM.persistables.items() if f"{name}.moment1" in PROGRAM.persistables]
    size, nbytes = sum(value.data.size for value in trained), sum(value.data.nbytes for value in trained)
    assert rows["parameters"] == [f"{len(trained)}", "arrays", f"{size:,}", "numbers", f"{nbytes:,}", "bytes"]
    assert rows["states of optimizers"][0] == f"{3 * len(trained)}"
    assert rows["rates and constants"][0] == "3"  # the rate, a mask's, and what each class counts in the loss
    assert rows["total"][0] == f"{len(PROGRAM.persistables)}"
    total = [sum(column) for column in zip(*[cost for _, cost in costs(PROGRAM.desc)], strict=True)]
    assert re.search(rf"total +{total[0]:,} FLOPs +{total[1]:,} bytes\n", shown)
    assert re.search(r"recurrent +recurrent\.y +448 FLOPs", shown)


def test_show_a_model_for_inference(tmp_path, capsys):
    vr.save_inference_model(tmp_path, ["ids"], ["logits"], PROGRAM)
    for path in (tmp_path, tmp_path / "model.safetensors"):
        assert main(["show", str(path)]) == 0
        shown = capsys.readouterr().out
        assert "feeds    ids\nfetches  logits\n" in shown
        assert re.search(r"parameters and constants +20 arrays", shown)


def test_show_a_program_of_nothing(tmp_path, capsys):
    vr.Program().save(tmp_path / "p")
    assert main(["show", str(tmp_path / "p")]) == 0
    assert re.search(r"total +0 FLOPs +0 bytes", capsys.readouterr().out)


def test_nobody_reads_on(tmp_path):
    """As in `varlen-rnn show F | head`: what is not read is no error."""
    PROGRAM.save(tmp_path / "p")
    for lines in (0, 1):
        command = [sys.executable, "-m", "varlen_rnn", "show", str(tmp_path / "p")]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(lines):
            assert writer.stdout.readline()
        writer.stdout.close()
        assert (writer.stderr.read(), writer.wait(timeout=HANGS)) == ("", 0)
        writer.stderr.close()


def test_show_says_what_a_checkpoint_is(tmp_path, capsys):
    vr.save(tmp_path / "c", model={"w": np.ones((2, 3)), "b": np.ones(1)}, epoch=3, empty={})
    assert main(["show", str(tmp_path / "c")]) == 0
    shown = capsys.readouterr().out
    assert "a checkpoint of varlen_rnn.save: arrays by name, and no program" in shown
    assert "  'model': 2 arrays, 7 numbers, 56 bytes\n  'epoch': 3\n" in shown


def test_show_what_is_neither(tmp_path, capsys):
    (tmp_path / "text").write_text("ids,labels\n")
    for path, message in ((tmp_path / "text", "a whole safetensors file"), (tmp_path / "nothing", "No such file")):
        assert main(["show", str(path)]) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.out == ""
