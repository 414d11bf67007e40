"""A training on ranks to which accidents happen: `benchmarks.survival` and a test launch it.

    mpiexec -n 2 python -m mpi4py -m benchmarks.survivor FOLDER 4:1:killed:0.5 9:0:sleeping:0   (until it returns 0)
    torchrun --nproc-per-node 2 --max-restarts 2 -m benchmarks.survivor FOLDER 4:1:killed:0.5 9:0:sleeping:0

An accident is a step, a rank, its kind, and a moment of the step, from 0 to 1.  FOLDER remembers which accidents have
happened, so each happens once.
"""

import argparse
import hashlib
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import varlen_rnn as vr

STEPS, EVERY = 16, 3  # of the training; from one checkpoint to the next
SIGNALS = {"killed": signal.SIGKILL, "stopped": getattr(signal, "SIGSTOP", None)}
KINDS = (*SIGNALS, "raising", "sleeping")


class Accident(NamedTuple):
    """What happens to a rank.

    Attributes
    ----------
    step : int
        The number of steps before it.
    rank : int
    kind : str
        One of `KINDS`.
    moment : float
        The share of a step that passes before a signal is sent: it may come while a rank computes, sends or saves.
    """

    step: int
    rank: int
    kind: str
    moment: float = 0.0

    @classmethod
    def parse(cls, text):
        """Return the accident of a text that `str` made."""
        step, rank, kind, moment = text.split(":")
        return cls(int(step), int(rank), kind, float(moment))

    def __str__(self):
        return f"{self.step}:{self.rank}:{self.kind}:{self.moment:.2f}"


class Accidents(vr.training.Callback):
    """Lets the next accident happen, after writing a file that says when."""

    def __init__(self, folder, accidents, comm):
        happened = len(list(folder.glob("accident-*")))
        self.path = folder / f"accident-{happened}"
        self.next = accidents[happened] if happened < len(accidents) else None
        self.comm, self.began, self.timer = comm, time.perf_counter(), None

    def on_step_end(self, trainer):
        """Begin the accident once its step is reached."""
        took, self.began = time.perf_counter() - self.began, time.perf_counter()
        accident = self.next
        if accident is None or trainer.step < accident.step or accident.rank != self.comm.rank:
            return
        self.next = None
        if accident.kind in SIGNALS:
            self.timer = threading.Timer(accident.moment * took, self.send, [SIGNALS[accident.kind], trainer])
            self.timer.start()
            return
        self.tell(trainer)
        if accident.kind == "raising":
            raise RuntimeError("a planned accident")
        time.sleep(10_000)

    def wait(self):
        """Wait for a signal that is late: the engine's end, which comes after the training, has no timeout."""
        if self.timer is not None:
            self.timer.join()

    def send(self, number, trainer):
        """Send a signal to this process."""
        self.tell(trainer)
        os.kill(os.getpid(), number)

    def tell(self, trainer):
        """Write when the accident happens, and after which step: a timer may be late."""
        self.path.write_text(f"{time.time()} {trainer.step}")


class Model(vr.nn.Module):
    """A classifier with dropout and a sparse embedding."""

    def __init__(self):
        self.embedding = vr.nn.Embedding(50, 8, sparse=True)
        self.gru = vr.nn.GRU(8, 12)
        self.dropout = vr.nn.Dropout(0.2)
        self.output = vr.nn.Linear(12, 3)

    def forward(self, ids):
        """Return the scores of three classes for each sequence."""
        return self.output(self.dropout(vr.sequence_pool(self.gru(self.embedding(ids))[0], "mean")))


def train(comm, folder, accidents=()):
    """Train to the end, beginning with the newest checkpoint in the folder; return a digest of the weights."""
    vr.manual_seed(0)
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 50, length) for length in rng.integers(0, 12, 96)]
    batches = vr.data.batches(sequences, rng.integers(0, 3, 96), batch_size=16, shuffle=True, seed=0)
    model, planned = Model(), Accidents(folder, accidents, comm)
    trainer = vr.training.Trainer(
        model, vr.optim.Adam(model.parameters(), lr=0.01),
        lambda ids, labels: vr.nn.functional.cross_entropy(model(ids), labels), batches, clip_norm=1.0, comm=comm,
        callbacks=[planned, vr.training.Checkpoints(folder / "run", every=EVERY)],
    )  # fmt: skip
    trainer.resume(folder / "run")
    folder.mkdir(parents=True, exist_ok=True)
    note(folder, comm.rank, began=trainer.step)
    trainer.fit(steps=STEPS)
    planned.wait()
    return hashlib.sha256(b"".join(p.data.tobytes() for p in model.parameters())).hexdigest()


def note(folder, rank, **fields):
    """Add a line to a rank's log."""
    with Path(folder, f"rank-{rank}.jsonl").open("a") as file:
        file.write(json.dumps({"time": time.time(), **fields}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("accidents", nargs="*", type=Accident.parse)
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds that a rank waits for the others")
    arguments = parser.parse_args()
    comm = vr.distributed.connect(arguments.timeout)
    digest = train(comm, arguments.folder, arguments.accidents)
    comm.close()
    note(arguments.folder, comm.rank, digest=digest)


if __name__ == "__main__":
    main()
