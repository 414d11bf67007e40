"""`python -m benchmarks.quality.worker SET MODEL FOLDER SEED ...`: a line of JSON for each seed, as it is computed."""

import json
import statistics
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from benchmarks.quality.models import function_of, versions_of
from benchmarks.quality.scores import summary
from benchmarks.quality.sets import SETS


def result(name, model, seed, folder):
    """Return the error of a model on a set, its parts, and the seconds of the fit and of the predictions."""
    kind, parts, fits, began = SETS[name].kind, [], [], time.process_time()
    for (X, y), (X_test, y_test) in SETS[name].divisions(Path(folder)):
        *found, seconds = function_of(model)(kind, X, y, X_test, seed)
        parts.append((*found, y_test))
        fits.append(seconds)
    whole = time.process_time() - began
    found, proba, wanted = (joined(some) for some in zip(*parts, strict=True))
    line = {"set": name, "model": model, "seed": seed, "kind": kind, "train": len(X), "test": len(found)}
    seconds = {"fit": statistics.mean(fits), "predict": whole - sum(fits)}
    return line | summary(kind, found, proba, wanted) | seconds | {"versions": versions_of(model)}


def joined(some):
    """Return the results of all origins as one array; the result of a single origin as it is."""
    return some[0] if len(some) == 1 or some[0] is None else np.concatenate(some)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    name, model, folder, *seeds = sys.argv[1:]
    for seed in seeds:
        print(json.dumps(result(name, model, int(seed), folder)), flush=True)
