"""Pictures of the suite `scaling`."""

from typing import NamedTuple

import numpy as np

from benchmarks import results
from benchmarks.engines import OURS, PYTORCH, TWIN

COLOURS = {OURS: "tab:blue", TWIN: "tab:cyan", "torch packed": "tab:orange", "torch padded": "tab:red"}


class Picture(NamedTuple):
    """What a section's picture shows: the value of a line on either axis, and whose."""

    title: str
    across: str
    up: str
    x: object
    y: object
    scale: str
    engines: tuple


def _microseconds_a_row(line, engine):
    return results.seconds(line, engine) / line["rows"] * 1e6


def _milliseconds(line, engine):
    return results.seconds(line, engine) * 1e3


def padding_ratio(line):
    """Return rows of the padded batch for each row that exists."""
    return line["padded_rows"] / line["rows"]


PICTURES = {
    "padding": Picture("Where padding breaks even", "rows of the padded batch for each row", "µs a row",
                       padding_ratio, _microseconds_a_row, "linear", (OURS, TWIN, "torch padded")),
    "rows": Picture("Cost against rows", "rows of the batch, whatever its lengths", "ms per step",
                    lambda line: line["rows"], _milliseconds, "linear", (OURS,)),
    "batch": Picture("Sequences of a batch, equal lengths", "sequences", "µs a row",
                     lambda line: line["size"][0], _microseconds_a_row, "log", (OURS, *PYTORCH)),
    "threads": Picture("Threads", "threads", "ms per step",
                       lambda line: line["threads"], _milliseconds, "log", (OURS, *PYTORCH)),
}  # fmt: skip


def draw(lines, folder):
    """Draw the sections that have figures; return {section: path}.

    Parameters
    ----------
    lines : list of dict
        Of the suite `scaling`.
    folder : Path
    """
    paths = {}
    for section, picture in PICTURES.items():
        shown = [line for line in lines if line["section"] == section and "engines" in line]
        if shown:
            paths[section] = folder / f"benchmarks_{section}.png"
            _draw(picture, sorted(shown, key=picture.x), paths[section])
    return paths


def caption(section, path, lines):
    """Return the Markdown of a section's picture, and what it says in figures."""
    picture = f"![{PICTURES[section].title}](img/{path.name})\n"
    shown = [line for line in lines if line["section"] == section and "engines" in line]
    if section == "padding":
        return picture + "".join(f"\n{break_even(shown, engine)}\n" for engine in PICTURES[section].engines[1:])
    if section == "rows" and len(shown) > 2:
        return f"{picture}\n{cost_of_rows(shown)}\n"
    return picture


def break_even(lines, engine):
    """Return the sentence that says at which padding ratios an engine that pads is faster than ours."""
    ratios = {padding_ratio(line): results.ratio(line, engine) for line in lines}
    measured = {padding: ratio for padding, ratio in ratios.items() if ratio is not None}
    won = [padding for padding, ratio in measured.items() if ratio < 1]
    if not measured:
        return f"{engine} was not measured."
    if not won:
        return f"{engine} is slower than {OURS} at every padding ratio, from {min(measured):.2f}."
    return f"{engine} is faster than {OURS} at padding ratios up to {max(won):.2f}."


def cost_of_rows(lines):
    """Return the sentence that gives the straight line through our times."""
    x = np.array([line["rows"] for line in lines])
    y = np.array([results.seconds(line, OURS) for line in lines])
    slope, start = np.polyfit(x, y, 1)
    explained = 1 - np.var(y - start - slope * x) / np.var(y)
    return (
        f"A step costs {slope * 1e6:.2f} µs a row and {start * 1e3:.1f} ms more: "
        f"this straight line explains {explained:.1%} of the variance."
    )


def _draw(picture, lines, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axis = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    for engine in picture.engines:
        points = [(picture.x(line), picture.y(line, engine)) for line in lines if results.seconds(line, engine)]
        if points:
            axis.plot(*zip(*points, strict=True), "o-", color=COLOURS[engine], label=engine, markersize=4)
    axis.set(title=picture.title, xlabel=picture.across, ylabel=picture.up)
    if picture.scale == "log":
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks([picture.x(line) for line in lines], [str(picture.x(line)) for line in lines])
    else:
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3, which="both")
    axis.legend()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
