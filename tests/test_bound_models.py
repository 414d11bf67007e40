"""Models that train by `bound` and by an Executor have eager mode's losses and parameters, to the bit, in any batch."""

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.program import binding
from varlen_rnn.runtime import device_array
from varlen_rnn.tape.values import bits_of_value

F = vr.nn.functional
SIZES = ((5, 13), (4, 13), (3, 0), (0, 0), (1, 7))  # sequences and rows of batches
WORDS, CLASSES = 20, 4


@pytest.fixture(autouse=True)
def bound_at_once(monkeypatch):
    """A process that uses a device, as other tests do, binds no programs."""
    monkeypatch.setattr(device_array, "in_use", False)
    monkeypatch.setattr(binding, "_DRY_RUNS", 1000)


def offsets_of(rng, sequences, rows):
    cuts = np.sort(rng.integers(0, rows + 1, max(0, sequences - 1)))
    return np.array([0, *cuts, rows] if sequences else [0])


def ids_of(rng, sequences, rows, words=WORDS):
    return vr.LoDTensor(rng.integers(0, words, rows), [offsets_of(rng, sequences, rows)])


def labelled(rng, size):
    return ids_of(rng, *size), rng.integers(0, CLASSES, size[0])


def tagged(rng, size):
    ids = ids_of(rng, *size)
    return ids, ids.structure and vr.LoDTensor(rng.integers(0, CLASSES, size[1]), ids.structure)


def valued(rng, size):
    offsets = offsets_of(rng, *size)
    x = rng.standard_normal((size[1], 6)).astype(np.float32)
    return vr.LoDTensor(x, [offsets]), rng.standard_normal((size[0], 1)).astype(np.float32)


class Classifier(vr.nn.Module):
    def __init__(self, pool="last", **options):
        super().__init__()
        self.table = vr.nn.Embedding(WORDS, 5, **{"sparse": True} | options)
        self.layer, self.out, self.pool = vr.nn.LSTM(5, 7), vr.nn.Linear(7, CLASSES), pool

    def forward(self, ids, labels):
        return F.cross_entropy(self.out(vr.sequence_pool(self.layer(self.table(ids))[0], self.pool)), labels)


class Training:
    """A model with its optimizer, whose `step` takes a batch and returns the loss."""

    def __init__(self, model, optimizer=lambda p: vr.optim.Adam(p, lr=0.05), max_norm=None, before=None):
        vr.manual_seed(0)
        self.model, self.max_norm = model(), max_norm
        self.optimizer = optimizer(list(self.model.parameters()))

    def step(self, *batch):
        self.optimizer.zero_grad()
        loss = self.model(*batch)
        loss.backward()
        if self.max_norm is not None:
            vr.optim.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optimizer.step()
        return loss

    def state(self):
        """Return the bits of parameters, gradients and states."""
        found = {name: bits_of_value(p.value) for name, p in self.model.named_parameters()}
        found |= {f"grad of {name}": bits_of_value(p.grad) for name, p in self.model.named_parameters()}
        return found | {name: bits_of_value(x) for name, x in self.optimizer.state_dict().items()}


OPTIMIZERS = {
    "SGD": lambda p: vr.optim.SGD(p, lr=0.1),
    "SGD with decay": lambda p: vr.optim.SGD(p, lr=0.1, weight_decay=0.01),
    "Momentum": lambda p: vr.optim.Momentum(p, lr=0.1, weight_decay=0.01),
    "Adagrad": lambda p: vr.optim.Adagrad(p, lr=0.1),
    "Adagrad with decay": lambda p: vr.optim.Adagrad(p, lr=0.1, weight_decay=0.01),
    "Adam": lambda p: vr.optim.Adam(p, lr=0.1, weight_decay=0.01),
    "lazy Adam": lambda p: vr.optim.Adam(p, lr=0.1, lazy=True),
    "lazy AdamW": lambda p: vr.optim.AdamW(p, lr=0.1, lazy=True),
    "RMSprop": lambda p: vr.optim.RMSprop(p, lr=0.01),
    "Adadelta": lambda p: vr.optim.Adadelta(p, lr=0.1),
}
MODELS = {
    "padding": (lambda: Training(lambda: Classifier(padding_idx=3)), labelled),
    "dense table, padding": (lambda: Training(lambda: Classifier(padding_idx=3, sparse=False)), labelled),
    "clipping": (lambda: Training(Classifier, max_norm=0.1), labelled),
    "clipping, lazy Adam": (lambda: Training(Classifier, OPTIMIZERS["lazy Adam"], max_norm=0.1), labelled),
} | {name: (lambda make=make: Training(Classifier, make), labelled) for name, make in OPTIMIZERS.items()}


def compared(make, batch_of, count, seed=0):
    """Train `count` steps eagerly, bound, and by an Executor; return how many of them ran as records, of both."""
    rng = np.random.default_rng(seed)
    eager, other = make(), make()
    step, sizes = vr.bound(other.step), [SIZES[k] for k in rng.integers(0, len(SIZES), count)]
    for number, size in enumerate(sizes):
        batch = batch_of(rng, size)
        wanted, found = eager.step(*batch), step(*batch)
        assert bits_of_value(wanted.value) == bits_of_value(found.value), (number, size)
        for name, bits in eager.state().items():
            assert bits == other.state()[name], (name, number, size)
    bindings = [b for p in step._recorded.values() for one in p for b in one.program.prepared.values()]
    return sum(b.binding.runs for b in bindings), [b.binding.refusal for b in bindings]


@pytest.mark.parametrize("name", MODELS)
def test_bound_training_has_the_bits_of_eager_mode(name):
    runs, refusals = compared(*MODELS[name], 40)
    assert runs > 10, refusals
