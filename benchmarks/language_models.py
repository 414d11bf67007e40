"""Language models of the text that comes with Python, by layers with equal parameters, for an equal time.

    python -m benchmarks.language_models --run 44  # add the missing runs to results/language_models.jsonl
    python -m benchmarks.language_models --write   # measure steps, and replace results/language_models.txt

A text is a docstring of Python's library or a topic of its help, and longer ones are cut at the last line end within
2,000 characters; a model reads each text from zeros.  A model is an embedding of 64 numbers, two layers, and a linear
layer to characters; `Residual` is another form of the two layers.  A run trains for `SECONDS` of processor time on one
thread, by Adam, with a learning rate that is constant after `WARMUP` steps.  It computes the perplexity of characters
of other texts, after `ROWS` characters and at the end.  Files of the library are divided: a twentieth chooses the
learning rate of each layer, by a shorter run of another seed; another twentieth gives the figures.
"""

import ast
import collections
import functools
import itertools
import json
import statistics
import sysconfig
import time
import zlib
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from benchmarks.machine import publish
from benchmarks.processes import options, output_of
from benchmarks.results import rounded
from benchmarks.transducer import resident
from varlen_rnn.nn import functional as F

RUNS = Path(__file__).parent / "results" / "language_models.jsonl"
FILE = RUNS.with_suffix(".txt")
LAYERS = {  # with the units of a layer, without and with residual connections
    "LSTM": (vr.nn.LSTM, 96, 88),
    "sLSTM, 4 heads": (vr.nn.SLSTM, 128, 112),
    "Gated DeltaNet": (vr.nn.GatedDeltaNet, 128, 112),
    "Mamba-2": (vr.nn.Mamba2, 144, 120),
}
EMBEDDING, BATCH, LONGEST = 64, 1024, 2000  # numbers, characters, characters
SECONDS, ROWS, SEEDS, SEEDS_OF_RESIDUAL, WARMUP = 15.0, 200_000, range(5), range(3), 20
RATES, SECONDS_OF_CHOICE, SEED_OF_CHOICE = (0.003, 0.006, 0.012), 6.0, 100
NEVER_READ = {"site-packages", "test", "tests", "idle_test", "lib2to3", "dist-packages"}


def texts():
    """Yield texts and the names of their files or topics, each text once."""
    from pydoc_data.topics import topics

    library, seen = Path(sysconfig.get_paths()["stdlib"]), set()
    for path in sorted(library.rglob("*.py")):
        if NEVER_READ.isdisjoint(path.relative_to(library).parts):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    text = ast.get_docstring(node) or ""
                    if len(text) > 40 and text not in seen:
                        seen.add(text)
                        yield text, path.relative_to(library).as_posix()
    for name in sorted(topics):
        yield topics[name], name


def pieces(text):
    """Yield the pieces of a text, each of `LONGEST` characters at most."""
    while text:
        end = len(text) if len(text) <= LONGEST else text.rfind("\n", 0, LONGEST) + 1 or LONGEST
        yield text[:end]
        text = text[end:]


@functools.cache
def corpus():
    """Return ids of characters for "training", "choice" and "test", and how many ids there are.

    Id 0 begins and ends a text, id 1 is any character that occurs fewer than five times in training.
    """
    parts = collections.defaultdict(list)
    for text, name in texts():
        share = zlib.crc32(name.encode()) % 20
        parts["choice" if share == 0 else "test" if share == 1 else "training"].extend(pieces(text))
    counts = collections.Counter(character for text in parts["training"] for character in text)
    known = {c: number + 2 for number, c in enumerate(sorted(c for c in counts if counts[c] >= 5))}
    of_text = lambda text: np.array([0, *(known.get(c, 1) for c in text)])
    return {part: list(map(of_text, found)) for part, found in parts.items()}, len(known) + 2


def batches(part, **options):
    """Return batches of ids and of the ids after them."""
    found = corpus()[0][part]
    return vr.data.batches(found, [np.append(ids[1:], 0) for ids in found], max_tokens=BATCH, bucket=True, **options)


