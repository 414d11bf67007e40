"""Models that train by `bound` have eager mode's losses and parameters, to the bit, in any batch.

`python -m tests.test_bound_models 1000` trains each model for a thousand batches, and compares all sizes around
thresholds with the numbers of boxes.
"""

import functools
import sys

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.program.boxes import measure
from varlen_rnn.program.dry_runs import dry_run_of
from varlen_rnn.program.search import Search
from varlen_rnn.runtime.placeholder import Unbound
from varlen_rnn.tape.values import bits_of_value

F = vr.nn.functional
SIZES = ((5, 13), (4, 13), (3, 0), (0, 0), (1, 7))  # sequences and rows of batches
WORDS, CLASSES = 20, 4


pytestmark = pytest.mark.usefixtures("no_device")


def offsets_of(rng, sequences, rows):
    cuts = np.sort(rng.integers(0, rows + 1, max(0, sequences - 1)))
    return np.array([0, *cuts, rows] if sequences else [0])


def ids_of(rng, sequences, rows, words=WORDS):
    return vr.LoDTensor(rng.integers(0, words, rows), [offsets_of(rng, sequences, rows)])


def labelled(rng, size):
    return ids_of(rng, *size), rng.integers(0, CLASSES, size[0])


def tagged(rng, size):
    ids = ids_of(rng, *size)
    return ids, vr.LoDTensor(rng.integers(0, CLASSES, size[1]), ids.structure)


def read(rng, size):
    x, _ = valued(rng, size)
    labels = size[0] + 2 if size[0] else 0
    return x, vr.LoDTensor(rng.integers(1, CLASSES, labels), [offsets_of(rng, size[0], labels)])


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


class Averaged(vr.nn.Module):
    """A classifier of means of rows, with a layer before and after the mean."""

    def __init__(self, before, after):
        super().__init__()
        self.table, self.out, self.before, self.after = (
            vr.nn.Embedding(WORDS, 6),
            vr.nn.Linear(6, CLASSES),
            before,
            after,
        )

    def forward(self, ids, labels):
        pooled = vr.sequence_pool(self.before(self.table(ids)), "mean")
        return F.cross_entropy(self.out(self.after(pooled)), labels)


class Scheduled:
    """A training whose learning rate and clip of weights follow each step."""

    def __init__(self):
        self.training = Training(Classifier, OPTIMIZERS["Momentum"])
        self.step, self.schedule = self.training.step, vr.optim.lr_scheduler.StepLR(self.training.optimizer, 3, 0.9)

    def state(self):
        self.schedule.step()
        for parameter in self.training.model.parameters():
            np.clip(parameter.value.data, -0.5, 0.5, out=parameter.value.data)
        return self.training.state()


class Regressor(vr.nn.Module):
    def __init__(self, *pools):
        super().__init__()
        self.layer, self.out, self.pools = vr.nn.GRU(6, 5, bidirectional=True), vr.nn.Linear(10 * len(pools), 1), pools

    def forward(self, x, y):
        y_of_rows = self.layer(x)[0]
        pooled = [vr.sequence_pool(y_of_rows, pool, pad_value=0.5) for pool in self.pools]
        return F.mse_loss(self.out(F.concat(pooled, axis=1)), y)


class Tagger(vr.nn.Module):
    def __init__(self, with_crf=False):
        super().__init__()
        self.table, self.layer = vr.nn.Embedding(WORDS, 5, sparse=True), vr.nn.LSTM(5, 7)
        self.out, self.crf = vr.nn.Linear(7, CLASSES), vr.nn.LinearChainCRF(CLASSES) if with_crf else None

    def forward(self, ids, tags):
        scores = self.out(self.layer(self.table(ids))[0])
        # Programs take another way to a mean than eager mode; a factor shows whether both divide gradients alike.
        return F.cross_entropy(scores, tags) * 0.3 if self.crf is None else self.crf(scores, tags).mean()


