"""The table of measured lines in the README, from `benchmarks/results`; `python -m tests.readme_table` writes it."""

import textwrap
from pathlib import Path

from benchmarks import results
from benchmarks.clients import page as clients
from benchmarks.engines import OURS
from benchmarks.tables import markdown, show

ROOT = Path(__file__).parent.parent
PATH, RESULTS = ROOT / "README.md", ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- `python -m tests.readme_table` writes this table. -->\n", "<!-- End of the table. -->\n"
PEERS = ("torch padded", "torch packed", "onnxruntime")
HEADER = ["measured", "varlen_rnn", "PyTorch padded", "PyTorch packed", "onnxruntime"]
MEMORY = "LSTM, memory of a training step, 64 sequences, 256 units"
TIMES = {  # cell, size, lengths and mode of each line of the suite `readme`
    "LSTM, training step, 64 sequences, 256 units": ("LSTM", [64, 256, 256], "lognormal", "training"),
    "GRU, training step, 64 sequences, 256 units": ("GRU", [64, 256, 256], "lognormal", "training"),
    "LSTM, inference, 64 sequences, 256 units": ("LSTM", [64, 256, 256], "lognormal", "inference"),
    "LSTM, training step, the same with **equal** lengths": ("LSTM", [64, 256, 256], "equal", "training"),
}

PACKAGES = {  # calls of packages that are named below the table
    "stanza": "stanza's LSTM",
    "speechbrain": "speechbrain's LSTM",
    "flair": "flair's tagger",
    "sb3-contrib": "training in sb3-contrib",
    "torchrl": "TorchRL's LSTM",
}


def chosen(lines, cell, size, lengths, mode):
    """Return the one line of a suite for a cell, a size, a distribution of lengths and a mode, on two threads."""
    wanted = {"cell": cell, "size": size, "lengths": lengths, "mode": mode, "threads": 2}
    (line,) = [line for line in lines if wanted.items() <= line.items() and not line.get("section")]
    return line


def times(ratio):
    """Return a ratio as text; a dash if there is none."""
    return f"{show(ratio)} x" if ratio else "-"


def rows():
    """Return the rows of the table: our time or memory, then how many times as much each peer takes."""
    machine, lines = results.read(RESULTS / "readme.jsonl")
    memory_machine, memory = results.read(RESULTS / "memory.jsonl")
    differing = {name for name, its in machine.items() if its != memory_machine[name]}
    assert differing <= {"commit"}, "one machine and the same versions for the whole table"
    found = []
    for name, key in TIMES.items():
        line = chosen(lines, *key)
        ratios = [times(results.ratio(line, peer)) for peer in PEERS]
        found.append([name, f"{show(1000 * results.seconds(line, OURS))} ms", *ratios])
    used = {name: its["bytes"] for name, its in chosen(memory, *TIMES[next(iter(TIMES))])["engines"].items()}
    ratios = [times(used[peer] / used[OURS] if peer in used else None) for peer in PEERS]
    return [*found, [MEMORY, f"{show(used[OURS] / 2**20)} MiB", *ratios]]


def table():
    """Return the table, the machine and the commit that it was measured on, and the sentence on packages."""
    machine, lines = results.read(RESULTS / "readme.jsonl")
    assert not any(map(results.disturbed, lines)), "nothing else ran in at least one round of each engine"
    where = f"{machine['date']}, {machine['processor']}, {machine['cores']} cores, {machine['threads']} threads"
    versions = f"commit {machine['commit']}, PyTorch {machine['torch']}, onnxruntime {machine['onnxruntime']}"
    return f"{markdown(HEADER, rows())}\n\n{where}; {versions}.\n{packages()}\n"


def packages():
    """Return the sentence on packages before `replace` and after it."""
    measured = {line["client"]: clients.times(line) for line in clients.read()}
    *most, last = [f"{told} {show(measured[name])}" for name, told in PACKAGES.items()]
    sentence = f"[Packages](docs/clients.md) took more CPU time before `replace`, in times: {', '.join(most)}, {last}."
    return textwrap.fill(sentence, 128, break_on_hyphens=False)


def page():
    """Return the README with the table as the results are now."""
    before, _, rest = PATH.read_text().partition(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PATH.write_text(page())
