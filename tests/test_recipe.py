"""How the network of estimators is trained: stretched sequences, sizes of batches, warnings where it failed."""

import numpy as np
import pytest

import varlen_rnn as vr

pytest.importorskip("sklearn")

from sklearn.dummy import DummyClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss

from tests.differences import slope
from tests.each import check_each
from varlen_rnn.data.labels import IGNORED
from varlen_rnn.sklearn import SequenceClassifier, SequenceRegressor, SequenceTagger, load, recipe, recurrent
from varlen_rnn.sklearn.stretch import SPREAD, shortened, stretched
from varlen_rnn.training import Trainer

LENGTHS = [[], [0, 0], [1], [2], [7, 0, 30, 1, 2], [40] * 5]


def stretched_one_by_one(sequences, generator):
    """Return each sequence at the places of a linear interpolation, times its factor."""
    of_lengths, of_rows = np.exp(SPREAD * generator.standard_normal((2, len(sequences))))
    found = []
    for x, longer, factor in zip(sequences, of_lengths, of_rows, strict=True):
        count = max(2, round(len(x) * longer)) if len(x) > 1 else len(x)
        places = np.linspace(0, len(x) - 1, count) if len(x) else np.zeros(0)
        columns = [np.interp(places, np.arange(len(x)), column) if len(x) else places for column in x.T]
        found.append(factor * np.stack(columns, axis=1))
    return found


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_stretched_sequences_are_interpolated(lengths):
    rng = np.random.default_rng(0)
    sequences = [rng.standard_normal((length, 3)).astype(np.float32) for length in lengths]
    whole = vr.create_lod_tensor(np.concatenate([np.zeros((0, 3), np.float32), *sequences]), [lengths])
    got = stretched(whole, np.random.default_rng(1)).to_sequences()
    wanted = stretched_one_by_one(sequences, np.random.default_rng(1))
    assert [len(x) for x in got] == [len(x) for x in wanted]
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def test_parts_of_a_batch_are_stretched_as_the_whole_batch_is():
    rng = np.random.default_rng(0)
    sequences = [rng.standard_normal((length, 2)).astype(np.float32) for length in (7, 0, 30, 1, 12)]
    whole = vr.data.batches(sequences, batch_size=5)

    def by_position(rank, size):
        x, generator = whole.part(rank, size)[0], np.random.default_rng(1)
        got = stretched(x, generator)
        np.testing.assert_array_equal(got.structure.positions, x.structure.positions)
        drawn.append(generator.random())
        return dict(zip(x.structure.positions.tolist(), got.to_sequences(), strict=True))

    drawn = []
    alone, parts = by_position(0, 1), by_position(0, 3) | by_position(1, 3) | by_position(2, 3)
    assert len(set(drawn)) == 1
    for position in range(5):
        np.testing.assert_array_equal(parts[position], alone[position])
    assert len(alone[2]) != 30


def test_only_few_measured_sequences_with_classes_are_stretched():
    measured, classes = [np.array([[0.5], [1.0]])] * 3, np.array([0, 1, 0])
    assert recipe.stretches(measured, classes, True)
    assert not recipe.stretches(measured, classes, False)
    assert not recipe.stretches(measured, classes.astype(np.float32), True)
    assert not recipe.stretches([np.ones((2, 1))] * 3, classes, True)
    assert not recipe.stretches(measured * 1000, np.tile(classes, 1000), True)


