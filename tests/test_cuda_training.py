"""Training steps of an example on the emulated device, beside the CPU's: the same losses, and no copy unasked."""

import gc

import numpy as np
import pytest

import varlen_rnn as vr
from tests.emulated.device import MARKS, Driver
from tests.emulated.ledger import ALLOCATION, LAUNCH, TO_DEVICE, TO_HOST, steady, totals
from tests.test_program_examples import example
from tests.training_steps import check_losses, step_on
from varlen_rnn.runtime import cuda, device

pytestmark = MARKS
NAMES = ["GREEK SMALL LETTER ALPHA", "DIGIT SEVEN", "COMBINING ACUTE ACCENT", "SPACE", "PLUS SIGN", "LATIN X"]
LETTERS = sorted(set("".join(NAMES)))
LABELS = np.array([1, 3, 2, 6, 5, 1])


class Training:
    """classify_names in small, on a device."""

    def __init__(self, place, hidden_size=12):
        vr.manual_seed(0)
        self.place, sizes = place, {"embedding_size": 8, "hidden_size": hidden_size}
        self.model = example("classify_names").Classifier(len(LETTERS), 7, **sizes).to(place)
        self.optimizer = vr.optim.Adam(self.model.parameters(), lr=4e-3, lazy=True)

    def batch(self, names=slice(None)):
        """Return ids and labels on the device."""
        sequences = [np.array([LETTERS.index(letter) for letter in name]) for name in NAMES[names]]
        ids = vr.LoDTensor.from_sequences(sequences, dtype=np.int64)
        return ids.to(self.place), vr.Variable(LABELS[names]).to(self.place)

    def losses(self, *parts):
        """Return the losses of steps on parts of the names."""
        vr.manual_seed(1)  # of dropout
        return [self.step(*self.batch(part)).item() for part in parts]

    def step(self, ids, labels):
        self.optimizer.zero_grad()
        loss = vr.nn.functional.cross_entropy(self.model(ids), labels)
        loss.backward()
        vr.optim.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss


F, LENGTHS = vr.nn.functional, [3, 1, 5, 2]
IDS = vr.create_lod_tensor(np.random.default_rng(0).integers(0, 9, sum(LENGTHS)), [LENGTHS])
TAGS = vr.create_lod_tensor(np.random.default_rng(1).integers(0, 3, sum(LENGTHS)), [LENGTHS])
SPOKEN = vr.create_lod_tensor(np.random.default_rng(2).integers(1, 4, 6), [[2, 0, 3, 1]])


class Speech(vr.nn.Module):
    """The log-probabilities of classes, row by row, for CTC."""

    def __init__(self):
        self.embedding, self.reader = vr.nn.Embedding(9, 6), vr.nn.GRU(6, 5, bidirectional=True)
        self.output = vr.nn.Linear(10, 4)

    def forward(self, ids, spoken):
        return F.ctc_loss(F.log_softmax(self.output(self.reader(self.embedding(ids))[0])), spoken, zero_infinity=True)


class Words(vr.nn.Module):
    """Attention of words to all words and to their neighbours."""

    def __init__(self):
        self.embedding, self.dropout = vr.nn.Embedding(9, 8), vr.nn.Dropout(0.2)
        self.attention, self.output = vr.nn.MultiheadAttention(8, 2), vr.nn.Linear(8, 3)

    def forward(self, ids, tags):
        words = self.dropout(self.embedding(ids))
        words = words + self.attention(words, words, words) + self.attention(words, words, words, window=(1, 1))
        return F.cross_entropy(self.output(words), tags)


class Recomputed(vr.nn.Module):
    """A layer that saves every second state."""

    def __init__(self):
        self.embedding, self.reader = vr.nn.Embedding(9, 6), vr.nn.LSTM(6, 5, bidirectional=True, recompute=2)
        self.output = vr.nn.Linear(10, 3)

    def forward(self, ids, tags):
        return F.cross_entropy(self.output(self.reader(self.embedding(ids))[0]), tags)


