"""What each rank runs that `test_distributed.py` launches: `python -m tests.launched FOLDER` under torchrun or mpiexec.

It leaves its results in FOLDER, a file per rank.
"""

import sys
from pathlib import Path

import numpy as np

from varlen_rnn.distributed import connect


def collectives(comm):
    """Return the result of every collective; the numbers of a rank tell which rank had them."""
    rank, size, found = comm.rank, comm.size, {}
    for name, dtype in {"f4": np.float32, "f8": np.float64, "i8": np.int64}.items():
        found[f"sum {name}"] = np.arange(5, dtype=dtype) * (rank + 1)
        comm.all_reduce(found[f"sum {name}"])
    found["max"] = np.array([rank, -rank], np.float64)
    comm.all_reduce(found["max"], "max")
    found["started"], second = np.full(3, rank + 1.0), np.full(2, 10.0 * (rank + 1))
    handles = [comm.start_all_reduce(array) for array in (found["started"], second)]
    handles[0].test()
    for handle in handles:
        handle.wait()
    found["started second"] = second
    for name, array in {"gathered": np.full((rank, 2), rank, np.float32), "flags": np.arange(rank + 1) > 0}.items():
        for number, part in enumerate(comm.all_gather(array)):
            found[f"{name} {number}"] = part
    nothing = comm.all_gather(np.zeros((0, 3), np.float32))
    found["nothing"] = np.array([part.shape for part in nothing])
    sent = [np.full((peer + 2 * rank, 2), 10 * rank + peer, np.int64) for peer in range(size)]
    for number, part in enumerate(comm.all_to_all(sent)):
        found[f"came {number}"] = part
    found["exchanged"] = comm.exchange(np.array([[rank]], np.float32), rank ^ 1) if size == 2 else np.zeros(0)
    found["broadcast"] = np.full((2, 2), rank, np.float16)
    comm.broadcast(found["broadcast"], size - 1)
    found["number"] = np.array(float(rank + 1))
    comm.all_reduce(found["number"])
    comm.barrier()
    return found


def other_rows(comm):
    """Return the message of the error that all ranks raise when one has rows of another size."""
    found = {}
    calls = {"all_gather": comm.all_gather, "all_to_all": lambda array: comm.all_to_all([array] * comm.size)}
    for name, call in calls.items():
        try:
            call(np.zeros((1, 1 + comm.rank)))
        except ValueError as error:
            found[name] = np.array(str(error))
    return found


def main():
    comm = connect(timeout=60)
    found = {**collectives(comm), **other_rows(comm)}
    np.savez(Path(sys.argv[1], f"rank{comm.rank}.npz"), rank=comm.rank, size=comm.size, **found)
    comm.close()


if __name__ == "__main__":
    main()
