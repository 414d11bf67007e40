"""The report says what the lines of results say: bars, who is faster, tables, and what has no figures."""

from pathlib import Path

import pytest

from benchmarks import machine, results
from benchmarks.engines import BUILT_IN, OURS
from benchmarks.report import bars, peers, write_report
from benchmarks.report.words import OF_OTHERS
from benchmarks.suites import SUITES
from benchmarks.tables import show
from tests.benchmark_lines import line_of

ROOT = Path(__file__).parent.parent


def test_a_report_says_what_the_lines_say(tmp_path):
    broken = line_of(lengths="equal") | {"failed": "y of torch packed is 1e+00 from that of varlen_rnn"}
    del broken["engines"]
    crowded = line_of((32, 512, 512), torch_padded=500.0)
    crowded["engines"]["torch padded"]["others"] = [1.0]
    recurrent = [
        crowded,
        line_of(torch_packed=13.0, torch_padded=5.0),
        broken,
        line_of(mode="inference", onnxruntime=0.5),
    ]
    results.write(tmp_path / "recurrent.jsonl", [machine.describe(2), *recurrent])
    results.write(tmp_path / "efficiency.jsonl", [machine.describe(2), line_of(), broken])
    padding = [line_of(section="padding", torch_padded=3.0), line_of(section="padding", torch_padded=0.9)]
    padding[1]["padded_rows"] = 1000
    rows = [line_of(section="rows", ours=0.1 + count * 1e-4) | {"rows": count} for count in (500, 1000, 2000)]
    results.write(tmp_path / "scaling.jsonl", [machine.describe(2), *padding, *rows])
    write_report(tmp_path, tmp_path / "docs")
    text = (tmp_path / "docs" / "benchmarks.md").read_text()
    nothing = "- (64, 256, 256), - (32, 512, 512), - (128, 512, 512) | not measured |"
    assert f"| LSTM inference, ragged: over the best peer | 1.5 | 3 | {nothing}" in text, "peers are missing"
    assert "over PyTorch padded | 4 | 6 | 5.00 (64, 256, 256), - (32, 512, 512), - (128, 512, 512) | not" in text
    assert "* Others used the machine in every round of torch padded: LSTM (32, 512, 512) lognormal, training" in text
    assert f"| LSTM training, equal: share of the multiply-add rate | 0.77 | 0.9 | {nothing}" in text
    nothing = "0.90 (64, 256, 256), - (32, 512, 512), - (128, 512, 512) | not measured |"
    assert f"| LSTM training, ragged: share of the multiply-add rate | 0.77 | 0.9 | {nothing}" in text
    assert "| LSTM | 64,256,256 | equal | 1,000 | 2 | - | - | - | - | - | - | - |" in text
    assert "| recurrent | LSTM (64, 256, 256) lognormal, inference, threads 2 | onnxruntime | 0.50 |" in text
    assert "torch padded is faster than varlen_rnn at padding ratios up to 1.00." in text
    assert "A step costs 100.00 µs a row and 100.0 ms more: this straight line explains 100.0% of" in text
    assert "* No figures for LSTM (64, 256, 256) equal, training, threads 2: y of torch packed" in text
    assert "## Memory" in text
    assert "Not measured." in text
    assert {path.name for path in (tmp_path / "docs" / "img").iterdir()} == {
        "benchmarks_padding.png",
        "benchmarks_rows.png",
    }


def test_a_bar_asks_for_the_worst_case():
    lines = {name: [] for name in SUITES}
    sizes, packed = [(64, 256, 256), (32, 512, 512), (128, 512, 512)], [13.0, 9.0, 14.0]
    lines["recurrent"] = [line_of(size, torch_packed=its) for size, its in zip(sizes, packed, strict=True)]
    lines["efficiency"] = [line_of(size) for size in sizes]
    rows = {bar.measure: bar.cells()[1:] for bar in bars.all_bars(lines)}
    packed = rows["LSTM training, ragged: over PyTorch packed"]
    assert packed == ["8", "12", "13.00 (64, 256, 256), 9.00 (32, 512, 512), 14.00 (128, 512, 512)", "floor met"]
    assert rows["LSTM training, ragged: share of the multiply-add rate"][-1] == "aim met"
    assert rows["GRU training, ragged: share of the multiply-add rate"][-1] == "not measured"
    lines["recurrent"].pop()
    rows = {bar.measure: bar.cells()[1:] for bar in bars.all_bars(lines)}
    assert rows["LSTM training, ragged: over PyTorch packed"][-1] == "not measured", "a size is missing"


