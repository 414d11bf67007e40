"""The training loop: equal to a loop by hand, resumed bit for bit from any step, and its callbacks."""

import json
import math
import pickle
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import varlen_rnn as vr
from tests.each import check_each
from tests.rank_threads import run_ranks
from varlen_rnn.distributed import Communicator
from varlen_rnn.training import (
    Averaging,
    Callback,
    Checkpoints,
    EarlyStopping,
    JSONLog,
    Progress,
    Schedule,
    Trainer,
    callbacks,
    plot_history,
)

F = vr.nn.functional


class Model(vr.nn.Module):
    """Embedding, GRU, dropout, and a linear layer over the last step."""

    def __init__(self):
        self.embedding = vr.nn.Embedding(6, 4)
        self.gru = vr.nn.GRU(4, 5)
        self.dropout = vr.nn.Dropout(0.3)
        self.output = vr.nn.Linear(5, 2)

    def forward(self, ids):
        y, _ = self.gru(self.embedding(ids))
        return self.output(self.dropout(vr.sequence_last_step(y)))


RNG = np.random.default_rng(3)
SEQUENCES = [RNG.integers(0, 6, size=length) for length in (3, 0, 5, 1, 4, 4, 2, 7, 1, 3)]
LABELS = np.array([len(sequence) % 2 for sequence in SEQUENCES])


def make(**options):
    """Return a trainer of ten sequences in batches of three, and its model."""
    vr.manual_seed(0)
    model = Model()
    batches = vr.data.batches(SEQUENCES, LABELS, batch_size=3, shuffle=True, seed=1)
    optimizer = vr.optim.Adam(model.parameters(), lr=1e-2)
    return Trainer(model, optimizer, lambda ids, labels: F.cross_entropy(model(ids), labels), batches, **options)


