"""Tables over memory maps: shared, larger than memory, of more than 2**31 elements; and tables of float16."""

import os

import numpy as np
import pytest

import varlen_rnn as vr
from tests.test_array_file import LINUX, in_limits
from varlen_rnn.nn import functional as F
from varlen_rnn.runtime.maps import map_of

BIG = 2**31 + 1000  # more than an int32 counts


@pytest.fixture
def sparse_file(tmp_path):
    """Return a function that makes a map of zeros, whose file takes no space before it is written to."""

    def make(shape, dtype=np.float32):
        path = tmp_path / f"table {len(os.listdir(tmp_path))}"
        return np.memmap(path, dtype, "w+", shape=shape)

    yield make
    used = sum((tmp_path / name).stat().st_blocks for name in os.listdir(tmp_path)) * 512
    assert used < 2**25, "files stay sparse"


OF_LISTED_ROWS = {
    "sgd": lambda p: vr.optim.SGD(p, lr=0.5),
    "adagrad": lambda p: vr.optim.Adagrad(p, lr=0.5),
    "lazy adam": lambda p: vr.optim.Adam(p, lr=0.5, lazy=True),
}


def trained(layer, make, ids):
    optimizer = make([layer.weight])
    weights = np.random.default_rng(0).standard_normal((len(ids), layer.embedding_dim)).astype(np.float32)
    for _ in range(2):
        optimizer.zero_grad()
        (layer(ids) * weights).sum().backward()
        vr.optim.clip_grad_norm_([layer.weight], 1.0)
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("make", OF_LISTED_ROWS.values(), ids=OF_LISTED_ROWS)
@pytest.mark.parametrize("shape", [(BIG, 1), (BIG // 64, 64)], ids=["rows", "elements"])
def test_lookups_and_updates_beyond_two_to_the_31(sparse_file, shape, make):
    """The same numbers as of a small table with the same rows."""
    height, width = shape
    table, small = sparse_file(shape), np.zeros((4, width), np.float32)
    table[height - 1] = small[3] = np.arange(width)
    table[height - 5] = small[2] = 1
    ids = np.array([3, 0, 2, 3, 3])
    far = np.array([0, 7, height - 5, height - 1])[ids]
    mapped = vr.nn.Embedding.from_pretrained(table, freeze=False)
    assert np.array_equal(np.asarray(mapped(far)), small[ids])
    usual = vr.nn.Embedding.from_pretrained(small.copy(), freeze=False)
    trained(mapped, make, far), trained(usual, make, ids)
    assert not np.array_equal(usual.weight.data, small)
    assert np.array_equal(table[[0, 7, height - 5, height - 1]], usual.weight.data)


def test_ids_of_every_type_reach_beyond_two_to_the_31(sparse_file):
    table = sparse_file((BIG, 1))
    table[2**31 + 5] = 3
    layer = vr.nn.Embedding.from_pretrained(table)
    for kind in (np.uint32, np.int64, np.uint64):
        assert np.asarray(layer(np.array([2**31 + 5], kind))).ravel().tolist() == [3]
    with pytest.raises(vr.errors.OutOfRangeError):
        layer(np.array([BIG], np.uint32))
    with pytest.raises(vr.errors.OutOfRangeError):
        layer(np.array([2**31 + 5 - 2**32], np.int64))


def test_a_program_looks_up_and_updates_beyond_two_to_the_31(sparse_file):
    table = sparse_file((BIG, 1))
    table[BIG - 1] = 3
    weight = vr.nn.Parameter(table, copy=False)
    with vr.program_guard() as recorded:
        ids = vr.feed_data("ids", [-1], "int64")
        loss = F.embedding(ids, weight, sparse=True).sum()
        vr.optim.SGD([weight], lr=1.0).minimize(loss)
    assert vr.Executor().run(recorded, {"ids": np.array([BIG - 1])}, [loss])[0].item() == 3
    assert table[BIG - 1] == 2


def test_batches_of_sequences_beyond_row_two_to_the_31(sparse_file):
    rows = sparse_file((BIG, 1), np.uint8)
    rows[BIG - 1] = 7
    x = vr.LoDTensor(rows, [[0, 2**31 - 5, 2**31 + 7, BIG]])
    batch = vr.data.batches(x, batch_size=2, bucket=True)[0]
    assert batch.lod() == [[0, 12, 12 + 993]]
    assert batch.data[-1] == 7


def test_a_table_over_a_map_is_saved_and_loaded_between_maps(sparse_file, tmp_path):
    def table():
        return vr.nn.Embedding.from_pretrained(sparse_file((1000, 8)), freeze=False)

    first, second = table(), table()
    optimizers = [
        trained(first, OF_LISTED_ROWS["adagrad"], np.array([1, 999])),
        vr.optim.Adagrad([second.weight], lr=0.5),
    ]
    assert map_of(first.state_dict()["weight"]) is None
    assert map_of(first.state_dict(copy=False)["weight"]) is not None
    moment = optimizers[0].state_dict(copy=False)["0.moment"]
    assert map_of(moment) is not None
    vr.save(tmp_path / "file", model=first.state_dict(copy=False), optimizer=optimizers[0].state_dict(copy=False))
    saved = vr.load(tmp_path / "file", mmap=True)
    second.load_state_dict(saved["model"])
    optimizers[1].load_state_dict(saved["optimizer"])
    assert np.array_equal(second.weight.data, first.weight.data)
    assert map_of(second.weight.data) is not map_of(saved["model"]["weight"])
    state = optimizers[1].state_dict(copy=False)["0.moment"]
    assert map_of(state) is not None
    assert np.array_equal(state, moment)
    assert moment[1].any()


@LINUX
def test_a_table_larger_than_the_memory_is_trained_saved_and_loaded(tmp_path):
    """Private memory is bounded by half of the table: a copy would be refused."""
    in_limits("""
shape = (megabytes * 2**12, 64)
def table(name):
    return vr.nn.Embedding.from_pretrained(np.memmap(path + name, np.float32, "w+", shape=shape), freeze=False)

def step(layer, optimizer):
    layer.weight.grad = None
    (layer(ids) * layer(ids)).sum().backward()
    vr.optim.clip_grad_norm_([layer.weight], 1.0)
    optimizer.step()

ids = np.array([5, shape[0] - 1])
small, more = vr.nn.Embedding(shape[0], 1), ids
ids = np.array([5, 5])
step(small, vr.optim.Adagrad([small.weight])), small.prepare()  # compiles
ids = more
layer, again = table("a"), table("b")
layer.weight.data[ids] = 1
limit(2**25)
optimizers = [vr.optim.Adagrad([x.weight], lr=0.5) for x in (layer, again)]
step(layer, optimizers[0])
states = [x.state_dict(copy=False) for x in (layer, optimizers[0])]
vr.save(path, model=states[0], optimizer=states[1])
saved = vr.load(path, mmap=True)
again.load_state_dict(saved["model"])
optimizers[1].load_state_dict(saved["optimizer"])
assert (again.weight.data[ids] == layer.weight.data[ids]).all() and (layer.weight.data[ids] != 1).all()
step(layer, optimizers[0]), step(again, optimizers[1])
assert (again.weight.data[ids] == layer.weight.data[ids]).all()
run = layer.prepare()
assert (np.asarray(run(ids)) == layer.weight.data[ids]).all()
""", tmp_path / "file", 64)  # fmt: skip


def test_trainers_write_and_read_maps(sparse_file, tmp_path):
    def trainer():
        model = vr.nn.Sequential(
            vr.nn.Embedding.from_pretrained(sparse_file((50, 2)), freeze=False), vr.nn.Linear(2, 1)
        )
        optimizer = vr.optim.Adagrad(model.parameters(), lr=0.1)
        loss = lambda ids: (model(ids) * model(ids)).mean()
        return vr.training.Trainer(model, optimizer, loss, lambda epoch: [np.arange(5), np.arange(3, 9)])

    vr.manual_seed(0)
    first, second = trainer(), trainer()
    first.fit(steps=3)
    first.save(tmp_path / "run")
    second.load(tmp_path / "run")
    first.fit(steps=6), second.fit(steps=6)
    for name, value in first.model.state_dict().items():
        assert np.array_equal(value, second.model.state_dict()[name])


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_parameter_has_the_memory_that_it_was_given(sparse_file, mode):
    path = sparse_file((10, 2)).filename
    table = np.memmap(path, np.float32, mode, shape=(10, 2))
    assert np.shares_memory(vr.nn.Parameter(table, requires_grad=False, copy=False).data, table)
    assert not np.shares_memory(vr.nn.Parameter(table).data, table)
    if mode == "r":
        with pytest.raises(vr.ShapeError, match="read-only"):
            vr.nn.Parameter(table, copy=False)


@pytest.mark.parametrize(
    "array",
    [[1.0], np.zeros((2, 3)).T, np.zeros(3, ">f4"), np.zeros(3, int), np.zeros(13, np.uint8)[1:].view(np.float32)],
    ids=["a list", "strides", "another byte order", "integers", "not aligned"],
)
def test_what_a_parameter_cannot_share_is_an_error(array):
    with pytest.raises((vr.DTypeError, vr.ShapeError), match="Parameter"):
        vr.nn.Parameter(array, copy=False)


@pytest.mark.parametrize("shape", [(3,), (2, 2, 2), (0, 3), (3, 0)])
def test_what_is_no_table_is_an_error(shape):
    with pytest.raises(vr.ShapeError, match="from_pretrained"):
        vr.nn.Embedding.from_pretrained(np.zeros(shape))


def test_a_pretrained_padding_row_keeps_its_numbers_and_is_not_trained():
    table = np.ones((3, 2))
    layer = vr.nn.Embedding.from_pretrained(table, freeze=False, padding_idx=-1)
    layer(np.array([2, 0])).sum().backward()
    vr.optim.SGD([layer.weight], lr=1.0).step()
    assert table.tolist() == [[0, 0], [1, 1], [1, 1]]
    with pytest.raises(vr.errors.OutOfRangeError):
        vr.nn.Embedding.from_pretrained(table, padding_idx=3)


def test_a_frozen_table_is_left_alone():
    table = np.ones((3, 2), np.float32)
    table.flags.writeable = False
    model = vr.nn.Sequential(vr.nn.Embedding.from_pretrained(table), vr.nn.Linear(2, 1))
    optimizer = vr.optim.SGD(model.parameters(), lr=1.0)
    optimizer.minimize(model(np.array([0, 2])).sum())
    assert (table == 1).all()
    model.parameters()[0].requires_grad = True
    with pytest.raises(vr.ShapeError, match="updated in place"):
        optimizer.minimize(model(np.array([0, 2])).sum())


def half():
    return np.arange(6, dtype=np.float16).reshape(3, 2) / 3


def test_rows_of_float16_come_out_as_float32():
    table, ids = half(), vr.create_lod_tensor(np.array([2, 0, 2]), [[1, 2]])
    layer = vr.nn.Embedding.from_pretrained(table)
    rows = layer(ids)
    assert rows.dtype == np.float32
    assert rows.lod() == [[0, 1, 3]]
    assert np.array_equal(np.asarray(rows.value.data), table[[2, 0, 2]].astype(np.float32))
    assert F.embedding(ids, table).dtype == np.float16, "the function returns rows of the table"
    model = vr.nn.Sequential(layer, vr.nn.Linear(2, 1))
    optimizer = vr.optim.Adam(model.parameters())
    optimizer.minimize(model(np.array([0, 1])).sum())
    assert np.array_equal(table, half())


def test_training_a_table_of_float16_is_refused():
    with pytest.raises(vr.DTypeError, match="float16 would round small updates to 0"):
        vr.nn.Embedding.from_pretrained(half(), freeze=False)
    with pytest.raises(vr.DTypeError, match="float16 would round small updates to 0"):
        vr.nn.Parameter(half())
    with pytest.raises(vr.DTypeError, match="got float16"):
        vr.nn.Embedding(3, 2, dtype=np.float16)
    layer = vr.nn.Embedding.from_pretrained(half())
    optimizer = vr.optim.SGD([layer.weight], lr=1.0)
    layer.weight.requires_grad = True
    with pytest.raises(vr.DTypeError, match="float16 would round small updates to 0"):
        layer(np.array([1]))
    with pytest.raises(vr.DTypeError, match="float32 or float64, got float16"):
        F.embedding(np.array([1]), layer.weight).sum().backward()
    layer.weight.grad = np.ones((3, 2), np.float16)
    with pytest.raises(vr.DTypeError, match="float32 or float64, got float16"):
        optimizer.step()


def test_a_program_with_a_table_of_float16_is_saved(tmp_path):
    layer = vr.nn.Embedding.from_pretrained(half())
    with vr.program_guard() as recorded:
        ids = vr.feed_data("ids", [-1], "int64")
        rows = layer(ids)
    recorded.save(tmp_path / "program")
    again = vr.Program.load(tmp_path / "program")
    got = vr.Executor().run(again, {"ids": np.array([1])}, [rows.name])[0]
    assert np.array_equal(np.asarray(got), half()[[1]].astype(np.float32))