def test_a_cell_is_held_to_the_built_in_layer_beside_it():
    lines = {name: [] for name in SUITES}
    cifg = [line_of(size, varlen_rnn_built_in=1.5) | {"cell": "CIFG", "flops of built-in": 100} for size in (1, 2)]
    for line, size in zip(cifg, [(64, 256, 256), (32, 512, 512)], strict=True):
        line["size"] = size
        line["engines"][BUILT_IN] = line["engines"].pop("varlen rnn built in")
    cifg[1]["engines"][BUILT_IN]["seconds"] = 1.0
    lines["cells"] = cifg
    rows = {bar.measure: bar.cells()[1:] for bar in bars.all_bars(lines)}
    words = "{}: rate of products over the built-in layer's"
    found = rows[words.format("cells of one product, a user's and options")]
    assert found == ["0.95", "1", "1.35 CIFG (64, 256, 256), 0.90 CIFG (32, 512, 512)", "**below the floor**"]
    assert rows[words.format("LSTM with projected outputs")][-1] == "not measured"
    cifg[1]["engines"]["torch loop"] = cifg[1]["engines"][BUILT_IN] | {"others": [1.0]}
    assert bars.all_bars(lines)[22].cells()[1:] == found, "who disturbs PyTorch's loop says nothing of ours"
    cifg[1]["engines"][OURS]["others"] = [1.0]
    assert bars.all_bars(lines)[22].verdict() == "not measured"


def test_operators_on_sequences_are_held_to_their_best_peers():
    lines = {name: [] for name in SUITES}
    lines["sequence"] = [
        of_operator("reverse", "lognormal", torch_rows=0.9, NumPy=3.0),
        of_operator("slice", "pareto", torch_rows=1.2),
        of_operator("slice", "equal", torch_rows=0.1),
        of_operator("attention", "pareto", torch_padded=2.5, torch_jagged=9.0),
        of_operator("attention", "equal", torch_padded=1.6),
    ]
    rows = {bar.measure: bar.cells()[1:] for bar in bars.all_bars(lines)}
    found = rows["operators on sequences, inference, ragged: over the best peer"]
    assert found == ["1", "1.5", "1.20 in the median, 0.90 reverse, lognormal", "**below the floor**"]
    assert rows["operators on sequences, training, ragged: over the best peer"][-1] == "not measured"
    assert rows["attention, ragged: over PyTorch padded"][2:] == ["2.50 inference, pareto", "floor met"]
    assert rows["attention, equal: over PyTorch padded"][2:] == ["1.60 inference, equal", "aim met"]
    assert "| sequence | reverse lognormal, inference, threads 2 | torch rows | 0.90 |" in peers.section(lines)
    lines["sequence"][0]["engines"]["NumPy"]["others"] = [1.0]
    del lines["sequence"][1]["engines"]
    rows = {bar.measure: bar.cells()[1:] for bar in bars.all_bars(lines)}
    found = rows["operators on sequences, inference, ragged: over the best peer"]
    assert found[2:] == ["- reverse, lognormal, - slice, pareto", "not measured"]


def test_layers_inside_torch_are_held_to_our_own():
    lines = {name: [] for name in SUITES}
    times = {"in_torch,_rows": 1.05, "in_torch,_jagged": 1.2, "in_torch,_packed": 1.5, "in_torch,_padded": 2.0}
    lines["torch"] = [line_of(torch_packed=15.0, **times), line_of(lengths="equal", torch_packed=1.0, **times)]
    lines["torch"] += [line_of(lengths="one step", **{"in_torch,_step": 2.0, "torch_step": 3.0})]
    rows = {bar.measure: bar.cells()[1:] for bar in bars.all_bars(lines)}
    found = rows["inside PyTorch, training, ragged: time over our own layer's"]
    case = "LSTM (64, 256, 256) lognormal"
    assert found[2:] == [f"1.05 rows, {case}, 1.20 jagged, {case}", "**below the floor**"]
    found = rows["inside PyTorch, training, ragged: over PyTorch packed, the least"]
    assert found[2:] == [f"12.50 jagged, {case}", "aim met"]
    found = rows["inside PyTorch, one step per call: over PyTorch's own"]
    assert found[2:] == ["1.50 LSTM, training", "aim met"]


