"""Fits of networks to small sets: their steps bound to programs, as estimators train them, and eager.

    python -m benchmarks.small_fits            # print the lines
    python -m benchmarks.small_fits --write    # and replace results/small_fits.txt

Times are of the processor, medians of rounds, with one thread; each fit is in a process of its own, after a short one
that loads the kernels.  "Native" is the share of a bound fit that kernels run without Python: the rest is what could
still be won.  Predictions of both are equal to the bit, or no time is printed.
"""

import functools
import json
import statistics
import time
from pathlib import Path

import numpy as np

from benchmarks.machine import publish
from benchmarks.processes import options, output_of

FILE = Path(__file__).parent / "results" / "small_fits.txt"
WAYS, ROUNDS, EPOCHS = ("bound", "eager"), 3, 10
TASKS = {
    "400 texts of 4 to 11 characters": "SequenceClassifier",
    "400 sequences of 10 to 39 rows of 3 numbers": "SequenceRegressor",
    "200 texts, a tag for each character": "SequenceTagger",
}


def data(task):
    """Return sequences and labels."""
    rng = np.random.default_rng(0)
    number = int(task.split()[0])
    if "numbers" in task:
        X = [rng.standard_normal((length, 3)).astype(np.float32) for length in rng.integers(10, 40, number)]
        return X, np.array([x[:, 0].max() - x[-1, 1] for x in X])
    X = ["".join(rng.choice(list("abcdefghij"), length)) for length in rng.integers(4, 12, number)]
    if "tag" in task:
        return X, [["ab" if a in "ab" else b for a, b in zip(x, " " + x, strict=False)] for x in X]
    return X, rng.integers(0, 3, number)


def seconds(task, way):
    """Print the CPU seconds of a fit, the seconds in which kernels run without Python, and a digest of predictions."""
    import hashlib

    import varlen_rnn as vr
    from varlen_rnn import sklearn
    from varlen_rnn.runtime import records
    from varlen_rnn.sklearn import recurrent
    from varlen_rnn.training import Trainer

    vr.set_num_threads(1)
    if way == "eager":

        def eager(*arguments, bound, **options):
            return Trainer(*arguments, **options)

        recurrent.Trainer = eager
    native, run = [0.0], records.run_records

    @functools.wraps(run)
    def timed(*arguments):
        begin = time.process_time()
        try:
            return run(*arguments)
        finally:
            native[0] += time.process_time() - begin

    (X, y), network = data(task), {} if "tag" in task else {"model": "recurrent"}
    new = functools.partial(getattr(sklearn, TASKS[task]), random_state=0, **network)
    new(max_epochs=2).fit(X[:60], y[:60])
    records.run_records = timed
    begin = time.process_time()
    model = new(max_epochs=EPOCHS).fit(X, y)
    taken = time.process_time() - begin
    found = hashlib.sha256(repr([np.asarray(p).tolist() for p in model.predict(X)]).encode()).hexdigest()
    print(json.dumps([taken, native[0], found]))


def measured(task):
    """Return a line."""
    found = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, runs in found.items():
            runs.append(json.loads(output_of("-m", "benchmarks.small_fits", "--task", task, "--way", way)))
    if len({digest for runs in found.values() for *_, digest in runs}) > 1:
        return f"{task}: predictions differ"
    bound, eager = (statistics.median(taken for taken, *_ in found[way]) for way in WAYS)
    native = statistics.median(part / taken for taken, part, _ in found["bound"])
    return f"{task}: eager {eager:.2f} s, bound {bound:.2f} s, {eager / bound:.2f} times; native {native:.0%}"


def main():
    """Measure all tasks, or fit one once."""
    given = options(__doc__, task={"help": "fit once, and print seconds"}, way={"choices": WAYS, "default": "bound"})
    if given.task is None:
        publish(map(measured, TASKS), FILE if given.write else None)
    else:
        seconds(given.task, given.way)


if __name__ == "__main__":
    main()
