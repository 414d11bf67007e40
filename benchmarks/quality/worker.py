"""`python -m benchmarks.quality.worker SET MODEL FOLDER SEED ...`: a line of JSON for each seed, as it is computed."""

import json
import sys
import time
import warnings
from pathlib import Path

from benchmarks.quality.models import function_of
from benchmarks.quality.scores import summary
from benchmarks.quality.sets import SETS


def result(name, model, seed, folder):
    """Return the error of a model on a set, its parts, and the seconds of the fit and of the predictions."""
    (X, y), (X_test, y_test) = SETS[name].load(Path(folder))
    kind = SETS[name].kind
    began = time.process_time()
    found, proba, seconds = function_of(model)(kind, X, y, X_test, seed)
    whole = time.process_time() - began
    line = {"set": name, "model": model, "seed": seed, "kind": kind, "train": len(X), "test": len(X_test)}
    return line | summary(kind, found, proba, y_test) | {"fit": seconds, "predict": whole - seconds}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    name, model, folder, *seeds = sys.argv[1:]
    for seed in seeds:
        print(json.dumps(result(name, model, int(seed), folder)), flush=True)
