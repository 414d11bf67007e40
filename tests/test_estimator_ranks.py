"""Estimators and the command line on ranks of real engines: all end with the same estimator, and one prints."""

import pickle

import numpy as np
import pytest

import varlen_rnn as vr

pytest.importorskip("sklearn")

from tests import launched_estimators
from tests.launched_estimators import FEW, LENGTHS, TEXTS, X, Y
from tests.rank_threads import run_ranks
from tests.test_distributed import GLOO, MPI, run
from varlen_rnn.distributed import Communicator
from varlen_rnn.sklearn import SequenceClassifier, SequenceRegressor, choice, load, ranks


@pytest.fixture(autouse=True)
def few_sequences(monkeypatch):
    monkeypatch.setattr(choice, "_LEAST_SEQUENCES", 20)


def same(first, second):
    """Raise unless the groups of two saved estimators are equal, to the bit."""
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_equal(second[name], value, name)


@pytest.mark.parametrize("engine", [pytest.param("gloo", marks=GLOO), pytest.param("mpi", marks=MPI)])
def test_all_ranks_have_one_estimator_and_one_prints(engine, tmp_path):
    lines = "".join(f"{text},{'yes' if len(text) > 2 else 'no'}\n" for text in TEXTS)
    (tmp_path / "texts.csv").write_text("text,long\n" + lines)
    run(engine, 2, "-m", "tests.launched_estimators", tmp_path)
    names = {path.stem for path in tmp_path.glob("*.0")} - {"printed"}
    assert len(names) == 3
    for name in names:
        same(*(vr.load(tmp_path / f"{name}.{rank}") for rank in range(2)))
    printed = [(tmp_path / f"printed.{rank}").read_text() for rank in range(2)]
    assert printed[1] == ""
    for text in ("convolutions: log loss", "\nrecurrent: log loss", "chosen: ", "held back: accuracy", "model: "):
        assert printed[0].count(text) == 1, printed[0]
    assert load(tmp_path / "model").predict(TEXTS).shape == (42,)
    assert not (tmp_path / "model.run").exists()


def test_ranks_train_as_one_process_does(tmp_path):
    """Without anything random in training, only the order of additions differs."""
    alone = SequenceRegressor(**FEW, model="recurrent", dropout=0.0)
    alone.fit(TEXTS, LENGTHS)
    several = run_ranks(2, launched_estimators.fits)
    for found in several:
        losses = [[record["loss"] for record in model.history_] for model in (alone, found["texts"])]
        np.testing.assert_allclose(*losses, rtol=1e-3)
        np.testing.assert_allclose(found["texts"].predict(TEXTS), alone.predict(TEXTS), rtol=1e-2, atol=1e-2)
    for name, model in several[0].items():
        for rank, found in enumerate(several):
            found[name].save(tmp_path / f"{name}.{rank}")
        same(*(vr.load(tmp_path / f"{name}.{rank}") for rank in range(2)))
        assert pickle.loads(pickle.dumps(model)).get_params() == model.get_params()
    chosen, evaluated = several[1]["chosen"], several[1]["evaluated"]
    assert len(chosen.candidates_) == len(evaluated.candidates_) == 3
    assert "valid_loss" in several[1]["stopping"].history_[0]
    assert several[1]["tagger"]._shares["recurrent"] != 1.0
    several[1]["texts"].partial_fit(TEXTS, LENGTHS)  # asks no other rank


def test_weights_are_those_of_the_whole_batch():
    weights = np.arange(41) % 3 + 1.0
    model = SequenceClassifier(**FEW, model="recurrent", dropout=0.0, batch_size=41, class_weight={1: 3.0})
    texts = [TEXTS[k % 7] for k in range(41)]
    losses = [[record["loss"] for record in found.history_]
              for found in (model.fit(texts, Y, weights), *run_ranks(2, lambda comm: SequenceClassifier(
                  **model.get_params()).fit(texts, Y, weights, comm=comm)))]  # fmt: skip
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)
    assert losses[1] == losses[2]


def test_one_rank_is_none():
    one, other = (SequenceClassifier(**FEW, model="recurrent").fit(X, Y, comm=comm) for comm in (None, Communicator()))
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))
    with pytest.raises(vr.DTypeError, match="fit, comm: expected a Communicator"):
        SequenceClassifier(**FEW).fit(X, Y, comm=3)


def test_an_error_of_the_first_rank_is_one_of_all():
    def fail(comm):
        with pytest.raises(ValueError if comm.rank else KeyError, match="gone"):
            ranks.from_first(comm, lambda: {}["gone"])
        return ranks.from_first(comm, lambda: ({"a": np.arange(3)[::-1], "b": np.zeros((0, 2), "f4")}, [1.5, None]))

    for arrays, value in run_ranks(2, fail):
        assert arrays["a"].tolist() == [2, 1, 0]
        assert (arrays["b"].shape, arrays["b"].dtype, value) == ((0, 2), np.float32, [1.5, None])
