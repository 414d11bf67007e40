"""Tables divided over ranks have the bits of one process that has the whole table and the whole batch."""

import copy

import numpy as np
import pytest

import varlen_rnn as vr
from tests.launched_tables import HEIGHT, OPTIMIZERS, STEPS, WIDTH, batch, part_of, states, trained, whole
from tests.rank_threads import run_ranks
from tests.test_distributed import GLOO, MPI
from tests.test_distributed import run as run_on
from varlen_rnn.communicator import Communicator
from varlen_rnn.nn import functional as F
from varlen_rnn.nn import sharded
from varlen_rnn.rows.lod import NO_LOD


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_any_optimizer_has_the_bits_of_one_process(make, size):
    def run(comm):
        layer, optimizer = trained(comm, make)
        return {"weight": whole(comm, layer.weight.data)} | states(comm, optimizer)

    alone = run(Communicator())
    assert not np.array_equal(
        alone["weight"], run_ranks(1, lambda comm: trained(comm, make, steps=0)[0].weight.data)[0]
    )
    for found in run_ranks(size, run):
        assert_same(found, alone)


def test_a_table_used_twice_in_a_step_has_the_bits_of_one_process():
    run = lambda comm: whole(comm, trained(comm, OPTIMIZERS["adagrad"], uses=3)[0].weight.data)
    alone = run(Communicator())
    for found in run_ranks(3, run):
        np.testing.assert_array_equal(found, alone)