class Residual(vr.nn.Module):
    """Two layers; each reads normalised rows, and its outputs are added to them; then rows are normalised once more."""

    def __init__(self, cls, size):
        self.layers = vr.nn.ModuleList([cls(size, size) for _ in range(2)])
        self.norms = vr.nn.ModuleList([vr.nn.RMSNorm(size) for _ in range(3)])

    def forward(self, x):
        """Return rows, and no states."""
        for norm, layer in zip(self.norms, self.layers, strict=False):
            x = x + layer(norm(x))[0]
        return self.norms[2](x), None


class LanguageModel(vr.nn.Module):
    """Ids to scores of the id after each."""

    def __init__(self, layer, residual=False):
        cls, units, fewer = LAYERS[layer]
        columns, size = (fewer, fewer) if residual else (EMBEDDING, units)
        self.embedding = vr.nn.Embedding(corpus()[1], columns)
        self.reader = Residual(cls, size) if residual else cls(columns, size, num_layers=2)
        self.output = vr.nn.Linear(size, corpus()[1])

    def forward(self, ids):
        """Return scores, one row per character."""
        return self.output(self.reader(self.embedding(ids))[0])


def parameters(module):
    """Return the number of parameters of a module."""
    return sum(parameter.data.size for parameter in module.parameters())


def stepper(model):
    """Return an optimizer, and a training step: a function of ids and of the ids after them."""
    optimizer = vr.optim.Adam(model.parameters())

    def step(ids, after):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids), after)
        loss.backward()
        vr.optim.clip_grad_norm_(optimizer.parameters, 1.0)
        optimizer.step()
        return loss

    return optimizer, step


def perplexity(model, part):
    """Return e to the mean cross-entropy of a character."""
    total = count = 0
    with vr.no_grad():
        for ids, after in batches(part):
            total += F.cross_entropy(model(ids), after.data, reduction="sum").item()
            count += len(after.data)
    return float(np.exp(total / count))


def trained(layer, rate, seed, seconds, part, residual=False):
    """Train for some seconds of processor time; return the figures of the run."""
    vr.manual_seed(0)
    stepper(LanguageModel(layer, residual))[1](*next(iter(batches("choice"))))  # compiles, and starts what starts late
    vr.manual_seed(seed)
    model = LanguageModel(layer, residual)
    (optimizer, step), epochs = stepper(model), batches("training", shuffle=True, seed=seed)
    found = {"layer": layer, "rate": rate, "seed": seed, "part": part, "residual": residual}
    found |= {"rows": 0, "steps": 0, "seconds": 0.0}
    began = time.process_time()
    for batch in itertools.chain.from_iterable(itertools.repeat(epochs)):
        optimizer.lr = rate * min(1, (found["steps"] + 1) / WARMUP)
        step(*batch)
        found["rows"], found["steps"] = found["rows"] + len(batch[1].data), found["steps"] + 1
        found["seconds"] += time.process_time() - began
        if found["rows"] >= ROWS and "after_rows" not in found:
            found["after_rows"] = {"seconds": found["seconds"], "perplexity": perplexity(model, part)}
        if found["seconds"] >= seconds:
            return found | {"perplexity": perplexity(model, part)}
        began = time.process_time()


def known_runs():
    """Return the runs of the file."""
    return [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []


def chosen_rate(layer):
    """Return the learning rate with the least perplexity of texts that choose it."""
    runs = {run["rate"]: run["perplexity"] for run in known_runs() if run["layer"] == layer and run["part"] == "choice"}
    return min(runs, key=runs.get)


def wanted_runs():
    """Yield arguments of `trained`, layers in turns: runs that choose rates, models, and residual models."""
    for rate, layer in itertools.product(RATES, LAYERS):
        yield layer, rate, SEED_OF_CHOICE, SECONDS_OF_CHOICE, "choice", False
    for seed, layer in itertools.product(SEEDS, LAYERS):
        yield layer, chosen_rate(layer), seed, SECONDS, "test", False
    for seed, layer in itertools.product(SEEDS_OF_RESIDUAL, LAYERS):
        yield layer, chosen_rate(layer), seed, SECONDS, "test", True


def run_missing(most):
    """Train models that have no line yet, `most` of them at most; append a line a run."""
    done = {(run["layer"], run["rate"], run["seed"], run["residual"]) for run in known_runs()}
    missing = (each for each in wanted_runs() if (*each[:3], each[5]) not in done)
    for each in itertools.islice(missing, most):
        line = json.dumps(rounded(trained(*each)))
        with RUNS.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)