def of_operator(operator, lengths, **seconds):
    return line_of(mode="inference", lengths=lengths, **seconds) | {"operator": operator}


def test_less_is_better_where_the_aim_is_below_the_floor():
    assert bars.Bar("memory", 1, 0.5, {"a": 0.4, "b": 1.1}).verdict() == "**below the floor**"
    assert bars.Bar("memory", 1, 0.5, {"a": 0.4, "b": 0.9}).verdict() == "floor met"


def test_every_figure_in_which_a_peer_is_faster_is_listed():
    lines = {name: [] for name in SUITES}
    assert "There is no such line." in peers.section(lines)
    lines["small"] = [line_of((4, 32, 32), "inference", torch_padded=2.0, onnxruntime=0.4), line_of(torch_packed=0.9)]
    lines["recurrent"] = [line_of(torch_packed=1.5, torch_padded=0.5)]
    ours = {"engine": OURS, "imports": {"numba": 0.5}}
    lines["startup"] = [
        ours | {"cache": "cold", "first_step": 9.5},
        ours | {"cache": "warm", "first_step": 0.5},
        {"engine": "torch packed", "imports": {"torch": 0.7}, "first_step": 0.4},
    ]
    rows = [row.split(" | ") for row in peers.section(lines).splitlines() if row.startswith("| ")][1:]
    assert [(suite.lstrip("| "), peer, ratio.rstrip(" |")) for suite, _, peer, ratio in rows] == [
        ("startup", "torch packed", "0.04"),
        ("startup", "torch packed", "0.11"),
        ("small", "onnxruntime", "0.40"),
        ("recurrent", "torch padded", "0.50"),
        ("startup", "torch packed", "0.80"),
        ("small", "torch packed", "0.90"),
    ]
    assert rows[1][1] == "imports and first training step, kernels cold"
    assert rows[2][1] == "LSTM (4, 32, 32) lognormal, inference, threads 2"


def test_the_report_in_docs_is_of_the_results_here(tmp_path):
    write_report(ROOT / "benchmarks" / "results", tmp_path)
    assert (tmp_path / "benchmarks.md").read_text() == (ROOT / "docs" / "benchmarks.md").read_text(), (
        "run `python -m benchmarks report`"
    )


def test_the_page_on_policies_has_the_ratios_of_the_results():
    """And the bar is met: 2."""
    values = bars._policies(results.read(ROOT / "benchmarks" / "results" / "policies.jsonl")[1]).values.values()
    said = f"took {show(min(values))} to {show(max(values))} times our CPU time"
    assert said in (ROOT / "docs" / "policies.md").read_text().replace("\n", " ")


def test_other_measurements_have_results_and_a_page_that_names_them():
    for module, found, page in OF_OTHERS.values():
        assert (ROOT / "benchmarks" / "results" / found).exists(), module
        text = (ROOT / "docs" / page).read_text()
        assert module in text or found in text, page


def test_without_results_there_is_no_report(tmp_path):
    with pytest.raises(SystemExit, match="No results"):
        write_report(tmp_path, tmp_path)


def test_each_table_says_where_it_was_measured(tmp_path):
    for suite, version in (("recurrent", "2.13.0"), ("groups", "2.14.1")):
        results.write(tmp_path / f"{suite}.jsonl", [machine.describe(2) | {"torch": version}, line_of()])
    write_report(tmp_path, tmp_path / "docs")
    sections = (tmp_path / "docs" / "benchmarks.md").read_text().split("\n## ")
    for title, version in (("Layers", "torch 2.13.0"), ("Padding in groups", "torch 2.14.1")):
        (section,) = [text for text in sections if text.startswith(f"{title}\n")]
        assert version in section.partition("\n| ")[0]