class Steps(vr.nn.Module):
    """A step of its own, which runs as a cell, or operator by operator."""

    def __init__(self, fused):
        self.embedding, self.output = vr.nn.Embedding(9, 6), vr.nn.Linear(5, 3)
        self.of_x, self.of_h = vr.nn.Linear(6, 10), vr.nn.Linear(5, 10, bias=False)
        self.layer = vr.nn.DynamicRNN(self.fused if fused else self.interpreted)

    def fused(self, x, h):
        gate = F.sigmoid(self.of_x(x)[:, :5] + self.of_h(h)[:, :5])
        h = gate * h + (1.0 - gate) * F.tanh(self.of_x(x)[:, 5:] + self.of_h(h)[:, 5:])
        return h, h

    def interpreted(self, x, h):
        gates = F.softmax(F.dropout(self.of_h(h), 0.2) + self.of_x(x))
        return gates[:, :5] - h, h + gates[:, 5:]

    def forward(self, ids, tags):
        y, _ = self.layer(self.embedding(ids), [(5,)])
        assert self.layer.explain().startswith("runs fused") == (self.layer.cell == self.fused)
        return F.cross_entropy(self.output(y), tags)


class Weights(vr.nn.Module):
    """The weights of attention as a loss of their own."""

    def __init__(self):
        self.embedding, self.attention = vr.nn.Embedding(9, 8), vr.nn.MultiheadAttention(8, 2)

    def forward(self, ids, tags):
        words = self.embedding(ids)
        output, weights = self.attention(words, words, words, need_weights=True)
        return (output * output).sum() + (weights * weights).sum()


