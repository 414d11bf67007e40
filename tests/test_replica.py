"""Ranks train as one process does: threads of this process here, real ranks in `test_distributed.py`."""

import copy
import gc
import warnings
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import varlen_rnn as vr
from tests.emulated.device import Driver, missing
from tests.launched import Model, data, loss_of, normalised, train
from tests.rank_threads import run_ranks
from varlen_rnn.distributed import Communicator, ReplicatedProgram, Shard, buckets, replicate
from varlen_rnn.distributed.grid import exponent_of, from_grid, to_grid
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import to_host
from varlen_rnn.tape import operator, origins
from varlen_rnn.tape.modes import evaluating

F = vr.nn.functional
X = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((12, 2)).astype(np.float32)
SIZES = np.array([5, 0, 4, 3])  # rows of ranks


def check_equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, name)


def check_close(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-6, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_train_as_one_process(size):
    found = run_ranks(size, train)
    for other in found[1:]:
        check_equal(other, found[0])
    (check_equal if size == 1 else check_close)(found[0], train(None))


def test_shards_have_the_same_bits_on_any_number_of_ranks():
    wanted = train(Communicator(), reproducible=4)
    check_close(wanted, train(None))
    for size in (2, 3, 4):
        for found in run_ranks(size, lambda comm: train(comm, reproducible=4)):
            check_equal(found, wanted)


def part(comm):
    """Return the rows of a rank."""
    end = np.cumsum(SIZES)[comm.rank] if comm.rank < comm.size - 1 else len(X)
    return slice(np.cumsum(SIZES)[comm.rank] - SIZES[comm.rank], end)


def gradients(loss_of_rows, comm=None, times=1):
    """Return the loss and the gradients of a linear layer, for all rows or the rank's."""
    vr.manual_seed(0)
    model = vr.nn.Linear(3, 2)
    model.extra = vr.nn.Parameter(np.array([0.3, -0.2], np.float32))
    optimizer = vr.optim.SGD(model.parameters(), 0.1)
    rows = slice(None)
    if comm is not None:
        replicate(model, optimizer, comm)
        rows = part(comm)
    for _ in range(times):
        loss = loss_of_rows(model, model(X[rows]), Y[rows])
        loss.backward()
    return loss.item(), *(parameter.grad for parameter in model.parameters())


LABELS = {"weight": [0.2, 0.7]}
LOSSES = {
    "mean": lambda m, y, t: F.mse_loss(y, t),
    "sum": lambda m, y, t: F.mse_loss(y, t, "sum"),
    "mean by hand": lambda m, y, t: ((y - t) ** 2).mean(),
    "mean of columns": lambda m, y, t: (((y - t) ** 2).mean(axis=0) * np.array([1.0, 3.0], np.float32)).sum(),
    "root": lambda m, y, t: F.mse_loss(y, t).sqrt(),
    "class weights": lambda m, y, t: F.cross_entropy(y, (t[:, 0] > 0).astype(int), **LABELS),
    "ignored": lambda m, y, t: F.cross_entropy(y, np.where(t[:, 0] > 0, 1, -100)),
    "sample weights": lambda m, y, t: F.l1_loss(y, t, sample_weight=np.abs(t[:, 0])),
    "two means": lambda m, y, t: F.mse_loss(y, t) + 2.0 * F.cross_entropy(y, np.where(t[:, 0] > 0, 1, -100)),
    "product of means": lambda m, y, t: F.mse_loss(y, t) * F.l1_loss(y, t),
    "penalty": lambda m, y, t: F.mse_loss(y, t) + 0.5 * (m.weight * m.weight).sum() + m.extra.abs().mean(),
    "penalty alone": lambda m, y, t: (m.weight * m.weight).sum(),
    "learned weights": lambda m, y, t: F.mse_loss(y, t) * m.extra[0].exp() + m.extra[0],
    "smooth": lambda m, y, t: F.smooth_l1_loss(y, t, beta=0.5),
}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_over_all_ranks(name, size):
    wanted = gradients(LOSSES[name])
    for found in run_ranks(size, lambda comm: gradients(LOSSES[name], comm)):
        for got, expected in zip(found, wanted, strict=True):
            assert (got is None) == (expected is None)
            if got is not None:
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


MASK = np.array([1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1], np.float32)  # of two ranks of 6 rows, 3 and 4 count


def masked(divide, variable=vr.Variable):
    """Return the loss of a model over the rows that a mask leaves, divided as `divide(total, mask)` says."""

    def loss_of(model, x, mask):
        mask = variable(mask)
        return divide(((model(x) ** 2).mean(axis=1) * mask).sum(), mask)

    return loss_of


def as_float(mask):
    return (vr.Variable(mask) > 0.5).astype(np.float32)


def weighted(model, x, mask):
    mask = vr.Variable(mask)
    return ((model(x) ** 2).mean(axis=1) * (mask / mask.sum())).sum()


def without_gradients(model, x, mask):
    mask = vr.Variable(mask)
    with vr.no_grad():
        count = (mask * 2.0).sum() * 0.5
    return ((model(x) ** 2).mean(axis=1) * mask).sum() / count


def of_outputs(model, x, mask):
    y = model(x)
    with vr.no_grad():
        count = (y * y).sum()  # `y` has a record
    return (y * y * y).sum() / count


def squared(mask, times):
    for _ in range(times):
        mask = mask * mask
    return mask


MASKED = {
    "sum": masked(lambda total, mask: total / mask.sum()),
    "never 0": masked(lambda total, mask: total / (mask.sum() + 1e-8)),
    "at least 1": masked(lambda total, mask: total / F.maximum(mask.sum(), 1.0)),
    "mean": masked(lambda total, mask: total / (mask.mean() * 3.0)),
    "converted": masked(lambda total, mask: total / mask.sum(), as_float),
    "many steps": masked(lambda total, mask: total / squared(mask, 20).sum()),
    "twice": masked(lambda total, mask: total / mask.sum() + 0.5 * total / (1.0 + mask.sum())),
    "under no_grad": without_gradients,
    "of outputs under no_grad": of_outputs,
}


def of_mask(loss_of, comm, wrap):
    vr.manual_seed(0)
    model = vr.nn.Linear(3, 2)
    rows = slice(None) if comm is None else slice(0, 6) if comm.rank == 0 else slice(6, 12)
    if comm is not None:
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
    loss = loss_of(model, wrap(X, rows), wrap(MASK, rows))
    loss.backward()
    return loss.item(), model.weight.grad, model.bias.grad


def as_rows(array, rows):
    return array[rows]


def as_sequences(array, rows):
    x = vr.create_lod_tensor(array, [[4, 2, 0, 1, 5]])
    return x if rows.start is None else x.slice(0, 0, 3) if rows.start == 0 else x.slice(0, 3, 5)


@pytest.mark.parametrize("wrap", [as_rows, as_sequences])
@pytest.mark.parametrize("name", MASKED)
def test_a_sum_of_a_mask_counts_the_rows_of_all_ranks(name, wrap):
    wanted = of_mask(MASKED[name], None, wrap)
    for found in run_ranks(2, lambda comm: of_mask(MASKED[name], comm, wrap)):
        for got, expected in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("wrap", [as_rows, as_sequences])
def test_numbers_of_one_rank_beside_rows_are_refused(wrap):
    def by_largest(model, x, mask):
        y = model(x)
        return (y / y.detach().max()).mean()

    def by_own_mean(model, x, mask):
        x = vr.Variable(x)
        return model(x - x.mean(axis=0)).sum()

    for loss in (weighted, by_largest, by_own_mean):
        with pytest.raises(vr.ProgramError, match="expected a loss that depends on rows only by sums and means"):
            run_ranks(2, lambda comm, loss=loss: of_mask(loss, comm, wrap))


def test_a_sum_of_a_mask_keeps_the_number_of_its_rank():
    def run(comm):
        model = vr.nn.Linear(3, 2)
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        rows = slice(0, 6) if comm.rank == 0 else slice(6, 12)
        mask = vr.Variable(MASK[rows])
        count, found = mask.sum(), []
        for _ in range(2):
            loss = ((model(X[rows]) ** 2).mean(axis=1) * mask).sum() / count
            loss.backward()
            found.append(loss.item())
        assert count.item() == MASK[rows].sum()
        assert found[0] == found[1]

    run_ranks(2, run)


def test_weights_of_classes_are_no_rows():
    losses = {
        "constant": lambda m, y, t: (y * y * vr.Variable(W2)).mean() / vr.Variable(W2).sum(),
        "shared": lambda m, y, t: (lambda w: (y * y * w).mean() / w.sum())(vr.Variable(W2)),
    }
    for loss in losses.values():
        wanted = gradients(loss)
        for found in run_ranks(2, lambda comm, loss=loss: gradients(loss, comm)):
            np.testing.assert_allclose(found[1], wanted[1], rtol=1e-5, atol=1e-7)


W2 = np.array([0.2, 0.7], np.float32)


def test_a_sum_that_is_divided_by_a_number_of_this_rank_warns_once():
    def run(comm, divide):
        model = vr.nn.Linear(3, 2)
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        rows = slice(0, 6) if comm.rank == 0 else slice(6, 12)
        for _ in range(2):
            loss = divide(comm, (model(X[rows]) ** 2).sum(axis=1), len(X[rows]))
            (loss + (model.weight**2).sum() / 6.0).backward()  # a penalty's divisor is no count

    def over_all(comm, losses, count):
        total = np.array([count])
        comm.all_reduce(total)
        return losses.sum() / total.item()

    right = [over_all, lambda comm, losses, count: losses.mean(), lambda comm, losses, count: losses.mean() / 6.0]
    wrong = [
        lambda comm, losses, count: losses.sum() / count,
        lambda comm, losses, count: losses.sum() * (1 / count),
        lambda comm, losses, count: (1 / count) * losses.sum(),
    ]
    for divide in (*right, *wrong):
        with warnings.catch_warnings(record=True, action="always") as found:
            run_ranks(2, lambda comm, divide=divide: run(comm, divide))
        expected = "expected a sum over rows divided by a count of all ranks, got 6, a count of this rank"
        assert [expected in str(warning.message) for warning in found] == [True] * 2 * (divide in wrong)


def test_a_rank_that_has_all_rows_may_divide_by_their_number():
    def run(comm):
        model = vr.nn.Linear(3, 2)
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        (model(X[: 0 if comm.rank else 6]).sum(axis=1).sum() / 6.0).backward()

    run_ranks(2, run)  # a warning would be an error


def test_a_running_mean_of_masks_keeps_few_of_them():
    def run(comm):
        model = vr.nn.Linear(3, 2)
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        total, masks = vr.Variable(0.0), []
        for _ in range(300):
            mask = vr.Variable(MASK.astype(np.float64))
            masks.append(weakref.ref(mask.value.data))
            total = total * 0.9 + mask.mean() * 0.1
        gc.collect()
        return sum(mask() is not None for mask in masks)

    assert max(run_ranks(2, run)) < 64


def test_values_that_no_row_acts_on_have_no_origin(monkeypatch):
    noted = []
    monkeypatch.setattr(origins, "note", lambda op, *_: noted.append(op.type))

    def run(comm):
        model = vr.nn.Linear(3, 2)
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        with vr.no_grad(), evaluating():  # a validation
            model(X)
        (model(X) ** 2).mean().backward()

    run_ranks(2, run)
    assert noted == []


def test_operators_of_numbers_and_parameters_have_no_origin():
    def run(comm):
        model = vr.nn.Linear(3, 2)
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        with vr.no_grad():
            results = [model.weight * 0.9, vr.Variable(2.0) * 3.0 + 1.0, model(X)]
        return [result.origin is None for result in results]

    assert run_ranks(2, run) == [[True, True, False]] * 2


def test_origins_are_kept_as_long_as_ranks_train():
    gc.collect()
    before = set(origins.kept)  # of other tests

    def run(comm):
        model = vr.nn.Linear(3, 2)
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        assert origins.kept - before
        assert vr.Variable(MASK).sum().origin is not None

    run_ranks(2, run)
    gc.collect()
    assert origins.kept <= before


def sequence_loss(model, rows):
    lengths = [2, 0, 3, 1, 0, 4, 2]
    ends = np.cumsum([0, *lengths])
    x = vr.LoDTensor(X, [ends]).slice(0, rows.start, rows.stop)
    target = Y[ends[rows.start] : ends[rows.stop]]
    return F.mse_loss(model(x), target, per="sequence")


def test_means_over_sequences_leave_out_empty_ones_of_all_ranks():
    def run(comm):
        vr.manual_seed(0)
        model = vr.nn.Linear(3, 2)
        if comm is None:
            rows = slice(0, 7)
        else:
            replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
            rows = slice(0, 5) if comm.rank == 0 else slice(5, 7)
        loss = sequence_loss(model, rows)
        loss.backward()
        return loss.item(), model.weight.grad

    wanted = run(None)
    for found in run_ranks(2, run):
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6)
        np.testing.assert_allclose(found[1], wanted[1], rtol=1e-5)