class Attending(vr.nn.Module):
    """A tagger whose rows attend to the rows of their sequence, and to the sequences' last states, several ways."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = vr.nn.Embedding(WORDS, 6), vr.nn.LSTM(6, 6)
        self.dot, self.additive = vr.nn.MultiheadAttention(6, 2), vr.nn.AdditiveAttention(6, 6, 4)
        self.out = vr.nn.Linear(12, CLASSES)

    def forward(self, ids, tags):
        rows = self.layer(self.table(ids))[0]
        seen = F.concat([self.dot(rows, rows, rows), self.additive(rows, rows)], axis=1)
        return F.cross_entropy(self.out(seen), tags)


class Windows(vr.nn.Module):
    """A text's classifier by convolutions and other operators along sequences."""

    def __init__(self):
        super().__init__()
        self.table, self.out = vr.nn.Embedding(WORDS, 6), vr.nn.Linear(9, CLASSES)
        self.conv, self.padding = (vr.nn.Parameter(np.ones((n, k), np.float32)) for n, k in ((18, 5), (2, 6)))
        self.row = vr.nn.Parameter(np.full((2, 5), 0.5, np.float32))

    def forward(self, ids, labels):
        x = self.table(ids)
        y = vr.sequence_reverse(vr.row_conv(vr.sequence_conv(x, self.conv, None, self.padding), self.row))
        y = vr.sequence_softmax(y) + vr.sequence_expand_as(vr.sequence_pool(y, "mean"), y)
        both = vr.sequence_concat([y, y * 2.0, vr.sequence_cumsum(y)])
        padded = vr.sequence_pad(both[:, :1], maxlen=60)[0][:, :4, 0]
        return F.cross_entropy(self.out(F.concat([vr.sequence_pool(both, "sqrt"), padded], axis=1)), labels)


class Reader(vr.nn.Module):
    """A model of texts in rows, with the CTC loss."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = vr.nn.RNN(6, 7), vr.nn.Linear(7, CLASSES)

    def forward(self, x, texts):
        return F.ctc_loss(F.log_softmax(self.out(self.layer(x)[0])), texts).mean()


class Curved(vr.nn.Module):
    """A tagger of activations, extremes, normalised vectors and other operators on the features of each row."""

    def __init__(self):
        super().__init__()
        self.table, self.inner, self.out = vr.nn.Embedding(WORDS, 8), vr.nn.Linear(8, 8), vr.nn.Linear(8, CLASSES)
        self.norm = vr.nn.BatchNorm1d(8)

    def forward(self, ids, tags):
        x = self.norm(self.table(ids))
        y = F.gelu(x) + F.gelu(x, "tanh") * F.softplus(x, 2.0) + F.silu(x) + F.elu(x) * x**3
        y = F.normalize(y, eps=1e-3) + F.maximum(y, x) - F.topk(y, 2, axis=1)[0].sum(axis=1, keepdims=True)
        y = self.inner(y) + y.cumsum(1) * abs(x) + y.max(axis=1, keepdims=True) * y.min(axis=1, keepdims=True)
        first = F.not_equal(y.argmax(axis=1), 2).reshape(-1, 1)
        return F.focal_loss(self.out(F.where(first, y, x)), tags)


class Matrices(vr.nn.Module):
    """A classifier by all layers whose states are matrices, one after another."""

    def __init__(self):
        super().__init__()
        self.table, self.out = vr.nn.Embedding(WORDS, 4), vr.nn.Linear(4, CLASSES)
        layers = vr.nn.GatedDeltaNet, vr.nn.DeltaNet, vr.nn.MLSTM, vr.nn.Mamba2, vr.nn.GatedLinearAttention
        self.layers = vr.nn.ModuleList([layer(4, 4, num_heads=2) for layer in layers])

    def forward(self, ids, labels):
        x = self.table(ids)
        for layer in self.layers:
            x = x + layer(x)[0]
        return F.cross_entropy(self.out(vr.sequence_pool(x, "mean")), labels)


class Transducing(vr.nn.Module):
    """The loss of a transducer over rows of lattices that are given."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = vr.nn.Linear(6, 5), vr.nn.Linear(5, CLASSES)

    def forward(self, rows, labels):
        return F.transducer_loss(self.out(F.tanh(self.layer(rows))), labels)


