"""`python -m benchmarks.published FOLDER`: the classifier's defaults on published series of unequal lengths.

FOLDER has NAME/NAME_TRAIN.ts and NAME/NAME_TEST.ts, as `aeon/datasets/data` of the wheel of aeon 1.6.0 does
(`pip download --no-deps aeon==1.6.0`, and unzip it).
"""

import statistics
import sys
import time
from pathlib import Path

import numpy as np

from varlen_rnn.sklearn import SequenceClassifier

NAMES, SEEDS = ("JapaneseVowels", "PickupGestureWiimoteZ"), range(4)


def read(path):
    """Return the series of a .ts file, without the NaN that some are padded with, and their classes."""
    lines = path.read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.lower().startswith("@data"))
    X, y = [], []
    for line in filter(None, lines[begin + 1 :]):
        *columns, label = line.split(":")
        numbers = [[np.nan if text == "?" else float(text) for text in column.split(",")] for column in columns]
        rows = np.array(list(zip(*numbers, strict=False)))
        X.append(rows[~np.isnan(rows).any(axis=1)])
        y.append(label)
    return X, np.array(y)


def main(folder):
    """Print scores of the test parts, by seed, and the median seconds of a fit."""
    for name in NAMES:
        (X, y), test = (read(Path(folder, name, f"{name}_{part}.ts")) for part in ("TRAIN", "TEST"))
        scores, seconds = [], []
        for seed in SEEDS:
            began = time.perf_counter()
            model = SequenceClassifier(random_state=seed).fit(X, y)
            seconds.append(time.perf_counter() - began)
            scores.append(f"{model.score(*test):.3f}")
        lengths = sorted(map(len, X))
        print(f"{name}: {len(X)} series of {lengths[0]} to {lengths[-1]} rows, {len(set(y))} classes; ", end="")
        print(f"accuracy {', '.join(scores)}; {statistics.median(seconds):.1f} s")


if __name__ == "__main__":
    main(sys.argv[1])