def measured(layer):
    """Return the peak bytes of training, and the median seconds of a streamed step of the two layers."""
    model, found = LanguageModel(layer), list(itertools.islice(batches("training", shuffle=True), 20))
    before = resident("VmRSS")
    _, step = stepper(model)
    step(*found[0])  # compiles, and starts what starts late
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    for batch in found:
        step(*batch)
    peak, stream = resident("VmHWM") - before, model.reader.stream()
    row, rounds = np.ones(EMBEDDING, np.float32), []
    for _ in range(20):
        began = time.process_time()
        for _ in range(100):
            stream(row)
        rounds.append((time.process_time() - began) / 100)
    return peak, statistics.median(rounds[10:])


def lines():
    """Yield the lines of the result."""
    (parts, count), runs = corpus(), known_runs()
    for part, found in parts.items():
        lengths = [len(ids) for ids in found]
        of_length = f"{min(lengths)} to {max(lengths)} characters, median {statistics.median(lengths):.0f}"
        yield f"{part}: {len(found):,} texts of {of_length}; {sum(lengths):,} in all"
    yield f"{count} ids; a model without a text behind it has a perplexity of {unigram():.2f}"
    for layer in LAYERS:
        model, mine = LanguageModel(layer), [run for run in runs if run["layer"] == layer]
        tried = ", ".join(f"{run['rate']:g} {run['perplexity']:.2f}" for run in mine if run["part"] == "choice")
        residual = [run for run in mine if run["residual"]]
        mine = [run for run in mine if run["part"] == "test" and not run["residual"]]
        yield f"{layer}: {parameters(model):,} parameters, of which {parameters(model.reader):,} are of the two layers"
        yield f"  learning rate {chosen_rate(layer):g}; perplexity after {SECONDS_OF_CHOICE:g} s by rates: {tried}"
        yield f"  perplexity after {SECONDS:g} s: {spread(run['perplexity'] for run in mine)}"
        yield f"  perplexity after {ROWS:,} characters: {spread(run['after_rows']['perplexity'] for run in mine)}"
        yield f"  characters a second: {spread((run['rows'] / run['seconds'] for run in mine), 0)}"
        count = parameters(LanguageModel(layer, True))
        yield f"  residual, {count:,} parameters: after {SECONDS:g} s {spread(run['perplexity'] for run in residual)}"
        yield f"    after {ROWS:,} characters {spread(run['after_rows']['perplexity'] for run in residual)}"
        peak, seconds = json.loads(output_of("-m", "benchmarks.language_models", "--one", layer))
        yield f"  memory of training: {peak / 2**20:.0f} MiB; a streamed step: {seconds * 1e6:.0f} us"


def unigram():
    """Return the perplexity of characters that are drawn by their frequency in training."""
    parts, count = corpus()
    counts = np.bincount(np.concatenate(parts["training"]), minlength=count) + 1
    return float(np.exp(-np.log(counts / counts.sum())[np.concatenate(parts["test"])].mean()))


def spread(numbers, digits=2):
    """Return the mean, and the least and the largest number."""
    found = list(numbers)
    return f"{statistics.mean(found):,.{digits}f} ({min(found):,.{digits}f} to {max(found):,.{digits}f})"


def main():
    """Print the figures, and write them if asked to; or train."""
    run = {"type": int, "metavar": "COUNT", "help": "train so many models that are missing"}
    given = options(__doc__, run=run, one={"choices": LAYERS, "help": "print the figures of a layer's steps, as JSON"})
    vr.set_num_threads(1)
    if given.run is not None:
        run_missing(given.run)
    elif given.one:
        print(json.dumps(measured(given.one)))
    else:
        publish(lines(), FILE if given.write else None)


if __name__ == "__main__":
    main()