def means_one_by_one(sequences, stride):
    """Return the means of the parts of each sequence: as few as there can be, and about equal."""
    cut = lambda x, parts: [x[len(x) * k // parts : len(x) * (k + 1) // parts] for k in range(parts)]
    return [np.array([part.mean(axis=0) for part in cut(x, -(-len(x) // stride))]).reshape(-1, 3) for x in sequences]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("stride", [1, 2, 7])
def test_rows_of_shortened_sequences_are_means_of_neighbours(lengths, stride):
    rng = np.random.default_rng(0)
    sequences = [rng.standard_normal((length, 3)) for length in lengths]
    whole = vr.create_lod_tensor(np.concatenate([np.zeros((0, 3)), *sequences]), [lengths])
    got, wanted = shortened(whole, stride).value.to_sequences(), means_one_by_one(sequences, stride)
    assert [len(x) for x in got] == [len(x) for x in wanted]
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)


def test_the_gradient_of_shortened_sequences():
    rng = np.random.default_rng(0)
    lengths, data = [7, 0, 3, 1], rng.standard_normal((11, 2))
    x = vr.Variable(vr.create_lod_tensor(data, [lengths]), requires_grad=True)
    factors = rng.standard_normal(shortened(x, 3).shape)
    loss = lambda: (shortened(x, 3) ** 2.0 * factors).sum()
    loss().backward()
    for place in np.ndindex(data.shape):
        difference = slope(loss, x.value.data, at=place)
        np.testing.assert_allclose(np.asarray(x.grad)[place], difference, rtol=1e-6, atol=1e-8)


def test_parts_of_a_batch_are_shortened_as_the_whole_batch_is():
    sequences = [np.arange(length, dtype=np.float32)[:, None] for length in (7, 0, 30, 1, 12)]
    whole = vr.data.batches(sequences, batch_size=5)
    for rank in range(3):
        x = whole.part(rank, 3)[0]
        got = shortened(x, 4).value
        np.testing.assert_array_equal(got.structure.positions, x.structure.positions)


def load_again(model, folder):
    model.save(folder / "model")
    return load(folder / "model")


def test_the_network_of_long_series_has_shorter_ones(tmp_path):
    rng = np.random.default_rng(0)
    X = [rng.standard_normal((length, 1)).astype(np.float32) for length in rng.integers(250, 400, 24)]
    y = np.arange(24) % 2
    for x, label in zip(X, y, strict=True):
        x[100:180] += 2.0 * label
    model = SequenceClassifier("gru", 8, model="recurrent", max_epochs=15, random_state=0).fit(X, y)
    assert model.module_.stride == 3
    assert model.score(X, y) > 0.9
    network = load_again(model, tmp_path).module_.eval()
    rows = network.standardize(vr.create_lod_tensor(np.concatenate(X), [list(map(len, X))]))
    found, network.stride = np.asarray(network.features(rows)), 1
    np.testing.assert_array_equal(network.features(shortened(rows, 3)), found)
    np.testing.assert_array_equal(load_again(model, tmp_path).predict_proba(X), model.predict_proba(X))
    assert [found.shape for found in model.integrated_gradients(X[:2])] == [x.shape for x in X[:2]]
    short = SequenceClassifier("gru", 4, model="recurrent", max_epochs=1).fit([x[:200] for x in X], y)
    assert short.module_.stride == 1


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 31, 50, 270, 700, 10_000])
def test_batches_of_normalised_rows_have_no_small_rest(count):
    size = recipe.batch_size(count, True)
    assert size <= 70
    assert min(count, 8) <= (count - 1) % size + 1
    steps = recipe.epochs(count, -(-count // size), True) * -(-count // size)
    assert 400 <= steps <= 2100  # 400 epochs are the most


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_of_a_constant_is_that_of_the_best_dummy(weighted):
    rng = np.random.default_rng(0)
    labels = rng.choice(3, 50, p=[0.6, 0.3, 0.1])
    weights = rng.random(50) if weighted else None
    dummy = DummyClassifier(strategy="prior").fit(np.zeros(50), labels, weights)
    wanted = log_loss(labels, dummy.predict_proba(np.zeros(50)), sample_weight=weights)
    assert recipe.loss_of_constant(labels, weights, False) == pytest.approx(wanted)
    rows = np.split(labels, [20, 20])  # a tagger's, where a step without a tag does not count
    own = np.ones(50) if weights is None else weights
    rows.append(np.full(4, IGNORED))
    assert recipe.loss_of_constant(rows, np.concatenate([own, np.zeros(4)]), False) == pytest.approx(wanted)


def test_the_loss_of_a_constant_for_numbers_and_for_several_classes():
    targets = np.array([[1.0, 0.0], [-1.0, 4.0]], np.float32)
    assert recipe.loss_of_constant(targets, None, False) == pytest.approx((1 + 4) / 2)
    several = np.array([[1, 0], [0, 0]], np.float32)
    assert recipe.loss_of_constant(several, None, True) == pytest.approx(np.log(2) / 2)


def rising(number=60):
    rng = np.random.default_rng(0)
    X = [np.cumsum(rng.standard_normal((length, 2)), axis=0) for length in rng.integers(4, 13, size=number)]
    return X, np.array([x[-1, 0] > 0 for x in X])


@pytest.mark.parametrize("estimator", [SequenceClassifier, SequenceRegressor, SequenceTagger])
def test_a_fit_that_learns_nothing_warns(estimator):
    X, y = rising()
    labels = [np.repeat(label, len(x)) for x, label in zip(X, y, strict=True)] if estimator is SequenceTagger else y * 1
    options = {} if estimator is SequenceTagger else {"model": "recurrent"}
    with pytest.warns(ConvergenceWarning, match="learned nothing from X. Try more epochs"):
        estimator(hidden_size=4, lr=1e-7, max_epochs=50, batch_size=30, random_state=0, **options).fit(X, labels)


def test_a_training_that_became_unstable_warns():
    epochs = [{"step": 100, "loss": 0.1}, {"step": 200, "loss": 0.5}]
    with pytest.warns(ConvergenceWarning, match=r"the best epoch had 0.1: training became unstable. Try a lower rate"):
        recipe.warn_if_failed(epochs, 0.69)
    recipe.warn_if_failed([{"step": 10, "loss": 0.7}], 0.69)  # too few steps to say anything
    recipe.warn_if_failed([{"step": 200, "loss": 1e-5}], 0.0)  # one class


def test_a_prediction_does_not_depend_on_its_batch():
    X, y = rising()
    model = SequenceClassifier("gru", 4, max_epochs=3, random_state=0).fit(X, y)
    whole = model.predict_proba(X)
    for number in (0, 7):
        np.testing.assert_array_equal(model.predict_proba(X[number : number + 1])[0], whole[number])


def test_networks_train_by_bound_steps_with_the_bits_of_the_steps_themselves(monkeypatch):
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abcdef"), rng.integers(1, 9))) for _ in range(24)]
    rows = [rng.standard_normal((n, 2)).astype(np.float32) for n in rng.integers(3, 12, 24)]
    gaps = [np.where(rng.random(x.shape) < 0.2, np.nan, x) for x in rows]
    options = {"hidden_size": 4, "max_epochs": 4, "batch_size": 4, "random_state": 0}
    tags = [[letter in "abc" for letter in text] for text in texts]
    cases = {
        "weighted classes": (SequenceClassifier, {"model": "recurrent"}, texts, rng.integers(0, 3, 24), rng.random(24)),
        "tags, with a field": (SequenceTagger, {"crf": True}, texts, tags, None),
        "numbers with gaps": (SequenceRegressor, {"model": "recurrent"}, rows, gaps, None),
    }
    made = []

    def trainer(*args, **named):
        made.append(Trainer(*args, **named))
        return made[-1]

    def check(name):
        kind, given, X, y, weights = cases[name]
        monkeypatch.setattr(recurrent, "Trainer", trainer)
        fitted = kind(**options, **given).fit(X, y, sample_weight=weights)
        assert "ran it alone" in made[-1]._bound.explain()
        monkeypatch.setattr(recurrent, "Trainer", lambda *args, **named: Trainer(*args, **named | {"bound": False}))
        other = kind(**options, **given).fit(X, y, sample_weight=weights)
        assert fitted.history_ == other.history_
        for one, two in zip(fitted.module_.parameters(), other.module_.parameters(), strict=True):
            np.testing.assert_array_equal(one.data, two.data)

    check_each(cases, check)