MODELS = {
    "recomputed": (Recomputed, TAGS),
    "step as a cell": (lambda: Steps(True), TAGS),
    "step by operators": (lambda: Steps(False), TAGS),
    "weights of attention": (Weights, TAGS),
    "ctc": (Speech, SPOKEN),
    "attention": (Words, TAGS),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_learn_as_on_the_cpu(name, on_cuda):
    make, targets = MODELS[name]
    loss_of = lambda model, ids, wanted: model(ids, wanted).mean()
    check_losses(lambda place: step_on(place, make, loss_of, IDS, targets))


@pytest.fixture
def on_cuda(monkeypatch):
    monkeypatch.setattr(cuda, "driver", Driver())
    return Training("cuda")


def test_names_are_learned_as_on_the_cpu(on_cuda):
    on_host = Training("cpu")
    parts = slice(0, 4), slice(2, 6), slice(0, 6)
    np.testing.assert_allclose(on_cuda.losses(*parts), on_host.losses(*parts), rtol=1e-6)
    here, there = (t.model.state_dict() for t in (on_host, on_cuda))
    for name, array in here.items():
        np.testing.assert_allclose(there[name], array, rtol=1e-4, atol=2e-6)
    on_cuda.model.to("cpu")
    on_cuda.place = "cpu"
    np.testing.assert_allclose(on_cuda.losses(slice(1, 5)), on_host.losses(slice(1, 5)), rtol=1e-6)


def test_a_batch_that_comes_again_is_neither_copied_nor_allocated(on_cuda):
    batch = on_cuda.batch()
    for _ in range(2):  # the second step has the memory that the first one left
        on_cuda.step(*batch)
        gc.collect()
    with steady():
        loss = on_cuda.step(*batch)
    before = totals()
    assert loss.item() > 0
    assert totals()[TO_HOST] == before[TO_HOST] + 1


def test_a_batch_that_comes_again_is_hardly_hashed(on_cuda, monkeypatch):
    """Uploads are found by the hash of their bytes; a plan, ids and their order have objects of bytes that keep it."""
    batch, hashed, bytes_of = on_cuda.batch(), [], device.bytes_of

    def counted(array):
        found = bytes_of(array)
        owners = array.base, getattr(array.base, "base", None)
        hashed.append(0 if any(found is owner for owner in owners) else len(found))
        return found

    on_cuda.step(*batch)
    monkeypatch.setattr(device, "bytes_of", counted)
    on_cuda.step(*batch)
    assert len(hashed) > 20
    assert sum(hashed) < batch[0].data.nbytes / 4


def test_a_new_batch_costs_its_own_copies(on_cuda):
    for part in (slice(0, 4), slice(2, 6)):
        on_cuda.step(*on_cuda.batch(part))
    before = totals()
    on_cuda.step(*on_cuda.batch(slice(1, 5)))
    after = totals()
    assert after[TO_HOST] == before[TO_HOST], "nothing comes to the host"
    # Ids and labels, the plan and its rows in two directions, the listed rows of the table.
    assert after[TO_DEVICE] - before[TO_DEVICE] <= 20
    assert after[ALLOCATION] - before[ALLOCATION] <= 20, "most memory is used again"
    assert after[LAUNCH] > before[LAUNCH]


def test_the_example_trains_and_predicts_on_the_device(on_cuda):
    names, found = example("classify_names"), []
    data = vr.data.from_texts(NAMES * 4, ["LNMZSL"[k % 6] for k in range(24)])
    for place in ("cpu", "cuda"):
        trainer, test = names.trainer_of(data, names.SETTINGS | {"batch_size": 4}, None, place)
        trainer.fit(steps=3)
        assert {parameter.device for parameter in trainer.model.parameters()} == {vr.device(place)}
        found.append((trainer.model.state_dict(), names.predict(trainer.model, test.sequences)[1]))
    for name, array in found[0][0].items():
        np.testing.assert_allclose(found[1][0][name], array, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-4)


def trainer_of(folder, place):
    """Return a trainer of classify_names in small, with dropout, averages and checkpoints."""
    vr.manual_seed(0)
    model = example("classify_names").Classifier(len(LETTERS), 7, embedding_size=8, hidden_size=12).to(place)
    sequences = [np.array([LETTERS.index(letter) for letter in name]) for name in NAMES]
    batches = vr.data.batches(sequences, LABELS, batch_size=2, shuffle=True, seed=1)

    def loss(ids, labels):
        return F.cross_entropy(model(ids.to(place)), vr.Variable(labels).to(place))

    optimizer = vr.optim.Adam(model.parameters(), lr=4e-3, lazy=True)
    averaged = vr.optim.AveragedModel(model, 0.5)
    callbacks = [vr.training.Averaging(averaged), vr.training.Checkpoints(folder, every=2)]
    return vr.training.Trainer(model, optimizer, loss, batches, clip_norm=1.0, callbacks=callbacks), averaged


@pytest.mark.parametrize("places", [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")], ids="-".join)
def test_a_training_is_resumed_in_another_place(on_cuda, places, tmp_path):
    whole, average = trainer_of(tmp_path / "whole", "cpu")
    whole.fit(steps=5)
    first, _ = trainer_of(tmp_path / "parts", places[0])
    first.fit(steps=2)
    again, averaged = trainer_of(tmp_path / "parts", places[1])
    assert again.resume(tmp_path / "parts")
    assert again.step == 2
    again.fit(steps=5)
    for found, wanted in (
        (again.model.state_dict(), whole.model.state_dict()),
        (again.optimizer.state_dict(), whole.optimizer.state_dict()),
        (averaged.state_dict(), average.state_dict()),
    ):
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-5, err_msg=name)


def test_states_of_a_device_go_out_and_in(on_cuda, tmp_path):
    model, optimizer = on_cuda.model, on_cuda.optimizer
    on_cuda.losses(slice(0, 4))
    vr.save(tmp_path / "run", model=model.state_dict(), optimizer=optimizer.state_dict())
    before, states = model.state_dict(), optimizer.state_dict()
    model.load_state_dict(model.state_dict())
    optimizer.load_state_dict(optimizer.state_dict())
    assert {parameter.device for parameter in model.parameters()} == {vr.device("cuda")}
    other, saved = Training("cuda"), vr.load(tmp_path / "run")
    for training, given in ((on_cuda, (before, states)), (other, (saved["model"], saved["optimizer"]))):
        training.model.load_state_dict(given[0])
        training.optimizer.load_state_dict(given[1])
        for found, wanted in ((training.model.state_dict(), before), (training.optimizer.state_dict(), states)):
            assert found.keys() == wanted.keys()
            for name, array in wanted.items():
                np.testing.assert_array_equal(found[name], array)
    assert on_cuda.losses(slice(2, 6), slice(0, 3)) == other.losses(slice(2, 6), slice(0, 3))
