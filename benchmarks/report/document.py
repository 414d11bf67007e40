"""The text of docs/benchmarks.md: tables of the results, and sentences that say no more than they do."""

import statistics

from benchmarks import results
from benchmarks.report import bars, peers, pictures
from benchmarks.report.words import HEAD, METHOD, NOTES, OF_OTHERS, OTHERS, TITLES
from benchmarks.suites import SUITES
from benchmarks.tables import markdown


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
    docs.mkdir(parents=True, exist_ok=True)
    drawn = pictures.draw(lines["scaling"], docs / "img")
    parts = [
        HEAD,
        _quality([line for name in peers.TIMED for line in lines[name]]),
        _yardsticks(lines),
        "## The bars\n",
        markdown(bars.HEADER, [bar.cells() for bar in bars.all_bars(lines)]) + "\n",
        peers.section(lines),
        METHOD,
    ]
    for name in SUITES:
        parts += [f"## {TITLES[name]}\n", NOTES[name]]
        if name == "scaling":
            parts += [pictures.caption(section, path, lines[name]) for section, path in drawn.items()]
        parts += [_about(found[name][0]) if name in found else "", _table(name, lines[name])]
    parts.append(OTHERS + "".join(map(_other, OF_OTHERS, OF_OTHERS.values())))
    (docs / "benchmarks.md").write_text("\n".join(part for part in parts if part))


def _other(measured, found):
    """Return the row of a measurement that has a script of its own."""
    module, file, page = found
    return f"| {measured} | `python -m {module}` | [{file}](../benchmarks/results/{file}), [{page}]({page}) |\n"


def _about(machine):
    """Return when, where and with which versions a suite was measured."""
    packages = ("python", "numba", "numpy", "torch", "onnxruntime")
    versions = ", ".join(f"{package} {machine[package]}" for package in packages if machine[package])
    processor = ", ".join([machine["processor"], *machine.get("bfloat16", ())])
    return (
        f"{machine['date']}, {processor}, {machine['cores']} cores, {machine['threads']} threads, "
        f"{machine['system']}; varlen_rnn {machine['varlen_rnn']} ({machine['commit']}), {versions}, "
        f"{machine['blas']}.\n"
    )


def _quality(lines):
    """Return how steady the machine was."""
    figures = [each for line in lines for each in _figures(line)]
    if not figures:
        return ""
    rounds = [each["rounds"] for each in figures if len(each["rounds"]) > 1]
    spread = statistics.median([max(each) / min(each) for each in rounds]) if rounds else 1.0
    disturbed = sum(len(results.disturbed(line)) for line in lines)
    failed = sum("failed" in line for line in lines)
    return (
        f"{_rates('Multiply-adds', figures, 'multiply_add_rates')}{_rates('sgemm', figures, 'sgemm_rates')}"
        f"The slowest of a figure's rounds took {spread:.2f} times its fastest, in the median. "
        f"In {disturbed} of {len(figures)} figures, other processes used the machine in every round. "
        f"Lines without figures, because results differ: {failed}.\n"
    )


def _rates(words, figures, name):
    """Return the sentence about the rates of a name, or none if no figure has them."""
    rates = [rate / 1e9 for each in figures for rate in each.get(name, ())]
    if not rates:
        return ""
    return f"{words}: {statistics.median(rates):.0f} GFLOP/s in the median, from {min(rates):.0f} to {max(rates):.0f}. "


def _yardsticks(lines):
    """Return which suites were measured before the multiply-add rate was, so that their shares of it are missing."""
    old = [
        name
        for name, its in lines.items()
        if "of peak" in SUITES[name].columns
        and any("sgemm_rates" in each and "multiply_add_rates" not in each for line in its for each in _figures(line))
    ]
    if not old:
        return ""
    return (
        f"The suites {', '.join(old)} have no shares of the multiply-add rate yet: they were measured beside sgemm "
        "alone, whose rate depends on the BLAS.\n"
    )


def _figures(line):
    return line.get("engines", {}).values()


def _table(name, lines):
    """Return the table of a suite, and which of its lines have no figures, or doubtful ones."""
    if not lines:
        return "Not measured.\n"
    suite = SUITES[name]
    table = markdown(list(suite.columns), [suite.cells(line) for line in lines]) + "\n"
    failed = [f"* No figures for {peers.case_of(line)}: {line['failed']}\n" for line in lines if "failed" in line]
    doubtful = [
        f"* Others used the machine in every round of {', '.join(engines)}: {peers.case_of(line)}\n"
        for line in lines
        if (engines := results.disturbed(line))
    ]
    return "\n".join([table, "".join(failed + doubtful)])