def test_gradients_add_up_over_passes():
    once, twice = (run_ranks(2, lambda comm, n=n: gradients(LOSSES["mean"], comm, n)) for n in (1, 2))
    for a, b in zip(once, twice, strict=True):
        np.testing.assert_allclose(b[1], 2 * a[1], rtol=1e-6)


def test_a_parameter_that_one_rank_alone_reaches():
    def run(comm):
        vr.manual_seed(0)
        first, second = vr.nn.Linear(3, 2), vr.nn.Linear(3, 2)
        model = vr.nn.Sequential(first, second)
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        (first if comm.rank == 0 else second)(X).sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    for found in run_ranks(2, run):
        for gradient in (found[0], found[2]):
            np.testing.assert_allclose(gradient, np.tile(X.sum(axis=0), (2, 1)), rtol=1e-6)


def table_gradients(comm, ids, **options):
    vr.manual_seed(0)
    model = vr.nn.Embedding(1000, 4)
    replica = replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm, **options)
    for _ in replica.shards:
        sent = comm.bytes_sent
        (model(ids) * (1.0 + comm.rank)).sum().backward()
    return model.weight.grad, comm.bytes_sent - sent


@pytest.mark.parametrize("reproducible", [None, 2])
def test_only_touched_rows_travel(reproducible):
    def run(comm):
        ids = np.array([7, 3, 7] if comm.rank == 0 else [3, 900])
        return table_gradients(comm, ids, reproducible=reproducible)

    for gradient, sent in run_ranks(2, run):
        assert isinstance(gradient, vr.SelectedRows)
        np.testing.assert_array_equal(gradient.rows, [3, 7, 900])
        np.testing.assert_array_equal(gradient.value, np.full((3, 4), 1.0) * [[3], [2], [2]])
        assert sent < 200  # all rows have 16,000 bytes


