"""What each rank runs that `test_estimator_ranks.py` launches: `python -m tests.launched_estimators FOLDER`.

It leaves its estimators in FOLDER, a file per rank and kind, and what it printed.
"""

import contextlib
import io
import sys
from pathlib import Path

import numpy as np

from tests.test_estimator_inputs import series, with_gaps
from tests.waiting import HANGS
from varlen_rnn.cli import main as command_line
from varlen_rnn.distributed import connect
from varlen_rnn.sklearn import SequenceClassifier, SequenceRegressor, SequenceTagger, choice

FEW = {"hidden_size": 8, "max_epochs": 3, "random_state": 0}
X, Y = series(41)
NOISE = np.random.default_rng(0).integers(0, 2, 41)
TEXTS = ["ab", "b", "", "bab", "a", "abba", "bb"] * 6


LENGTHS = np.array([float(len(text)) for text in TEXTS])
TAGS = [list(text) for text in TEXTS]


def fits(comm, *names):
    """Return estimators by name that were fitted on ranks: of each kind, with weights, and with sequences left out."""
    choice._LEAST_SEQUENCES = 20
    kinds = {
        "chosen": lambda: SequenceClassifier(**FEW, verbose=1, cell="gru", class_weight={0: 2.0}).fit(
            with_gaps(X, [0]), NOISE, comm=comm
        ),
        "evaluated": lambda: SequenceRegressor(**FEW).fit(X, NOISE * 1.0, eval_set=(X[1:], NOISE[1:] * 1.0), comm=comm),
        "stopping": lambda: SequenceClassifier(**FEW, model="recurrent", early_stopping=True).fit(
            X, Y, np.arange(41) % 3 + 1.0, comm=comm
        ),
        "tagger": lambda: SequenceTagger(**FEW, early_stopping=True).fit(TEXTS, TAGS, comm=comm),
        "field": lambda: SequenceTagger(**FEW, crf=True).fit(TEXTS, TAGS, comm=comm),
        "texts": lambda: SequenceRegressor(**FEW, model="recurrent", dropout=0.0).fit(TEXTS, LENGTHS, comm=comm),
        "without a seed": lambda: SequenceClassifier(**FEW | {"random_state": None}, model="recurrent").fit(
            X, Y, comm=comm
        ),
    }
    return {name: kinds[name]() for name in names or kinds}


def write(folder, rank, comm):
    """Fit estimators, and save them."""
    for name, model in fits(comm, "chosen", "evaluated", "without a seed").items():
        model.save(folder / f"{name}.{rank}", notes={})


def main():
    folder, comm, printed = Path(sys.argv[1]), connect(timeout=HANGS), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        write(folder, comm.rank, comm)
        status = command_line(["train", str(folder / "texts.csv"), "--label", "long", "--out", str(folder / "model"),
                               "--model", "recurrent", "--hidden-size", "4", "--max-epochs", "2"])  # fmt: skip
    assert status == 0, printed.getvalue()
    (folder / f"printed.{comm.rank}").write_text(printed.getvalue())
    comm.close()


if __name__ == "__main__":
    main()
