"""Estimators: scikit-learn's own checks, sequences of every kind, equal bits, files, and labels that fit nothing."""

import inspect
import io
import itertools
import json
import multiprocessing
import pickle
import re
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from unittest import SkipTest

import numpy as np
import pytest

import varlen_rnn as vr
from tests.oracles import structured as oracle

pytest.importorskip("sklearn")

import joblib
from sklearn.base import ClassifierMixin, clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator

from varlen_rnn.sklearn import (
    SequenceClassifier,
    SequenceForecaster,
    SequenceRegressor,
    SequenceTagger,
    load,
    recurrent,
)
from varlen_rnn.sklearn.inputs import as_sequences
from varlen_rnn.training import Callback

# What of scikit-learn's checks does not fit sequences of unequal length, and why.
_ANY_LENGTH = "a row of a 2-D array is a sequence, of any number of steps: columns are no features"
DO_NOT_FIT = {
    "check_n_features_in": _ANY_LENGTH,
    "check_n_features_in_after_fitting": _ANY_LENGTH,
    "check_classifiers_train": _ANY_LENGTH + "; the rest of this check is test_what_check_classifiers_train_asks",
    "check_transformer_general": _ANY_LENGTH + "; the rest of this check is test_an_estimator_may_stand_before_another",
    "check_sample_weight_equivalence_on_dense_data": "one that is repeated is in other batches than one of weight 2",
}
SMALL = {"hidden_size": 8, "random_state": 0}
RECURRENT = SMALL | {"model": "recurrent"}  # classifiers and regressors that train a network, whatever the data
# The settings of checks that ask for a score; those of the class reach it too, in four times the time.
TRAINED = {"check_regressors_train": {"hidden_size": 16, "max_epochs": 30, "lr": 0.03, "batch_size": 16}}


class TaggerOfSequences(SequenceTagger):
    """A tagger of which scikit-learn's checks can ask labels of sequences: the label of each is that of all its steps.

    The prediction for a sequence is the one for its last step.
    """

    def fit(self, X, y=None, sample_weight=None):
        return super().fit(X, of_steps(X, y), sample_weight)

    def partial_fit(self, X, y=None, classes=None, sample_weight=None):
        return super().partial_fit(X, of_steps(X, y), classes, sample_weight)

    def predict(self, X):
        return np.array([labels[-1] for labels in super().predict(X)])

    def predict_proba(self, X):
        return np.array([probabilities[-1] for probabilities in super().predict_proba(X)])

    def score(self, X, y=None, sample_weight=None):
        return ClassifierMixin.score(self, X, y, sample_weight)


def of_steps(X, y):
    labels = np.asarray(y)
    if y is None or labels.ndim != 1:
        return y
    sequences = as_sequences(X)[1]
    if len(labels) != len(sequences):
        return y
    return [np.repeat(labels[number : number + 1], len(rows)) for number, rows in enumerate(sequences)]


DO_NOT_FIT_NETWORKS = {"check_estimators_partial_fit_n_features": _ANY_LENGTH}  # others have no `partial_fit`
DO_NOT_FIT_TAGGERS = {"check_supervised_y_2d": "labels of steps have two axes, and not one column"}


def checks(excused):
    """Yield scikit-learn's checks of each estimator: those that do not fit, or all others."""
    for kind in (SequenceClassifier, SequenceRegressor, TaggerOfSequences):
        for model in [{}] if kind is TaggerOfSequences else [{"model": "auto"}, {"model": "recurrent"}]:
            unfit = DO_NOT_FIT | (DO_NOT_FIT_NETWORKS if model != {"model": "auto"} else {})
            unfit |= DO_NOT_FIT_TAGGERS if kind is TaggerOfSequences else {}
            if excused and model == {"model": "auto"}:  # it fails like the next model, which is faster
                unfit.pop("check_classifiers_train")
            for estimator, check in estimator_checks_generator(kind(**SMALL, max_epochs=4, **model)):
                name = check.func.__name__ if hasattr(check, "func") else check.__name__
                if (name in unfit) == excused:
                    trained = TRAINED.get(name, {}) if model.get("model") != "auto" else {}
                    estimator = clone(estimator).set_params(**trained)
                    yield pytest.param(estimator, check, id=f"{'-'.join([kind.__name__, *model.values()])}-{name}")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), list(checks(excused=False)))
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), list(checks(excused=True)))
def test_an_excused_check_does_fail(estimator, check):
    try:
        check(estimator)
    except SkipTest as error:
        pytest.skip(str(error))
    except Exception:
        return
    pytest.fail("it passes, so it needs no excuse")


def series(number=60, seed=0):
    """Return series of 0 to 12 rows of two features, and whether the first feature rises on the whole."""
    rng = np.random.default_rng(seed)
    X = [np.cumsum(rng.standard_normal((length, 2)), axis=0) for length in rng.integers(1, 13, size=number)]
    return X, np.array([x[-1, 0] > 0 for x in X])


@pytest.mark.slow
def test_what_check_classifiers_train_asks():
    X, y = series(200)
    model = SequenceClassifier(**RECURRENT).fit(X, y)
    assert model.score(X, y) > 0.95
    assert model.classes_.tolist() == [False, True]
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(model.classes_[probabilities.argmax(axis=1)], model.predict(X))
    with pytest.raises(ValueError, match="rows of 2 features, as in the training, got 3 features"):
        model.predict([np.zeros((4, 3))])


def kinds_of_rows():
    X, y = series()
    tensor = vr.LoDTensor.from_sequences([np.float32(x) for x in X])
    yield "a list of arrays", X, y
    yield "lists of lists", [x.tolist() for x in X], y
    yield "a LoDTensor", tensor, y
    yield "an array of objects", np.array([*X, None], object)[:-1], y
    if pytest.importorskip("pyarrow"):
        yield "an Arrow column", vr.to_arrow(tensor), y
    if pytest.importorskip("awkward"):
        yield "an Awkward array", vr.to_awkward(tensor), y
    yield (
        "a data set",
        vr.data.Dataset("d", list(map(np.float32, X)), y.astype(int), [], ["False", "True"], "list"),
        None,
    )