def test_a_table_whose_rows_are_mostly_touched_travels_whole_with_dense_gradients():
    def run(comm):
        model = vr.nn.Embedding(6, 2)
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        gathers = []
        gather = comm.all_gather
        comm.all_gather = lambda array: gathers.append(array) or gather(array)
        (model(np.array([4, 1, 4, 0, 0])[: 5 * comm.rank]) * 2.0).sum().backward()
        return model.weight.grad, len(gathers)

    for gradient, gathers in run_ranks(2, run):
        assert isinstance(gradient, vr.SelectedRows)
        np.testing.assert_array_equal(gradient.rows, [0, 1, 4])
        np.testing.assert_array_equal(gradient.value, [[4, 4], [2, 2], [4, 4]])
        assert gathers == 1  # about the loss


def test_rows_of_all_tables_travel_in_one_exchange():
    tables = [(np.float32, 3), (np.float64, 2), (np.float32, 1), (np.int64, 1)]

    def rows_of(rank, number):
        dtype, width = tables[number]
        count = (rank * (number + 1)) % 4
        return np.arange(count) + rank, np.arange(count * width).reshape(count, width).astype(dtype) - rank

    def run(comm):
        gathers = []
        gather = comm.all_gather
        comm.all_gather = lambda array: gathers.append(array) or gather(array)
        found = buckets.gather_rows(comm, [rows_of(comm.rank, number) for number in range(len(tables))])
        assert len(gathers) == 1
        return found

    for found in run_ranks(3, run):
        for number, parts in enumerate(found):
            for rank, part in enumerate(parts):
                for array, wanted in zip(part, rows_of(rank, number), strict=True):
                    assert array.dtype == wanted.dtype
                    np.testing.assert_array_equal(array, wanted)


def test_a_table_that_is_a_weight_too():
    def run(comm):
        vr.manual_seed(0)
        model = vr.nn.Embedding(6, 3)
        if comm is not None:
            replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        rows = X if comm is None or comm.rank == 0 else X[:0]
        (model(np.array([1, 2])).sum() + (vr.Variable(rows) @ model.weight.T).sum()).backward()
        return model.weight.grad

    wanted = run(None) + np.isin(np.arange(6), [1, 2])[:, None]
    for found in run_ranks(2, run):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_rank_that_looks_nothing_up():
    for gradient, _ in run_ranks(2, lambda comm: table_gradients(comm, np.arange(3 * comm.rank))):
        np.testing.assert_array_equal(gradient.rows, [0, 1, 2])


