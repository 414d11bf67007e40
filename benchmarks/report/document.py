"""The text of docs/benchmarks.md: tables of the results, and sentences that say no more than they do."""

import statistics

from benchmarks import results
from benchmarks.engines import OURS, PEERS
from benchmarks.report import bars, pictures
from benchmarks.suites import SUITES
from benchmarks.tables import markdown

HEAD = """# Benchmarks

Made by `python -m benchmarks report` from the lines in `benchmarks/results/`; `python -m benchmarks` measures them again.
"""

METHOD = """## How

Each engine runs in a process of its own, on inputs that all processes make from the same seed, float32, with the same
number of threads. First their results are compared (outputs; in training the gradients of rows and of all weights, or
the losses); a line without agreement has no figures. Then they take turns: a round repeats a step for a tenth of a second
or more while the other processes wait, and is followed by NumPy's product of two 2048 x 2048 matrices (sgemm). Figures
are medians of the rounds.

* A step of training is forward and backward: gradients of the rows and of all weights, no optimizer. *of sgemm* counts the
  products only, `2 rows (D + H) gates H` forward and three times as much in training, over rows that exist, and divides
  by the sgemm rate of our own process.
* Ratios are times over ours: above 1, `varlen_rnn` is faster.
* *torch packed* is `pack_padded_sequence`, the layer, `pad_packed_sequence`; *torch padded* runs the layer on the whole
  rectangle, with zero gradients in the padding; *onnxruntime* gets the lengths beside the rectangle, inference only;
  *varlen_rnn padded* is our kernels on the rectangle. PyTorch and onnxruntime find their rectangles ready, time-major and
  longest first, and our plan is kept with the batch: neither padding nor sorting is part of a step.
* *lognormal* is median 60, sigma 0.8, *pareto* is from 10 with exponent 1.2, both as quantiles within 5 to 400 steps;
  *equal* is 80 steps; *names*, *sentences* and *functions* are random batches of the embedded data sets.
"""

EMBEDDING_NOTE = """Embedding of 64, LSTM of 128, mean over each sequence, linear, cross entropy, Adam; batches of 32 in random
order, sequences cut at 1,000 tokens. Losses agree.
"""

MEMORY_NOTE = """How far the resident set of a fresh process rises during its first training step, code already loaded; MiB.
*gates, states* is what the gates and states of all rows fill: a gradient needs them.
"""

STARTUP_NOTE = """Fresh processes; each package's import over those before it, then a first training step of a small LSTM.
*cold* compiles every kernel, *warm* finds them on disk.
"""


def write_report(folder, docs):
    """Write `benchmarks.md` and its pictures into `docs`, from the results in `folder`.

    Parameters
    ----------
    folder, docs : Path
    """
    found = {name: results.read(path) for name in SUITES if (path := folder / f"{name}.jsonl").exists()}
    if not found:
        raise SystemExit(f"No results in {folder}: run `python -m benchmarks` first.")
    lines = {name: found[name][1] if name in found else [] for name in SUITES}
    drawn = pictures.draw(lines["scaling"], docs / "img")
    parts = [
        HEAD,
        _machine({name: machine for name, (machine, _) in found.items()}),
        _quality(lines),
        "## The bars\n",
        markdown(bars.HEADER, [bar.cells() for bar in bars.all_bars(lines)]) + "\n",
        _peer_wins(lines),
        METHOD,
        _suite("Layers", lines, "recurrent"),
        _suite("Whole models", lines, "end_to_end", EMBEDDING_NOTE),
        _suite("Small work", lines, "small"),
        _suite("Memory", lines, "memory", MEMORY_NOTE),
        _suite("Start-up", lines, "startup", STARTUP_NOTE),
        _suite("Scaling", lines, "scaling", _scaling(lines["scaling"], drawn)),
    ]
    (docs / "benchmarks.md").write_text("\n".join(parts))