def same(a, b):
    pairs = zip(a.model.state_dict().values(), b.model.state_dict().values(), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def test_a_fit_is_the_loop_by_hand():
    trainer = make(clip_norm=0.1)
    history = trainer.fit(epochs=2)
    by_hand = make()
    model, optimizer, losses = by_hand.model, by_hand.optimizer, []
    for epoch in range(2):
        for ids, labels in by_hand.batches.at_epoch(epoch):
            loss = F.cross_entropy(model(ids), labels)
            loss.backward()
            vr.optim.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert same(trainer, by_hand)
    sizes = [3, 3, 3, 1]  # the last batch has one sequence
    assert [record["loss"] for record in history] == pytest.approx(
        [np.average(losses[:4], weights=sizes), np.average(losses[4:], weights=sizes)], rel=1e-14
    )
    assert [(record["epoch"], record["step"], record["lr"]) for record in history] == [(1, 4, 1e-2), (2, 8, 1e-2)]


# Batches of 40, 2, 3 and 50 rows.
UNEQUAL = [np.random.default_rng(k).standard_normal((n, 3)) for k, n in enumerate((20, 20, 1, 1, 1, 2, 30, 20))]


# name: the loss of a model's output and labels, by a form of mean or sum
BOUND = {
    "a mean": F.cross_entropy,
    "a mean of rows of its own": lambda y, labels: F.cross_entropy(y, labels, reduction="none").mean(),
    "a sum": lambda y, labels: F.cross_entropy(y, labels, reduction="sum"),
    "a mean, and a part of another": lambda y, labels: F.cross_entropy(y, labels) + 0.1 * (y * y).mean(),
    "a weighted mean": lambda y, labels: F.cross_entropy(y, labels, weight=np.array([1.0, 3.0], np.float32)),
}


def test_a_bound_training_is_the_training():
    def check(name):
        (one, model), (other, again) = [(made, made.model) for made in (make(), make(bound=True))]
        for trainer, trained in ((one, model), (other, again)):
            trainer.loss = lambda ids, labels, trained=trained: BOUND[name](trained(ids), labels)
            trainer.clip_norm = 0.5
        for trainer in (one, other):
            vr.manual_seed(5)
            trainer.fit(epochs=5)
        assert other._bound.explain().startswith("_whole_step(int64 [-1], 1 level, int64 [-1]): a program of")
        assert (other.history, other.last_loss, other.last_rows) == (one.history, one.last_loss, one.last_rows)
        assert all(map(np.array_equal, model.state_dict().values(), again.state_dict().values()))

    check_each(BOUND, check)


def test_a_bound_training_stops_before_numbers_that_are_not_finite():
    trainer = make(bound=True)
    trainer.fit(epochs=5)  # 20 steps, so that the next one is no step that is compared
    before = {name: value.copy() for name, value in trainer.model.state_dict().items()}
    trainer.model.output.bias.data[0] = np.inf
    with pytest.raises(vr.OutOfRangeError, match="loss: expected a finite number, got nan"):
        trainer.fit(epochs=6)
    trainer.model.output.bias.data[0] = before["output.bias"][0]
    assert trainer._bound.explain().count("15 of 21 calls ran it alone")
    assert all(map(np.array_equal, trainer.model.state_dict().values(), before.values()))
    assert trainer.step == 20


def test_a_bound_training_names_a_loss_that_is_a_sum_times_a_number():
    trainer = make(bound=True)
    trainer.loss = lambda ids, labels: F.cross_entropy(trainer.model(ids), labels, reduction="sum") * 0.1
    with pytest.raises(vr.ProgramError, match="Trainer, loss: expected a mean or a sum, got a"):
        trainer.fit(epochs=1)


def target(x):
    return np.sin(3 * x.data[:, :2])


def classes(x):
    return np.where(x.data[:, 2] > 0.3, -100, (x.data[:, 1] > 0).astype(int))


def mask_of(x):
    return (x.data[:, 0] > -0.8).astype(float)


JOINED = {
    "mean": lambda m, x: F.mse_loss(m(x), target(x)),
    "per sequence": lambda m, x: F.l1_loss(m(x), target(x), per="sequence"),
    "sum": lambda m, x: F.mse_loss(m(x), target(x), "sum"),
    "by hand": lambda m, x: ((m(x) - target(x)) ** 2).mean(axis=0).sum() * 3.0,
    "ignored": lambda m, x: F.cross_entropy(m(x), classes(x), weight=[0.2, 0.7]),
    "penalty": lambda m, x: F.mse_loss(m(x), target(x)) + 0.1 * (m.weight * m.weight).sum(),
    "two means": lambda m, x: F.mse_loss(m(x), target(x)) + F.l1_loss(m(x), target(x)),
    "sequences": lambda m, x: (vr.sequence_pool(m(x), "max") ** 2).mean(),
    "masked": lambda m, x: (lambda on: ((m(x) ** 2).mean(axis=1) * on).sum() / on.sum())(vr.Variable(mask_of(x))),
    "masked by a sum": lambda m, x: (lambda on: (errors(m, x) * on).sum() / F.maximum(on.sum(), 1.0))(
        vr.Variable(mask_of(x))
    ),
    "parameters alone": lambda m, x: m.weight.exp().mean(),
    "half of a sum": lambda m, x: errors(m, x).sum() / 2.5,
    "half, multiplied": lambda m, x: errors(m, x).sum() * 0.4,
    "sum, divided penalty": lambda m, x: errors(m, x).sum() + 0.0 * (m.weight * m.weight).sum() / 3.0,
    "divided sum, sum": lambda m, x: errors(m, x).sum() / 7.0 + errors(m, x).sum(),
}


def errors(model, x):
    return ((model(x) - target(x)) ** 2).mean(axis=1)


# Of one process, because a rank knows only its own counts.
DIVIDED = {
    "rows": lambda m, x: errors(m, x).sum() / len(x.data),
    "multiplied": lambda m, x: errors(m, x).sum() * (1 / len(x.data)),
    "multiplied from the left": lambda m, x: (1 / len(x.data)) * errors(m, x).sum(),
    "elements": lambda m, x: F.mse_loss(m(x), target(x), "sum") / target(x).size,
    "sequences": lambda m, x: errors(m, x).sum() / x.num_elements(0),
    "then halved": lambda m, x: errors(m, x).sum() / len(x.data) / 2.5,
    "halved first": lambda m, x: errors(m, x).sum() / 2.5 / len(x.data),
    "divided penalty": lambda m, x: errors(m, x).sum() / len(x.data) + (m.weight * m.weight).sum() / 3.0,
}


def joined(loss, size, comm=None, **options):
    """Return the history and the weights after two steps, of `accumulate` batches of `size` sequences each."""
    vr.manual_seed(0)
    model = vr.nn.Linear(3, 2, dtype=np.float64)
    optimizer = vr.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    batches = vr.data.batches(UNEQUAL, batch_size=size)
    trainer = Trainer(model, optimizer, lambda x: loss(model, x), batches, comm=comm, **options)
    history = trainer.fit(epochs=2)
    return [history[0]["loss"], trainer.last_loss, *(p.numpy().copy() for p in model.parameters())]


@pytest.mark.parametrize("name", JOINED)
def test_accumulated_batches_are_one_batch(name):
    loss = JOINED[name]
    wanted = joined(loss, 8)
    found = [joined(loss, 2, accumulate=4), *run_ranks(2, lambda comm: joined(loss, 2, comm, accumulate=4))]
    found += run_ranks(2, lambda comm: joined(loss, 2, comm, accumulate=4, reproducible=3))
    found.append(joined(loss, 2, Communicator(), accumulate=4))
    for other in found:
        for a, b in zip(other, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", DIVIDED)
def test_a_sum_divided_by_a_count_of_the_batch_is_a_mean(name):
    for a, b in zip(joined(DIVIDED[name], 2, accumulate=4), joined(DIVIDED[name], 8), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_ranks_that_divide_by_the_count_of_all_have_a_mean():
    def on_rank(comm):
        def loss(model, x):
            count = np.array([len(x.data)])
            comm.all_reduce(count)
            return errors(model, x).sum() / count.item()

        return joined(loss, 2, comm, accumulate=4)

    wanted = joined(DIVIDED["rows"], 8)
    for found in run_ranks(2, on_rank):
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("number", [40.0, 50.0])
def test_a_number_that_is_the_count_of_some_batches_alone_is_no_count(number):
    def loss(model, x):
        return errors(model, x).sum() / number

    for a, b in zip(joined(loss, 2, accumulate=4), joined(loss, 8), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_sum_divided_by_another_count_warns_once(accumulate):
    def loss(model, x):
        mask = mask_of(x)
        return (errors(model, x) * mask).sum() / mask.sum()

    with pytest.warns(
        UserWarning, match="loss: expected a sum divided by a number of rows, .*got a sum divided by 31, then "
    ) as found:
        joined(loss, 2, accumulate=accumulate)
    assert len(found) == 1


def test_losses_without_one_count_are_averaged_over_batches():
    found = joined(lambda m, x: (m(x).max(axis=0) ** 2).sum(), 2, accumulate=4)
    vr.manual_seed(0)
    model = vr.nn.Linear(3, 2, dtype=np.float64)
    losses = [(model(x).max(axis=0) ** 2).sum() for x in vr.data.batches(UNEQUAL, batch_size=2)]
    assert found[0] == pytest.approx(np.mean([loss.item() for loss in losses]), rel=1e-12)


def test_sparse_gradients_of_several_batches():
    def trained(size, accumulate):
        vr.manual_seed(0)
        table, output = vr.nn.Embedding(9, 3, sparse=True), vr.nn.Linear(3, 1)
        model = vr.nn.Sequential(table, output)
        ids = [np.arange(n) % 9 for n in (5, 1, 2, 9)]
        trainer = Trainer(
            model, vr.optim.SGD(model.parameters(), lr=0.1), lambda x: (model(x) ** 2).mean(),
            vr.data.batches(ids, batch_size=size), accumulate=accumulate, clip_norm=0.01,
        )  # fmt: skip
        trainer.fit(epochs=1)
        return model.state_dict()

    wanted = trained(4, 1)
    for name, value in trained(1, 4).items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-5, atol=1e-7)


class Halve(Callback):
    """Halves the rate every third step, and remembers how often: the state of a callback of one's own."""

    def __init__(self):
        self.count = 0

    def on_step_end(self, trainer):
        self.count += 1
        if self.count % 3 == 0:
            trainer.optimizer.lr /= 2

    def state_dict(self):
        return {"count": self.count, "array": np.full(2, self.count)}

    def load_state_dict(self, state):
        assert (state["array"] == state["count"]).all()
        self.count = state["count"]


def complete(**options):
    """Return a trainer with validation, early stopping and a callback with a state."""
    trainer = make(callbacks=[EarlyStopping("valid_loss", patience=2), Halve()], clip_norm=1.0, **options)
    ids, labels = vr.data.batches(SEQUENCES, LABELS, batch_size=10)[0]
    trainer.validate = lambda: {"valid_loss": F.cross_entropy(trainer.model(ids), labels).item()}
    return trainer


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("stop", [0, 1, 4, 6, 11])
def test_a_training_resumed_from_any_step_ends_with_the_same_bits(tmp_path, stop, accumulate):
    whole = complete(accumulate=accumulate)
    whole.fit(epochs=6)
    part = complete(accumulate=accumulate)
    part.fit(steps=stop)
    part.save(tmp_path / "run.safetensors")
    resumed = complete(accumulate=accumulate)
    vr.manual_seed(99)
    resumed.load(tmp_path / "run.safetensors")
    assert resumed.step == stop
    resumed.fit(epochs=6)
    assert same(whole, resumed)
    assert whole.history == resumed.history


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
@pytest.mark.parametrize("loss", [DIVIDED["then halved"], DIVIDED["halved first"], JOINED["half of a sum"]])
def test_a_resumed_training_joins_losses_as_one_without_a_pause(tmp_path, stop, loss):
    def made():
        vr.manual_seed(0)
        model = vr.nn.Linear(3, 2, dtype=np.float64)
        batches = vr.data.batches(UNEQUAL, batch_size=1)
        return Trainer(model, vr.optim.SGD(model.parameters(), lr=0.1), lambda x: loss(model, x), batches, accumulate=3)

    whole, part, resumed = made(), made(), made()
    whole.fit(epochs=2)
    part.fit(steps=stop)
    part.save(tmp_path / "run.safetensors")
    resumed.load(tmp_path / "run.safetensors")
    resumed.fit(epochs=2)
    assert whole.history == resumed.history
    assert same(whole, resumed)


@pytest.mark.parametrize("first", [True, False], ids=["saved first", "saved last"])
def test_files_hold_what_the_other_callbacks_did_in_the_same_step(tmp_path, first):
    def made(folder):
        trainer = complete()
        trainer.callbacks.append(Schedule(vr.optim.lr_scheduler.OneCycleLR(trainer.optimizer, 0.9, total_steps=80)))
        trainer.callbacks.insert(0 if first else 3, Checkpoints(folder, every=1, keep=100))
        return trainer

    whole = made(tmp_path / "whole")
    whole.fit(epochs=12)
    assert whole.stop  # early, or the best weights are no part of this
    files = sorted((tmp_path / "whole").iterdir())
    assert len(files) == whole.step > 6
    for number, path in enumerate(files):
        resumed = made(tmp_path / str(number))
        resumed.load(path)
        resumed.fit(epochs=12)
        assert same(whole, resumed)
        assert whole.history == resumed.history


class Interrupt(Callback):
    """Saves the training after a step, and raises what Ctrl-C does."""

    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_step_end(self, trainer):
        if trainer.step == self.step:
            self.step = None
            trainer.save(self.path)
            raise KeyboardInterrupt


@pytest.mark.parametrize("stop", [3, 4, 8])
def test_an_interrupt_after_any_step_loses_no_record(tmp_path, stop):
    whole = make()
    whole.fit(epochs=3)
    part = make(callbacks=[Interrupt(stop, tmp_path / "run.safetensors")])
    with pytest.raises(KeyboardInterrupt):
        part.fit(epochs=3)
    part.fit(epochs=3)
    resumed = make(callbacks=[Interrupt(0, None)])
    resumed.load(tmp_path / "run.safetensors")
    resumed.fit(epochs=3)
    for trainer in (part, resumed):
        assert same(whole, trainer)
        assert trainer.history == whole.history


def test_an_interrupt_while_it_validates_loses_no_record():
    calls = []

    def validate():
        calls.append(None)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return {}

    expected = make().fit(epochs=3)
    trainer = make(validate=validate)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(epochs=3)
    assert trainer.fit(epochs=3) == expected


class Told(Callback):
    """Notes the epochs that it is told of."""

    def __init__(self):
        self.epochs = []

    def on_epoch_end(self, trainer):
        self.epochs.append(trainer.history[-1]["epoch"])


def interrupt_at_line(number, function):
    """Return a tracer that interrupts a function at the n-th line that runs of it, and the lines that ran."""
    met = []

    def trace(frame, event, _):
        if frame.f_code is not function.__code__:
            return trace if event == "call" and not met else None
        if event == "line":
            met.append(frame.f_lineno)
            if len(met) == number:
                raise KeyboardInterrupt
        return trace

    return trace, met


@pytest.mark.parametrize("function", [Trainer._end_epoch, Trainer._tell_of_record, Trainer.save])
def test_an_interrupt_in_any_line_at_the_end_of_an_epoch_loses_nothing(tmp_path, function):
    """Neither the record, nor its loss, nor a callback that was to be told of it, nor its file."""
    expected = make(validate=lambda: {"more": 1.0}).fit(epochs=2)
    for number in range(1, 100):
        folder = tmp_path / str(number)
        trainer = make(validate=lambda: {"more": 1.0}, callbacks=[Checkpoints(folder), Told()])
        trace, met = interrupt_at_line(number, function)
        sys.settrace(trace)
        try:
            trainer.fit(epochs=2)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        if len(met) < number:
            break
        assert trainer.fit(epochs=2) == expected
        assert len(list(folder.glob("*.safetensors"))) == 2, f"line {met[-1]}"
        assert trainer.callbacks[1].epochs == [1, 2], f"line {met[-1]}"
    assert number > 5


@pytest.mark.parametrize("accumulate", [1, 2])
def test_epochs_of_more_or_fewer_batches_than_the_first_train_on_all_of_them(accumulate):
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 6, size=length) for length in rng.integers(1, 9, size=30)]
    made = vr.data.batches(sequences, np.arange(30), max_tokens=9, shuffle=True, seed=1)
    counts = [len(made.at_epoch(epoch)) for epoch in range(12)]
    steps = [-(-count // accumulate) for count in counts]
    assert min(steps) < steps[0] < max(steps)  # both are met
    trainer, seen, losses, means = make(accumulate=accumulate), [], [], []

    def loss(ids, numbers):
        seen.extend(numbers)
        found = F.cross_entropy(trainer.model(ids), numbers % 2)
        means.append((found.item(), len(numbers)))
        return found

    other = Trainer(trainer.model, trainer.optimizer, loss, made, accumulate=accumulate, callbacks=[Losses(losses)])
    history = other.fit(epochs=12)
    assert other.step == 12 * steps[0]
    assert (np.sort(np.reshape(seen, (12, 30)), axis=1) == np.arange(30)).all()
    for record, epoch in zip(history, np.split(np.array(means), np.cumsum(counts)[:-1]), strict=True):
        assert record["loss"] == pytest.approx(np.average(epoch[:, 0], weights=epoch[:, 1]), rel=1e-6)
    # A step without a batch has no rows.
    assert sum(rows > 0 for _, rows in losses) == sum(min(n, steps[0]) for n in counts)


class Losses(Callback):
    """Remembers the loss and the rows of each step."""

    def __init__(self, found):
        self.found = found

    def on_step_end(self, trainer):
        self.found.append((trainer.last_loss, trainer.last_rows))


def test_a_function_may_make_the_batches_of_an_epoch():
    trainer, other = make(), make()
    made = other.batches
    function = lambda epoch: [*made.at_epoch(epoch)]
    given = Trainer(other.model, other.optimizer, other.loss, function)
    trainer.fit(epochs=3)
    vr.manual_seed(0)
    Model()
    given.fit(epochs=3)
    assert given.history == trainer.history
    fewer = Trainer(other.model, other.optimizer, other.loss, lambda epoch: [*made][: 4 - 2 * epoch])
    fewer.fit(epochs=2)
    assert fewer.step == 8
    with pytest.raises(vr.ShapeError, match="batches of epoch 2: expected at least one batch, got no batch"):
        fewer.fit(epochs=3)


class Scripted(Callback):
    """Puts numbers into the history, in place of a validation, and marks the weights of each epoch."""

    def __init__(self, *values):
        self.values = values

    def on_epoch_end(self, trainer):
        trainer.history[-1]["score"] = self.values[trainer.epoch - 1]
        trainer.model.output.bias.data[...] = trainer.epoch


@pytest.mark.parametrize(
    ("mode", "min_delta", "values", "epochs", "best"),
    [
        ("min", 0, (5, 3, 4, 4, 1), 4, 2),
        ("max", 0, (1, 2, 2, 2, 3), 4, 2),
        ("max", 0.5, (1, 1.4, 1.6, 1.7, 1.8), 5, 3),
        ("min", 0, (math.nan, 2, math.nan, math.nan, 1), 4, 2),
        ("min", 0, (3, 2, 1), 3, 3),
    ],
)
def test_early_stopping_brings_the_best_weights_back(mode, min_delta, values, epochs, best):
    early = EarlyStopping("score", patience=2, mode=mode, min_delta=min_delta)
    trainer = make(callbacks=[Scripted(*values), early])
    trainer.fit(epochs=len(values))
    assert (trainer.epoch, early.best_epoch, early.best) == (epochs, best, values[best - 1])
    np.testing.assert_array_equal(trainer.model.output.bias.data, best)


def test_what_had_stopped_early_stays_stopped(tmp_path):
    trainer = make(callbacks=[Scripted(1, 2, 3, 4), EarlyStopping("score", patience=1)])
    trainer.fit(steps=8)
    trainer.save(tmp_path / "run.safetensors")
    again = make(callbacks=[Scripted(1, 2, 3, 4), EarlyStopping("score", patience=1)])
    again.load(tmp_path / "run.safetensors")
    again.fit(epochs=4)
    assert again.epoch == 2
    np.testing.assert_array_equal(again.model.output.bias.data, 1)


def test_what_one_of_two_had_stopped_stays_stopped(tmp_path):
    def made():
        first = EarlyStopping("score", patience=1)
        return make(callbacks=[Scripted(1, 2, 3, 4), first, EarlyStopping("score", patience=9)])

    trainer, again = made(), made()
    trainer.fit(steps=8)
    trainer.save(tmp_path / "run.safetensors")
    again.load(tmp_path / "run.safetensors")
    again.fit(epochs=4)
    assert again.epoch == 2


def test_early_stopping_begins_anew_with_another_training():
    early = EarlyStopping("score", patience=2)
    for _ in range(2):
        trainer = make(callbacks=[Scripted(2, 1, 3, 4, 5), early])
        trainer.fit(epochs=5)
        assert (trainer.epoch, early.best, early.best_epoch) == (4, 1, 2)


def test_weights_of_a_part_of_a_training_are_not_replaced():
    early = EarlyStopping("score", patience=9)
    trainer = make(callbacks=[Scripted(1, 2, 3), early])
    trainer.fit(steps=8)
    np.testing.assert_array_equal(trainer.model.output.bias.data, 2)


def test_a_monitor_that_is_not_there_is_named():
    trainer = make(callbacks=[EarlyStopping("accuracy")])
    with pytest.raises(
        vr.ShapeError, match=r"monitor: expected one of \['epoch', 'loss', 'lr', 'step'\], got 'accuracy'"
    ):
        trainer.fit(epochs=1)


class Decay:
    """A schedule as `optim.lr_scheduler` has them."""

    def __init__(self, optimizer):
        self.optimizer, self.values = optimizer, []

    def step(self, *values):
        self.values.append(values)
        self.optimizer.lr *= 0.5

    def state_dict(self):
        return {"number": len(self.values)}

    def load_state_dict(self, state):
        self.values = [()] * state["number"]


def test_a_schedule_moves_per_step_or_per_epoch():
    trainer = make()
    per_step, per_epoch = Decay(trainer.optimizer), Decay(trainer.optimizer)
    trainer.callbacks += [Schedule(per_step), Schedule(per_epoch, monitor="loss")]
    trainer.fit(epochs=2)
    assert len(per_step.values) == 8
    assert per_epoch.values == [(record["loss"],) for record in trainer.history]
    with pytest.raises(vr.InputError, match="'epoch' with a monitor"):
        Schedule(per_step, per="step", monitor="loss")
    with pytest.raises(vr.InputError, match="Schedule, monitor: expected the name of a number"):
        Schedule(vr.optim.lr_scheduler.ReduceLROnPlateau(trainer.optimizer), per="epoch")
    with pytest.raises(vr.DTypeError, match="scheduler: expected a schedule"):
        Schedule(0.5)


def test_an_average_of_weights_is_saved_with_the_training(tmp_path):
    def averaging():
        trainer = make()
        averaged = vr.optim.AveragedModel(trainer.model, decay=0.5)
        trainer.callbacks += [Averaging(averaged), Checkpoints(tmp_path)]
        return trainer, averaged

    trainer, averaged = averaging()
    expected = None
    for step in range(1, 9):
        trainer.fit(steps=step)
        own = trainer.model.output.bias.data.copy()
        expected = own if expected is None else 0.5 * expected + 0.5 * own
    np.testing.assert_allclose(averaged.state_dict()["output.bias"], expected, rtol=1e-6)
    other, again = averaging()
    assert other.resume(tmp_path)
    np.testing.assert_array_equal(again.state_dict()["output.bias"], averaged.state_dict()["output.bias"])
    with pytest.raises(vr.DTypeError, match="averaged: expected an optim"):
        Averaging(trainer.model)


def test_checkpoints_rotate_and_are_resumed(tmp_path):
    folder = tmp_path / "deep" / "run"
    trainer = make(callbacks=[Checkpoints(folder, every=3, keep=2)])
    assert not make().resume(folder)
    trainer.fit(epochs=3)
    assert sorted(path.name for path in folder.iterdir()) == [
        "step-000000009.safetensors",
        "step-000000012.safetensors",
    ]
    (folder / "step-000000012.safetensors").unlink()
    resumed = make(callbacks=[Checkpoints(folder, every=3, keep=2)])
    assert resumed.resume(folder)
    assert resumed.step == 9
    resumed.fit(epochs=3)
    assert same(trainer, resumed)
    assert resumed.history == trainer.history
    epochs = tmp_path / "epochs"
    make(callbacks=[Checkpoints(epochs, keep=9)]).fit(epochs=2)
    assert sorted(path.name for path in epochs.iterdir()) == [
        "step-000000004.safetensors",
        "step-000000008.safetensors",
    ]


def test_the_log_goes_on_where_the_training_goes_on(tmp_path):
    path, folder = tmp_path / "log.jsonl", tmp_path / "run"
    path.write_text("of another run\n")
    trainer = make(callbacks=[Checkpoints(folder, every=5), JSONLog(path, every=2)])
    trainer.fit(steps=7)  # the last file is of step 5, the log's last line of step 6
    with path.open("a") as file:
        file.write('{"step": 7, "lo')  # killed while it wrote
    resumed = make(callbacks=[Checkpoints(folder, every=5), JSONLog(path, every=2)])
    resumed.resume(folder)
    resumed.fit(epochs=2)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["step"], line.get("epoch")) for line in lines] == [
        (2, None),
        (4, None),
        (4, 1),
        (6, None),
        (8, None),
        (8, 2),
    ]
    assert lines[2]["loss"] == resumed.history[0]["loss"]
    assert all(line["seconds"] >= 0 for line in lines)


def test_the_bar_shows_loss_and_epochs(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    make(callbacks=[Progress()]).fit(epochs=1)
    captured = capsys.readouterr()
    assert "epoch 1: loss 0." in captured.out
    assert "4/4" in captured.err
    assert "rows/s" in captured.err


def test_without_a_terminal_progress_is_a_line_now_and_then(capsys, monkeypatch):
    make(callbacks=[Progress()]).fit(epochs=20)
    (last,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"step 80/80, loss 0\.\d+, [\d,]+ rows/s; epoch 20: loss 0\.\d+", last)
    monkeypatch.setattr(callbacks, "_SECONDS", 0.0)
    trainer = make(callbacks=[Progress()])
    trainer.fit(steps=2)
    trainer.fit(epochs=2)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        *(f"step {k}/2" for k in (1, 2)),
        *(f"step {k}/8" for k in range(3, 9)),
        "step 8/8",  # with the record of the last epoch
    ]
    assert "epoch 2" in lines[-1]
    monkeypatch.setattr(sys, "stderr", None)  # as of pythonw
    make(callbacks=[Progress()]).fit(epochs=1)


def test_a_picture_of_the_history(tmp_path):
    pytest.importorskip("matplotlib")
    history = [
        {"epoch": k, "step": 4 * k, "lr": 0.1, "loss": 1 / k, "valid_loss": 2 / k, "accuracy": 0.5} for k in (1, 2)
    ]
    plot_history(history, tmp_path / "curve.svg", title="a title")
    text = (tmp_path / "curve.svg").read_text()
    assert "<!-- a title -->" in text
    assert "<!-- valid_loss -->" in text
    assert "<!-- accuracy -->" in text
    plot_history(history[:1], tmp_path / "one.png")
    with pytest.raises(vr.ShapeError, match="expected at least one epoch, got no epoch"):
        plot_history([], tmp_path / "none.png")


def test_a_picture_of_no_known_format_is_named(tmp_path):
    with pytest.raises(vr.InputError, match=r"plot_history, path: expected a suffix among .*\.png.*, got '.nope\'"):
        plot_history([{"step": 1, "loss": 0.5}], tmp_path / "curve.nope")
    plot_history([{"step": 1, "loss": 0.5}], tmp_path / "curve")  # a .png file
    assert (tmp_path / "curve.png").exists()


def test_a_loss_that_is_not_finite_leaves_the_parameters_as_they_were():
    trainer = make()
    trainer.fit(steps=3)
    before = trainer.model.state_dict()
    right = trainer.loss
    trainer.loss = lambda ids, labels: right(ids, labels) * math.nan
    with pytest.raises(vr.OutOfRangeError, match="loss, step 3: expected a finite number, got nan"):
        trainer.fit(steps=4)
    # A loss that is finite, whose gradient is not.
    trainer.clip_norm = 1.0
    weight = next(value for value in trainer.model.parameters() if value.ndim == 2)
    trainer.loss = lambda ids, labels: right(ids, labels) + ((weight * 0.0) ** 2).sum().sqrt()
    with pytest.raises(vr.OutOfRangeError, match="gradients, step 3: expected a finite norm, got nan"):
        trainer.fit(steps=4)
    for name, value in trainer.model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    assert trainer.step == 3


def test_all_callbacks_are_told_of_the_end_though_one_raises():
    class Ends(Callback):
        def __init__(self, number):
            self.number = number

        def on_fit_end(self, trainer):
            told.append(self.number)
            raise OSError(self.number)

    told = []
    with pytest.raises(OSError, match="1"):
        make(callbacks=[Ends(0), Ends(1)]).fit(steps=1)
    assert told == [0, 1]


def test_batches_may_be_anything(tmp_path):
    trainer = make()
    other = Trainer(trainer.model, trainer.optimizer, lambda n: (trainer.model.output.bias * n).sum(), lambda _: [1, 2])
    other.fit(epochs=1)
    assert other.last_rows == 0
    with pytest.raises(vr.InputError, match=r"Trainer.save: expected groups with names other than .*, got .'model'"):
        other.save(tmp_path / "file", model={})
    vr.save(tmp_path / "file", training={"step": 1}, callback_arrays={})
    with pytest.raises(vr.CheckpointError, match="expected a file that Trainer"):
        other.load(tmp_path / "file")


def test_the_model_is_in_evaluation_mode_while_it_is_validated_only():
    modes = []

    def validate():
        modes.append((trainer.model.training, vr.grad_enabled()))
        return {"number": np.float32(0.5)}

    trainer = make(validate=validate)
    trainer.fit(epochs=1)
    assert modes == [(False, False)]
    assert trainer.model.training
    assert trainer.history[0]["number"] == 0.5


@pytest.mark.parametrize("fails", [False, True])
def test_modules_keep_their_modes(fails):
    seen = []

    def validate():
        seen.append([module.training for module in trainer.model.modules()])
        trainer.model.train(fails)
        return 1 / 0 if fails else {}

    trainer = make(validate=validate)
    norm, trainer.loss = vr.nn.BatchNorm1d(2), lambda ids, labels: F.cross_entropy(norm(trainer.model(ids)), labels)
    trainer.model.norm = norm.eval()
    trainer.model.dropout.eval()
    modes = [module.training for module in trainer.model.modules()]
    moments = norm.running_mean.numpy().copy()
    if fails:
        with pytest.raises(ZeroDivisionError):
            trainer.fit(epochs=2)
    else:
        trainer.fit(epochs=2)
    assert [module.training for module in trainer.model.modules()] == modes
    assert modes.count(False) == 2
    assert not any(map(any, seen)), "a validation evaluates the whole model"
    np.testing.assert_array_equal(norm.running_mean.numpy(), moments)


class Watched(vr.nn.Module):
    """Counts how often it is set to a mode, as a model whose own `train` freezes layers does."""

    def __init__(self, inner):
        self.inner, self.norm, self.told = inner, vr.nn.BatchNorm1d(2), []

    def forward(self, ids):
        return self.norm(self.inner(ids))

    def train(self, mode=True):
        self.told.append(mode)
        return super().train(mode)


def test_a_validation_evaluates_in_other_threads_and_in_copies():
    trainer = make()
    model = trainer.model = Watched(trainer.model)
    trainer.loss = lambda ids, labels: F.cross_entropy(model(ids), labels)
    seen, moved = [], []

    def validate():
        moments = model.norm.running_mean.numpy().copy()
        with ThreadPoolExecutor(1) as pool:
            seen.extend(pool.submit(lambda: [module.training for module in model.modules()]).result())
            pool.submit(model, vr.data.batches(SEQUENCES, LABELS, batch_size=4)[0][0]).result()
        seen.extend(module.training for module in pickle.loads(pickle.dumps(model)).modules())
        moved.append(not np.array_equal(moments, model.norm.running_mean.numpy()))
        return {}

    trainer.validate = validate
    model.inner.dropout.eval()
    trainer.fit(epochs=1)
    assert not any(seen)
    assert moved == [False]
    assert model.told == [False, True]
    assert [module.training for module in model.modules()].count(False) == 1


def test_a_model_in_evaluation_mode_trains_whole():
    trainer = make()
    trainer.model.eval()
    trainer.fit(epochs=1)
    assert all(module.training for module in trainer.model.modules())


def test_an_error_in_a_step_ends_the_bar():
    ended = []

    class End(Callback):
        def on_fit_end(self, trainer):
            ended.append(trainer.done)

    trainer = make(callbacks=[End()])
    trainer.loss = lambda ids, labels: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer.fit(epochs=1)
    assert ended == [False]


def test_an_error_before_the_bar_is_the_error_that_is_raised(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(FileExistsError):
        make(callbacks=[Checkpoints(path), Progress()]).fit(epochs=1)


def test_files_that_do_not_fit_change_nothing(tmp_path):
    path = tmp_path / "run.safetensors"
    trainer = make()
    trainer.fit(steps=2)
    before = trainer.model.state_dict()
    make(accumulate=2).save(path)
    with pytest.raises(vr.CheckpointError, match="expected 4 steps per epoch, got 2"):
        trainer.load(path)
    with vr.float32_matmul_precision("bf16"):
        make().save(path)
    with pytest.raises(vr.CheckpointError, match="expected products of the precision 'fp32', got 'bf16'"):
        trainer.load(path)
    make(callbacks=[Halve()]).save(path)
    with pytest.raises(vr.CheckpointError, match=r"callbacks: expected \[\], got \['Halve'\]"):
        trainer.load(path)
    other = make()
    other.fit(steps=1)
    other.optimizer = vr.optim.SGD(other.model.parameters(), lr=1.0)
    other.optimizer.state_dict = lambda copy: {"other": np.zeros(3)}
    other.save(path)
    with pytest.raises(vr.CheckpointError, match="optimizer state"):
        trainer.load(path)
    vr.save(path, model=before)
    with pytest.raises(
        vr.CheckpointError, match=r"expected a file that Trainer.save wrote, got a file of the groups \['model'\]"
    ):
        trainer.load(path)
    for name, value in trainer.model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_wrong_arguments_are_named():
    model = Model()
    optimizer, batches = vr.optim.SGD(model.parameters(), lr=1.0), vr.data.batches([[1]], batch_size=1)
    with pytest.raises(vr.DTypeError, match="Trainer, model: expected an instance of Module"):
        Trainer(None, optimizer, len, batches)
    with pytest.raises(vr.DTypeError, match="Trainer, batches: expected an object with len"):
        Trainer(model, optimizer, len, [1, 2])
    with pytest.raises(vr.InputError, match="Trainer, bound: expected one process, and one batch a step, got accum"):
        Trainer(model, optimizer, len, batches, accumulate=2, bound=True)
    with pytest.raises(vr.ShapeError, match="Trainer, batches: expected at least one batch, got no batch"):
        Trainer(model, optimizer, len, vr.data.batches([], batch_size=1))
    with pytest.raises(vr.DTypeError, match=r"callbacks, entry 0: .*pass training.Schedule\(schedule\)"):
        Trainer(model, optimizer, len, batches, callbacks=[vr.optim.lr_scheduler.StepLR(optimizer, 2)])
    with pytest.raises(vr.DTypeError, match="callbacks, entry 0: expected a Callback"):
        Trainer(model, optimizer, len, batches, callbacks=[len])
    trainer = Trainer(model, optimizer, lambda ids: 1.0, batches)
    with pytest.raises(vr.InputError, match="exactly one of them, got neither"):
        trainer.fit()
    with pytest.raises(vr.InputError, match="exactly one of them, got both"):
        trainer.fit(1, steps=1)
    with pytest.raises(vr.DTypeError, match="loss: expected a function that returns a Variable of one number, got 1"):
        trainer.fit(epochs=1)
    trainer = Trainer(model, optimizer, lambda ids: F.cross_entropy(model(ids), [0]), batches, validate=lambda: 3)
    with pytest.raises(vr.DTypeError, match="validate: expected a function that returns a dict of numbers, got 3"):
        trainer.fit(epochs=1)