class Listening(Communicator):
    """One of two ranks, whose other has no gradients; it notes when sums begin."""

    def __init__(self):
        super().__init__()
        self.size, self.begun = 2, []

    def _broadcast(self, array, root):
        pass

    def _all_gather(self, array):
        return [array, array]

    def _start_all_reduce(self, array):
        self.begun.append(array.copy())
        return Communicator().start_all_reduce(array)


def test_buckets_leave_while_the_pass_goes_on(monkeypatch):
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 1)  # a parameter each
    layers = [vr.nn.Linear(3, 3, bias=False) for _ in range(3)]
    model, comm = vr.nn.Sequential(*layers), Listening()
    replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
    begun, x = [], vr.Variable(X, requires_grad=True)
    h = x
    for layer in layers:
        h = layer(h)
        h.register_hook(lambda gradient: begun.append(len(comm.begun)))
    h.sum().backward()
    assert begun == [0, 1, 2]  # as the gradient of each layer's output arrives, the layers above have begun theirs
    assert len(comm.begun) == 3


@pytest.mark.parametrize("alike", [True, False])
def test_buckets_leave_during_a_pass_that_sums_moments_if_all_ranks_have_one_order(alike, monkeypatch):
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 1)

    def run(comm):
        layers = [vr.nn.Linear(3, 3, bias=False) for _ in range(3)]
        norm = vr.nn.BatchNorm1d(3, affine=False)
        model, begun, started = vr.nn.Sequential(*layers, norm), [], []
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        start = comm.start_all_reduce
        comm.start_all_reduce = lambda array: started.append(array) or start(array)
        h = norm(layers[0](X))
        h.register_hook(lambda gradient: begun.append(len(started)))
        for layer in layers[1:] if alike or comm.rank else layers[:0:-1]:
            h = layer(h)
        (h**2).mean().backward()
        return begun

    assert run_ranks(2, run) == ([[2], [2]] if alike else [[0], [0]])


def test_moments_over_all_ranks_are_not_sent_again():
    def run(comm):
        model = vr.nn.Sequential(vr.nn.Linear(3, 2), vr.nn.BatchNorm1d(2))
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        comm.broadcast = None
        (model(X[part(comm)]) ** 2).mean().backward()

    run_ranks(2, run)


def test_buckets_hold_parameters_of_one_data_type_in_reverse_order():
    arrays = [np.zeros(2, np.float32), np.zeros(3, np.float32), np.zeros(2), np.zeros(4, np.float32)]
    parameters = [vr.nn.Parameter(array) for array in arrays]
    layout = buckets.Layout(parameters, [1, 1, 1, 0])
    assert layout.buckets == [[parameters[2]], [parameters[1], parameters[0]]]
    assert buckets.Layout(parameters, [1, 2, 3, 2]).sparse == [parameters[1], parameters[3]]


def test_hooks_see_the_gradient_of_this_rank():
    def run(comm):
        model, seen = vr.nn.Linear(3, 2), []
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        model.weight.register_hook(lambda gradient: seen.append(gradient.copy()) or gradient * 2.0)
        (model(X) * float(comm.rank + 1)).sum().backward()
        return seen[0], model.weight.grad

    whole = np.tile(X.sum(axis=0), (2, 1))
    for rank, (seen, gradient) in enumerate(run_ranks(2, run)):
        np.testing.assert_allclose(seen, whole * (rank + 1), rtol=1e-6)
        np.testing.assert_allclose(gradient, whole * 6, rtol=1e-6)


def test_a_look_at_gradients_sends_nothing():
    def run(comm):
        model = vr.nn.Linear(3, 2)
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        sent = comm.bytes_sent
        if comm.rank == 0:  # alone
            report = vr.inspect_gradients(F.mse_loss(model(X), Y), names=model.named_parameters())
            assert [leaf.name for leaf in report.leaves] == ["weight", "bias"]
            with vr.no_grad():
                F.mse_loss(model(X), Y).item()
        assert comm.bytes_sent == sent
        F.mse_loss(model(X), Y).backward()

    run_ranks(2, run)


def test_a_copy_of_a_model_is_nobodys():
    def run(comm):
        model = vr.nn.Linear(3, 2)
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        if comm.rank == 0:
            twin = copy.deepcopy(model)
            twin(X).sum().backward()
            np.testing.assert_allclose(twin.weight.grad, np.tile(X.sum(axis=0), (2, 1)), rtol=1e-6)

    run_ranks(2, run)


def test_a_later_replica_takes_the_place_of_the_former():
    model = vr.nn.Linear(3, 2)
    optimizer = vr.optim.SGD(model.parameters(), 0.1)
    first, second = (replicate(model, optimizer, reproducible=n) for n in (3, 1))
    model(X).sum().backward()
    assert model.weight.grad is not None
    assert first.shards == [Shard(0, 3), Shard(1, 3), Shard(2, 3)]
    assert second.shards == [Shard(0, 1)]


def test_frozen_parameters_keep_none():
    def run(comm):
        model = vr.nn.Linear(3, 2)
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm)
        model.bias.requires_grad = False
        F.mse_loss(model(X), Y).backward()
        assert model.bias.grad is None
        model.bias.requires_grad = True
        F.mse_loss(model(X), Y).backward()
        assert model.bias.grad is not None

    run_ranks(2, run)