class Stepping(vr.nn.Module):
    """A classifier by a step of its own, which runs as a cell."""

    def __init__(self):
        super().__init__()
        self.table, self.out = vr.nn.Embedding(WORDS, 5), vr.nn.Linear(6, CLASSES)
        self.of_x, self.of_h = vr.nn.Linear(5, 6), vr.nn.Linear(6, 6)

    def forward(self, ids, labels):
        def cell(x, h):
            h = F.tanh(self.of_x(x) + self.of_h(h))
            return h, h

        _, last = vr.nn.DynamicRNN(cell)(self.table(ids), [(6,)])
        return F.cross_entropy(self.out(last), labels)


def lattices(rng, size):
    """Return rows of lattices, and at most one label for each sequence."""
    labels = rng.integers(0, 2, size[0])
    starts = np.append(0, np.cumsum((labels + 1) * rng.integers(0, 4, size[0])))
    rows = rng.standard_normal((starts[-1], 6)).astype(np.float32)
    ends = np.append(0, np.cumsum(labels))
    return vr.LoDTensor(rows, [starts]), vr.LoDTensor(rng.integers(1, CLASSES, ends[-1]), [ends])


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
    "schedule": (Scheduled, labelled),
    "dropout": (lambda: Training(lambda: Averaged(vr.nn.Dropout(0.25), vr.nn.Dropout(0.5))), labelled),
    "regressor": (lambda: Training(lambda: Regressor("mean", "sqrt", "max", "first")), valued),
    "tagger": (lambda: Training(Tagger), tagged),
    "CRF": (lambda: Training(lambda: Tagger(with_crf=True)), tagged),
    "attention": (lambda: Training(Attending), tagged),
    "windows": (lambda: Training(Windows), labelled),
    "CTC": (lambda: Training(Reader), read),
    "curves": (lambda: Training(Curved), tagged),
    "matrices": (lambda: Training(Matrices), labelled),
    "transducer": (lambda: Training(Transducing), lattices),
    "own step": (lambda: Training(Stepping), labelled),
    "padding": (lambda: Training(lambda: Classifier(padding_idx=3)), labelled),
    "dense table, padding": (lambda: Training(lambda: Classifier(padding_idx=3, sparse=False)), labelled),
    "clipping": (lambda: Training(Classifier, max_norm=0.1), labelled),
    "clipping, lazy Adam": (lambda: Training(Classifier, OPTIMIZERS["lazy Adam"], max_norm=0.1), labelled),
} | {name: (lambda make=make: Training(Classifier, make), labelled) for name, make in OPTIMIZERS.items()}


# Work that needs sizes that depend on numbers: {the refusal: a function of rows (6,)}
REFUSED = {
    "operator 'sequence_expand': ": lambda x: vr.sequence_expand(x, x),
    "operator 'sequence_pad': ": lambda x: vr.sequence_pad(x)[0].sum(),
    "operator 'sequence_unpad': ": lambda x: vr.sequence_unpad(
        vr.sequence_pad(x, maxlen=40)[0], vr.sequence_pad(x, maxlen=40)[1]
    ).sum(),
    "operator 'ctc_greedy_decoder': ": lambda x: vr.ctc_greedy_decoder(x),
    "operator 'dynamic_rnn': its step runs operator by operator": lambda x: vr.nn.DynamicRNN(
        lambda x, h: (F.softmax(h + x), F.softmax(x))
    )(x, [(6,)])[0],
}