def test_sequences_of_every_kind_are_the_same():
    expected = None
    for name, X, y in kinds_of_rows():
        model = SequenceClassifier(**RECURRENT, max_epochs=2).fit(X, y)
        found = model.predict_proba(X)
        expected = found if expected is None else expected
        np.testing.assert_array_equal(found, expected, err_msg=name)


def test_arrays_are_sequences_of_equal_length():
    X = np.random.default_rng(0).standard_normal((20, 5, 3))
    for array in (X, X[:, :, 0], X[:, :, 0].astype(np.float32)):
        kind, sequences = as_sequences(array)
        rows = array if array.ndim == 3 else array[:, :, None]
        assert kind == "numbers"
        np.testing.assert_array_equal(np.array(sequences), rows.astype(np.float32))


def test_texts_tokens_and_ids():
    texts = ["b a", "a", "", "b b b"] * 6
    y = ["x", "y", "y", "x"] * 6
    for X in (texts, [text.split() for text in texts], [np.array([len(t) for t in text.split()]) for text in texts]):
        model = SequenceClassifier(**RECURRENT, max_epochs=2).fit(X, y)
        assert model.predict_proba(X).shape == (24, 2)
        assert set(model.predict(X)) <= {"x", "y"}
    assert SequenceClassifier(**RECURRENT, max_epochs=1).fit(texts, y).vocabulary_ == ["<unk>", "b", " ", "a"]
    words = SequenceClassifier(**RECURRENT, max_epochs=1, tokens="words").fit(texts, y)
    assert words.vocabulary_ == ["<unk>", "b", "a"]
    words.predict(["never seen"])


def test_columns_of_texts():
    texts, y = ["ab", "b", "ba"] * 4, [0, 1, 0] * 4
    expected = SequenceClassifier(**RECURRENT, max_epochs=1).fit(texts, y).predict_proba(texts)
    pa, pandas = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    for X in (np.array(texts), pa.array(texts), pandas.Series(texts), tuple(texts)):
        found = SequenceClassifier(**RECURRENT, max_epochs=1).fit(X, y).predict_proba(X)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ("text", "X: expected many sequences"),
        (3, "X: expected many sequences"),
        ([1.0, 2.0], "X, sequence 0: expected a sequence: an array, or a list.*Reshape your data"),
        ([[1.5], "a"], "X, sequence 1: expected a sequence: an array, or a list"),
        ([[1.5], ["a"]], "X, sequence 1: expected numbers, as in sequence 0, got tokens"),
        ([[1.5], [2]], "X, sequence 1: expected numbers, as in sequence 0, got ids"),
        ([np.zeros((2, 3)), np.zeros((2, 4))], "X, sequence 1: expected 3 features, as in sequence 0, got 4"),
        ([np.zeros((2, 3, 4))], "X, sequence 0: expected numbers of shape"),
        ([[1.0, float("inf")]], "X, sequence 0: expected finite numbers that fit float32, got infinity"),
        ([[-1, 2]], "X, sequence 0: expected ids of at least 0.*integers are read as ids"),
        ([[[1.0], [1.0, 2.0]]], "X, sequence 0: expected rows of one width"),
        (np.zeros((2, 0)), r"0 feature\(s\)"),
        ([], "X: expected at least one sequence"),
    ],
)
def test_what_is_no_sequence_is_named(X, message):
    with pytest.raises(vr.InputError, match=message):
        SequenceClassifier(**RECURRENT).fit(X, np.zeros(len(X) if hasattr(X, "__len__") else 1))


def test_sequences_that_are_all_empty_have_predictions():
    X, y = series(20)
    assert SequenceClassifier(**RECURRENT, max_epochs=1).fit(X, y).predict([np.zeros((0, 2)), []]).shape == (2,)


def test_labels_that_fit_nothing_are_named():
    X, y = series(20)
    for wrong, message in (
        ([None, *y[1:]], "y, entry 0: expected a label, got None"),
        ([np.nan, *y[1:]], "y, entry 0: expected a label, got NaN"),
    ):
        with pytest.raises(vr.InputError, match=message):
            SequenceClassifier(**RECURRENT).fit(X, wrong)
    with pytest.raises(vr.DTypeError, match="X, sequence 1: expected a text, as in sequence 0, got None"):
        SequenceClassifier(**RECURRENT).fit(["ab", None], [0, 1])
    with pytest.raises(vr.ShapeError, match="y: expected 20 entries, one per sequence, got 1 entries"):
        SequenceTagger(**SMALL).fit(X, [[1]])
    with pytest.raises(vr.ShapeError, match="y: expected 20 entries, one per sequence"):
        SequenceClassifier(**RECURRENT).fit(X, y[:3])
    with pytest.raises(vr.ShapeError, match=r"y, sequence 0: expected .* labels, one per step"):
        SequenceTagger(**SMALL).fit(X, [[1]] * 20)
    with pytest.raises(vr.ShapeError, match=r"y, sequence 2: expected 3 labels, one per step, got shape \(2,\)"):
        SequenceTagger(**SMALL).fit(["ab", "c", "def"], ["xy", "x", "xy"])  # the others have a label per character
    with pytest.raises(vr.ShapeError, match=r"y, sequence 1: expected 3 labels, one per step"):
        SequenceTagger(**SMALL).fit(["a dog", "a big dog"], [["d", "n"], ["d"]])
    with pytest.raises(vr.DTypeError, match="y: expected numbers"):
        SequenceRegressor(**RECURRENT).fit(X, ["a"] * 20)
    with pytest.raises(vr.ShapeError, match="sample_weight: expected shape"):
        SequenceClassifier(**RECURRENT).fit(X, y, sample_weight=[1, 2])
    with pytest.raises(vr.InputError, match="class_weight: expected keys that are classes"):
        SequenceClassifier(**RECURRENT, class_weight={"other": 2}).fit(X, y)
    with pytest.raises(vr.ShapeError, match=r"cell: expected one of 'rnn', 'lstm', .*'gla', or the name of a cell"):
        SequenceClassifier("cell", 4, model="recurrent").fit(X, y)
    with pytest.raises(vr.ShapeError, match="schedule: expected one of"):
        SequenceClassifier(**RECURRENT, schedule="step").fit(X, y)
    model = SequenceClassifier(**RECURRENT, max_epochs=1).fit(X, y)
    with pytest.raises(vr.InputError, match="y: expected one of the 2 classes of the first fit, got 7"):
        model.partial_fit(X, np.full(20, 7))