def test_running_moments_are_those_of_the_first_part():
    def run(comm, reproducible=None):
        vr.manual_seed(0)
        norm = vr.nn.BatchNorm1d(2)
        model = vr.nn.Sequential(vr.nn.Linear(3, 2), norm)
        norm.running_mean.value.data[...] = comm.rank  # of rank 0 after `replicate`
        optimizer = vr.optim.SGD(model.parameters(), 0.1)
        replica = replicate(model, optimizer, comm, reproducible)
        for _ in range(2):
            optimizer.zero_grad()
            for shard in replica.shards:
                rows = slice(shard.rank, None, shard.size)
                F.mse_loss(model(X[rows]), Y[rows]).backward()
            optimizer.step()
        return model.state_dict()

    first, second = run_ranks(2, run)
    check_equal(second, first)
    wanted = run(Communicator(), 3)
    assert [value for name, value in wanted.items() if name.endswith("tracked")] == [2]
    for found in run_ranks(2, lambda comm: run(comm, 3)):
        check_equal(found, wanted)


@pytest.mark.parametrize("sizes", [(12,), (7, 5), (12, 0), (0, 1, 11)])
def test_moments_of_batches_are_those_of_all_ranks(sizes, monkeypatch):
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 1)  # a parameter each
    wanted = normalised(None)
    found = run_ranks(len(sizes), lambda comm: normalised(comm, sizes))
    for name, value in wanted.items():
        np.testing.assert_allclose(found[0][name], value, rtol=1e-10, atol=1e-12, err_msg=name)
    for other in found[1:]:
        check_equal(other, found[0])


def test_a_parameter_that_no_gradient_arrives_at_keeps_none(monkeypatch):
    monkeypatch.setattr(operator, "OPERATORS", dict(operator.OPERATORS))  # what the test declares is forgotten

    def beside(x, y):
        return x.data.copy()

    declared = vr.operator(rows="each")(beside)
    declared.infer(lambda x, y: x)

    def beside_grad(x, y, out, d_out):
        return d_out.data

    declared.backward("x")(beside_grad)

    def run(comm):
        first, second = vr.nn.Linear(3, 2), vr.nn.Linear(3, 2)
        both = vr.nn.Sequential(first, second)
        replicate(both, vr.optim.SGD(both.parameters(), 0.1), comm)
        declared(first(X), second(X)).sum().backward()
        assert [parameter.grad is None for parameter in both.parameters()] == [False, False, True, True]

    run_ranks(2, run)


def test_an_error_in_a_pass_leaves_no_half_of_it():
    model = vr.nn.Linear(3, 2)
    replicate(model, vr.optim.SGD(model.parameters(), 0.1))
    handle = model.weight.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(X).sum().backward()
    handle.remove()
    assert model.weight.grad is None
    model(X).sum().backward()
    np.testing.assert_allclose(model.weight.grad, np.tile(X.sum(axis=0), (2, 1)), rtol=1e-6)


def test_replicas_that_cannot_be():
    model = vr.nn.Linear(3, 2)
    optimizer = vr.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(vr.DTypeError, match="replicate, model: expected an instance of Module"):
        replicate(optimizer, optimizer)
    with pytest.raises(vr.DTypeError, match="replicate, comm: expected a Communicator"):
        replicate(model, optimizer, 2)

    def too_few(comm):
        with pytest.raises(vr.ShapeError, match="replicate, reproducible: expected at least 2, got 1"):
            replicate(model, optimizer, comm, reproducible=1)

    def other_models(comm):
        other = vr.nn.Linear(3, 2 + comm.rank)
        with pytest.raises(vr.ShapeError, match="expected the same names, shapes and data types"):
            replicate(other, vr.optim.SGD(other.parameters(), 0.1), comm)

    def other_losses(comm):
        own = vr.nn.Linear(3, 2)
        replicate(own, vr.optim.SGD(own.parameters(), 0.1), comm)
        loss = F.mse_loss(own(X), Y)
        with pytest.raises(vr.ProgramError, match="expected the same number of sums and means over rows"):
            (loss + own(X).sum() if comm.rank else loss).backward()

    def other_precisions(comm):
        own = vr.nn.Linear(3, 2)
        replicate(own, vr.optim.SGD(own.parameters(), 0.1), comm)
        with vr.float32_matmul_precision(("fp32", "bf16")[comm.rank]):
            loss = F.mse_loss(own(X), Y)
        with pytest.raises(vr.ProgramError, match="the same precision on all ranks, got fp32, bf16"):
            loss.backward()

    for run in (too_few, other_models, other_losses, other_precisions):
        run_ranks(2, run)


def test_a_pass_through_two_replicas():
    models = [vr.nn.Linear(3, 3) for _ in range(2)]
    for model in models:
        replicate(model, vr.optim.SGD(model.parameters(), 0.1))
    models[0](X).sum().backward()
    with pytest.raises(vr.ProgramError, match="expected leaves of one replica, got 2 replicas"):
        models[1](models[0](X)).sum().backward()


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_sums_on_a_grid_are_the_same_in_any_order(numbers, random):
    array = np.array(numbers, np.float32)
    exponent = exponent_of(float(np.abs(array).max()), 62 - 3)
    total = int(to_grid(array, exponent).sum())
    random.shuffle(numbers)
    assert int(sum(to_grid(np.array([number], np.float32), exponent)[0] for number in numbers)) == total
    wanted, line = float(array.astype(np.float64).sum()), 2.0**-exponent
    got = float(from_grid(np.array([total]), exponent, np.dtype("f8"))[0])
    assert abs(got - wanted) <= len(numbers) * line + 1e-15 * float(np.abs(array).max()) * len(numbers)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_no_number(number):
    def run(comm):
        model = vr.nn.Linear(3, 2)
        replicate(model, vr.optim.SGD(model.parameters(), 0.1), comm, reproducible=2)
        with np.errstate(invalid="ignore"):
            model(np.full((1, 3), number if comm.rank else 1.0, np.float32)).sum().backward()
        return model.weight.grad, model.bias.grad

    for weight, bias in run_ranks(2, run):
        assert np.isnan(weight).all()
        np.testing.assert_array_equal(bias, [2, 2])