def compared(make, batch_of, count, seed=0):
    """Train `count` steps eagerly, bound, and by an Executor; return how many of them ran as records, of both."""
    rng = np.random.default_rng(seed)
    eager, other = make(), make()
    step, sizes = vr.bound(other.step), [SIZES[k] for k in rng.integers(0, len(SIZES), count)]
    for number, size in enumerate(sizes):
        batch = batch_of(rng, size)
        draws = vr.random.get_state()
        wanted, drawn = eager.step(*batch), vr.random.get_state()
        vr.random.set_state(draws)
        found = step(*batch)
        assert vr.random.get_state() == drawn
        assert bits_of_value(wanted.value) == bits_of_value(found.value), (number, size)
        states = other.state()
        for name, bits in eager.state().items():
            assert bits == states[name], (name, number, size)
    bindings = [b for p in step._recorded.values() for one in p for b in one.program.prepared.values()]
    return sum(b.binding.runs for b in bindings), [b.binding.refusal for b in bindings]


# Numbers of rows after which Python or kernels take another way, such as products of few rows, blocks of sums, and
# BatchNorm's blocks; each is the first or the last of a box, or inside of it.
ROWS = (1, 4, 12, 24, 48, 64, 96, 128, 256, 512, 2048, 4096, 8192)
BOXES = [(1, 8), (1, 64), (33, 64), (1, 512), (1, 4096), (2049, 4096), (4097, 8192)]


def deviations(make, batch_of):
    """Return how many sizes around ROWS are in boxes that can be bound, and those whose dry runs have other numbers."""
    rng, step = np.random.default_rng(0), vr.bound(make().step)
    for rows in (13, 9, 11, 7, 13, 5, 3, 8):
        batch = batch_of(rng, (min(5, rows), rows))
        step(*batch)
    (binding,) = [b.binding for p in step._recorded.values() for one in p for b in one.program.prepared.values()]
    fed = {f"x{n}": one if isinstance(one, vr.LoDTensor) else vr.LoDTensor(one) for n, one in enumerate(batch)}
    structure, _ = measure(fed)
    dry_run = functools.partial(
        dry_run_of, binding._instructions, binding._fetches, binding._given(fed), fed, structure
    )
    ((_, bound),), search, checked, other = binding.bounds._boxes, Search(), 0, []
    others = [int(rng.integers(low, 9)) for low in bound.box.lowest[1:]]
    for low, high in BOXES:
        box = bound.box.between((max(low, bound.box.lowest[0]), *bound.box.lowest[1:]), (high, *[8] * len(others)))
        try:
            _, numbers = search.fit(box, dry_run)
        except Unbound:
            continue
        for rows in sorted({limit + more for limit in ROWS for more in (0, 1)} & {*range(box.lowest[0], high + 1)}):
            free = (rows, *others)
            notes = search._notes(box.counts_at(free), dry_run)
            search._notes(box.counts_at(box.highest), dry_run).check_same(notes)
            differ = np.nonzero(notes.numbers != numbers.at(free))[0]
            checked += 1
            if not set(differ.tolist()) <= set(notes.unread):
                other.append((box.lowest, box.highest, free))
    return checked, other


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tagger", "regressor"])
def test_numbers_of_boxes_hold_at_all_sizes_around_thresholds(name):
    checked, other = deviations(*MODELS[name])
    assert other == []
    assert checked > 40


@pytest.mark.parametrize("name", MODELS)
def test_bound_training_has_the_bits_of_eager_mode(name):
    runs, refusals = compared(*MODELS[name], 40)
    assert runs > 10, refusals


@pytest.mark.parametrize("refusal", REFUSED)
def test_an_operator_whose_sizes_depend_on_numbers_is_refused_by_name(refusal):
    rng, step = np.random.default_rng(0), vr.bound(lambda x: REFUSED[refusal](x))
    for _ in range(8):
        step(valued(rng, SIZES[0])[0])
    assert f"none without Python, because {refusal}" in step.explain()


if __name__ == "__main__":
    for model in MODELS:
        print(model, *compared(*MODELS[model], int(sys.argv[1])), *deviations(*MODELS[model]), flush=True)