def test_clipping_knows_the_norm_of_all_rows():
    def run(comm):
        layer, _ = trained(comm, OPTIMIZERS["adagrad"], max_norm=0.5)
        dense, other = vr.nn.Parameter([3.0]), vr.nn.Parameter([1.0])
        dense.grad = np.array([4.0])
        ids, weights = part_of(comm.rank, comm.size, 0)
        layer.weight.grad = None
        (layer(ids) * weights).sum().backward()
        norm = vr.optim.clip_grad_norm_([dense, layer.weight, other], 1.0)
        clipped = whole(comm, layer.weight.grad.to_dense())
        return whole(comm, layer.weight.data), norm, clipped, dense.grad

    alone = run(Communicator())
    np.testing.assert_allclose(np.square(alone[2]).sum() + alone[3] ** 2, 1, rtol=1e-6)
    for found in run_ranks(3, run):
        for one, other in zip(found, alone, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


def test_positions_of_sequences_give_the_order_of_the_global_batch():
    """Sequences dealt round robin: without their positions, sums would have another order, and other bits."""

    def run(comm, known):
        layer = vr.nn.Embedding.from_pretrained(np.zeros((1 + (comm.rank == 0), 1), np.float32), False, shard=comm)
        numbers = np.arange(comm.rank, 5, comm.size)
        ids = vr.LoDTensor.from_sequences([np.zeros(40, int)] * len(numbers))
        ids = vr.LoDTensor(ids.data, ids.structure.at(numbers if known else None))
        weights = np.random.default_rng(0).standard_normal((5, 40, 1)).astype(np.float32)[numbers]
        (layer(ids) * weights.reshape(-1, 1)).sum().backward()
        vr.optim.SGD([layer.weight], lr=1.0).step()
        return layer.weight.data[0, 0]

    alone = run(Communicator(), False)
    assert run_ranks(2, lambda comm: run(comm, True))[0] == alone
    assert run_ranks(2, lambda comm: run(comm, False))[0] != alone, "the order shows"


def positions_of(shape, lod):
    return sharded._positions(vr.LoDTensor.wrap(np.zeros(shape, int), lod)).tolist()


def test_every_id_has_the_position_of_its_sequence():
    lod = vr.LoD([[0, 1, 3]])
    assert positions_of((3, 2), lod) == [0] * 6
    assert positions_of((3, 2), lod.at([7, 4])) == [7, 7, 4, 4, 4, 4]
    assert positions_of((2, 2), NO_LOD.at_positions_of(lod.at([7, 4]))) == [7, 7, 4, 4]
    assert positions_of((0,), vr.LoD([[0, 0, 0]]).at([7, 4])) == []
    assert positions_of((0,), vr.LoD([[0]]).at([])) == []
    assert positions_of((3,), vr.LoD([[0, 2], [0, 1, 3]]).at([5])) == [5, 5, 5]


@pytest.mark.parametrize("height", [1, 2, 5, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_first_numbers_do_not_depend_on_the_ranks(height, dtype, monkeypatch):
    monkeypatch.setattr(sharded, "_BLOCK", 77)

    def run(comm):
        vr.manual_seed(5)
        layer = vr.nn.Embedding(height, 3, padding_idx=-1, dtype=dtype, shard=comm)
        assert layer.weight.shape == (len(range(comm.rank, height, comm.size)), 3)
        return whole(comm, layer.weight.data), vr.random.generator().random()

    vr.manual_seed(5)
    usual = vr.nn.Embedding(height, 3, padding_idx=-1, dtype=dtype).weight.data
    after = vr.random.generator().random()
    for size in (1, 2, 3):
        for table, number in run_ranks(size, run):
            assert table.dtype == dtype
            np.testing.assert_array_equal(table, usual)
            assert number == after


def test_rows_come_back_for_ids_of_any_shape():
    def run(comm):
        vr.manual_seed(0)
        layer = vr.nn.Embedding(9, 2, shard=comm)
        table = whole(comm, layer.weight.data)
        shapes = [(0,), (3,), (2, 2)] if comm.rank else [(2, 3), (), (0, 2)]
        for shape in shapes:
            ids = np.random.default_rng(comm.rank).integers(0, 9, shape)
            np.testing.assert_array_equal(np.asarray(layer(ids)), table[ids])
        with vr.no_grad():
            rows = layer(vr.create_lod_tensor(np.array([1, 8]), [[2, 0]]))
        assert not rows.requires_grad
        assert rows.lod() == [[0, 2, 2]]
        np.testing.assert_array_equal(np.asarray(rows.value.data), table[[1, 8]])
        np.testing.assert_array_equal(np.asarray(layer.prepare()(np.array([3]))), table[[3]])

    run_ranks(3, run)


def grad_of(layer):
    vr.optim.clip_grad_norm_([layer.weight], np.inf)  # brings it home
    return layer.weight.grad


def test_which_gradients_come_home():
    def run(comm):
        layer = vr.nn.Embedding(6, 1, shard=comm)
        ids = np.array([0, 1]) if comm.rank == 0 else np.zeros(0, int)
        assert grad_of(layer) is None, "nothing was looked up"
        with vr.no_grad():
            layer(ids)
        assert grad_of(layer) is None
        layer(ids)
        assert grad_of(layer) is None, "no rank computed a gradient"
        loss = layer(ids).sum()
        if comm.rank == 0:
            loss.backward()
        assert layer.weight.grad is None
        found = grad_of(layer)
        assert found.rows.tolist() == [[0], [0], []][comm.rank], "a rank without rows has a gradient of zeros"
        layer(ids).sum().backward()
        assert grad_of(layer).to_dense().sum() == [2, 2, 0][comm.rank], "gradients add up"
        layer(ids).sum().backward()
        layer.weight.grad = None
        assert grad_of(layer) is None, "dropped before they went home"
        layer.weight.requires_grad = False
        assert not layer(ids).requires_grad

    run_ranks(3, run)


def test_looking_at_gradients_uses_none_up():
    def run(comm):
        layer = vr.nn.Embedding(6, 1, shard=comm)
        rows = layer(np.array([0, 1]))
        loss = (rows * 2.0).sum()
        seen = []
        rows.register_hook(seen.append)
        report = vr.inspect_gradients(loss)
        assert [(leaf.shape, round(leaf.norm, 3)) for leaf in report.leaves] == [((2, 1), 2.828)]
        loss.backward()
        assert len(seen) == 2
        found = grad_of(layer)
        assert (found.rows.tolist(), found.value.tolist()) == ([0], [[4.0]]), "of two ranks"

    run_ranks(2, run)


def test_a_lookup_with_two_losses_has_both_gradients():
    def run(comm):
        layer = vr.nn.Embedding(6, 1, shard=comm)
        rows = layer(np.array([0, 1]))
        first, second = (rows * 2.0).sum(), (rows * 3.0).sum()
        first.backward(), second.backward()
        assert grad_of(layer).to_dense()[0] == 10.0

    run_ranks(2, run)


def test_bytes_follow_the_ids_and_not_the_table():
    def run(comm, height):
        layer = vr.nn.Embedding(height, 32, shard=comm)
        before = comm.bytes_sent
        layer(np.arange(100)).sum().backward()
        vr.optim.SGD([layer.weight], lr=1.0).step()
        return comm.bytes_sent - before

    small, large = (run_ranks(2, lambda comm, h=height: run(comm, h)) for height in (200, 20_000))
    assert small == large
    rows = 50 * 32 * 4  # to the other rank, each way
    assert 2 * rows < small[0] < 2 * rows + 100 * 8 + 50 * 24 + 100


def save(comm, folder, layer, optimizer):
    path = folder / f"{comm.rank} of {comm.size}"
    vr.save(path, model=layer.state_dict(copy=False), optimizer=optimizer.state_dict())


def load(folder):
    """Return the state of a model and of an optimizer, of all ranks that saved them."""
    files = [vr.load(path, mmap=True) for path in sorted(folder.iterdir())]
    return [{name: array for file in files for name, array in file[group].items()} for group in ("model", "optimizer")]


@pytest.mark.parametrize("name", ["adam", "adagrad", "sgd"])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (3, 1), (1, 2), (2, 2), (1, 1)])
def test_training_goes_on_with_another_number_of_ranks(tmp_path, name, before, after):
    make = OPTIMIZERS[name]
    run_ranks(before, lambda comm: save(comm, tmp_path, *trained(comm, make, steps=2)))

    def go_on(comm):
        vr.manual_seed(99)
        layer = vr.nn.Embedding(HEIGHT, WIDTH, padding_idx=2, shard=comm)
        optimizer = make([layer.weight])
        model, state = load(tmp_path)
        layer.load_state_dict(model)
        optimizer.load_state_dict(state)
        trained(comm, make, layer=layer, optimizer=optimizer, first=2)
        return {"weight": whole(comm, layer.weight.data)} | states(comm, optimizer)

    layer, optimizer = trained(Communicator(), make)
    alone = {"weight": layer.weight.data} | optimizer.state_dict()
    for found in run_ranks(after, go_on):
        assert_same(found, alone)


def test_a_rank_loads_its_own_file_alone(tmp_path):
    def run(comm):
        layer, optimizer = trained(comm, OPTIMIZERS["adam"])
        save(comm, tmp_path, layer, optimizer)
        again, other = trained(comm, OPTIMIZERS["adam"], steps=1)
        saved = vr.load(tmp_path / f"{comm.rank} of {comm.size}")
        again.load_state_dict(saved["model"])
        other.load_state_dict(saved["optimizer"])
        assert_same(again.state_dict(), layer.state_dict())
        assert_same(other.state_dict(), optimizer.state_dict())
        assert list(saved["model"]) == [f"weight[{comm.rank}::{comm.size}]"]

    run_ranks(3, run)


BAD_STATES = {
    "a shard is missing": ({"weight[0::2]": np.zeros((3, 2), np.float32)}, "also"),
    "another height": ({f"weight[{k}::2]": np.zeros((2, 2), np.float32) for k in (0, 1)}, r"weight\[0::2\]"),
    "another width": ({"weight": np.zeros((5, 3), np.float32)}, "weight"),
    "another type": ({"weight[0::1]": np.zeros((5, 2))}, r"weight\[0::1\]"),
    "more": ({"weight": np.zeros((5, 2), np.float32), "bias[0::1]": np.zeros(1)}, "bias"),
    "no number": ({"weight[a::2]": np.zeros((5, 2), np.float32)}, "also"),
    "no ranks": ({"weight[0::0]": np.zeros((5, 2), np.float32)}, "also"),
    "many ranks": ({"weight[0::999999999]": np.zeros((1, 2), np.float32)}, "also"),
}


@pytest.mark.parametrize(("state", "message"), BAD_STATES.values(), ids=BAD_STATES)
def test_shards_that_do_not_fit_are_errors(state, message):
    layer = vr.nn.Embedding(5, 2)
    before = layer.weight.data.copy()
    with pytest.raises(vr.CheckpointError, match=message):
        layer.load_state_dict(state)
    np.testing.assert_array_equal(layer.weight.data, before)


def raised(function):
    try:
        function()
    except vr.InputError as error:
        return str(error)
    return ""


def test_all_ranks_raise_where_one_has_a_wrong_id():
    def run(comm):
        layer = vr.nn.Embedding(6, 2, shard=comm)
        bad = np.array([0, 6]) if comm.rank == 1 else np.array([1])
        message = raised(lambda: layer(bad))
        assert np.asarray(layer(np.array([1]))).shape == (1, 2), "the ranks go on together"
        return message

    messages = run_ranks(3, run)
    assert "embedding, ids, entry 1: expected 0 <= id < 6, the table's number of rows, got 6" in messages[1]
    for rank in (0, 2):
        assert "got other ids on the ranks [1]" in messages[rank]


def test_all_ranks_raise_where_tables_differ():
    makes = [
        lambda comm: vr.nn.Embedding(6 + comm.rank, 2, shard=comm),
        lambda comm: vr.nn.Embedding(6, 2 + comm.rank, shard=comm),
        lambda comm: vr.nn.Embedding(6, 2, padding_idx=comm.rank or None, shard=comm),
        lambda comm: vr.nn.Embedding(6, 2, dtype=[np.float32, np.float64][comm.rank], shard=comm),
        lambda comm: vr.nn.Embedding.from_pretrained(np.zeros((2 + 2 * comm.rank, 1)), shard=comm),
        lambda comm: vr.nn.Embedding(6, 2, sparse=False, shard=comm),
    ]
    expected = ["num_embeddings", "embedding_dim", "padding_idx", "dtype", "from_pretrained, embeddings", "sparse"]
    for make, name in zip(makes, expected, strict=True):
        for message in run_ranks(2, lambda comm, make=make: raised(lambda: make(comm))):
            assert name in message


def test_programs_have_no_shards():
    def run(comm):
        layer = vr.nn.Embedding(6, 2, shard=comm)
        with vr.program_guard(), pytest.raises(vr.ProgramError, match="expected eager mode"):
            layer(vr.feed_data("ids", [-1], "int64"))

    run_ranks(2, run)


def test_shards_over_maps_and_of_float16(tmp_path):
    table = np.arange(14, dtype=np.float32).reshape(7, 2)

    def run(comm):
        own = np.memmap(tmp_path / f"{comm.rank}", np.float32, "w+", shape=(len(range(comm.rank, 7, 3)), 2))
        own[...] = table[comm.rank :: 3]
        layer = vr.nn.Embedding.from_pretrained(own, freeze=False, padding_idx=-2, shard=comm)
        assert (layer.num_embeddings, layer.padding_idx) == (7, 5)
        layer(np.array([comm.rank, 4, 5])).sum().backward()
        vr.optim.SGD([layer.weight], lr=1.0).step()
        half = vr.nn.Embedding.from_pretrained(table[comm.rank :: 3].astype(np.float16), shard=comm)
        rows = half(np.array([6, 0]))
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(np.asarray(rows), table[[6, 0]])
        return whole(comm, np.asarray(own))

    expected = table.copy()
    for row in (0, 1, 2, 4, 4, 4):
        expected[row] -= 1
    for found in run_ranks(3, run):
        np.testing.assert_array_equal(found, expected)


def test_averages_and_copies_of_models_with_shards():
    def run(comm):
        layer = vr.nn.Embedding(6, 2, shard=comm)
        average = vr.optim.AveragedModel(layer, decay=0.5)
        first = layer.weight.data.copy()
        average.update()
        layer.weight.assign(first + 2)
        average.update()
        with average.applied():
            np.testing.assert_allclose(layer.weight.data, first + 1, rtol=1e-6)
        again = copy.deepcopy(layer)
        again(np.array([3])).sum().backward()
        assert grad_of(again) is not None
        assert grad_of(layer) is None

    run_ranks(2, run)


class Model(vr.nn.Module):
    """A table, which ranks divide, and a layer of which each has a copy."""

    def __init__(self, comm):
        self.table, self.out = vr.nn.Embedding(HEIGHT, WIDTH, shard=comm), vr.nn.Linear(WIDTH, 1)

    def forward(self, ids):
        return self.out(self.table(ids))


LOSSES = {
    "both": lambda model, ids, weights: F.mse_loss(model(ids), weights[:, :1]),
    "the table alone": lambda model, ids, weights: ((model.table(ids) - weights) * (model.table(ids) - weights)).mean(),
    "with a penalty": lambda model, ids, weights: (
        F.mse_loss(model(ids), weights[:, :1]) + (model.out.weight * model.out.weight).sum()
    ),
}


def many(step):
    """Return sequences of ids of a global batch, each id often in each sequence, so that the order of sums shows."""
    rng = np.random.default_rng(step)
    lengths = rng.integers(5, 30, 12)
    return [rng.integers(0, 3, n) for n in lengths], [rng.standard_normal((n, WIDTH), np.float32) for n in lengths]


def replicated(comm, loss, reproducible=None):
    """Return the weights and norms after some steps of a replica with a divided table."""
    vr.manual_seed(7)
    model = Model(comm)
    optimizer = vr.optim.Adagrad(model.parameters(), lr=0.1)
    replica = vr.distributed.replicate(model, optimizer, comm, reproducible)
    norms = []
    for step in range(STEPS - 1):
        ids, weights = batch(step) if reproducible is None else many(step)
        optimizer.zero_grad()
        for shard in replica.shards:
            mine = range(shard.rank, len(ids), shard.size)
            rows = vr.LoDTensor.from_sequences([ids[n] for n in mine], dtype=np.int64)
            rows = vr.LoDTensor(rows.data, rows.structure.at(list(mine)))
            loss(model, rows, np.concatenate([weights[n] for n in mine])).backward()
        norms.append(vr.optim.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
    return whole(comm, model.table.weight.data), model.out.weight.data, np.array(norms)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("size", [2, 3])
def test_a_replica_with_a_divided_table_trains_as_one_process(loss, size):
    alone = replicated(Communicator(), loss)
    for found in run_ranks(size, lambda comm: replicated(comm, loss)):
        for one, other in zip(found, alone, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_reproducible_replica_has_the_same_bits_on_any_ranks():
    two, three = (run_ranks(size, lambda comm: replicated(comm, LOSSES["both"], 6)) for size in (2, 3))
    for found in (*two, *three):
        np.testing.assert_array_equal(found[0], two[0][0])
        np.testing.assert_array_equal(found[1], two[0][1])


def test_replicas_refuse_what_a_divided_table_cannot_do():
    def run(comm):
        model = Model(comm)
        optimizer = vr.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(vr.InputError, match="reproducible: expected a multiple of 2, the number of ranks"):
            vr.distributed.replicate(model, optimizer, comm, reproducible=3)
        vr.distributed.replicate(model, optimizer, comm)
        trainer = vr.training.Trainer(model, optimizer, len, lambda epoch: [0])
        with pytest.raises(vr.InputError, match="save: expected parameters that this rank has as a whole"):
            trainer.save("/nowhere")
        with pytest.raises(vr.ProgramError, match="expected only lookups of a table that ranks divide"):
            (model.table.weight * model.table.weight).sum().backward()

    run_ranks(2, run)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pytest.param("gloo", marks=GLOO), pytest.param("mpi", marks=MPI)])
def test_two_ranks_of_a_real_engine(engine, tmp_path):
    run_on(engine, 2, "-m", "tests.launched_tables", tmp_path)
    found = [np.load(tmp_path / f"rank{rank}.npz") for rank in range(2)]
    for name, make in OPTIMIZERS.items():
        layer, optimizer = trained(Communicator(), make)
        alone = {"weight": layer.weight.data} | optimizer.state_dict()
        for of in found:
            for key, array in alone.items():
                np.testing.assert_array_equal(of[f"{name} {key}"], array, err_msg=f"{name} {key}")