def fitted(comm, reproducible=None, accumulate=1, callbacks=()):
    """Return the history and the weights of a training by `Trainer`."""
    vr.manual_seed(0)
    model = Model()
    trainer = vr.training.Trainer(
        model, vr.optim.Adam(model.parameters(), lr=0.05), lambda *batch: loss_of(model, *batch), data(),
        clip_norm=1.0, accumulate=accumulate, comm=comm, reproducible=reproducible, callbacks=callbacks,
    )  # fmt: skip
    history = trainer.fit(epochs=2)
    return {"losses": np.array([record["loss"] for record in history]), **model.state_dict()}, trainer


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_trainer_on_ranks(accumulate):
    wanted, alone = fitted(None, accumulate=accumulate)
    for found, trainer in run_ranks(2, lambda comm: fitted(comm, accumulate=accumulate)):
        check_close(found, wanted)
        assert trainer.last_rows == alone.last_rows
    wanted, _ = fitted(Communicator(), 3, accumulate)
    for found, _ in run_ranks(2, lambda comm: fitted(comm, 3, accumulate)):
        check_equal(found, wanted)


def test_a_trainer_goes_on_after_an_error_between_shards():
    wanted, _ = fitted(Communicator(), 2)
    vr.manual_seed(0)
    model, calls = Model(), []

    def loss(*batch):
        calls.append(len(calls))
        if calls[-1] == 3:  # the second shard of the second step
            raise OSError("no such batch")
        return loss_of(model, *batch)

    trainer = vr.training.Trainer(
        model, vr.optim.Adam(model.parameters(), lr=0.05), loss, data(), clip_norm=1.0, comm=Communicator(),
        reproducible=2,
    )  # fmt: skip
    with pytest.raises(OSError, match="no such batch"):
        trainer.fit(epochs=2)
    trainer.fit(epochs=2)
    check_equal(model.state_dict(), {name: value for name, value in wanted.items() if name != "losses"})


class Count(vr.training.Callback):
    def __init__(self, on_first_rank_only):
        self.on_first_rank_only, self.calls = on_first_rank_only, 0

    def on_epoch_end(self, trainer):
        self.calls += 1


def test_callbacks_of_the_first_rank():
    def run(comm):
        callbacks = [Count(True), Count(False)]
        fitted(comm, callbacks=callbacks)
        return [callback.calls for callback in callbacks]

    assert run_ranks(2, run) == [[2, 2], [0, 2]]
    assert run(None) == [2, 2]
    for callback in (vr.training.JSONLog, vr.training.Progress):
        assert callback.on_first_rank_only


def test_a_trainer_goes_on_after_an_interrupt_between_shards():
    def run(fails):
        vr.manual_seed(0)
        model, calls = Model(), []

        def loss(*batch):
            calls.append(1)
            if fails and len(calls) == 2:  # after the first of three shards
                raise KeyboardInterrupt
            return loss_of(model, *batch)

        optimizer = vr.optim.Adam(model.parameters(), lr=0.05)
        trainer = vr.training.Trainer(model, optimizer, loss, data(), comm=Communicator(), reproducible=3)
        if fails:
            state = vr.random.get_state()
            with pytest.raises(KeyboardInterrupt):
                trainer.fit(epochs=1)
            vr.random.set_state(state)
        trainer.fit(epochs=1)
        return model.state_dict()

    check_equal(run(fails=True), run(fails=False))


def stopped_and_resumed(comm, folder, stop_at, reproducible=None):
    """Return the weights after a training that takes steps up to `stop_at`, or to its end, from the last checkpoint."""
    vr.manual_seed(0)
    model = Model()
    trainer = vr.training.Trainer(
        model, vr.optim.Adam(model.parameters(), lr=0.05), lambda *batch: loss_of(model, *batch), data(),
        clip_norm=1.0, comm=comm, reproducible=reproducible, callbacks=[vr.training.Checkpoints(folder, every=3)],
    )  # fmt: skip
    began = trainer.resume(folder)
    if stop_at is None:
        trainer.fit(epochs=2)
    else:
        trainer.fit(steps=stop_at)
    return began, model.state_dict()


@pytest.mark.parametrize("later", [1, 2, 3])
def test_a_checkpoint_of_ranks_goes_on_with_another_number_of_ranks(later, tmp_path):
    wanted = run_ranks(2, lambda comm: fitted(comm, 4))[0][0]
    close, _ = fitted(None)
    for reproducible, check, expected in ((4, check_equal, wanted), (None, check_close, close)):
        expected = {name: value for name, value in expected.items() if name != "losses"}
        folder = tmp_path / str(reproducible)
        run_ranks(2, lambda comm, folder=folder, k=reproducible: stopped_and_resumed(comm, folder, 5, k))
        assert [path.name for path in folder.iterdir()] == ["step-000000003.safetensors"]
        again = run_ranks(later, lambda comm, folder=folder, k=reproducible: stopped_and_resumed(comm, folder, None, k))
        for began, found in again:
            assert began
            check(found, expected)


