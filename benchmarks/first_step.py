"""What a fresh process pays before its first step is done: `python -m benchmarks.first_step ENGINE`.

Prints {"imports": {package: seconds}, "first_step": seconds}, the seconds of a package those over the ones before it.
"""

import importlib
import json
import sys
import time

from benchmarks.engines import ENGINES, build

CASE = {"cell": "LSTM", "input_size": 64, "hidden_size": 64, "lengths": (5, 9, 7, 2), "distribution": "ragged"}


def main(engine):
    imports = {package: _seconds(importlib.import_module, package) for package in ENGINES[engine].needs}
    first_step = _seconds(_step, engine)
    print(json.dumps({"imports": imports, "first_step": first_step}))


def _step(engine):
    build("layers", engine, CASE, 1).training()


def _seconds(action, argument):
    began = time.perf_counter()
    action(argument)
    return time.perf_counter() - began


if __name__ == "__main__":
    main(sys.argv[1])