@pytest.mark.parametrize("cut", ["characters", "words"])
def test_labels_of_a_tagger_tell_what_texts_are_cut_into(cut):
    text = "a bc d ef g h i jk lm n o p q"
    parts = text if cut == "characters" else text.split()
    model = SequenceTagger(**SMALL, max_epochs=1).fit([text] * 9, [[len(part) == 1 for part in parts]] * 9)
    assert model.predict([text])[0].shape == (len(parts),)
    with pytest.raises(vr.ShapeError, match="y, sequence 0: expected 13 labels"):
        SequenceTagger(**SMALL, max_epochs=1).fit([text], [[1]])


@pytest.mark.slow
def test_a_sequence_may_have_several_classes(tmp_path):
    rng = np.random.default_rng(0)
    X = [list(rng.choice(list("abcd"), rng.integers(1, 6))) for _ in range(200)]
    y = np.array([[token in x for token in "abc"] for x in X])
    model = SequenceClassifier("gru", **RECURRENT).fit(X, y)
    assert model.score(X, y) > 0.95
    assert model.classes_.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(model.predict(X), model.predict_proba(X) > 0.5)
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model").partial_fit(X, y)
    assert loaded.predict(X).shape == (200, 3)
    with pytest.warns(UserWarning, match="column-vector"):  # as scikit-learn's own
        np.testing.assert_array_equal(SequenceClassifier(**RECURRENT, max_epochs=1).fit(X, y[:, :1]).classes_, [0, 1])
    for wrong, message in ((y[:, :2], "a column for each of 3"), (y[:, 0], "a column for each of 3")):
        with pytest.raises(vr.ShapeError, match=message):
            model.partial_fit(X, wrong)
    with pytest.raises(vr.InputError, match="a class per sequence, or a column of 0 and 1 per class"):
        SequenceClassifier(**RECURRENT).fit(X, y * 3)
    with pytest.raises(vr.InputError, match="class_weight: expected None"):
        SequenceClassifier(**RECURRENT, class_weight="balanced").fit(X, y)
    with pytest.raises(vr.ShapeError, match=r"(?s)y: expected entries of one shape.*MultiLabelBinarizer"):
        SequenceClassifier(**RECURRENT).fit(X, [["a"]] * 199 + [["a", "b"]])


@pytest.mark.slow
def test_a_tagger_and_a_regressor_learn():
    X, _ = series(150)
    y = [np.where(x[:, 0] > x[:, 1], "up", "down") for x in X]
    tagger = SequenceTagger(**SMALL).fit(X, y)
    assert tagger.score(X, y) > 0.95
    assert [found.shape for found in tagger.predict(X)] == [labels.shape for labels in y]
    np.testing.assert_allclose(np.concatenate(tagger.predict_proba(X)).sum(axis=1), 1, rtol=1e-5)
    targets = np.array([[1000 + 50 * x[:, 0].max(), x[-1, 1]] for x in X])
    regressor = SequenceRegressor(hidden_size=16, random_state=0, model="recurrent").fit(X, targets)
    assert regressor.score(X, targets) > 0.95
    assert regressor.predict(X).shape == (150, 2)
    assert SequenceRegressor(**RECURRENT, max_epochs=1).fit(X, targets[:, 0]).predict(X).shape == (150,)


@pytest.mark.parametrize("cell", ["gru", "rnn", "mgu", "lstm(peepholes=True)"])
def test_any_cell(cell):
    X, y = series(20)
    options = {"num_layers": 2, "bidirectional": False, "max_epochs": 1, "model": "recurrent"}
    assert SequenceClassifier(cell, 4, **options).fit(X, y).predict(X).shape == (20,)


def test_a_precision_of_products_goes_with_copies_and_files(tmp_path):
    X, y = series(20)
    plain = SequenceClassifier("gru", **RECURRENT, max_epochs=1).fit(X, y)
    rounded = clone(plain).set_params(precision="bf16").fit(X, y)
    rounded.save(tmp_path / "model")
    with vr.float32_matmul_precision("bf16"):
        wanted = clone(plain).fit(X, y).predict_proba(X)
    for model in (rounded, clone(rounded).fit(X, y), load(tmp_path / "model"), pickle.loads(pickle.dumps(rounded))):
        np.testing.assert_array_equal(model.predict_proba(X), wanted)
    assert not np.array_equal(plain.predict_proba(X), wanted)
    np.testing.assert_allclose(plain.predict_proba(X), wanted, atol=0.05)
    with pytest.raises(vr.InputError, match="precision"):
        clone(plain).set_params(precision="fp8").fit(X, y)


@pytest.mark.parametrize("precision", ["bf16", "bf16-avx512"])
def test_a_ridge_predicts_in_float32_at_each_precision(precision):
    X, y = series(20)
    classifier = SequenceClassifier(model="convolutions", random_state=0).fit(X, y)
    wanted = classifier.predict_proba(X)
    with vr.float32_matmul_precision(precision):
        np.testing.assert_array_equal(classifier.predict_proba(X), wanted)


