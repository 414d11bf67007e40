"""What a fresh process pays before its first step is done: `python -m benchmarks.first_step ENGINE`.

Prints {"imports": {package: seconds}, "first_step": seconds, "second_cell": seconds}: the seconds of a package are
those over the packages before it; the second cell is the first training step of a GRU, after that of an LSTM.
"""

import importlib
import json
import sys
import time

from benchmarks.engines import ENGINES, build

CASE = {"input_size": 64, "hidden_size": 64, "lengths": (5, 9, 7, 2), "distribution": "ragged"}


def main(engine):
    imports = {package: _seconds(importlib.import_module, package) for package in ENGINES[engine].needs}
    first_step = _seconds(_step, engine, "LSTM")
    second_cell = _seconds(_step, engine, "GRU")
    print(json.dumps({"imports": imports, "first_step": first_step, "second_cell": second_cell}))


def _step(engine, cell):
    build("layers", engine, CASE | {"cell": cell}, 1).training()


def _seconds(action, *arguments):
    began = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - began


if __name__ == "__main__":
    main(sys.argv[1])
