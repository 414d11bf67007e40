"""One file, whole or not at all; a run that stopped and resumed continues bit for bit."""

import os

import numpy as np
import pytest
import safetensors.numpy

import varlen_rnn as vr
from varlen_rnn import checkpoint, random


def test_arrays_of_every_kind_come_back(tmp_path):
    base = np.arange(24.0).reshape(4, 6)
    arrays = {
        "plain": base,
        "fortran": np.asfortranarray(base),
        "strided": base[::2, ::3],
        "transposed": base.T,
        "number": np.array(3, np.int64),
        "empty": np.zeros((0, 3), np.float32),
        "flags": np.array([True, False]),
    }
    vr.save(tmp_path / "file", group=arrays, settings={"a": [1, "x", None]}, none={})
    loaded = vr.load(tmp_path / "file")
    assert loaded["settings"] == {"a": [1, "x", None]}
    assert loaded["none"] == {}
    for name, array in arrays.items():
        assert loaded["group"][name].dtype == array.dtype
        assert np.array_equal(loaded["group"][name], array)
        assert loaded["group"][name].shape == array.shape


def test_a_failing_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    vr.save(path, a={"x": np.ones(3)})
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        vr.save(path, a={"x": np.zeros(3)})
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\xff" * 64, "half", "truncated", "foreign"])
def test_damaged_and_foreign_files(tmp_path, damage):
    path = tmp_path / "file"
    vr.save(path, a={"x": np.ones(100)})
    whole = path.read_bytes()
    if damage == "foreign":
        safetensors.numpy.save_file({"x": np.ones(2)}, path)
    else:
        part = {"truncated": whole[:-8], "half": whole[: len(whole) // 2]}
        path.write_bytes(part[damage] if isinstance(damage, str) else damage)
    with pytest.raises(vr.CheckpointError, match="file"):
        vr.load(path)


NESTED = []
for _ in range(100_000):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    "groups",
    [
        {"a": object()},
        {"a": NESTED},
        {"a": {"x": [1.0], 2: np.ones(2)}},
        {"a": {1: np.ones(2)}},
        {"a": {"x": np.ones(2), 1: np.ones(2)}},
        {"a/b": {"c": np.ones(2)}, "a": {"b/c": np.zeros(2)}},
        {"a": {"x": np.array([1j])}},
        {"a": {"x": np.array(["text"])}},
        {"a": {"x": np.array([None])}},
        {"a": {"\ud800": np.ones(2)}},
    ],
    ids=[
        "object",
        "nested",
        "list beside array",
        "number",
        "mixed",
        "twice",
        "complex",
        "text",
        "objects",
        "surrogate",
    ],
)
def test_what_a_file_cannot_hold_is_an_error(tmp_path, groups):
    with pytest.raises(vr.CheckpointError):
        vr.save(tmp_path / "file", **groups)
    assert not list(tmp_path.iterdir())


def test_a_file_nested_too_deep_is_an_error(tmp_path):
    metadata = {checkpoint._FORMAT: "[" * 100_000}
    safetensors.numpy.save_file({}, tmp_path / "file", metadata)
    with pytest.raises(vr.CheckpointError, match="file"):
        vr.load(tmp_path / "file")


STATES = [None, 3, "ab", [("lr", 1.0)], {1: np.ones(2)}, {"lr": np.array(0.1), None: np.ones(2)}]


@pytest.mark.parametrize("state", [*STATES, {"weight": [[1.0], [2.0, 3.0]], "bias": np.ones(2, np.float32)}], ids=repr)
def test_states_of_a_module_that_are_no_dict_of_arrays(state):
    with pytest.raises(vr.CheckpointError, match="state_dict"):
        vr.nn.Linear(2, 2).load_state_dict(state, strict=False)


@pytest.mark.parametrize("state", [*STATES, *({"lr": np.array(lr)} for lr in (-1.0, np.nan, np.inf))], ids=repr)
def test_states_of_an_optimizer_that_are_no_dict_of_arrays(state):
    optimizer = vr.optim.SGD([vr.nn.Parameter([1.0])], lr=0.25)
    with pytest.raises(vr.CheckpointError, match="optimizer state"):
        optimizer.load_state_dict(state)
    assert optimizer.lr == 0.25


class Model(vr.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = vr.nn.Embedding(20, 6)
        self.lstm = vr.nn.LSTM(6, 5, num_layers=2, dropout=0.5, bidirectional=True)
        self.output = vr.nn.Linear(10, 3)

    def forward(self, ids):
        return self.output(vr.sequence_pool(self.lstm(self.embedding(ids))[0], "mean"))


@pytest.mark.parametrize("name", ["Adam", "Momentum", "Adagrad", "SGD"])
def test_a_resumed_run_continues_bit_for_bit(tmp_path, name):
    options = {"lazy": True} if name == "Adam" else {}
    sequences = [np.random.default_rng(k).integers(0, 20, k % 7) for k in range(24)]
    batches = vr.data.batches(sequences, np.arange(24) % 3, batch_size=6, shuffle=True, seed=1)

    def start():
        model = Model()
        return model, getattr(vr.optim, name)(model.parameters(), lr=0.05, **options)

    def train(model, optimizer, steps):
        losses = []
        for k in steps:
            ids, labels = batches.at_epoch(k // len(batches))[k % len(batches)]
            loss = vr.nn.functional.cross_entropy(model(ids), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    vr.manual_seed(0)
    model, optimizer = start()
    first = train(model, optimizer, range(5))
    path = tmp_path / "run"
    vr.save(path, model=model.state_dict(), optimizer=optimizer.state_dict(), random=random.get_state())
    rest = train(model, optimizer, range(5, 10))

    vr.manual_seed(99)
    again, resumed = start()
    state = vr.load(path)
    again.load_state_dict(state["model"])
    resumed.load_state_dict(state["optimizer"])
    random.set_state(state["random"])
    assert train(again, resumed, range(5, 10)) == rest
    assert len(set(first + rest)) == 10
    for key, value in model.state_dict().items():
        assert np.array_equal(value, again.state_dict()[key]), key


@pytest.mark.parametrize("content", [{1: "a", "1": "b"}, [{"deep": {2: 3}}], {None: 1}])
def test_names_that_json_would_confuse_are_an_error(tmp_path, content):
    with pytest.raises(vr.CheckpointError, match="no str"):
        vr.save(tmp_path / "file", group=content)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (
            {"w": {"b": np.ones(2)}},
            r"save, group\['w'\]\['b'\]: expected a value .*got an array of float64.*a dict of arrays only",
        ),
        ([1, {"a": np.ones(1)}], r"save, group\[1\]\['a'\]: .*an array of float64"),
        ({"w": np.ones(2), "n": vr.nn.Parameter(np.ones(2))}, r"group\['n'\]: expected an array.*got a Par.*numpy\(\)"),
        (
            {"w": np.ones(2), "epoch": 3},
            r"group\['epoch'\]: expected an array, because this dict has other arrays, got a int .*group of its own",
        ),
        ({"w": {1, 2}}, r"save, group\['w'\]: .*got a set"),
        ({"w": np.longdouble(1)}, r"save, group\['w'\]: .*longdouble"),
        (vr.nn.Linear(1, 1), r"save, group: .*got a Linear .*state_dict\(\)"),
        ({"w": np.ones(1, complex)}, "'group/w' is an array of complex128"),
        (np.ones(2), r"save, group: .*got an array of float64.*a dict of arrays only"),
    ],
)
def test_an_error_names_the_entry(tmp_path, group, message):
    with pytest.raises(vr.CheckpointError, match=message):
        vr.save(tmp_path / "file", group=group)
    assert not list(tmp_path.iterdir())


def test_lists_in_themselves_are_an_error(tmp_path):
    loop = []
    loop.append(loop)
    got = f"got more than {vr.checkpoint._MOST_DEPTH} lists or dicts inside of each other"
    with pytest.raises(vr.CheckpointError, match=rf"save, group\[0\]\[0\].*{got}"):
        vr.save(tmp_path / "file", group=loop)


def test_numbers_of_numpy_are_saved_as_pythons(tmp_path):
    vr.save(tmp_path / "file", loss=np.float32(0.5), history=[np.int64(2), np.bool_(True), np.float64(1.5)])
    assert vr.load(tmp_path / "file") == {"loss": 0.5, "history": [2, True, 1.5]}


def test_a_missing_folder_is_named_as_it_was_given(tmp_path):
    path = tmp_path / "none" / "model.safetensors"
    with pytest.raises(FileNotFoundError) as error:
        vr.save(path, epoch=1)
    assert error.value.filename == str(path)


def test_equal_contents_are_equal_files(tmp_path):
    for number in range(8):  # the order of a header's entries would differ by chance
        vr.save(tmp_path / str(number), model={"b": np.ones(3), "a": np.zeros(2)}, epoch=1, name="x")
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            (vr.nn.Linear(2, 1).state_dict(), "file"),
            r"save: expected a path, and then groups.*got a dict first, .*save\(path,",
        ),
        (
            ("file", vr.nn.Linear(2, 1).state_dict()),
            r"save: expected a path, and then groups.*model=model\.state_dict\(\)",
        ),
        ((vr.nn.Linear(2, 1), "file"), "got a Linear first"),
    ],
)
def test_arguments_of_torch_save_are_put_right(given, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=message) as caught:
        vr.save(*given)
    assert isinstance(caught.value, vr.InputError)
    assert not list(tmp_path.iterdir())
