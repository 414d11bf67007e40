"""What the README and the pages on programs and operators show runs, and their tables are up to date."""

import importlib
import importlib.util
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import varlen_rnn as vr
from tests import operators_page, readme_table
from varlen_rnn.tape import operator

ROOT = Path(__file__).parent.parent


def blocks_of(page):
    """Return the Python blocks of a page."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks
    return blocks


def names_after(page, blocks=None):
    """Return the names after running Python blocks of a page, by default all of them, one after another."""
    names = {}
    for block in blocks_of(page) if blocks is None else blocks:
        exec(compile(block, str(page), "exec"), names)
    return names


README = ROOT / "README.md"


def test_the_readme_begins_with_three_ways_in():
    page = README.read_text()
    ways = [page.index(block) for block in blocks_of(README)]
    assert len(ways) == 3
    assert ways[-1] < page.index(readme_table.BEGIN) < page.index("## What runs where")
    assert len(page.splitlines()) <= 130


def test_the_readme_replaces_layers_of_pytorch():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    names = names_after(README, blocks_of(README)[:1])
    assert names["output"].data.shape == (16, 128)
    assert type(names["model"]).__module__.startswith("varlen_rnn.torch")


def test_the_readme_fits_a_list_of_arrays(capsys):
    names = names_after(README, blocks_of(README)[1:2])
    assert {len(x) for x in names["X"]} == set(range(10, 60))
    assert float(capsys.readouterr().out) > 0.9


def test_the_readme_trains_on_rows():
    names = names_after(README, blocks_of(README)[2:])
    assert names["h_n"].shape == (2, 3, 16)
    assert names["lstm"].parameters()[0].grad is None  # after zero_grad


def found_public(name):
    """Return whether a name below `varlen_rnn` is public: an attribute of the package, of a module or of a class."""
    module, _, rest = name.partition(".")
    owner = vr if hasattr(vr, module) or not rest else importlib.import_module(f"varlen_rnn.{module}")
    for part in (name if owner is vr else rest).split("."):
        if not hasattr(owner, part):
            return False
        owner = getattr(owner, part)
    return not rest.startswith("_")


def test_the_names_of_the_page_on_features_are_public():
    page = (ROOT / "docs" / "features.md").read_text()
    rows = [row.rpartition(" | ")[2] for row in page.splitlines() if row.startswith("| ") and "names |" not in row]
    names = [code.partition("(")[0] for row in rows for code in re.findall(r"`([^`]+)`", row)]
    assert len(names) > 100
    if importlib.util.find_spec("torch") is None:
        names = [name for name in names if not name.startswith("torch.")]
    assert [name for name in names if not found_public(name)] == []


def test_the_measured_lines_agree_with_the_results():
    assert readme_table.PATH.read_text() == readme_table.page(), "python -m tests.readme_table writes it"


def test_the_picture_is_drawn_by_its_script():
    drawn = runpy.run_path(str(ROOT / "docs" / "img" / "ragged.py"))
    assert drawn["PATH"].read_text() == drawn["picture"](), "python docs/img/ragged.py writes it"
    assert "docs/img/ragged.svg" in (ROOT / "README.md").read_text().partition("## ")[0]


def test_state_dicts_travel_both_ways():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    page = (ROOT / "docs" / "coming_from_pytorch.md").read_text()
    to_ours, to_torch = re.findall(r"((?:torch_)?lstm\.load_state_dict\({.*}\))", page)
    options = {"num_layers": 2, "bidirectional": True}
    names = {"torch": torch, "torch_lstm": torch.nn.LSTM(3, 4, **options), "lstm": vr.nn.LSTM(3, 4, **options)}
    before = names["lstm"].state_dict()
    exec(to_torch, names)
    names["lstm"] = vr.nn.LSTM(3, 4, **options)
    exec(to_ours, names)
    for name, array in names["lstm"].state_dict().items():
        assert np.array_equal(array, before.pop(name))
    assert not before


def test_the_page_on_programs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = names_after(ROOT / "docs" / "programs.md")
    assert names["model"].feed_names == ["ids"]
    assert names["scores"].shape == (2, 2)
    assert names["again"].shape == ()


def test_the_page_on_serving():
    names = names_after(ROOT / "docs" / "serving.md")
    assert names["outputs"].shape == (2, 16)
    assert names["output"].shape == (1, 16)
    assert names["y"].shape == (5, 16)
    assert names["scores"].shape == (2, 2)


def test_the_page_on_other_libraries():
    names = names_after(ROOT / "docs" / "interop.md")
    assert np.array_equal(names["again"].data, names["rows"].data)


def test_the_page_on_metrics():
    names = names_after(ROOT / "docs" / "metrics.md")
    assert names["accuracy"].compute() == names["again"].compute() == 2 / 3
    assert names["of_sequences"].compute() == (1 / 2 + 1) / 2
    assert names["total"].compute() == 0.875
    assert names["f1"].compute().shape == (2,)


def test_the_page_on_onnx():
    from varlen_rnn.onnx.nodes import READS
    from varlen_rnn.onnx.operators import SAID
    from varlen_rnn.onnx.table import NODES
    from varlen_rnn.tape.operator import OPERATORS

    page = ROOT / "docs" / "onnx.md"
    names = names_after(page)
    np.testing.assert_allclose(names["found"], names["again"], rtol=1e-5, atol=1e-6)
    ours = [op for op in OPERATORS.values() if op.onnx and op.forward.__module__.startswith("varlen_rnn.")]
    said, read = {*SAID, *NODES, *(op.type for op in ours)}, {*READS, *(op.onnx for op in ours)}
    read |= {kind for kind, _ in NODES.values()}
    for begin, end, table in (
        ("## Operators that can be exported\n\n", "\n\n", said),
        ("constants, and\n\n", ".\n", read),
    ):
        listed = page.read_text().partition(begin)[2].partition(end)[0]
        assert listed.replace("\n", " ") == ", ".join(f"`{name}`" for name in sorted(table))


def test_the_page_on_torch():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    names = names_after(ROOT / "docs" / "torch.md")
    assert names["rows"].shape == (5, 128)
    assert names["sums"].shape == (3, 64)
    assert names["cell"].p_i_l0.grad.shape == (64,)


def test_the_page_on_sequences():
    names = names_after(ROOT / "docs" / "sequences.md")
    assert names["documents"].shape == (2, 8)
    assert names["layer"].explain().endswith("on all steps at once: recurrent, sequence_pool")
    assert names["source_after"].lod() == [[0, 4, 6]]
    assert names["y"].shape == (5, 32)
    assert names["doubled"].lod() == [[0, 128, 192]]
    assert int(names["turns"]) == 6


def test_the_page_on_layers():
    names = names_after(ROOT / "docs" / "layers.md")
    assert names["both"](names["x"])[0].shape == (5, 16)
    assert [state.shape for state in names["projected"](names["x"])[1]] == [(1, 3, 4), (1, 3, 16)]
    assert names["lstm"].weight_hh_l0.grad is not None


def test_the_page_on_cells(capsys):
    names = names_after(ROOT / "docs" / "cells.md")
    assert names["y"].shape == (5, 32)
    assert np.abs(names["layer"].weight_hh_l0.grad).max() > 0
    said = re.search(r"print\(error\)\s+# (.*)", (ROOT / "docs" / "cells.md").read_text())[1]
    loss, refused, of_slstm, shapes, error = capsys.readouterr().out.splitlines()
    assert (of_slstm, shapes) == ("(5, 16) (1, 3, 16) (64, 4)", "(7, 8) (1, 3, 8)")
    assert float(loss) < 0.3, "as the page says: it learned"
    assert (refused, error) == ("True", said)
    assert names["seeing"].num_kept == 4


def test_the_page_on_operators(monkeypatch):
    monkeypatch.setattr(operator, "OPERATORS", dict(operator.OPERATORS))
    names = names_after(operators_page.PATH)
    assert names["swish"](np.zeros(3), beta=2.0).shape == (3,)


def test_the_page_on_operators_names_the_optimizers():
    lines = operators_page.PATH.read_text().splitlines()
    (row,) = [line for line in lines if "optimizers of `varlen_rnn.optim`" in line]
    updates = {f"`{op.type}`" for op in operators_page.ours() if op.inputs[:2] == ("parameter", "gradient")}
    assert updates | {"`clip_by_global_norm`"} == set(row.rpartition("; ")[2].rstrip(" |").split(", "))


def test_the_table_of_operators_is_that_of_the_declarations():
    assert operators_page.PATH.read_text() == operators_page.page(), "python -m tests.operators_page writes it"
