"""Steps of the examples' models on the emulated device: the CPU's losses, and no copy for a batch that comes again."""

from types import SimpleNamespace

import numpy as np
import pytest

import varlen_rnn as vr
from tests.emulated.device import MARKS, Driver
from tests.test_program_examples import EXAMPLES, example
from tests.training_steps import check_losses, step_on
from varlen_rnn.distributed import Communicator
from varlen_rnn.nn import functional as F
from varlen_rnn.runtime import cuda

pytestmark = MARKS
RNG = np.random.default_rng(0)
LABELS = np.array([0, 2, 1, 1])


def ids_of(*lengths, high=9):
    return vr.create_lod_tensor(RNG.integers(0, high, sum(lengths[-1])), lengths)


IDS, OTHERS = ids_of([3, 1, 5, 2]), ids_of([2, 2, 1, 4])
LINES = ids_of([2, 1, 3, 1], [3, 2, 1, 4, 0, 2, 3])
CANDIDATES = RNG.integers(0, 9, (4, 3))
SEEN = IDS.like(RNG.standard_normal((11, 4)).astype(np.float32))
GAINS = RNG.standard_normal(11).astype(np.float32), RNG.standard_normal((11, 1)).astype(np.float32)
WANTED = np.array([[1.0, 0.0, 0.0]] * 4, np.float32)


def classified(model, ids, labels):
    return F.cross_entropy(model(ids), labels)


def read_on(model, ids, after):
    """Return the loss of two chunks of texts, of which one goes on and another one is new."""
    model.reader.reset()
    first = model(ids, ["a", "b", "c", "d"])
    return F.cross_entropy(first + model(ids, ["b", "x", "d", "y"]), after)


def of_two(model, first, second, wanted):
    return F.cross_entropy(model(first, second), wanted)


def tagged(model, ids, kinds):
    return model(ids, kinds).mean()


def of_pairs(model, words, near, wanted):
    return F.binary_cross_entropy_with_logits(model(words, near), wanted)


def learned(model, episodes, actions, gains, returns):
    """Return the loss of proximal policy optimisation for a policy that played at random."""
    return example("recurrent_policy").loss(model, (episodes, actions, gains, returns), np.float32(-np.log(3)))


STEPS = {
    "attention_classify": (lambda of: of.Classifier(9, 3, 8, 2), classified, (IDS, LABELS)),
    "classify_functions": (lambda of: of.Classifier(9, 3, 6, 5), classified, (LINES, LABELS)),
    "compare_padding": (lambda of: of.Model(9, 3, padded=True), classified, (IDS, LABELS)),
    "data_parallel": (lambda of: of.Classifier(9, 3), classified, (IDS, LABELS)),
    "language_model": (lambda of: of.LanguageModel(9, 6, 5), read_on, (IDS, ids_of([11]).data)),
    "match_answers": (lambda of: of.Matcher(9, 6, 5), of_two, (IDS, OTHERS, np.arange(4))),
    "recommend": (lambda of: of.Recommender(9, 6), of_two, (IDS, CANDIDATES, np.zeros(4, np.int64))),
    "recurrent_policy": (lambda of: of.ActorCritic(4, 3, 5), learned, (SEEN, IDS.data % 3, *GAINS)),
    "restore_vowels": (lambda of: of.Speller(6, 8), of_two, (IDS, OTHERS, ids_of([9], high=29).data)),
    "stream_recall": (lambda of: of.Recall("GatedLinearAttention", 4), classified, (IDS, IDS.data)),
    "tag_tokens": (lambda of: of.Tagger(9, 3, 6, 5), tagged, (IDS, IDS.like(IDS.data % 3))),
    "word_vectors": (lambda of: of.SkipGram(9, 6), of_pairs, (LABELS, CANDIDATES, WANTED)),
}
MOVES = {"attention_classify"}  # its model makes ids of classes, and copies them


def longest_of(name):
    """Return the steps of the longest sequence of an example's batch; 0 without sequences."""
    return max([vr.sort_by_seq_len(x).max_seq_len for x in STEPS[name][2] if getattr(x, "num_levels", 0)], default=0)


def stepper(name, place):
    """Return the training step of an example's model, on a device."""
    make, loss_of, given = STEPS[name]
    return step_on(place, lambda: make(example(name)), loss_of, *given)


@pytest.mark.parametrize("name", STEPS)
def test_steps_have_the_losses_of_the_cpu(name, monkeypatch):
    monkeypatch.setattr(cuda, "driver", Driver())
    check_losses(lambda place: stepper(name, place), is_steady=name not in MOVES)


def test_examples_train_where_they_are_told(monkeypatch):
    monkeypatch.setattr(cuda, "driver", Driver())
    texts = ["def f(x):\n  return x", "class A:\n  x = 1", "y = 3", "for i in x: print(i)", "def g(y): pass"] * 2
    data, losses, shares = vr.data.from_texts(texts, [text[0] for text in texts]), [], []
    functions, parallel = example("classify_functions"), example("data_parallel")
    for place in ("cpu", "cuda"):
        losses.append(parallel.train(data, 1, place, Communicator(), 2)[0])
        vr.manual_seed(0)
        model = functions.Classifier(len(data.vocabulary), len(data.classes), 6, 5).to(place)
        settings = SimpleNamespace(lr=1e-2, epochs=1, batch_size=4, device=place)
        functions.train(model, functions.functions_of(data), data.labels, settings)
        shares.append(functions.accuracy(model, functions.functions_of(data), data.labels))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
    assert shares[0] == shares[1]


def test_every_example_that_trains_is_here():
    trained = {path.stem for path in EXAMPLES.glob("*.py") if "optim." in path.read_text()}
    assert trained == STEPS.keys() | {"classify_names"}  # in test_cuda_training.py
