"""Compare and time packages of others, with our layers and without: ``python -m benchmarks.clients NAME...``."""

import datetime
import importlib.metadata
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import torch

import varlen_rnn as vr
import varlen_rnn.torch as vt
from benchmarks.clients.packages import CLIENTS, unchanged

RESULTS = Path(__file__).parents[1] / "results" / "clients.jsonl"
ROUNDS = 7


def difference(theirs, ours):
    """Return the largest difference of results, over the largest number of each tensor, at least 1."""
    pairs = zip(theirs, ours, strict=True)
    return max(float((one - other).abs().max() / max(1.0, one.abs().max())) for one, other in pairs)


def compared(name):
    """Return the line of a package: the difference of results, and the CPU seconds of a call, both ways."""
    client, calls = CLIENTS[name], []
    for change in (unchanged, vt.replace):
        torch.manual_seed(0)
        calls.append(client.build(change))
    found, seconds = difference(*(call() for call in calls)), ([], [])
    for _ in range(ROUNDS):
        for call, of_call in zip(calls, seconds, strict=True):
            began = time.process_time()
            call()
            of_call.append(time.process_time() - began)
    versions = {package: importlib.metadata.version(package) for package in (*client.needs, "torch", "numpy", "numba")}
    return {
        "date": datetime.date.today().isoformat(), "client": name, "does": client.does, "difference": found,
        "seconds": [statistics.median(of_call) for of_call in seconds], "rounds": seconds, "versions": versions,
        "python": platform.python_version(), "processor": platform.machine(),
    }  # fmt: skip


def main():
    """Print a line for each package, and write it in place of its last one."""
    vr.set_num_threads(1)
    torch.set_num_threads(1)
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    for name in sys.argv[1:] or CLIENTS:
        line = compared(name)
        before, after = line["seconds"]
        print(
            f"{name:14} {before * 1e3:8.1f} ms {after * 1e3:8.1f} ms {before / after:6.2f} x   {line['difference']:.1e}"
        )
        lines = [other for other in lines if other["client"] != name] + [line]
    RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
