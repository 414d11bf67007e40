"""`KenLM` as the scorer of `CTCDecoder`, against the definition of back-off; with the package, or a stand-in for it."""

import copy
import pickle
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import varlen_rnn as vr
from tests.oracles import decoding as oracle
from varlen_rnn.nn import functional as F

LABELS = ["", "a", "b", " "]  # the blank, two letters, the boundary
ARPA = r"""
\data\
ngram 1=6
ngram 2=5

\1-grams:
-2.0	<unk>	0
0	<s>	-0.3
-0.9	</s>	0
-0.5	a	-0.2
-0.7	b	-0.4
-1.1	ab	-0.1

\2-grams:
-0.2	<s> ab
-0.6	ab b
-0.4	b </s>
-0.8	a a
-0.3	a b

\end\
"""
LINES = [line.split("\t") for line in ARPA.splitlines() if "\t" in line]
GRAMS = {tuple(words.split()): tuple(map(float, [first, *rest])) for first, words, *rest in LINES}


def score(before, word):
    """Return the natural logarithm of the probability of a word after the last word before it, by back-off."""
    word, last = (word if (word,) in GRAMS else "<unk>"), (("<s>", *before)[-1],)
    last = last if last in GRAMS else ("<unk>",)
    if (*last, word) in GRAMS:
        return GRAMS[*last, word][0] * np.log(10)
    return (GRAMS[last][1] + GRAMS[word,][0]) * np.log(10)


def stand_in():
    """Return a module with the calls of kenlm that are used."""

    class State:
        before = ()

    class Model:
        def __init__(self, path):
            if not Path(path).exists():
                raise OSError("not a model")

        def BeginSentenceWrite(self, state):
            state.before = ()

        def BaseScore(self, state, word, after):
            after.before = (*state.before, word)
            return score(state.before, word) / np.log(10)

    return types.SimpleNamespace(Model=Model, State=State)


@pytest.fixture(params=["kenlm", "stand-in"])
def scorer(request, tmp_path, monkeypatch):
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "kenlm", stand_in())
    else:
        pytest.importorskip("kenlm")
    path = tmp_path / "words.arpa"
    path.write_text(ARPA)
    return vr.nn.KenLM(path, LABELS)


def test_a_thread_that_drops_kept_states_changes_no_score(scorer):
    class Kept(dict):
        """States that another thread drops as soon as one of them is found."""

        def __contains__(self, texts):
            scorer._states = {}
            return super().__contains__(texts)

    wanted = scorer([(1,), (2,)], (2,))
    scorer._states = Kept(scorer._states)
    assert scorer([(1,), (2,)], (2,)) == wanted


def by_words(words, word):
    texts = ["".join(LABELS[label] for label in labels) for labels in words]
    return score(texts, "</s>" if word is None else "".join(LABELS[label] for label in word))


def by_labels(labels):
    return np.array([score([LABELS[label] for label in labels], text or "</s>") for text in LABELS])


@pytest.mark.parametrize(("by", "boundary"), [(by_words, 3), (by_labels, None)])
def test_texts_have_the_scores_of_the_model(scorer, by, boundary):
    logits = np.random.default_rng(0).standard_normal((4, 4))
    steps = vr.create_lod_tensor(np.asarray(F.log_softmax(logits)), [[4]])
    options = {"lm_weight": 0.7, "word_score": 0.2, "boundary": boundary}
    ids, scores = vr.nn.CTCDecoder(beam_size=500, scorer=scorer, **options)(steps)
    wanted = oracle.fused_texts(np.asarray(steps), 0, scorer=by, weight=10.0, **options)
    texts = [tuple(text.tolist()) for text in ids.value.to_sequences()[0]]
    assert len(texts) == len(wanted)
    np.testing.assert_allclose(np.asarray(scores), [wanted[text] for text in texts], rtol=1e-6)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_has_the_same_scores(scorer, way):
    wanted = scorer([(1,)], (2,))
    again = way(scorer)
    assert again([(1,)], (2,)) == wanted
    assert again.labels == LABELS


def test_states_are_kept_and_bounded(scorer, monkeypatch):
    words = [(1,), (2,), (1, 2)] * 5
    first = scorer(words, (2,))
    assert len(scorer._states) == 15
    monkeypatch.setattr("varlen_rnn.nn.ken_lm._MOST", 10)
    assert scorer(words, (2,)) == first == pytest.approx(by_words(words, (2,)), rel=1e-6)
    assert len(scorer._states) == 15


def test_errors_say_what_is_wrong(scorer, tmp_path, monkeypatch):
    for arguments, error, message in (
        ((tmp_path / "none.arpa", LABELS), vr.InputError, "path: expected a language model"),
        ((3, LABELS), vr.DTypeError, "path: expected a path"),
        ((tmp_path / "words.arpa", [1, 2]), vr.DTypeError, "labels: expected texts"),
        ((tmp_path / "words.arpa", 5), vr.InputError, "labels: expected"),
    ):
        with pytest.raises(error, match=message):
            vr.nn.KenLM(*arguments)
    with pytest.raises(vr.OutOfRangeError, match="a text for each class"):
        scorer([(7,)], None)
    monkeypatch.setitem(sys.modules, "kenlm", None)
    with pytest.raises(vr.InputError, match="pip install kenlm"):
        vr.nn.KenLM(tmp_path / "words.arpa", LABELS)