def with_a_divided_table(comm, folder, stop_at, make):
    """Return the model's state, whole, after a training of a table that ranks divide, from the last checkpoint on."""
    vr.manual_seed(0)
    table, gru, output = vr.nn.Embedding(11, 3, shard=comm), vr.nn.GRU(3, 2), vr.nn.Linear(2, 1)
    model = vr.nn.Sequential(table, gru, output)
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 11, length) for length in rng.integers(1, 6, 30)]
    trainer = vr.training.Trainer(
        model, make(model.parameters()), lambda x: (output(gru(table(x))[0]) ** 2).mean(),
        vr.data.batches(ids, batch_size=6), comm=comm, reproducible=6,
        callbacks=[vr.training.Checkpoints(folder, every=2, keep=1)],
    )  # fmt: skip
    trainer.resume(folder)
    trainer.fit(steps=stop_at)
    state = model.state_dict()
    rows = comm.all_gather(state.pop("0.weight" if comm.size == 1 else f"0.weight[{comm.rank}::{comm.size}]"))
    state["0.weight"] = np.zeros((11, 3), np.float32)
    for rank, part in enumerate(rows):
        state["0.weight"][rank :: comm.size] = part
    return state


@pytest.mark.parametrize("make", [lambda p: vr.optim.SGD(p, lr=0.1), lambda p: vr.optim.Adam(p, lr=0.01)])
@pytest.mark.parametrize("later", [1, 2, 3])
def test_a_checkpoint_has_the_rows_of_a_divided_table_from_all_ranks(later, make, tmp_path):
    wanted = run_ranks(2, lambda comm: with_a_divided_table(comm, tmp_path / "whole", 7, make))[0]
    folder = tmp_path / "parts"
    run_ranks(2, lambda comm: with_a_divided_table(comm, folder, 5, make))
    name = "step-000000004.safetensors"
    assert sorted(path.name for path in folder.iterdir()) == [name, f"{name}.4.0-of-2", f"{name}.4.1-of-2"]
    check = check_close if later == 1 else check_equal  # one rank has no divided table, and adds its rows on the grid
    for found in run_ranks(later, lambda comm: with_a_divided_table(comm, folder, 7, make)):
        check(found, wanted)
    assert len(list(folder.iterdir())) == (1 if later == 1 else 1 + later), "older parts are removed"


def test_a_checkpoint_without_its_parts_is_an_error(tmp_path):
    def run(comm):
        return with_a_divided_table(comm, tmp_path, 2, lambda parameters: vr.optim.SGD(parameters, lr=0.1))

    run_ranks(2, run)
    (tmp_path / "step-000000002.safetensors.2.1-of-2").unlink()
    with pytest.raises(FileNotFoundError, match="1-of-2"):
        run_ranks(1, run)


def test_all_ranks_hear_that_rank_0_cannot_write(monkeypatch):
    def save(path, **groups):
        raise OSError("the disk is full")

    monkeypatch.setattr(vr.training.trainer, "save", save)

    def run(comm):
        _, trainer = fitted(comm)
        kind, text = (OSError, "disk is full") if comm.rank == 0 else (vr.CheckpointError, "an error on another rank")
        with pytest.raises(kind, match=text):
            trainer.save("file")

    run_ranks(3, run)


def test_trainers_that_cannot_be_on_ranks():
    model = vr.nn.Linear(3, 2)
    optimizer = vr.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(vr.InputError, match="Trainer, reproducible: expected also `comm`, got no communicator"):
        vr.training.Trainer(model, optimizer, print, data(), reproducible=2)
    with pytest.raises(vr.DTypeError, match="Trainer, batches: expected batches that ranks can divide"):
        vr.training.Trainer(model, optimizer, print, lambda epoch: [X], comm=Communicator())


def test_a_loss_that_is_no_number_on_one_rank():
    def run(comm):
        vr.manual_seed(0)
        model = vr.nn.Linear(1, 1)
        numbers = [np.full((2, 1), np.inf if k == 3 else 1.0, np.float32) for k in range(4)]
        trainer = vr.training.Trainer(
            model, vr.optim.SGD(model.parameters(), 0.1), lambda x: (model(x) ** 2).mean(),
            vr.data.batches(numbers, batch_size=4), comm=comm,
        )  # fmt: skip
        with np.errstate(invalid="ignore"), pytest.raises(vr.OutOfRangeError, match="expected a finite number"):
            trainer.fit(epochs=1)

    run_ranks(2, run)


def test_metrics_over_all_ranks():
    rng = np.random.default_rng(0)
    scores, labels = rng.random(20).astype(np.float32), rng.integers(0, 2, 20)
    classes = np.stack([1 - scores, scores], axis=1)
    made = {
        "Accuracy": lambda: vr.metrics.Accuracy(), "AUC": lambda: vr.metrics.AUC(), "F1": lambda: vr.metrics.F1(2),
        "ConfusionMatrix": lambda: vr.metrics.ConfusionMatrix(2), "R2": lambda: vr.metrics.R2(),
        "MeanSquaredError": lambda: vr.metrics.MeanSquaredError(root=True),
    }  # fmt: skip

    def run(comm):
        rows = slice(None) if comm is None else slice(0, 13) if comm.rank == 0 else slice(13 + 7 * comm.rank - 7, 20)
        found = []
        for name, make in made.items():
            metric = make()
            predictions = scores if name in ("AUC", "R2", "MeanSquaredError") else classes
            targets = labels.astype(np.float32) if name in ("R2", "MeanSquaredError") else labels
            if len(labels[rows]):  # the last rank has no rows
                metric.update(predictions[rows], targets[rows])
            if comm is not None:
                metric.all_reduce(comm)
            found.append(metric.compute())
        return found

    wanted = run(None)
    for found in run_ranks(3, run):
        for name, got, expected in zip(made, found, wanted, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-6, err_msg=name)