def test_a_cell_that_needs_inputs_of_rows_is_refused():
    X, y = series(20)
    for cell, needs in (("gru_d", "'gru_d', which needs decay"), ("lstm(zoneout=True)", "zoneout")):
        with pytest.raises(vr.ShapeError, match=f"cell: expected a cell that needs .*{needs}"):
            SequenceClassifier(cell, **RECURRENT).fit(X, y)


def test_an_int_makes_fits_equal_and_leaves_the_generator_alone():
    X, y = series()
    vr.manual_seed(5)
    first = SequenceClassifier(**RECURRENT, max_epochs=3, early_stopping=True).fit(X, y)
    state = vr.random.get_state()
    vr.manual_seed(5)
    assert vr.random.get_state() == state
    vr.manual_seed(6)
    second = clone(first).fit(X, y)
    np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))
    other = clone(first).set_params(random_state=1).fit(X, y)
    assert not np.array_equal(first.predict_proba(X), other.predict_proba(X))


@pytest.mark.slow
def test_weights_of_sequences_and_classes():
    """Sequences of weight 0 do not count; with balanced classes, a rare one is found."""
    X, y = series(120)
    wrong = y.copy()
    wrong[::2] = ~y[::2]
    weights = np.where(np.arange(120) % 2, 1.0, 0.0)
    model = SequenceClassifier(**RECURRENT).fit(X, wrong, sample_weight=weights)
    assert model.score(X, y) > 0.9
    rare = np.array([x[-1, 0] > 2.5 for x in X])
    plain = SequenceClassifier(**RECURRENT, max_epochs=3).fit(X, rare).predict_proba(X)[:, 1].mean()
    balanced = SequenceClassifier(**RECURRENT, max_epochs=3, class_weight="balanced").fit(X, rare)
    heavier = SequenceClassifier(**RECURRENT, max_epochs=3, class_weight={True: 20.0}).fit(X, rare)
    assert plain < balanced.predict_proba(X)[:, 1].mean() < heavier.predict_proba(X)[:, 1].mean()
    tags = [np.full(len(x), value) for x, value in zip(X, rare, strict=True)]
    tagger = SequenceTagger(**SMALL, max_epochs=3, class_weight="balanced").fit(X, tags, sample_weight=weights + 1)
    assert 0 < tagger.score(X, tags, sample_weight=weights) <= 1


def test_early_stopping_holds_sequences_back_and_keeps_the_best():
    X, y = series(100)
    noise = np.random.default_rng(1).permutation(y)
    model = SequenceClassifier(
        hidden_size=32, random_state=0, early_stopping=True, n_iter_no_change=2, max_epochs=60, model="recurrent"
    ).fit(X, noise)
    losses = [record["valid_loss"] for record in model.history_]
    assert model.n_iter_ == len(losses) < 60
    assert min(losses) == losses[-3]
    with pytest.raises(vr.ShapeError, match="because early stopping holds 1 back"):
        SequenceClassifier(early_stopping=True, model="recurrent").fit(X[:1], y[:1])


def tags_of_tokens(number=40):
    """Return lists of tokens, many of which occur once, and tags of their spelling and of the token before."""
    rng, X = np.random.default_rng(0), []
    for length in [0, *rng.integers(1, 6, number - 1)]:
        of = lambda k: k if k else rng.choice(["a", "be"])
        X.append([of(rng.choice(["", str(rng.integers(10**6)), f"N{rng.integers(10**6)}"])) for _ in range(length)])
    kind = lambda token: "digit" if token.isdigit() else "name" if token[0] == "N" else "word"
    return X, [np.array([kind(x[k - 1] if k else x[0]) + " " + kind(x[k]) for k in range(len(x))], str) for x in X]


def test_a_field_chooses_all_tags_of_a_sequence(tmp_path):
    X, y = tags_of_tokens()
    model = SequenceTagger(**SMALL, crf=True, max_epochs=40).fit(X, y)
    assert model.score(X, y) > 0.9
    transition = np.asarray(model.module_.crf.transition, np.float64) + 0
    model.module_.crf.transition.assign(3 * transition + np.random.default_rng(0).normal(size=transition.shape))
    transition, names = np.asarray(model.module_.crf.transition, np.float64), model.classes_
    sequences, outputs = model._outputs(X, None)
    ends = np.cumsum([0, *map(len, sequences)])
    for k in (0, 1, int(np.argmin([len(x) or 9 for x in X]))):
        if len(X[k]) > 4:
            continue
        rows = outputs[ends[k] : ends[k + 1]].astype(float)
        path = oracle.crf(rows, [0] * len(rows), transition)[1]
        assert model.predict(X)[k].tolist() == names[list(path)].tolist()
        np.testing.assert_allclose(model.predict_proba(X)[k], oracle.crf_marginals(rows, transition), atol=1e-5)
    model.save(tmp_path / "tagger")
    again = load(tmp_path / "tagger")
    assert again.crf is True
    np.testing.assert_equal(again.predict(X), model.predict(X))
    np.testing.assert_equal(again.predict_proba(X), model.predict_proba(X))
    with ThreadPoolExecutor(2) as pool:
        np.testing.assert_equal(again.predict(X, executor=pool), model.predict(X))


def test_the_loss_of_a_field_is_the_mean_over_steps():
    X, y = tags_of_tokens()
    model = SequenceTagger(**SMALL, crf=True, max_epochs=2, early_stopping=True).fit(X, y)
    sequences, outputs = model._outputs(X, None)
    ends, transition = np.cumsum([0, *map(len, sequences)]), np.asarray(model.module_.crf.transition, np.float64)
    numbers = np.searchsorted(model.classes_, np.concatenate(y))
    costs = [oracle.crf_of_many_rows(outputs[b:e].astype(float), numbers[b:e], transition)[0]
             for b, e in itertools.pairwise(ends) if b < e]  # fmt: skip
    np.testing.assert_allclose(model._loss_on(X, y), sum(costs) / ends[-1], rtol=1e-5)
    weights = np.arange(len(X)) % 2
    half = [SequenceTagger(**SMALL, crf=True, max_epochs=2, batch_size=99) for _ in range(2)]
    half[0].fit(X, y, sample_weight=weights)
    other = [labels if weight else labels[::-1] for labels, weight in zip(y, weights, strict=True)]
    half[1].fit(X, other, sample_weight=weights)
    np.testing.assert_equal(half[0].predict_proba(X), half[1].predict_proba(X))


