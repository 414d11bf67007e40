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
from varlen_rnn.sklearn import SequenceClassifier, SequenceRegressor, SequenceTagger, choosing

FEW = {"hidden_size": 8, "max_epochs": 3, "random_state": 0}
X, Y = series(41)
NOISE = np.random.default_rng(0).integers(0, 2, 41)
TEXTS = ["ab", "b", "", "bab", "a", "abba", "bb"] * 6


def fits(comm):
    """Return estimators that were fitted on ranks: of each kind, with weights, and with sequences left out."""
    choosing._LEAST_SEQUENCES = 20
    chosen = SequenceClassifier(**FEW, verbose=1, cell="gru", class_weight={0: 2.0})
    stopping = SequenceClassifier(**FEW, model="recurrent", early_stopping=True, n_iter_no_change=1)
    tagger, lengths = SequenceTagger(**FEW, crf=True), np.array([float(len(text)) for text in TEXTS])
    return {
        "chosen": chosen.fit(with_gaps(X, [0]), NOISE, comm=comm),
        "stopping": stopping.fit(X, Y, np.arange(41) % 3 + 1.0, comm=comm),
        "evaluated": SequenceRegressor(**FEW).fit(TEXTS, lengths, eval_set=(TEXTS, lengths), comm=comm),
        "tagger": tagger.fit(TEXTS, [list(text) for text in TEXTS], comm=comm),
        "texts": SequenceRegressor(**FEW, model="recurrent", dropout=0.0).fit(TEXTS, lengths, comm=comm),
        "without a seed": SequenceClassifier(**FEW | {"random_state": None}, model="recurrent").fit(X, Y, comm=comm),
    }


def write(folder, rank, comm):
    """Fit, and save what was fitted."""
    for name, model in fits(comm).items():
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
