"""A bound step computes the bits of the step itself, or is refused by name, or runs the step itself."""

import copy
import functools
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest

import varlen_rnn as vr
from tests.each import check_each
from tests.in_threads import at_once
from tests.interrupts import interrupted
from varlen_rnn.training import bound

pytestmark = pytest.mark.usefixtures("no_device")

F = vr.nn.functional
WORDS, CLASSES, BATCHES = 20, 3, 1000


class Classifier(vr.nn.Module):
    def __init__(self, sparse=False, dropout=0.3):
        self.table, self.layer = vr.nn.Embedding(WORDS, 4, sparse=sparse), vr.nn.LSTM(4, 6)
        self.dropout, self.out = vr.nn.Dropout(dropout), vr.nn.Linear(6, CLASSES)

    def forward(self, ids):
        y, _ = self.layer(self.table(ids))
        return self.out(self.dropout(vr.sequence_pool(y, "last")))


class Tagger(Classifier):
    def forward(self, ids):
        y, _ = self.layer(self.table(ids))
        return self.out(self.dropout(y))


class Regressor(vr.nn.Module):
    def __init__(self):
        self.layer, self.norm, self.out = vr.nn.GRU(2, 5), vr.nn.BatchNorm1d(5), vr.nn.Linear(5, 1)

    def forward(self, x):
        y, _ = self.layer(x)
        return self.out(vr.sequence_pool(self.norm(y), "mean"))


def lengths_of(rng):
    lengths = rng.integers(0, 9, rng.integers(0, 7)).tolist()
    return lengths if rng.random() > 0.1 else [0] * len(lengths)


def classified(rng):
    lengths = lengths_of(rng)
    ids = vr.create_lod_tensor(rng.integers(0, WORDS, sum(lengths)), [lengths])
    return ids, rng.integers(0, CLASSES, len(lengths))


def tagged(rng):
    ids, _ = classified(rng)
    return ids, ids.like(rng.integers(0, CLASSES, ids.shape[0]))


def measured(rng):
    lengths = lengths_of(rng)
    x = vr.create_lod_tensor(rng.standard_normal((sum(lengths), 2)).astype(np.float32), [lengths])
    return x, rng.standard_normal((len(lengths), 1)).astype(np.float32)


# name: (model, optimizer, batch, loss, norm to clip to)
TRAINING = {
    "classifier, Adam, dropout": (Classifier, vr.optim.Adam, classified, F.cross_entropy, None),
    "classifier, sparse, lazy, clipped": (
        lambda: Classifier(sparse=True), lambda p: vr.optim.Adam(p, lazy=True), classified, F.cross_entropy, 0.1,
    ),
    "tagger, momentum": (Tagger, lambda p: vr.optim.SGD(p, lr=0.1, momentum=0.9), tagged, F.cross_entropy, None),
    "tagger, AdamW": (Tagger, vr.optim.AdamW, tagged, F.cross_entropy, 1.0),
    "regressor, RMSprop, BatchNorm": (Regressor, vr.optim.RMSprop, measured, F.mse_loss, None),
    "regressor, Adagrad": (Regressor, vr.optim.Adagrad, measured, F.huber_loss, 0.5),
}  # fmt: skip


def training(name="classifier, Adam, dropout"):
    """Return a model, its optimizer and its training step, the same at every call."""
    make_model, make_optimizer, make_batch, loss_of, max_norm = TRAINING[name]
    vr.manual_seed(7)
    model = make_model()
    optimizer = make_optimizer(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        if max_norm is not None:
            vr.optim.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        return loss

    return model, optimizer, step, make_batch


def bits(value):
    if isinstance(value, vr.SelectedRows):
        return value.rows.tobytes(), value.value.tobytes()
    return None if value is None else (np.asarray(value).shape, np.asarray(value).tobytes())


def state(model, optimizer):
    """Return the bits of parameters, buffers, gradients and states, and the state of random numbers."""
    held = {name: bits(value) for name, value in model.state_dict().items()}
    held |= {f"{name}.grad": bits(parameter.grad) for name, parameter in model.named_parameters()}
    return held | {f"state {k}": bits(v) for k, v in optimizer.state_dict().items()} | {"random": vr.random.get_state()}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINING)