def test_a_field_trains_on():
    X, y = tags_of_tokens()
    model = SequenceTagger(**SMALL, crf=True, max_epochs=1, warm_start=True).fit(X, y)
    before = np.asarray(model.module_.crf.transition).copy()
    model.fit(X, y).partial_fit(X, y)
    assert (np.asarray(model.module_.crf.transition) != before).any()


def test_what_a_field_cannot_take_is_our_error():
    X, y = tags_of_tokens()
    gaps = [labels.astype(object) for labels in y]
    gaps[5][0] = None
    with pytest.raises(vr.InputError, match="y, sequence 5: expected a label for each step, because of crf=True, got"):
        SequenceTagger(**SMALL, crf=True).fit(X, gaps)
    with pytest.raises(vr.InputError, match="class_weight: expected None, because of crf=True"):
        SequenceTagger(**SMALL, crf=True, class_weight="balanced").fit(X, y)
    with pytest.raises(vr.InputError, match="crf: expected True or False"):
        SequenceTagger(**SMALL, crf=np.ones(2)).fit(X, y)


def test_unknown_tokens_are_told_by_their_spelling(tmp_path):
    X, y = tags_of_tokens(120)
    model = SequenceTagger(**SMALL, max_epochs=40).fit(X, y)
    new = [["N777777777", "be", "99999999999"], ["1234567890", "N8888888"]]
    wanted = [["name name", "name word", "word digit"], ["digit digit", "digit name"]]
    assert [found.tolist() for found in model.predict(new)] == wanted
    model.save(tmp_path / "tagger")
    again = load(tmp_path / "tagger")
    assert [found.tolist() for found in again.predict(new)] == wanted
    (tmp_path / "new.jsonl").write_text("".join(json.dumps({"text": tokens}) + "\n" for tokens in new))
    data = vr.data.read(tmp_path / "new.jsonl", **again.read_options())
    assert [found.tolist() for found in again.predict(data)] == wanted


def test_a_data_set_gives_the_bits_of_its_lists():
    X, y = tags_of_tokens()
    lines = [{"text": tokens, "tags": labels.tolist()} for tokens, labels in zip(X, y, strict=True) if tokens]
    source = io.StringIO("".join(json.dumps(line) + "\n" for line in lines))
    data = vr.data.read(source, format="jsonl", label="tags", tokens="list")
    of_data = SequenceTagger(**SMALL, max_epochs=2).fit(data)
    of_lists = SequenceTagger(**SMALL, max_epochs=2).fit([x for x in X if x], [labels for labels in y if len(labels)])
    assert of_data.vocabulary_ == of_lists.vocabulary_
    np.testing.assert_equal(of_data.predict_proba(X), of_lists.predict_proba(X))


def test_copies_have_no_callbacks_of_the_fit_and_train_on():
    class Local(Callback):
        """A class that pickle does not find."""

    X, y = series()
    model = SequenceClassifier(**RECURRENT, max_epochs=1, callbacks=[Local()]).fit(X, y).set_params(callbacks=())
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))
    assert copy.partial_fit(X, y).n_iter_ == 2
    assert copy.set_params(warm_start=True).fit(X, y).n_iter_ == 1


@pytest.mark.parametrize("kind", [SequenceClassifier, SequenceRegressor, SequenceTagger, SequenceForecaster])
def test_docstrings_say_each_option_of_the_signature_with_its_default(kind):
    parameters = inspect.signature(kind).parameters
    section = inspect.getdoc(kind).partition("Parameters\n---")[2].partition("\n\n")[0]
    said = re.findall(r"^(\w+) : .*, default (.*)\n    \S", section, re.MULTILINE)
    assert said == [(name, repr(parameter.default)) for name, parameter in parameters.items()]
    assert list(kind().get_params()) == sorted(parameters)
    given = dict.fromkeys(parameters, "given")
    assert kind(**given).get_params() == given
    assert [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD] == (
        ["horizon"] if kind is SequenceForecaster else ["cell", "hidden_size"]
    )


@pytest.mark.parametrize("kind", [SequenceClassifier, SequenceTagger])
def test_losses_that_are_held_back_weigh_as_those_that_are_trained_on(monkeypatch, kind):
    X, y = series(60)
    y = y if kind is SequenceClassifier else [x[:, 0] > 0 for x in X]
    weights, held = np.linspace(0, 2, 60), np.arange(50, 60)
    monkeypatch.setattr(recurrent.Recurrent, "_parts", lambda *_: (np.arange(50), held))
    params = RECURRENT if kind is SequenceClassifier else SMALL
    model = kind(**params, max_epochs=1, early_stopping=True, class_weight={False: 3.0}).fit(X, y, weights)
    # Probabilities without calibration, from which the network's loss was computed.
    model._shares = {"recurrent": 1.0}
    losses, own = [], []
    for k, probabilities in zip(held, model.predict_proba([X[k] for k in held]), strict=True):
        labels, rows = np.atleast_1d(y[k]).astype(int), np.atleast_2d(probabilities)
        losses += [-np.log(row[label]) for row, label in zip(rows, labels, strict=True)]
        own += [weights[k] * (1 if label else 3) for label in labels]
    np.testing.assert_allclose(model.history_[0]["valid_loss"], np.average(losses, weights=own), rtol=1e-4)