def _machine(machines):
    """Return what was measured where; suites of one run share a line."""
    runs = {}
    for name, machine in machines.items():
        about = {key: value for key, value in machine.items() if key != "load_before"}
        runs.setdefault(str(about), (about, []))[1].append(name)
    paragraphs = []
    for m, names in runs.values():
        versions = ", ".join(
            f"{key} {m[key]}" for key in ("python", "numba", "numpy", "torch", "onnxruntime") if m[key]
        )
        paragraphs.append(
            f"{', '.join(names)}: {m['date']}, {m['processor']}, {m['cores']} cores, {m['threads']} threads, "
            f"{m['system']}; varlen_rnn {m['varlen_rnn']} ({m['commit']}), {versions}, {m['blas']}.\n"
        )
    return "\n".join(paragraphs)


def _quality(lines):
    """Return how steady the machine was."""
    timed = [line for name in ("recurrent", "end_to_end", "small", "scaling") for line in lines[name]]
    figures = [each for line in timed for each in line.get("engines", {}).values()]
    if not figures:
        return ""
    rates = [each["sgemm"] / 1e9 for each in figures]
    noisy = sum(map(results.is_noisy, figures))
    failed = sum("failed" in line for line in timed)
    return (
        f"sgemm reached {statistics.median(rates):.0f} GFLOP/s in the median, from {min(rates):.0f} to {max(rates):.0f}. "
        f"Of {len(figures)} figures, {noisy} have a round that took more than {results.NOISY:g} times the median: "
        f"something else ran on the machine. Lines without figures because results differ: {failed}.\n"
    )


def _peer_wins(lines):
    """Return every line where another engine was faster than ours."""
    rows = []
    for name in ("recurrent", "small", "scaling", "end_to_end"):
        for line in lines[name]:
            for engine in PEERS:
                ratio = results.ratio(line, engine)
                if ratio is not None and ratio < 1:
                    rows.append([name, _what(line), engine, ratio])
    text = "## Where a peer wins\n\n"
    if not rows:
        return text + "In none of these lines.\n"
    return text + markdown(["suite", "case", "engine", "its time over ours"], rows) + "\n"


def _what(line):
    if "data_set" in line:
        return f"{line['data_set']}, training"
    threads = f", threads {line['threads']}" if line["section"] == "threads" else ""
    return f"{line['cell']} {bars.size_of(line)} {line['lengths']}, {line['mode']}{threads}"


def _suite(title, lines, name, note=""):
    suite = SUITES[name]
    text = f"## {title}\n\n" + (note + "\n" if note else "")
    if not lines[name]:
        return text + "Not measured.\n"
    table = markdown(list(suite.columns), [suite.cells(line) for line in lines[name]]) + "\n"
    failed = [f"* no figures for {_what(line)}: {line['failed']}" for line in lines[name] if "failed" in line]
    return "\n".join([text + table, *failed, ""] if failed else [text + table])


def _scaling(lines, drawn):
    """Return the pictures, each with what it says in figures."""
    says = {"padding": _break_even, "rows": _cost_of_rows}
    parts = []
    for section, path in drawn.items():
        shown = [line for line in lines if line["section"] == section and "engines" in line]
        parts.append(f"![{pictures.PICTURES[section].title}](img/{path.name})\n")
        if section in says:
            parts.append(says[section](shown))
    return "\n".join(parts)


def _break_even(lines):
    """Return up to which padding ratio another engine that pads is faster."""
    sentences = []
    for engine in pictures.PICTURES["padding"].engines[1:]:
        won = [pictures.padding_ratio(line) for line in lines if (results.ratio(line, engine) or 1) < 1]
        measured = [pictures.padding_ratio(line) for line in lines if results.ratio(line, engine)]
        if measured and won:
            sentences.append(f"{engine} is faster than {OURS} at padding ratios up to {max(won):.2f}.")
        elif measured:
            sentences.append(f"{engine} is slower than {OURS} at every padding ratio from {min(measured):.2f}.")
    return " ".join(sentences) + "\n"


def _cost_of_rows(lines):
    if len(lines) < 3:
        return ""
    start, slope, explained = pictures.straight_line(lines)
    return (
        f"A step costs {slope * 1e6:.2f} µs a row and {start * 1e3:.1f} ms: "
        f"the straight line explains {explained:.1%} of the variance.\n"
    )
