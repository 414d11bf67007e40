"""Programs are bound for boxes of counts: numbers that are affine in counts, and batches at the edges of boxes."""

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.program import bounds
from varlen_rnn.program.boxes import box_around, box_of, measure, sizes_of
from varlen_rnn.runtime.affine import fit
from varlen_rnn.runtime.dry_run import DryRun, Records, room
from varlen_rnn.runtime.jit import cpu_kernel
from varlen_rnn.runtime.notes import Notes, fit_notes
from varlen_rnn.runtime.placeholder import Unbound

pytestmark = pytest.mark.usefixtures("no_device")

POINTS = np.array([(5, 3), (2, 3), (5, 2), (1, 1), (3, 2)])
NONE_UNREAD = np.zeros((5, 4), bool)


def test_affine_numbers_are_found_and_others_named():
    numbers = np.array([(7, 4 + 16 * rows, rows + 2 * seqs - 9, -(-rows // 4)) for rows, seqs in POINTS])
    found, wrong = fit(POINTS, numbers[:, :3], NONE_UNREAD[:, :3])
    assert wrong is None
    assert found.at((100, 50)) == [7, 1604, 191]
    assert found.part(1, 3).at((100, 50)) == [1604, 191]
    assert fit(POINTS, numbers, NONE_UNREAD)[1] == 3
    assert fit(POINTS[:1, :0], numbers[:1], NONE_UNREAD[:1])[0].at(()) == numbers[0].tolist()
    numbers[3, 1], unread = -7, NONE_UNREAD.copy()
    assert fit(POINTS, numbers[:, :3], unread)[1] == 1
    unread[3, 1] = True
    found, wrong = fit(POINTS, numbers[:, :3], unread)
    assert wrong is None
    assert found.at((1, 1)) == [7, 20, -6]


def test_counts_that_moved_together_are_tied():
    seen = [(40, 5, 4, 9), (25, 5, 3, 8), (61, 5, 8, 13)]
    box = box_around(seen)
    assert (box.free, box.lowest, box.highest) == ((0, 2), (1, 1), (64, 8))
    assert box.find((64, 5, 1, 6)) == (64, 1)
    for outside in ((65, 5, 1, 6), (0, 5, 1, 6), (64, 4, 1, 6), (64, 5, 2, 6), (64, 5, 0, 5)):
        assert box.find(outside) is None
    assert box.counts_at((30, 2)) == (30, 5, 2, 7)
    parts = box.parts((40, 5, 3, 8))
    assert [(part.lowest, part.highest) for part in parts[1:]] == [
        ((33, 1), (64, 8)), ((1, 3), (64, 4)), ((33, 3), (64, 4)),
    ]  # fmt: skip
    assert all(box.covers(part) and not part.covers(box) for part in parts[1:])
    assert box.covers(box_of((40, 5, 3, 8)))
    assert not box.covers(box_of((40, 5, 3, 9)))
    assert box_around(seen[:1]) is None
    for one in (box, *parts):
        corners = {(a, b) for a in (one.lowest[0], one.highest[0]) for b in (one.lowest[1], one.highest[1])}
        assert corners <= set(one.points())


def test_tied_counts_are_at_least_one():
    assert box_around([(5, 2), (9, 6)]).lowest == (4,)


def test_a_size_has_the_shapes_and_the_levels_of_feeds():
    x = vr.LoDTensor(np.zeros((9, 6)), [[0, 1, 3], [0, 4, 4, 9]])
    fed = {"x": x, "y": x.like(np.zeros(9)), "z": vr.LoDTensor(np.zeros((2, 3)))}
    structure, counts = measure(fed)
    assert counts == (9, 6, 2, 3, 9, 2, 3)
    assert sizes_of(structure, counts) == [((9, 6), (2, 3), 0), ((9,), (), 0), ((2, 3), (), None)]


@cpu_kernel
def scale(x, number, out):
    for k in range(out.shape[0]):
        out[k] = number * x[k]


@cpu_kernel
def shift(x, number, out):
    for k in range(out.shape[0]):
        out[k] = number + x[k]


def recorded(work, points=((9,), (5,), (4,), (6,))):
    """Return the Records of `work(x)` at these numbers of rows, and the Placeholders of x and of the result."""
    runs = []
    for (rows,) in points:
        dry_run = DryRun()
        x = dry_run.empty((rows,), np.float64)
        runs.append((dry_run, x, work(x)))
    notes = [Notes(dry_run, arrays) for dry_run, *arrays in runs]
    numbers = fit_notes(points, notes)
    dry_run, *arrays = runs[0]
    found = Records(dry_run, numbers, points)
    parts = [numbers.part(*place) for place in notes[0].places]
    return found, *(found.place_of(*one) for one in zip(arrays, parts, strict=True))


def twice(x):
    y = x.copy()
    scale(x[1:], len(x) - 2, y[1:])
    return y[: len(y) - 1]


def test_records_of_one_box_run_all_sizes():
    records, given, made = recorded(twice)
    memory = room(records.size)
    memory[:] = 255
    for rows in (4, 9, 7, 5):
        records.set_counts((rows,))
        records.place(memory)
        x = np.arange(rows) + 0.5
        given.view(memory, (rows,))[:] = x
        assert records.run() == -1
        assert made.view(memory, (rows,)).tolist() == [0.5, *(x[1:-1] * (rows - 2))]
        memory = room(records.size)


def test_sizes_that_records_cannot_run_are_refused_by_name():
    def with_number(number):
        def work(x):
            y = x.copy()
            scale(x, number(len(x)), y)
            return y

        return work

    def other_way(x):
        y = x.copy()
        (scale if len(x) > 6 else shift)(x, 2.0, y)
        return y

    refused = {
        "kernel scale gets a number .word .* that is not affine": [
            lambda n: n // 2,
            lambda n: n * n,
            lambda n: min(n, 8),
        ],
        "kernel scale gets a number": [float, lambda n: 1 / n],
    }
    for match, numbers in refused.items():
        for number in numbers:
            with pytest.raises(Unbound, match=match):
                recorded(with_number(number))
    with pytest.raises(Unbound, match="another size calls kernel shift in place of scale"):
        recorded(other_way)


def bindings(step):
    """Return the Bindings of a bound step's programs."""
    return [ready.binding for one in step._recorded.values() for ready in one[0].program.prepared.values()]


def training(layer=lambda: vr.nn.LSTM(4, 5), **options):
    """Return two training steps with equal parameters, and these parameters."""
    found = []
    for _ in range(2):
        vr.manual_seed(0)
        table, recurrent, out = vr.nn.Embedding(20, 4, sparse=False), layer(), vr.nn.Linear(5, 3)
        parameters = [p for module in (table, recurrent, out) for p in module.parameters()]
        optimizer = vr.optim.Adam(parameters, lr=1e-2)

        def step(ids, labels, table=table, recurrent=recurrent, out=out, optimizer=optimizer):
            optimizer.zero_grad()
            loss = vr.nn.functional.cross_entropy(out(vr.sequence_pool(recurrent(table(ids))[0], "last")), labels)
            loss.backward()
            optimizer.step()
            return loss

        found.append((step, parameters))
    return found


def batch_of(rng, lengths):
    return vr.create_lod_tensor(rng.integers(0, 20, sum(lengths)), [lengths]), rng.integers(0, 3, len(lengths))


def test_ragged_batches_run_by_few_boxes_with_the_bits_of_eager_mode():
    rng, ((eager, wanted), (plain, found)) = np.random.default_rng(1), training()
    step, number = vr.bound(plain), 1000
    for k in range(number):
        most, longest = (6, 9) if k < 700 else (12, 30)  # larger ones come later
        lengths = rng.integers(0, longest, rng.integers(1, most)).tolist()
        if k % 100 == 50:
            lengths = [0, 0]
        batch = batch_of(rng, lengths)
        assert step(*batch).value.data.tobytes() == eager(*batch).value.data.tobytes(), lengths
    for one, other in zip(found, wanted, strict=True):
        assert one.value.data.tobytes() == other.value.data.tobytes()
    (binding,) = bindings(step)
    assert binding.runs > 0.9 * number
    assert len(binding.bounds._boxes) <= 3


def test_batches_on_both_sides_of_each_threshold_have_the_bits_of_eager_mode(monkeypatch):
    monkeypatch.setattr(bounds, "_BOXES", 100)
    rng, ((eager, wanted), (plain, found)) = np.random.default_rng(1), training(lambda: vr.nn.GRU(4, 5))
    step = vr.bound(plain)
    for limit in (4, 12, 48, 128, 256, 512, 4096, 8192, 4096, 4, 0):  # the last ones come when larger ones are bound
        for rows in (limit - 1, limit, limit + 1, limit + 2):
            rest = rng.multinomial(max(rows, 0), np.ones(3) / 3).tolist()
            batch = batch_of(rng, [0, *rest] if rows % 2 else [*rest[:2], 0, rest[2]])
            assert step(*batch).value.data.tobytes() == eager(*batch).value.data.tobytes(), rows
    for one, other in zip(found, wanted, strict=True):
        assert one.value.data.tobytes() == other.value.data.tobytes()
    (binding,) = bindings(step)
    assert binding.runs > 30
    corners = [(bound.box.lowest, bound.box.highest) for _, bound in binding.bounds._boxes]
    assert any(high == (4096,) for _, high in corners), corners


def test_the_gradient_of_a_mean_is_no_constant_of_a_size():
    rng, layer = np.random.default_rng(0), vr.nn.Linear(3, 1)

    def step(x):
        layer.zero_grad()
        loss = (layer(x) * layer(x)).mean()
        loss.backward()
        return loss

    step = vr.bound(step)
    for _ in range(20):
        rows = rng.integers(2, 60)
        step(vr.LoDTensor(rng.standard_normal((rows, 3)).astype(np.float32), [[0, 1, rows]]))
    (binding,) = bindings(step)
    assert binding.runs > 10, binding.refusal
