"""`nn.BatchNorm1d`: moments over the rows of all sequences, beside NumPy and PyTorch, in programs, and over ranks."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.oracles.norms import batch_norm
from varlen_rnn.nn import BatchNorm1d
from varlen_rnn.ops import batch_norm as operator

LENGTHS = [[2, 0, 4], [1], [0], [], [3, 3, 3], [7, 1, 1]]
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])


def rows(lengths, dtype=np.float64, seed=0):
    data = np.random.default_rng(seed).standard_normal((sum(lengths), 3)) * [1, 10, 0.1] + [0, 5, -3]
    return vr.create_lod_tensor(data.astype(dtype), [lengths])


def tolerance(dtype):
    return {"rtol": 2e-5, "atol": 2e-6} if dtype is np.float32 else {"rtol": 1e-11, "atol": 1e-12}


@DTYPES
@pytest.mark.parametrize("momentum", [0.1, None])
def test_training_and_evaluation_are_those_of_the_oracle(dtype, momentum):
    layer = BatchNorm1d(3, momentum=momentum, dtype=dtype)
    layer.weight.assign([1.0, 2.0, 0.5])
    layer.bias.assign([0.0, -1.0, 3.0])
    state = {name: array.astype(np.float64) for name, array in layer.state_dict().items()}
    for seed, lengths in enumerate(LENGTHS):
        x = rows(lengths, dtype, seed)
        wanted, state = batch_norm(x.data.astype(np.float64), state, momentum, training=True)
        found = layer.train()(x)
        assert found.lod() == x.lod()
        np.testing.assert_allclose(found, wanted, **tolerance(dtype))
        for name, array in layer.state_dict().items():
            np.testing.assert_allclose(array, state[name], **tolerance(dtype))
        wanted, _ = batch_norm(x.data.astype(np.float64), state, momentum, training=False)
        np.testing.assert_allclose(layer.eval()(x), wanted, **tolerance(dtype))
    assert layer.num_batches_tracked.item() == 4  # two had no rows


@DTYPES
@pytest.mark.parametrize("affine", [True, False])
def test_numbers_and_gradients_are_pytorchs(dtype, affine):
    torch = pytest.importorskip("torch", reason="PyTorch is in the `parity` extra")
    ours = BatchNorm1d(3, affine=affine, dtype=dtype)
    theirs = torch.nn.BatchNorm1d(3, affine=affine, dtype=getattr(torch, np.dtype(dtype).name))
    for seed, lengths in enumerate([[2, 0, 4], [7, 1, 1], [3, 3, 3]]):
        for layer in (ours, theirs):
            layer.train(seed < 2)
        x, weight = vr.Variable(rows(lengths, dtype, seed), requires_grad=True), rows(lengths, dtype, 9).data
        t = torch.tensor(x.numpy(), requires_grad=True)
        found, wanted = ours(x), theirs(t)
        (found * weight).sum().backward()
        (wanted * torch.tensor(weight)).sum().backward()
        np.testing.assert_allclose(found, wanted.detach().numpy(), **tolerance(dtype))
        loose = {"rtol": 1e-3, "atol": 2e-4} if dtype is np.float32 else tolerance(dtype)
        np.testing.assert_allclose(x.grad.data, t.grad.numpy(), **loose)  # differences of large numbers
        for name, parameter in theirs.named_parameters():
            np.testing.assert_allclose(getattr(ours, name).grad, parameter.grad.numpy(), **loose)
    state = {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}
    assert {n: (a.shape, a.dtype) for n, a in ours.state_dict().items()} == {
        n: (a.shape, a.dtype) for n, a in state.items()
    }
    for name, array in ours.state_dict().items():
        np.testing.assert_allclose(array, state[name], **tolerance(dtype))
    ours.load_state_dict(state)
    theirs.load_state_dict({name: torch.from_numpy(array) for name, array in ours.state_dict().items()})


def test_a_sequence_depends_on_its_batch_in_training_alone():
    layer, x, y = BatchNorm1d(3, dtype=np.float64), rows([2]), rows([4], seed=1)
    both = vr.LoDTensor.from_sequences([x.data, y.data])
    assert not np.allclose(layer(both).numpy()[:2], layer(x))
    layer.eval()
    assert np.array_equal(layer(both).numpy()[:2], layer(x))


def test_moments_do_not_drift_nor_depend_on_threads():
    x = np.full((2_000_000, 1), 1000.1, np.float32)
    x[::2] = 1000.3
    layer = BatchNorm1d(1, momentum=1.0)
    layer(x)
    wanted = x.astype(np.float64)
    np.testing.assert_allclose(layer.running_mean.numpy(), wanted.mean(), rtol=1e-7)
    np.testing.assert_allclose(layer.running_var.numpy(), wanted.var(), rtol=1e-5)
    before, found = vr.get_num_threads(), []
    try:
        for threads in (1, 2):
            vr.set_num_threads(threads)
            x = vr.Variable(rows([3000, 0, 2000], np.float32), requires_grad=True)
            layer = BatchNorm1d(3)
            (layer(x) ** 3).sum().backward()
            found.append([x.grad.data, layer.weight.grad, *layer.state_dict().values()])
    finally:
        vr.set_num_threads(before)
    assert all(map(np.array_equal, *found))


def test_a_program_trains_it_and_prunes_it():
    model = vr.nn.Sequential(vr.nn.Linear(3, 3, dtype=np.float64), BatchNorm1d(3, dtype=np.float64))
    other = vr.nn.Sequential(vr.nn.Linear(3, 3, dtype=np.float64), BatchNorm1d(3, dtype=np.float64))
    other.load_state_dict(model.state_dict())
    with vr.program_guard() as program:
        y = model(vr.feed_data("x", [-1, 3], "float64", lod_level=1))
        vr.optim.SGD(model.parameters(), 0.1).minimize((y * y * y).mean())
    optimizer = vr.optim.SGD(other.parameters(), 0.1)
    for seed in range(3):
        x = rows([2, 0, 4], seed=seed)
        vr.Executor().run(program, {"x": x}, [])
        z = other(x)
        optimizer.minimize((z * z * z).mean())
    assert program.persistables.keys() >= model.state_dict().keys()
    for name, array in model.state_dict().items():
        assert np.array_equal(array, other.state_dict()[name]), name
    pruned = vr.Program.from_bytes(program.prune([y]).to_bytes())
    assert np.array_equal(vr.Executor().run(pruned, {"x": x}, [y.name])[0].data, model.eval()(x))


def test_an_operator_that_raises_leaves_the_moments_of_a_program_as_they_were():
    model = BatchNorm1d(3, dtype=np.float64)
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 3], "float64", lod_level=1)
        labels = vr.feed_data("labels", [-1], "int64")
        loss = vr.nn.functional.cross_entropy(vr.sequence_pool(model(x), "max"), labels)
        vr.optim.SGD(model.parameters(), 0.1).minimize(loss)
    before = {name: array.copy() for name, array in model.state_dict().items()}
    given = {"x": rows([2, 4]), "labels": np.array([0, 3])}
    with pytest.raises(vr.errors.OutOfRangeError, match="3"):
        vr.Executor().run(program, given, [])
    assert all(np.array_equal(array, before[name]) for name, array in model.state_dict().items())
    vr.Executor().run(program, given | {"labels": np.array([0, 2])}, [])
    assert not any(np.array_equal(array, before[name]) for name, array in model.state_dict().items())


def test_two_passes_before_a_gradient_and_inference_that_records_nothing():
    layer = BatchNorm1d(3, dtype=np.float64)
    (layer(rows([2, 3])) + layer(rows([2, 3], seed=1))).sum().backward()
    with vr.no_grad():
        layer(rows([4]))
    assert layer.num_batches_tracked.item() == 3
    run = layer.prepare()
    layer(rows([4]))
    assert np.array_equal(run(rows([2])), run(rows([2])))


def test_buffers_are_saved_and_averaged_but_not_trained(tmp_path):
    model = vr.nn.Sequential(vr.nn.Linear(3, 3), BatchNorm1d(3))
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    buffers = [name for name, _ in model.named_buffers()]
    assert buffers == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    average = vr.optim.AveragedModel(model, decay=0.5)
    model(rows([5], np.float32))
    average.update()
    moments = model.state_dict()
    model(rows([5], np.float32, 1))
    with average.applied():
        for name in buffers:
            assert np.array_equal(model.state_dict()[name], moments[name])
    vr.save(tmp_path / "a", model=model.state_dict())
    other = vr.nn.Sequential(vr.nn.Linear(3, 3), BatchNorm1d(3))
    other.load_state_dict(vr.load(tmp_path / "a")["model"])
    assert np.array_equal(other.eval()(rows([5], np.float32)), model.eval()(rows([5], np.float32)))
    with pytest.raises(vr.CheckpointError, match=r"running_mean"):
        other.load_state_dict({n: a for n, a in model.state_dict().items() if "mean" not in n})


def test_in_steps_it_is_for_evaluation():
    layer, x = BatchNorm1d(3, dtype=np.float64), rows([2, 3])
    layer(x)
    step = vr.nn.DynamicRNN(lambda row, h: (layer(row) + h,) * 2)
    with pytest.raises(vr.ProgramError, match=r"BatchNorm1d in training: expected rows of a batch, got a step"):
        step(x, [(3,)])
    layer.eval()
    y, _ = step(x, [(3,)])
    np.testing.assert_allclose(y, np.concatenate([part.cumsum(0) for part in np.split(layer(x).numpy(), [2])]))


def test_ranks_sum_their_moments(monkeypatch):
    """Two halves of a batch, whose sums are exchanged, have the results and gradients of the whole."""
    layer = BatchNorm1d(3, dtype=np.float64)
    whole, weight = vr.Variable(rows([4, 4]), requires_grad=True), rows([4, 4], seed=1).data
    wanted = layer(whole)
    (wanted * weight).sum().backward()
    halves = [vr.Variable(rows([4, 4])[[k]], requires_grad=True) for k in (0, 1)]
    sums = {}  # of both ranks, noted by a first pass of each

    def exchange(rank, calls):
        def over_ranks(*mine):
            calls.append(len(calls))
            sums.setdefault(calls[-1], {})[rank] = mine
            known = sums[calls[-1]].values()
            return tuple(sum(parts) for parts in zip(*known, strict=True))

        return over_ranks

    for _ in range(3):  # each pass knows one more exchange: of totals, of squares, of gradients
        found = []
        for rank, half in enumerate(halves):
            half.grad = None
            monkeypatch.setattr(operator, "over_ranks", exchange(rank, []))
            y = BatchNorm1d(3, dtype=np.float64)(half)
            (y * weight[4 * rank : 4 * rank + 4]).sum().backward()
            found.append((y.numpy(), half.grad.data))
        monkeypatch.undo()
    np.testing.assert_allclose(np.concatenate([y for y, _ in found]), wanted, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.concatenate([d for _, d in found]), whole.grad.data, rtol=1e-9, atol=1e-12)


def test_other_rows_are_refused():
    for x in (np.ones((2, 4), np.float32), np.ones((2, 3, 3), np.float32), np.ones(3, np.float32)):
        with pytest.raises(vr.ShapeError, match="batch_norm"):
            BatchNorm1d(3)(x)
    with pytest.raises(vr.DTypeError, match="float32"):
        BatchNorm1d(3)(np.ones((2, 3)))
    with pytest.raises(vr.ShapeError, match="momentum: expected 0 to 1, or None"):
        BatchNorm1d(3, momentum=2.0)
