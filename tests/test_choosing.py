"""Classifiers and regressors choose between candidates by predictions for sequences left out, and are saved whole."""

import pickle

import numpy as np
import pytest

import varlen_rnn as vr

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from varlen_rnn.sklearn import SequenceClassifier, SequenceRegressor, SequenceTagger, choice, described, load, recurrent
from varlen_rnn.sklearn.inputs import Inputs
from varlen_rnn.sklearn.linear import Targets
from varlen_rnn.sklearn.ngrams import Text
from varlen_rnn.sklearn.recurrent import Recurrent

FEW = {"hidden_size": 4, "max_epochs": 3, "random_state": 0}


def waves(number=40, seed=0, noise=0.3):
    """Return waves of 5 to 40 samples and two features, and whether each is a square wave."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, number)
    X = []
    for label in y:
        phase = rng.uniform() + np.arange(rng.integers(5, 41)) / rng.uniform(6, 12)
        clean = np.sin(2 * np.pi * phase)
        clean = np.sign(clean) if label else clean
        X.append(np.column_stack([clean, phase]) + noise * rng.standard_normal((len(phase), 2)))
    return X, y


WORDS = ["the sea and the sand", "a tree and a stream", "sand", "stream a tree", "and the sea"] * 4
PLACES = ["beach", "forest", "beach", "forest", "beach"] * 4
CASES = {
    "numbers": lambda: (SequenceClassifier, *waves()),
    "texts": lambda: (SequenceClassifier, WORDS, PLACES),
    "words": lambda: (SequenceClassifier, [" ".join([text] * 4) for text in WORDS], PLACES),
    "tokens": lambda: (SequenceClassifier, [text.split() for text in WORDS], PLACES),
    "ids": lambda: (SequenceClassifier, [[len(word) for word in text.split()] for text in WORDS], PLACES),
    "several classes": lambda: (SequenceClassifier, waves()[0], np.column_stack([waves()[1], 1 - waves()[1]])),
    "regression": lambda: (SequenceRegressor, waves()[0], [x[:, 1].mean() for x in waves()[0]]),
    "targets": lambda: (SequenceRegressor, WORDS, np.column_stack([list(map(len, WORDS)), np.ones(20)])),
}


@pytest.mark.parametrize("case", CASES)
def test_small_data_is_learned_without_a_network_and_saved(tmp_path, case):
    kind, X, y = CASES[case]()
    model = kind(**FEW).fit(X, y)
    assert model.score(X, y) > 0.9
    assert model.module_ is None
    cheap = "convolutions" if isinstance(X[0], np.ndarray) else "ngrams"
    assert [candidate["candidate"] for candidate in model.candidates_] == [cheap, "recurrent"]
    assert [candidate["chosen"] for candidate in model.candidates_] == [True, False]
    assert model.candidates_[1]["reason"] == f"not trained: {len(y)} sequences, fewer than 100"
    model.save(tmp_path / "model")
    for other in (load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other.predict(X), model.predict(X))
        np.testing.assert_array_equal(other._outputs(X, None)[1], model._outputs(X, None)[1])
        assert other.candidates_ == model.candidates_
        assert other.get_params() == model.get_params()
        other.save(tmp_path / "again")
    again = kind(**FEW, model=cheap).fit(X, y)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    alone = [model.predict(X[k : k + 1]) for k in range(len(X))]
    np.testing.assert_array_equal(np.concatenate(alone), model.predict(X))


@pytest.mark.parametrize("most", [1000, 30])
@pytest.mark.parametrize("case", ["numbers", "texts", "several classes", "regression"])
def test_a_network_joins_if_predictions_left_out_are_better(monkeypatch, tmp_path, case, most):
    """With `most` = 30, a fifth of the sequences is held out; otherwise each is left out."""
    monkeypatch.setattr(choice, "_LEAST_SEQUENCES", 20)
    monkeypatch.setattr(choice, "_LEAST_GAIN", -1.0)
    for module in (choice, described):
        monkeypatch.setattr(module, "MOST_LEFT_OUT", most)
    kind, X, y = CASES[case]()
    rng = np.random.default_rng(0)
    if case == "regression":
        y = np.array(y) + rng.standard_normal(len(y))
    else:
        y = np.array(y)
        y[::3] = 1 - y[::3] if case != "texts" else np.where(y[::3] == "beach", "forest", "beach")
    model = kind(**FEW, model="auto").fit(X, y)
    names = [candidate["candidate"] for candidate in model.candidates_]
    assert names == [names[0], "recurrent", f"{names[0]} and recurrent"]
    best = min(model.candidates_, key=lambda candidate: candidate["loss"])
    assert [candidate["candidate"] for candidate in model.candidates_ if candidate["chosen"]] == [best["candidate"]]
    assert list(model._shares) == best["candidate"].split(" and ")
    assert (model.module_ is not None) == ("recurrent" in model._shares)
    if names[0] not in model._candidates:  # the network alone was chosen
        model._candidates |= kind(**FEW, model=names[0]).fit(X, y)._candidates
    for shares in ({"recurrent": 0.5}, {names[0]: 2.0}, {names[0]: 2.0, "recurrent": 0.5}):
        if "recurrent" in shares and model.module_ is None:
            model._candidates["recurrent"] = model._new_network()
            model._candidates["recurrent"].begin(model._rows(X))
        model._shares = shares
        model.save(tmp_path / "model")
        np.testing.assert_array_equal(load(tmp_path / "model").predict(X), model.predict(X))
    both = model._outputs(X, None)[1]
    parts = [model._candidates[name].outputs(model._rows(X)) for name in (names[0], "recurrent")]
    np.testing.assert_allclose(both, 2 * parts[0] + 0.5 * parts[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("answers", "folds"), [("right", 2), ("nothing", 1), ("mostly right", 4)])
def test_folds_end_when_the_choice_is_clear(monkeypatch, answers, folds):
    """A fold has 30 sequences: a network needs two to be chosen, and four are enough for any choice."""
    rng = np.random.default_rng(0)
    X, y = [rng.standard_normal((4, 1)).astype(np.float32) for _ in range(150)], rng.integers(0, 2, 150)
    told = {x.tobytes(): 20.0 * label - 10 for x, label in zip(X, y, strict=True)}
    trained = []

    def train(self, data, *arguments, **options):
        trained.append(len(data))
        self.seen = {x.tobytes() for x in data.sequences}

    def outputs(self, sequences):
        assert not {x.tobytes() for x in sequences} & self.seen
        found = np.array([told[x.tobytes()] for x in sequences])
        found *= {"right": 1, "nothing": 0, "mostly right": np.where(rng.uniform(size=30) < 0.7, 1, -1)}[answers]
        return np.column_stack([-found, found])

    monkeypatch.setattr(Recurrent, "fit", train)
    monkeypatch.setattr(Recurrent, "outputs", outputs)
    model = SequenceClassifier(random_state=0).fit(X, y)
    assert trained[:folds] == [120] * folds
    assert trained[folds:] == ([150] if "recurrent" in model._shares else [])
    assert model.candidates_[-1]["sequences"] == 30 * folds
    if answers != "mostly right":
        assert ("recurrent" in model._shares) == (answers == "right")


def test_probabilities_are_calibrated():
    """A tenth of the labels is wrong: probabilities say so, on other sequences."""
    X, y = waves(300, noise=0.1)
    rng = np.random.default_rng(1)
    wrong = np.where(rng.uniform(size=300) < 0.15, 1 - y, y)
    model = SequenceClassifier(model="convolutions", random_state=0).fit(X[:150], wrong[:150])
    probabilities, found = model.predict_proba(X[150:]), model.predict(X[150:])
    assert abs(probabilities.max(axis=1).mean() - (found == wrong[150:]).mean()) < 0.06
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X), rtol=1e-5)
    scores = model.decision_function(X)
    assert scores.shape == (300,)
    np.testing.assert_array_equal(scores > 0, model.predict(X) == 1)
    np.testing.assert_allclose(1 / (1 + np.exp(-scores)), model.predict_proba(X)[:, 1], rtol=1e-4)
    three = SequenceClassifier(model="convolutions", random_state=0).fit(X[:60], np.arange(60) % 3)
    np.testing.assert_array_equal(three.decision_function(X).argmax(axis=1), three.predict(X))


def test_early_stopping_calibrates_a_network():
    X, y = waves(60)
    model = SequenceClassifier(model="recurrent", early_stopping=True, **FEW).fit(
        X, np.random.default_rng(0).permutation(y)
    )
    assert model._shares["recurrent"] != 1.0
    assert model.candidates_[0]["candidate"] == "recurrent"
    assert SequenceClassifier(model="recurrent", **FEW).fit(X, y)._shares == {"recurrent": 1.0}


TROUBLES = {
    "constant": [np.ones((5, 2)), np.ones((3, 2)), np.ones((4, 2))],
    "one step": [np.array([[1.0, 2.0]]), np.array([[2.0, 1.0]]), np.array([[0.0, 3.0]])],
    "empty": [np.zeros((0, 1))] * 3,
    "some empty": [np.zeros((0, 1)), np.arange(9.0)[:, None], np.zeros((0, 1))],
    "huge": [np.array([1e30, -1e30, 3e38]), np.array([1.0, 2.0]), np.array([1e-30])],
    "empty texts": ["", "", ""],
    "texts without words": ["  ", "", " "],
    "empty ids": [np.zeros(0, np.int64), np.array([3]), np.array([1, 2])],
}


@pytest.mark.filterwarnings("error", "ignore:fit, X. expected floating-point numbers for measurements")
@pytest.mark.parametrize("trouble", TROUBLES)
def test_troubles(trouble, tmp_path):
    X = TROUBLES[trouble]
    for y in (["a", "b", "c"], ["a", "b", "a"], ["a", "a", "a"]):
        model = SequenceClassifier(random_state=0).fit(X, y)
        assert np.isfinite(model.predict_proba(X)).all()
        assert np.isfinite(model.predict_proba([X[0][:0]] if trouble != "empty texts" else ["never seen"])).all()
        model.save(tmp_path / "model")
        np.testing.assert_array_equal(load(tmp_path / "model").predict(X), model.predict(X))
    assert np.isfinite(SequenceRegressor(random_state=0).fit(X, [1.0, 2.0, 3.0]).predict(X)).all()
    assert np.isfinite(SequenceRegressor(random_state=0).fit(X[:1], [1.0]).predict(X[:1])).all()


def test_numbers_far_from_those_of_the_training_are_predicted():
    X, y = waves()
    model = SequenceClassifier(random_state=0).fit(X, y)
    far = [np.full((20, 2), value) for value in (1e30, -3e38)]
    assert np.isfinite(model.predict_proba(far)).all()


def test_bits_depend_on_neither_threads_nor_the_order_of_sequences():
    X, y = waves(60)
    found = []
    for threads in (1, 3):
        vr.set_num_threads(threads)
        model = SequenceClassifier(random_state=0).fit(X, y)
        found += [model.predict_proba(X), model.predict_proba(X[::-1])[::-1]]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_weights_of_sequences_and_classes_of_a_ridge():
    X, y = waves(60)
    wrong = np.where(np.arange(60) % 2, y, 1 - y)
    weights = np.where(np.arange(60) % 2, 1.0, 0.0)
    model = SequenceClassifier(random_state=0).fit(X, wrong, sample_weight=weights)
    only = SequenceClassifier(random_state=0).fit(X[1::2], y[1::2])
    np.testing.assert_array_equal(model.predict_proba(X), only.predict_proba(X))
    rare = np.array([len(x) > 35 for x in X])
    plain = SequenceClassifier(random_state=0).fit(X, rare).predict_proba(X)[:, 1].mean()
    heavy = SequenceClassifier(random_state=0, class_weight={True: 50.0}).fit(X, rare).predict_proba(X)[:, 1].mean()
    assert heavy > plain


def test_what_a_network_alone_can_do_says_so(tmp_path):
    X, y = waves(20)
    for params, message in (
        ({"warm_start": True}, "warm_start: expected False, because of model='auto', got True .or pass"),
        ({"checkpoints": tmp_path}, "checkpoints: expected None, because of model='auto'"),
        (
            {"model": "ngrams"},
            "model: expected 'auto', 'recurrent' or 'convolutions', because X has numbers, got 'ngrams'",
        ),
        ({"model": "forest"}, "model: expected one of 'auto', 'recurrent', 'convolutions' or 'ngrams', got 'forest'"),
        ({"model": 3}, "model: expected one of"),
        ({"cell": "none"}, "cell: expected one of"),
        ({"max_epochs": 0}, "max_epochs: expected at least 1"),
        ({"batch_size": 0}, "batch_size: expected at least 1"),
        ({"schedule": "none"}, "schedule: expected one of"),
    ):
        with pytest.raises(vr.InputError, match=message):
            SequenceClassifier(**params).fit(X, y)
    with pytest.raises(vr.InputError, match="model: expected 'auto', 'recurrent' or 'ngrams', because X has texts"):
        SequenceRegressor(model="convolutions").fit(["a", "b"], [1, 2])
    assert hasattr(SequenceClassifier(model="recurrent"), "partial_fit")
    assert not hasattr(SequenceClassifier(), "partial_fit")


@pytest.mark.parametrize("training", [1, 4])
def test_an_interrupt_keeps_the_best_model_so_far(monkeypatch, training):
    """In the first fold, or a later one."""
    monkeypatch.setattr(choice, "_LEAST_SEQUENCES", 20)
    monkeypatch.setattr(choice.Choice, "network_is_worth_it", lambda self, comm: None)
    X, y = waves(30)
    y[:4] = 1 - y[:4]
    trained, train = [], Recurrent.fit

    def interrupted(self, *arguments, **options):
        trained.append(1)
        if len(trained) == training:
            raise KeyboardInterrupt
        train(self, *arguments, **options)

    monkeypatch.setattr(Recurrent, "fit", interrupted)
    model = SequenceClassifier(**FEW)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert model.module_ is None
    assert [found["candidate"] for found in model.candidates_ if found["chosen"]] == ["convolutions"]
    assert model.score(X, y) > 0.8
    assert [(each["candidate"], each["chosen"]) for each in model.candidates_] == [("convolutions", True)]
    only = SequenceClassifier(**FEW, model="convolutions").fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), only.predict_proba(X))


@pytest.mark.parametrize("case", ["recurrent", "rows", "tagger"])
def test_an_interrupt_leaves_no_network_that_is_half_trained(monkeypatch, case):
    X, y = waves(30)
    of_rows = [np.cumsum(x[:, 0]) for x in X]
    make, y = {
        "recurrent": lambda: (SequenceClassifier(**FEW, model="recurrent"), y),
        "rows": lambda: (SequenceRegressor(**FEW, loss="quantile"), of_rows),
        "tagger": lambda: (SequenceTagger(**FEW), [own > 1 for own in of_rows]),
    }[case]()
    model, other = make, clone(make).fit(X[:20], y[:20])  # one has not been fitted before, the other has
    wanted = other.predict(X)
    step = recurrent.Trainer._take_step

    def interrupted(self):
        if self.step == 3:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(recurrent.Trainer, "_take_step", interrupted)
    for each in (model, other):
        with pytest.raises(KeyboardInterrupt):
            each.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)
    np.testing.assert_equal(other.predict(X), wanted)


def test_an_interrupt_of_another_fit_keeps_the_model_of_the_first(monkeypatch):
    X, y = waves(30)
    model = SequenceClassifier(**FEW).fit(X, y)
    wanted, candidates = model.predict_proba(X), model.candidates_

    def interrupted(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(described.Described, "fit_on_first", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:20], 1 - y[:20])
    np.testing.assert_array_equal(model.predict_proba(X), wanted)
    assert model.candidates_ == candidates


def test_what_was_chosen_is_printed(capsys):
    SequenceClassifier(verbose=1, **FEW).fit(*waves(20))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("convolutions: log loss 0.")
    assert "wrong, on 20 sequences left out" in lines[0]
    assert lines[1:] == ["recurrent: not trained: 20 sequences, fewer than 100", "chosen: convolutions"]


def test_a_data_set_is_predicted_as_its_texts(tmp_path):
    lines = [f"{text},{place}" for text, place in zip(WORDS, PLACES, strict=True)]
    (tmp_path / "places.csv").write_text("\n".join(["text,label", *lines]))
    data = vr.data.read(tmp_path / "places.csv", label="label")
    model = SequenceClassifier(random_state=0).fit(data)
    assert model.score(data) == 1.0
    np.testing.assert_array_equal(model.predict_proba(data), model.predict_proba(WORDS))


def test_n_grams_see_words_that_the_training_did_not_have():
    texts = [f"{'sandy' if k % 2 else 'leafy'} {chr(97 + k // 2)}" for k in range(40)]
    X = [" ".join([text] * 6) for text in texts]
    model = SequenceClassifier(random_state=0).fit(X, [text[:5] for text in texts])
    assert model.predict(["sands of the sea", "leaf and tree"]).tolist() == ["sandy", "leafy"]
    assert not {"sands", "leaf"} & set(model.vocabulary_)


def test_words_of_texts_left_out_are_unknown_when_they_are_measured():
    texts = [f"{'good' if k % 2 else 'bad'} number {k}" for k in range(40)]
    targets = Targets(np.where(np.arange(40) % 2, 1.0, -1.0)[:, None] * [-1, 1], "classes", np.ones(40))
    held, found = np.arange(0, 40, 5), []
    for more in ("", " xyxy"):
        X = [text + more if k in held else text for k, text in enumerate(texts)]
        inputs = Inputs.learn(X, "words")
        sequences = [Text.of(ids, text) for ids, text in zip(inputs.rows_of(X), X, strict=True)]
        candidate = described.Described(inputs)
        found.append(candidate.fit(sequences, targets, held, np.random.default_rng(0)))
        assert more.strip() in ("", *candidate.maker.vectorizers["words"].vocabulary_)
    np.testing.assert_allclose(*found, rtol=1e-6)
