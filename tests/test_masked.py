"""Masked entries are refused wherever values come in: as plain numbers, what stands behind the mask would be used."""

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

X = np.zeros((5, 3), np.float32)
H = np.zeros((1, 2, 4), np.float32)
LENGTHS = [[2, 3]]


def rows():
    return vr.create_lod_tensor(X, LENGTHS)


def variable():
    return vr.Variable(X)


def in_program(value):
    with vr.program_guard() as program:
        y = vr.feed_data("x", [-1, 3], "float32") * 2.0
    return vr.Executor().run(program, {"x": value}, [y])


def step(value):
    parameter = vr.nn.Parameter(X)
    parameter.grad = value
    vr.optim.SGD([parameter], 0.1).step()


def clip(value):
    parameter = vr.nn.Parameter(X)
    parameter.grad = value
    vr.optim.clip_grad_norm_([parameter], 1.0)


def state_of_an_optimizer(value):
    optimizer = vr.optim.Momentum([vr.nn.Parameter(X)], 0.1)
    optimizer.load_state_dict({"lr": np.array(0.1), "0.velocity": value})


def declared(result):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vr.tape.operator, "OPERATORS", dict(vr.tape.operator.OPERATORS))
        made = vr.operator(lambda x: result, name="of_masked_entries")
        made.infer(lambda x: x)
        return made(X)


# By name: what takes an array, and one that it takes.
PLACES = {
    "LoDTensor": (vr.LoDTensor, X),
    "create_lod_tensor": (lambda a: vr.create_lod_tensor(a, LENGTHS), X),
    "lengths": (lambda a: vr.create_lod_tensor(X, [a]), np.array([2, 3])),
    "offsets": (lambda a: vr.LoD([a]), np.array([0, 2, 5])),
    "from_sequences": (lambda a: vr.LoDTensor.from_sequences([a]), X),
    "indices": (lambda a: rows()[a], np.array([0, 1])),
    "plan": (vr.sort_by_seq_len, np.array([0, 2, 5])),
    "Variable": (vr.Variable, X),
    "left operand": (lambda a: a + variable(), X),
    "right operand": (lambda a: variable() + a, X),
    "index": (lambda a: variable()[a], np.array([0, 1])),
    "gradient": (lambda a: (vr.nn.Parameter(X) * 2.0).backward(a), X),
    "SelectedRows, rows": (lambda a: vr.SelectedRows(a, X[:2], 9), np.array([0, 1])),
    "SelectedRows, value": (lambda a: vr.SelectedRows([0, 1, 2, 3, 4], a, 9), X),
    "batches": (lambda a: vr.data.batches([a], batch_size=1), X),
    "labels": (lambda a: vr.data.batches([[1], [2]], a, batch_size=1), np.array([0, 1])),
    "labels of rows": (lambda a: vr.data.batches([X], [a], batch_size=1), np.arange(5)),
    "take": (vr.data.from_texts(["a", "b"]).take, np.array([0, 1])),
    "labels of a data set": (lambda a: vr.data.Dataset("one", [X], a, [], []), np.array([0])),
    "feed": (in_program, X),
    "values_to_bytes": (lambda a: vr.values_to_bytes({"x": a}), X),
    "initial state": (lambda a: vr.nn.GRU(3, 4)(rows(), a), H),
    "initial states": (lambda a: vr.nn.LSTM(3, 4)(rows(), (H, a)), H),
    "boot of DynamicRNN": (lambda a: vr.nn.DynamicRNN(lambda x, s: (x, s))(rows(), [a]), H[0]),
    "padded": (lambda a: vr.baselines.Padded(vr.nn.GRU(3, 4))(rows(), a), H),
    "Parameter": (vr.nn.Parameter, X),
    "assign": (vr.nn.Parameter(X).assign, X),
    "load_state_dict": (lambda a: vr.nn.Linear(3, 5, bias=False).load_state_dict({"weight": a}), X),
    "state of an optimizer": (state_of_an_optimizer, X),
    "step": (step, X),
    "clip_grad_norm_": (clip, X),
    "targets": (lambda a: F.mse_loss(X, a), X),
    "classes": (lambda a: F.cross_entropy(X, a), np.zeros(5, np.int64)),
    "ids": (vr.nn.Embedding(9, 2), np.array([1, 2])),
    "result of an operator": (declared, X),
}


def masked(array, entries):
    return np.ma.masked_array(array, np.arange(array.size).reshape(array.shape) < entries)


@pytest.mark.parametrize("name", PLACES)
def test_masked_entries_are_refused_and_a_mask_of_none_is_not(name):
    take, array = PLACES[name]
    take(array)
    take(masked(array, 0))
    with pytest.raises(vr.InputError, match=r"(?i)masked"):
        take(masked(array, 1))


@pytest.mark.parametrize("group", [{"weight": masked(X, 1)}, masked(X, 1)], ids=["a dict of arrays", "an array"])
def test_they_are_not_saved(group, tmp_path):
    with pytest.raises(vr.InputError):
        vr.save(tmp_path / "a", group=group)
    assert not list(tmp_path.iterdir())


def test_nor_in_lists():
    with pytest.raises(vr.DTypeError, match="without masked entries"):
        vr.Variable([[masked(X, 1)]])