def recorded(loss_of_logits=F.cross_entropy):
    """Return the program of a step, its model and loss."""
    vr.manual_seed(0)
    model = vr.nn.Sequential(vr.nn.Embedding(20, 5), vr.nn.GRU(5, 6))
    head = vr.nn.Linear(6, 3)
    with vr.program_guard() as program:
        ids, labels = vr.feed_data("ids", [-1], "int64", lod_level=1), vr.feed_data("labels", [-1], "int64")
        y, _ = model(ids)
        loss = loss_of_logits(head(vr.sequence_pool(y, "mean")), labels)
        parameters = [*model.parameters(), *head.parameters()]
        optimizer = vr.optim.Adam(parameters, lr=0.05)
        vr.backward(loss)
        vr.optim.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return program, loss, parameters


def run_program(comm, loss_of_logits=F.cross_entropy, place="cpu"):
    program, loss, parameters = recorded(loss_of_logits)
    parts, losses = data(), []
    if comm is not None:
        if comm.rank:
            for parameter in parameters:
                parameter.assign(0.0)  # gets the numbers of rank 0
        program.to(place)
        replicated, parts = ReplicatedProgram(program, comm), data().part(comm.rank, comm.size)
    run = (lambda *given: vr.Executor().run(program, *given)) if comm is None else replicated.run
    for ids, _, labels in [*parts, *parts]:
        feed = {"ids": ids.to(place), "labels": vr.Variable(labels).to(place)}
        losses.append(run(feed, [loss])[0].item())
    return {"losses": losses, **{str(k): to_host(parameter.data) for k, parameter in enumerate(parameters)}}


PROGRAMS = {
    "mean": F.cross_entropy,
    "sum": lambda logits, labels: F.cross_entropy(logits, labels, "sum"),
    "weights": lambda logits, labels: F.cross_entropy(logits, labels, weight=[0.2, 1.0, 0.5]),
    "by hand": lambda logits, labels: (logits * logits).sum(axis=1).mean(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_on_ranks(name):
    wanted = run_program(None, PROGRAMS[name])
    check_equal(run_program(Communicator(), PROGRAMS[name]), wanted)
    found = run_ranks(2, lambda comm: run_program(comm, PROGRAMS[name]))
    check_equal(found[1], found[0])
    check_close(found[0], wanted)


def test_programs_that_cannot_be_on_ranks():
    model = vr.nn.Linear(3, 2)
    with vr.program_guard() as program:
        loss = model(vr.feed_data("x", [-1, 3], "float32")).mean()
    with pytest.raises(vr.ProgramError, match="expected the gradients of one loss, got 0 losses"):
        ReplicatedProgram(program)
    with vr.program_guard(program):
        loss.backward()
    with pytest.raises(vr.ProgramError, match="expected updates"):
        ReplicatedProgram(program)
    program, *_ = recorded(lambda logits, labels: F.cross_entropy(logits, labels) + logits.mean())
    with pytest.raises(
        vr.ProgramError, match="expected a loss that is one sum or mean over rows, got the result of 'add'"
    ):
        ReplicatedProgram(program)
    for name, mixed in {
        "reduce_mean": lambda logits, labels: logits.var(),
        "reduce_max": lambda logits, labels: (logits - logits.max()).sum(),
        "matmul": lambda logits, labels: (logits.T @ logits).sum(),
        "getitem": lambda logits, labels: logits[:2].sum(),
    }.items():
        program, *_ = recorded(mixed)
        with pytest.raises(vr.ProgramError, match=f"expected rows that do not depend on each other .*, got '{name}'"):
            ReplicatedProgram(program)
    with pytest.raises(vr.DTypeError, match="ReplicatedProgram, program: expected a Program, got Linear"):
        ReplicatedProgram(model)
    replicate(model, vr.optim.SGD(model.parameters(), 0.1))
    with vr.program_guard():
        loss = model(vr.feed_data("x", [-1, 3], "float32")).mean()
        with pytest.raises(vr.ProgramError, match="expected leaves of one process, got 'weight', which is replicated"):
            loss.backward()


# Replicas on a device.


@pytest.fixture
def _emulated(monkeypatch):
    if reason := missing():
        pytest.skip(reason)
    monkeypatch.setattr(cuda, "driver", Driver())


@pytest.mark.slow
@pytest.mark.parametrize("reproducible", [None, 4])
@pytest.mark.usefixtures("_emulated")
def test_ranks_train_on_a_device_as_on_the_host(reproducible):
    wanted = run_ranks(2, lambda comm: train(comm, reproducible))[0]
    found = run_ranks(2, lambda comm: train(comm, reproducible, "cuda"))
    check_equal(found[1], found[0])
    assert found[0].keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[0][name], value, rtol=1e-3, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(found[0]["losses"], wanted["losses"], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("_emulated")
def test_moments_over_ranks_on_a_device():
    wanted = run_ranks(2, lambda comm: normalised(comm, (12, 0)))[0]
    for found in run_ranks(2, lambda comm: normalised(comm, (12, 0), "cuda")):
        for name, value in wanted.items():
            np.testing.assert_allclose(to_host(found[name]), value, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mean", "weights"])
@pytest.mark.usefixtures("_emulated")
def test_programs_on_ranks_on_a_device(name):
    wanted = run_program(None, PROGRAMS[name])
    found = run_ranks(2, lambda comm: run_program(comm, PROGRAMS[name], "cuda"))
    check_equal(found[1], found[0])
    for key, value in wanted.items():
        np.testing.assert_allclose(found[0][key], value, rtol=1e-3, atol=1e-4, err_msg=key)


@pytest.mark.slow
@pytest.mark.usefixtures("_emulated")
def test_a_table_that_ranks_divide_stays_on_the_host():
    def run(comm):
        model = vr.nn.Sequential(vr.nn.Linear(2, 3), vr.nn.Embedding(4, 2, shard=comm))
        with pytest.raises(vr.PlaceError, match="a table that ranks divide"):
            model.to("cuda")
        return {p.device for p in model.parameters()}

    assert run_ranks(2, run) == [{vr.device("cpu")}] * 2