def test_a_bound_step_is_the_step(name):
    model, optimizer, step, make_batch = training(name)
    rng = np.random.default_rng(0)
    batches = [make_batch(rng) for _ in range(BATCHES)]
    schedule = vr.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    losses = []
    for batch in batches:
        losses.append(bits(step(*batch)))
        schedule.step()
    other, own, unbound, _ = training(name)
    run, schedule = vr.bound(unbound), vr.optim.lr_scheduler.ExponentialLR(own, 0.999)
    for number, batch in enumerate(batches):
        assert bits(run(*batch)) == losses[number], number
        schedule.step()
    assert state(model, optimizer) == state(other, own)
    assert f"; {BATCHES - 10} of {BATCHES} calls ran it alone" in run.explain()


def pair(name="classifier, Adam, dropout"):
    """Return (model, optimizer, step) twice, the second step bound, and some batches."""
    one, two = training(name), training(name)
    rng = np.random.default_rng(1)
    return one[:3], (*two[:2], vr.bound(two[2])), [one[3](rng) for _ in range(24)]


CHANGES = {
    "evaluation mode": lambda model, optimizer: model.eval(),
    "dropout": lambda model, optimizer: setattr(model.dropout, "p", 0.5),
    "a frozen parameter": lambda model, optimizer: model.out.weight.requires_grad_(False),
    "a learning rate": lambda model, optimizer: setattr(optimizer, "lr", 0.5),
    "an option": lambda model, optimizer: optimizer.param_groups[0].__setitem__("betas", (0.5, 0.6)),
    "weights that are loaded": lambda model, optimizer: model.load_state_dict(
        {name: value * 0.5 for name, value in model.state_dict().items()}
    ),
    "states that are loaded": lambda model, optimizer: optimizer.load_state_dict(
        {name: value * 2 for name, value in optimizer.state_dict().items()}
    ),
    "weights changed in place": lambda model, optimizer: model.out.weight.assign(np.ones((CLASSES, 6), np.float32)),
    "a value that is replaced": lambda model, optimizer: setattr(
        model.out.bias, "value", vr.LoDTensor(np.ones(CLASSES, np.float32))
    ),
    "a parameter that is replaced": lambda model, optimizer: setattr(
        model.out, "bias", vr.nn.Parameter(np.ones(CLASSES, np.float32))
    ),
    "gradients of before": lambda model, optimizer: setattr(model.out.bias, "grad", np.ones(CLASSES, np.float32)),
    "a new group": lambda model, optimizer: optimizer.add_param_group({"params": [vr.nn.Parameter([1.0])], "lr": 0.1}),
}


def check_change(name):
    eager, bound, batches = pair()
    found = []
    for model, optimizer, step in (eager, bound):
        vr.manual_seed(3)
        for batch in batches[:11]:
            step(*batch)
        CHANGES[name](model, optimizer)
        for batch in batches[11:]:
            step(*batch)
        found.append(state(model, optimizer))
    assert found[0] == found[1]


def test_what_changes_between_calls_takes_effect():
    check_each(CHANGES, check_change)


