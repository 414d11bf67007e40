"""Compare and time packages of others, with our layers and without: ``python -m benchmarks.clients NAME...``."""

import importlib.metadata
import statistics
import sys
import time

import torch

import varlen_rnn as vr
import varlen_rnn.torch as vt
from benchmarks.clients import page
from benchmarks.clients.packages import CLIENTS, unchanged
from benchmarks.machine import describe

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
    about = {key: value for key, value in describe(1).items() if key in ("date", "processor", "python", "commit")}
    named = {"client": name, "does": client.does, "difference": found, "versions": versions}
    return about | named | {"seconds": [statistics.median(of_call) for of_call in seconds], "rounds": seconds}


def main():
    """Measure the named calls, all of them by default; put each line in place of its last one, and write the page."""
    vr.set_num_threads(1)
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CLIENTS:
        line = compared(name)
        print("".join(f"{cell}  " for cell in page.cells(line)), flush=True)
        page.add(page.RESULTS, line)


if __name__ == "__main__":
    main()