def test_warm_starts_have_no_checkpoints(tmp_path):
    X, y = series(20)
    with pytest.raises(vr.InputError, match="checkpoints: expected None, because of warm_start=True"):
        SequenceClassifier(**RECURRENT, warm_start=True, checkpoints=tmp_path).fit(X, y)


def test_partial_fit_and_warm_start_go_on():
    X, y = series(120)
    model = SequenceClassifier(**RECURRENT, lr=0.01)
    for _ in range(15):
        for part in (slice(0, 60), slice(60, 120)):
            model.partial_fit(X[part], y[part], classes=[False, True])
    assert model.n_iter_ == 30
    assert model.score(X, y) > 0.9
    warm = SequenceClassifier(**RECURRENT, warm_start=True, max_epochs=1, schedule="constant").fit(X, y)
    before = warm.module_
    assert warm.fit(X, y).module_ is before
    assert clone(warm).set_params(warm_start=False).fit(X, y).module_ is not before


class Kill(Callback):
    """Ends the process, as it were, after some steps."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, trainer):
        if trainer.step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_fit_that_was_killed_goes_on_to_the_same_bits(tmp_path, early_stopping):
    X, y = series()
    params = {**RECURRENT, "max_epochs": 8, "early_stopping": early_stopping, "cell": "gru", "batch_size": 8}
    whole = SequenceClassifier(**params).fit(X, y)
    killed = SequenceClassifier(**params, checkpoints=tmp_path / "run", callbacks=[Kill(25)])
    with pytest.raises(KeyboardInterrupt):
        killed.fit(X, y)
    resumed = SequenceClassifier(**params, checkpoints=tmp_path / "run", callbacks=[Kill(0)]).fit(X, y)
    np.testing.assert_array_equal(whole.predict_proba(X), resumed.predict_proba(X))
    assert [record["loss"] for record in whole.history_] == [record["loss"] for record in resumed.history_]
    with pytest.raises(vr.CheckpointError, match="expected the training"):
        SequenceClassifier(**params, checkpoints=tmp_path / "run", callbacks=[Kill(0)]).fit(X, ~y)
    with pytest.raises(vr.CheckpointError, match="expected the training"):
        SequenceClassifier(**params, lr=0.1, checkpoints=tmp_path / "run", callbacks=[Kill(0)]).fit(X, y)


FITTED = {
    "classifier": lambda: SequenceClassifier(**RECURRENT, max_epochs=1, class_weight={True: 2.0}).fit(*series()),
    "texts": lambda: SequenceClassifier(**RECURRENT, max_epochs=1).fit(["ab", "b"], ["x", "y"]),
    "regressor": lambda: SequenceRegressor(**RECURRENT, max_epochs=1).fit(series()[0], np.arange(60.0)),
    "tagger": lambda: SequenceTagger(**SMALL, max_epochs=1).fit(
        series()[0], [np.ones(len(x), int) for x in series()[0]]
    ),
}


@pytest.mark.parametrize("kind", FITTED)
def test_fitted_estimators_are_saved_with_pickle_and_without(tmp_path, kind):
    model = FITTED[kind]()
    X = ["ab", "bb"] if kind == "texts" else series(9, 1)[0]
    model.save(tmp_path / "model", notes={"of": ["me"]})
    loaded, unpickled = load(tmp_path / "model"), pickle.loads(pickle.dumps(model))
    assert loaded.notes_ == {"of": ["me"]}
    loaded.save(tmp_path / "again")
    assert load(tmp_path / "again").notes_ == {"of": ["me"]}
    cut = {"tokens": "characters", "vocabulary": model.vocabulary_} if kind == "texts" else {}
    assert loaded.read_options() == cut
    for other in (loaded, unpickled):
        assert other.get_params() == model.get_params()
        np.testing.assert_equal(other.predict(X), model.predict(X))
        assert other.history_ == model.history_
    other.partial_fit(X, model.predict(X))


def test_files_that_are_no_estimators(tmp_path):
    vr.save(tmp_path / "other", a=1)
    with pytest.raises(
        vr.CheckpointError, match=r"expected a file that estimator.save\(path\) wrote, got a file of the groups \['a'\]"
    ):
        load(tmp_path / "other")
    vr.save(tmp_path / "broken", estimator="SequenceTagger", params={"cell": 3})
    with pytest.raises(vr.CheckpointError, match="expected a fitted estimator"):
        load(tmp_path / "broken")
    model = SequenceClassifier(**RECURRENT, max_epochs=1, callbacks=[Kill(0)]).fit(*series())
    with pytest.raises(vr.CheckpointError, match="save, callbacks: expected a value that JSON can hold"):
        model.save(tmp_path / "model")


def test_pipelines_searches_and_validation_over_processes():
    X, y = series(30)
    pipeline = Pipeline(
        [
            ("scale", FunctionTransformer(lambda X: [x * 2 for x in X])),
            ("model", SequenceClassifier(**RECURRENT, max_epochs=2)),
        ]
    )
    assert pipeline.fit(X, y).score(X, y) > 0.3
    assert cross_val_score(SequenceClassifier(**RECURRENT, max_epochs=2), X, y, cv=3).shape == (3,)
    search = GridSearchCV(SequenceClassifier(**RECURRENT, max_epochs=2), {"cell": ["gru", "rnn"]}, cv=2, n_jobs=2).fit(
        X, y
    )
    alone = GridSearchCV(SequenceClassifier(**RECURRENT, max_epochs=2), {"cell": ["gru", "rnn"]}, cv=2).fit(X, y)
    np.testing.assert_array_equal(search.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"])


def executors():
    """Yield executors of threads and of new processes, which import everything again."""
    with ThreadPoolExecutor(2) as pool:
        yield pool
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.slow
def test_executors_predict_the_same(monkeypatch):
    monkeypatch.setattr(recurrent, "ROWS", 40)
    X = [*series()[0], np.zeros((0, series()[0][0].shape[1]))]
    models = {name: FITTED[name]() for name in ("regressor", "tagger")}
    several = SequenceClassifier(**RECURRENT, max_epochs=1).fit(series()[0], np.eye(3)[np.arange(60) % 3])
    calls = [
        *(model.predict for model in models.values()),
        models["tagger"].predict_proba,
        several.predict,
        several.predict_proba,
    ]
    wanted = [call(X) for call in calls]
    for executor in executors():
        for call, expected in zip(calls, wanted, strict=True):
            np.testing.assert_equal(call(X, executor=executor), expected)
    assert several.module_.training


def test_an_error_of_an_executor_comes_out_and_ends_the_work(monkeypatch):
    model, calls = FITTED["regressor"](), []

    def fail(*arguments):
        calls.append(arguments)
        time.sleep(0.01)
        raise MemoryError("in a worker")

    monkeypatch.setattr(recurrent, "ROWS", 1)
    monkeypatch.setattr(recurrent, "outputs_of", fail)
    X = series(500)[0]
    with ThreadPoolExecutor(1) as pool, pytest.raises(MemoryError, match="in a worker"):
        model.predict(X, executor=pool)
    assert len(calls) < 500
    for executor in (2, "processes", type("Pool", (), {"submit": None})()):
        with pytest.raises(vr.DTypeError, match=r"executor: expected a concurrent\.futures\.Executor or None, got"):
            model.predict(series()[0], executor=executor)


def test_workers_of_joblib_divide_the_cores():
    seen = joblib.Parallel(n_jobs=2)(joblib.delayed(vr.get_num_threads)() for _ in range(4))
    assert set(seen) == {max(1, joblib.cpu_count() // 2)}


def test_a_bar_where_it_is_asked_for(capsys):
    X, y = series(10)
    SequenceClassifier(**RECURRENT, max_epochs=1).fit(X, y)
    assert capsys.readouterr().err == ""
    SequenceClassifier(**RECURRENT, max_epochs=1, verbose=1).fit(X, y)
    assert "rows/s" in capsys.readouterr().err


@pytest.mark.parametrize("estimator", [SequenceClassifier, SequenceTagger])
@pytest.mark.parametrize("class_weight", ["foo", [1, 2], {0: "a"}, {0: -1.0}, {0: float("nan")}])
def test_class_weights_that_are_none_are_our_errors(estimator, class_weight):
    X, y = [["a"], ["b"]], [0, 1] if estimator is SequenceClassifier else [[0], [1]]
    with pytest.raises(vr.InputError, match="class_weight"):
        estimator("gru", 2, max_epochs=1, class_weight=class_weight).fit(X, y)


@pytest.mark.parametrize(
    ("what", "params", "y", "sample_weight"),
    [
        ("y", {}, ["a", None], None),
        ("y", {}, [[1], [2, 3]], None),
        ("sample_weight", {}, [0, 1], ["a", "b"]),
        ("sample_weight", {}, [0, 1], [[1], [1, 2]]),
        ("cell", {"cell": 3}, [0, 1], None),
        ("callbacks", {"callbacks": 3}, [0, 1], None),
    ],
)
@pytest.mark.parametrize("model", ["auto", "recurrent"])
def test_what_numpy_cannot_read_is_our_error(model, what, params, y, sample_weight):
    with pytest.raises(vr.InputError, match=f"^{what}"):
        SequenceClassifier(**{"hidden_size": 2, "max_epochs": 1, "model": model} | params).fit(
            ["a", "b"], y, sample_weight
        )


def test_targets_too_large_for_their_deviation_are_an_error():
    with pytest.raises(vr.InputError, match=r"^y"), np.errstate(over="ignore"):
        SequenceRegressor("gru", 2, max_epochs=1).fit(["a", "b"], [1e300, -1e300])


def test_checkpoints_of_the_same_numbers_in_other_sequences_are_another_training(tmp_path):
    model = SequenceClassifier("gru", 2, max_epochs=1, random_state=0, checkpoints=tmp_path, model="recurrent")
    model.fit([[1, 2], [3], [2]], [0, 1, 0])
    with pytest.raises(vr.CheckpointError, match="give each training a folder of its own"):
        model.fit([[1], [2, 3], [2]], [0, 1, 0])


@pytest.mark.parametrize("random_state", [lambda: None, lambda: np.random.RandomState(5)])
def test_a_fit_goes_on_with_the_bits_of_one_without_an_end_whatever_random_state_is(random_state, tmp_path):
    X, y = [[k % 3] * (1 + k % 4) for k in range(24)], [k % 2 for k in range(24)]

    def model(folder, last=None):
        return SequenceClassifier(
            "gru", 2, max_epochs=4, random_state=random_state(), early_stopping=True, checkpoints=tmp_path / folder,
            model="recurrent", callbacks=[Kill(last)],
        )  # fmt: skip

    with pytest.raises(KeyboardInterrupt):
        model("a", 7).fit(X, y)
    again, whole = model("a").fit(X, y), model("b").fit(X, y)
    assert np.array_equal(again.predict_proba(X), whole.predict_proba(X))


@pytest.mark.parametrize(
    "sequences",
    [
        [np.ones((3, 2)), np.zeros((2, 2))],
        [np.array([1, 2]), np.array([0])],
        [["a", "b"], ["c"]],
        ["ab", "c"],
    ],
)
def test_sequences_that_are_all_empty_are_predicted(sequences):
    model = SequenceClassifier("gru", 2, max_epochs=1, random_state=0, model="recurrent").fit(sequences, [0, 1])
    empty = sequences[0][:0]
    wanted = model.predict_proba([sequences[0], empty])[1:]
    np.testing.assert_allclose(model.predict_proba([empty]), wanted, rtol=1e-6)
    np.testing.assert_allclose(model.predict_proba([[]]), wanted, rtol=1e-6)
    tagger = SequenceTagger("gru", 2, max_epochs=1).fit(sequences, [[0] * len(sequence) for sequence in sequences])
    assert [found.shape for found in tagger.predict([empty, empty])] == [(0,), (0,)]


def test_features_of_empty_sequences_are_known():
    model = SequenceClassifier("gru", 2, model="recurrent").partial_fit([np.zeros((0, 2))], [0], classes=[0, 1])
    assert model.partial_fit([np.ones((3, 2))], [1]).n_features_in_ == 2


def test_a_variable_brings_its_own_lod():
    X, y = series(20)
    tensor = vr.LoDTensor.from_sequences([np.float32(x) for x in X])
    expected = SequenceClassifier(**RECURRENT, max_epochs=1).fit(X, y).predict_proba(X)
    variable = vr.Variable(tensor)
    np.testing.assert_array_equal(
        SequenceClassifier(**RECURRENT, max_epochs=1).fit(variable, y).predict_proba(variable), expected
    )
    tags = vr.Variable(vr.LoDTensor(np.arange(len(tensor.data)) % 2, tensor.structure))
    assert len(SequenceTagger(**SMALL, max_epochs=1).fit(variable, tags).predict(variable)) == 20
    (first, *_) = vr.data.batches(variable, y, batch_size=20)
    np.testing.assert_array_equal(first[0].data, tensor.data)
    assert first[0].lod() == tensor.lod()
    wrong = vr.LoDTensor(np.zeros((3, 2), np.float32), [[0, 2], [0, 1, 3]])
    for X in (wrong, vr.Variable(wrong)):
        with pytest.raises(vr.InputError, match="X: expected a LoDTensor with one level"):
            SequenceClassifier(**RECURRENT).fit(X, [0])
    equal = np.float32(np.random.default_rng(0).standard_normal((4, 5, 2)))
    expected = SequenceClassifier(**RECURRENT, max_epochs=1).fit(equal, [0, 1, 0, 1]).predict_proba(equal)
    for X in (vr.LoDTensor(equal), vr.Variable(equal)):  # without a LoD it is an array as any other
        found = SequenceClassifier(**RECURRENT, max_epochs=1).fit(X, [0, 1, 0, 1]).predict_proba(X)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("X", "one", "hint"),
    [
        ([np.zeros((3, 2)), np.ones((2, 2))], np.zeros((3, 2)), r"if X is one sequence, pass \[X\]"),
        ([np.zeros((3, 2)), np.ones((2, 2))], [[1.0, 2.0], [3.0, 4.0]], r"if X is one sequence, pass \[X\]"),
        ([np.zeros(3), np.ones(2)], np.zeros(4), r"if X is one sequence, pass \[X\]"),
        ([np.zeros(3), np.ones(2)], [0.5, 1.5], r"if X is one sequence, pass \[X\]"),
        ([[1, 2], [3]], [1, 2, 3], r"if X is one sequence, pass \[X\]"),
        ([[1, 2], [3]], np.array([1, 2, 3]), r"if X is one sequence, pass \[X\]"),
        (["ab", "ba"], "ab", r"if X is one sequence, pass \[X\]"),
        ([["ab", "c"], ["ba"]], ["ab", "ba"], r"if X is one sequence, pass \[X\]"),
    ],
)
def test_one_sequence_gets_a_hint(X, one, hint):
    model = SequenceClassifier(**RECURRENT, max_epochs=1).fit(X, [0, 1])
    with pytest.raises(vr.InputError, match=hint):
        model.predict(one)
    assert model.predict([one]).shape == (1,)


def test_steps_without_a_label_do_not_count(tmp_path):
    """The weights of a fit are those of a fit whose steps without a label weigh nothing, whatever they are."""
    X, _ = series(40)
    y = [np.where(x[:, 0] > 0, "up", "down").astype(object) for x in X]
    gaps = [labels.copy() for labels in y]
    for number, labels in enumerate(gaps):
        labels[number % 3 :: 3] = None
    model = SequenceTagger(**SMALL, max_epochs=2).fit(X, gaps)
    assert model.classes_.tolist() == ["down", "up"]
    of_data = vr.data.Dataset(
        "d", [np.float32(x) for x in X],
        [np.array([{"down": 0, "up": 1, None: -100}[label] for label in labels]) for labels in gaps],
        [], ["down", "up"], "list",
    )  # fmt: skip
    again = SequenceTagger(**SMALL, max_epochs=2).fit(of_data)
    for one, other in zip(model.predict_proba(X), again.predict_proba(X), strict=True):
        np.testing.assert_array_equal(one, other)
    right = [found == labels for found, labels in zip(model.predict(X), gaps, strict=True)]
    known = np.concatenate([labels != None for labels in gaps])  # noqa: E711 - of each entry
    expected = np.concatenate(right)[known].mean()
    assert model.score(X, gaps) == model.score(of_data) == expected
    losses = [
        -np.log(p[np.arange(len(p)), (labels == "up").astype(int)])
        for p, labels in zip(model.predict_proba(X), y, strict=True)
    ]
    np.testing.assert_allclose(model._loss_on(X, gaps), np.concatenate(losses)[known].mean(), rtol=1e-5)
    SequenceTagger(**SMALL, max_epochs=1, class_weight="balanced").fit(X, gaps, sample_weight=np.ones(40))
    with pytest.raises(vr.InputError, match="y: expected a label for at least one step, got no labels"):
        SequenceTagger(**SMALL).fit(X, [np.full(len(x), None) for x in X])
    assert SequenceTagger(**SMALL, max_epochs=1).fit([[0.5, 1.0]], [[1.0, np.nan]]).classes_.tolist() == [1.0]
    with pytest.raises(ValueError, match="Unknown label type"):
        SequenceTagger(**SMALL).fit([[0.5, 1.0]], [[0.5, 1.5]])
    with pytest.raises(vr.ShapeError, match="y, sequence 0: expected labels of steps"):
        SequenceTagger(**SMALL).fit([[0.5, 1.0]], [[[1], [1, 2]]])