def changed(model, optimizer, x, y, do):
    """A training step that does something else, too."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return do(loss)


def refusals():
    """Return pairs by name: work that a step does beside training, and the error that it raises."""
    model, optimizer, _, _ = training()
    schedule = vr.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    plateau = vr.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    average = vr.optim.AveragedModel(model)
    changed(model, optimizer, *classified(np.random.default_rng(3)), lambda loss: loss)  # so that there are states

    def clip(loss):
        model.out.weight.data[...] = np.clip(model.out.weight.data, -0.01, 0.01)
        return loss

    def grads(loss):
        model.out.weight.grad = np.zeros((CLASSES, 6), np.float32)
        return loss

    return model, optimizer, {
        "a schedule": (lambda loss: (schedule.step(), loss)[1], "got a schedule advanced"),
        "a plateau": (lambda loss: (plateau.step(1.0), loss)[1], "got a schedule advanced"),
        "a rate": (lambda loss: (setattr(optimizer, "lr", 0.1), loss)[1], "got lr of an optimizer set"),
        "an average": (lambda loss: (average.update(), loss)[1], "got an average updated"),
        "weights": (clip, "changed by Python code"),
        "gradients": (grads, "grad of .* set by Python code"),
        "a branch on a value": (lambda loss: loss if float(loss) > 1 else loss * 2, "expected a value, got"),
        "a number": (lambda loss: loss.item(), "expected a value, got"),
        "a text": (lambda loss: "loss", "result of the step: expected a Variable, or a tuple, list or dict"),
        "arithmetic on a size": (lambda loss: loss / (model.last.shape[0] + 1), "a size that is unknown until a run"),
        "a branch on a size": (lambda loss: loss * (2.0 if model.last.shape[0] > 5 else 1.0), "unknown until a run"),
        "an error of Python": (lambda loss: 1 / 0, "expected code that can be recorded, got ZeroDivisionError"),
    }  # fmt: skip


def test_what_a_program_cannot_repeat_is_refused_and_nothing_has_changed():
    model, optimizer, cases = refusals()

    def check(name):
        do, error = cases[name]
        x, y = classified(np.random.default_rng(3))

        def step(x, y):
            vars(model)["last"] = x
            return changed(model, optimizer, x, y, do)

        before = state(model, optimizer)
        run = vr.bound(step)
        for _ in range(2):
            with pytest.raises(vr.ProgramError, match=error):
                run(x, y)
        assert state(model, optimizer) == before
        assert run.explain() == "step: not called yet"

    check_each(cases, check)


def test_python_that_chooses_is_found_when_a_call_is_compared():
    model, optimizer, _, _ = training()
    factor = [1.0]
    run = vr.bound(lambda x, y: changed(model, optimizer, x, y, lambda loss: loss * factor[0]))
    batches = [classified(np.random.default_rng(k)) for k in (3, 4, 5, 6)]
    run(*batches[0])
    factor[0] = 2.0
    with pytest.raises(vr.ProgramError, match="call 2, result 0: expected the bits of the step, got other bits"):
        run(*batches[1])
    assert run(*batches[2]).item() > 0
    assert "run the step itself, because result 0 of the program differed" in run.explain()


def test_a_step_that_keeps_gradients_runs_itself_as_it_adds_to_them():
    model, optimizer, _, _ = training()
    other, own, _, _ = training()

    def of(model, optimizer):
        def step(x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return step

    batches = [classified(np.random.default_rng(k)) for k in range(6)]
    vr.manual_seed(0)
    wanted = [bits(of(model, optimizer)(*batch)) for batch in batches]
    vr.manual_seed(0)
    run = vr.bound(of(other, own))
    assert [bits(run(*batch)) for batch in batches] == wanted
    assert "adds to gradients" in run.explain()


def test_outputs_are_computed_by_the_program_beside_gradients_of_training():
    model, _, _, _ = training()
    x, y = classified(np.random.default_rng(0))
    F.cross_entropy(model(x), y).backward()
    before = [parameter.grad for parameter in model.parameters()]
    run = vr.bound(lambda x, y: F.cross_entropy(model(x), y))
    for _ in range(6):
        run(x, y)
    assert "3 of 6 calls ran it alone" in run.explain()
    assert all(parameter.grad is grad for parameter, grad in zip(model.parameters(), before, strict=True))


def test_arguments_and_results_of_any_form():
    model = Classifier(dropout=0.0).eval()

    @vr.bound
    def outputs(batch, scale=1.0, *, names):
        y = model(batch["ids"]) * scale
        return {"logits": y, "of": (y.sum(), None, [names[0] + 1.0])}

    ids, _ = classified(np.random.default_rng(3))
    with vr.no_grad():
        for scale in (1.0, 2.0, 1.0, 2.0, 1.0, 2.0):
            found = outputs({"ids": ids}, scale, names=[np.ones(2, np.float32)])
            np.testing.assert_array_equal(found["logits"], model(ids) * scale)
            assert found["of"][1] is None
            np.testing.assert_array_equal(found["of"][2][0], [2.0, 2.0])
    assert len(outputs.explain().splitlines()) == 2, "a program for each scale"
    for scale in range(20):
        outputs({"ids": ids}, float(scale), names=[np.ones(2, np.float32)])
    assert "there are 8 programs" in outputs.explain()
    with pytest.raises(vr.ProgramError, match="bound, argument: expected values without a gradient"):
        vr.bound(lambda x: x)(model.out.weight * 1.0)
    with pytest.raises(vr.DTypeError, match="bound, step"):
        vr.bound(3)


def test_states_of_layers_are_arguments():
    layer, rng = vr.nn.LSTM(3, 4, num_layers=2), np.random.default_rng(1)

    @vr.bound
    def outputs(x, states):
        y, (h, c) = layer(x, states)
        return y, h, c

    for count in [2, 3, 5, 4, 2, 6, 3, 5, 4]:
        x = vr.create_lod_tensor(rng.standard_normal((2 * count, 3)).astype(np.float32), [[2] * count])
        states = [rng.standard_normal((2, count, 4)).astype(np.float32) for _ in range(2)]
        y, (h, c) = layer(x, states)
        assert list(map(bits, outputs(x, states))) == list(map(bits, (y, h, c))), count
    assert "float32 [2, -1, 4]" in outputs.explain()
    assert "a program" in outputs.explain().splitlines()[-1]
    with pytest.raises(vr.ShapeError, match="h_0"):
        outputs(x, [state[:1] for state in states])


@pytest.mark.parametrize("part", [lambda weight: weight.reshape(-1), lambda weight: weight[:, 1]])
def test_a_part_of_a_weight_that_is_read_after_an_update_has_the_new_numbers(part):
    layer = vr.nn.Linear(3, 2)
    optimizer = vr.optim.SGD(layer.parameters(), lr=0.1)

    @vr.bound
    def step(x, y):
        optimizer.zero_grad()
        seen = part(layer.weight)
        F.mse_loss(layer(x), y).backward()
        optimizer.step()
        return seen * 2.0

    for _ in range(10):
        found = step(np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32))
        assert np.array_equal(found.value.data, part(layer.weight.value.data) * 2.0)
    assert "without Python" in step.explain()


def double(x):
    """Return twice x."""
    return x + x


@vr.bound
def tripled(x):
    return x * 3.0


def test_copies_are_unbound():
    run = vr.bound(double)
    assert run(np.ones(2)).value.data.tolist() == [2.0, 2.0]
    for other in (copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        assert other.explain() == "double: not called yet"
        assert other(np.ones(2)).value.data.tolist() == [2.0, 2.0]
    assert run.__doc__ == "Return twice x."
    for decorated in (tripled, Scaled.outputs):
        assert pickle.loads(pickle.dumps(decorated)) is decorated


class Scaled(vr.nn.Module):
    """Has a bound method, and another that calls it."""

    def __init__(self, factor):
        self.factor, self.layer = factor, vr.nn.Linear(2, 2)

    @vr.bound
    def outputs(self, x):
        return self.layer(x) * (self.factor if self.training else 1.0)


class Twice(Scaled):
    @vr.bound
    def outputs(self, x):
        return super().outputs(x) * 2.0


def test_a_bound_method_has_programs_for_each_instance_and_lets_it_go():
    x, one, other = np.ones((3, 2), np.float32), Scaled(2.0), Scaled(3.0)

    def check(model, factor):
        for _ in range(6):
            assert bits(model.outputs(x).value) == bits((model.layer(x) * factor).value)

    check(one, 2.0)
    check(other, 3.0)
    assert "3 of 6 calls ran it alone" in one.outputs.explain()
    one.eval()  # the mode of the instance itself, which the method reads
    check(one, 1.0)
    one.train()
    copies = {"shallow": copy.copy(one), "deep": copy.deepcopy(one), "pickled": pickle.loads(pickle.dumps(one))}
    for model in copies.values():
        assert model.outputs.explain() == "outputs: not called yet"
        model.factor = 5.0
        check(model, 5.0)
        check(one, 2.0)
    check(twice := Twice(2.0), 4.0)
    assert set(twice.state_dict()) == {"layer.weight", "layer.bias"}
    assert Scaled.outputs(one, x).shape == (3, 2)
    alive = weakref.ref(other)
    del other
    gc.collect()
    assert alive() is None


def test_what_no_instance_binds_is_bound_as_it_is():
    class Holder:
        __slots__ = ("__weakref__",)
        step, model = vr.bound(double), vr.bound(vr.nn.Linear(2, 1))
        alone = staticmethod(vr.bound(double))

        @classmethod
        @vr.bound
        def of_class(cls, x):
            return x * (2.0 if cls is Holder else 3.0)

    x = np.ones((3, 2), np.float32)
    for _ in range(3):
        assert Holder().model(x).shape == (3, 1)
        assert Holder().alone(x).value.data.tolist() == Holder.of_class(x).value.data.tolist() == [[2.0, 2.0]] * 3
    with pytest.raises(vr.DTypeError, match="expected an object that has a __dict__, got Holder, which has none"):
        _ = Holder().step


def test_a_step_is_recorded_anew_for_parameters_of_another_type_or_shape():
    def check(calls):
        vr.manual_seed(0)
        model = vr.nn.Sequential(vr.nn.Embedding(5, 3), vr.nn.Linear(3, 2))
        optimizer = vr.optim.SGD(model.parameters(), lr=0.1)

        def step(ids, labels):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(ids), labels)
            loss.backward()
            optimizer.step()
            return loss

        run, losses = vr.bound(step), []
        for call in range(2 * calls + 8):
            if call == calls:
                for parameter in model.parameters():
                    parameter.value = vr.LoDTensor(np.asarray(parameter).astype(np.float64))
            if call == 2 * calls:
                model[0].weight.value = vr.LoDTensor(np.ones((7, 3)))
            losses.append(run(np.array([1, 2, 4, 0]), np.array([0, 1, 1, 0])).value)
        assert [loss.dtype == np.float64 for loss in losses] == [call >= calls for call in range(2 * calls + 8)]
        assert run.explain().count("a program of") == 3
        assert "differed" not in run.explain()

    check_each({str(calls): calls for calls in (1, 2, 3, 4, 7)}, lambda name: check(int(name)))


def test_errors_are_those_of_the_step():
    _, (model, optimizer, run), batches = pair()
    ids, labels = next(batch for batch in batches if len(batch[1]) > 1)
    for _ in range(4):
        run(ids, labels)
    before = state(model, optimizer)["out.weight"]
    with pytest.raises(vr.OutOfRangeError, match="cross_entropy, labels, entry 0"):
        run(ids, labels + CLASSES)
    with pytest.raises(vr.ShapeError, match="cross_entropy, labels"):
        run(ids, labels[:-1])
    assert state(model, optimizer)["out.weight"] == before
    run(ids, labels)


@pytest.mark.parametrize("clears_at_once", [True, False])
def test_an_error_leaves_the_gradients_that_it_leaves_in_the_step(clears_at_once):
    layer = vr.nn.Linear(3, 2)
    optimizer = vr.optim.SGD(layer.parameters(), lr=0.1)

    def step(x, labels):
        if clears_at_once:
            optimizer.zero_grad()
        loss = F.cross_entropy(layer(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run, x = vr.bound(step), np.ones((4, 3), np.float32)
    for _ in range(10):
        run(x, np.zeros(4, np.int64))
        before = layer.weight.grad.copy()
        with pytest.raises(vr.OutOfRangeError):
            run(x, np.full(4, 2))
        if clears_at_once:
            assert layer.weight.grad is None
        else:
            assert np.array_equal(layer.weight.grad, before)
    assert "without Python" in run.explain()


def test_threads_run_models_of_their_own():
    found = {}

    def train(name):
        _, (model, optimizer, run), batches = pair()
        vr.manual_seed(0)
        for batch in batches:
            run(*batch)
        found[name] = state(model, optimizer)

    at_once(train, [(name,) for name in range(2)])
    assert found[0] == found[1]


def test_threads_that_share_a_function_record_it_once(monkeypatch):
    model, x, barrier = vr.nn.Linear(2, 2), np.ones((3, 2), np.float32), threading.Barrier(4)
    record = bound._Recorded._record

    def at_the_same_time(self, *arguments):
        barrier.wait()
        record(self, *arguments)

    monkeypatch.setattr(bound._Recorded, "_record", at_the_same_time)
    run, found = vr.bound(lambda x: model(x)), []
    at_once(lambda: found.append(bits(run(x).value)), [()] * 4)
    assert set(found) == {bits(model(x).value)}
    assert run.explain().count("a program of") == 1


@pytest.mark.slow
@pytest.mark.parametrize("calls", [0, 4, 14])  # before a call that records, one that makes dry runs, and a plain one
def test_an_interrupt_at_some_moment_of_a_call_leaves_later_calls_as_they_are(calls):
    def begun():
        vr.manual_seed(0)
        model = vr.nn.Sequential(vr.nn.Linear(3, 4), vr.nn.Linear(4, 2))
        optimizer = vr.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, optimizer, lambda x, y: changed(model, optimizer, x, y, lambda loss: loss)

    rng, number, place = np.random.default_rng(0), 0, ""
    batches = [(rng.standard_normal((n, 3)).astype(np.float32), rng.integers(0, 2, n)) for n in (3, 4, 5, 6, 7) * 4]
    while place is not None:
        model, optimizer, step = begun()
        run = vr.bound(step)
        for batch in batches[:calls]:
            run(*batch)
        place = interrupted(functools.partial(run, *batches[calls]), number)
        other, of_other, unbound = begun()
        other.load_state_dict(model.state_dict())
        of_other.load_state_dict(optimizer.state_dict())
        for batch in batches[calls:]:
            assert bits(run(*batch)) == bits(unbound(*batch)), place
        assert "without Python" in run.explain(), place
        number += 499
    assert number > 1000


def test_inside_of_a_program_it_is_the_step():
    with vr.program_guard() as program:
        y = vr.bound(double)(vr.feed_data("x", [-1], "float64"))
    assert vr.Executor().run(program, {"x": np.ones(2)}, [y])[0].tolist() == [2.0, 2.0]


def test_gradients_that_somebody_keeps_are_not_written_again():
    rng = np.random.default_rng(0)
    layer, table = vr.nn.Linear(3, 2), vr.nn.Linear(3, 20_000)  # the gradient of the second is large
    optimizer = vr.optim.SGD([*layer.parameters(), *table.parameters()], lr=0.1)

    @vr.bound
    def step(x):
        optimizer.zero_grad()
        loss = (layer(x) ** 2).mean() + (table(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    kept, known = [], []
    for number in range(24):
        loss = step(rng.standard_normal((4, 3), np.float32))
        if number % 3:
            kept += [loss.value.data, layer.weight.grad[1:], table.weight.grad.T, layer.bias.grad]
            known += [one.copy() for one in kept[len(known) :]]
        given = [parameter.grad for parameter in (*layer.parameters(), *table.parameters())]
        assert len({one.ctypes.data for one in given}) == len(given), "each has memory of its own"
    assert "without Python" in step.explain()
    assert all(map(np.array_equal, kept, known))


def test_feeds_of_any_layout_are_read_where_they_are():
    layer, rng, lengths = vr.nn.Linear(3, 2), np.random.default_rng(0), [[2, 0, 3]]
    step = vr.bound(lambda x: (layer(x), x))

    def given(number):
        x = rng.standard_normal((5, 3), np.float32)
        odd = np.frombuffer(b"-" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(5, 3)
        return [x, np.asfortranarray(x), odd, np.repeat(x, 2, axis=0)[::2]][number % 4]

    for number in range(40):
        x = vr.LoDTensor(given(number), vr.LoD.from_lengths(lengths))
        y, same = step(x)
        assert np.array_equal(y.value.data, layer(x).value.data)
        assert np.array_equal(same.value.data, x.data)
        assert y.value.lod() == x.lod() == same.value.lod()
    assert not np.shares_memory(same.value.data, x.data)
    assert "without Python" in step.explain()
