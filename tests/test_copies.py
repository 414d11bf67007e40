"""A pickled or deep-copied object of a public class works like the first, or an error of ours says what to pickle."""

import copy
import inspect
import pickle
import types

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.rows.lod import NO_LOD
from varlen_rnn.training import EarlyStopping

X = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)


def rows():
    return vr.create_lod_tensor(X, [[2, 3]])


def model_with_an_output():
    model = vr.nn.Linear(3, 2)
    model.last = model(rows())
    return model


def program():
    with vr.program_guard() as found:
        x = vr.feed_data("x", [-1, 3], "float32", lod_level=1)
        vr.nn.Linear(3, 2)(x).sum()
    return found


def shuffled():
    return vr.data.batches([[1], [2, 3], [4]], np.arange(3), batch_size=2, shuffle=True, seed=4)


COPIED = {
    "LoD": (lambda: rows().structure, lambda lod: lod.offsets()),
    "LoDTensor": (rows, lambda x: [x.data, *x.lod()]),
    "SortedSeqs": (lambda: vr.sort_by_seq_len(rows().structure), lambda plan: plan.offsets),
    "SelectedRows": (lambda: vr.SelectedRows([0], np.ones((1, 2)), 3), lambda x: x.to_dense()),
    "Variable": (lambda: vr.Variable(rows(), requires_grad=True), lambda x: x.numpy()),
    "TensorSpec": (lambda: vr.TensorSpec((2,), np.dtype("f")), str),
    "ShapeError": (lambda: vr.ShapeError("x", expected="a", got="b"), str),
    "nn.Linear": (lambda: vr.nn.Linear(3, 2), lambda layer: layer(rows()).numpy()),
    "nn.LSTM": (lambda: vr.nn.LSTM(3, 2), lambda layer: layer(rows())[0].numpy()),
    "nn.Stateful": (lambda: vr.nn.Stateful(vr.nn.GRU(3, 2)), lambda layer: layer.layer(rows())[0].numpy()),
    "baselines.Padded": (lambda: vr.baselines.Padded(vr.nn.GRU(3, 2)), lambda layer: layer(rows())[0].numpy()),
    "cells.Cell": (lambda: vr.cells.LSTM, lambda cell: cell.source),
    "data.Batches": (shuffled, lambda batches: [np.concatenate([x.data, y]) for _ in "ab" for x, y in batches]),
    "data.Batches of a part": (lambda: shuffled().part(1, 2), lambda batches: [x.data for x, _ in batches]),
    "data.Dataset": (lambda: vr.data.from_texts(["ab", "c"], ["x", "y"]), lambda data: [*data.sequences, data.labels]),
    "data.StepCost": (lambda: vr.data.STEP_COST, str),
    "metrics.Accuracy": (vr.metrics.Accuracy, lambda one: sorted(vars(one))),
    "optim.Adam": (lambda: vr.optim.Adam(vr.nn.Linear(1, 1).parameters()), lambda one: sorted(one.state_dict())),
    "optim.AveragedModel": (lambda: vr.optim.AveragedModel(vr.nn.Linear(3, 2)), lambda one: sorted(one.state_dict())),
    "training.EarlyStopping": (lambda: EarlyStopping("loss"), lambda one: one.monitor),
    "Program": (program, lambda one: [*vr.Executor().run(one, {"x": rows()}, ["reduce_sum"])]),
    "ProgramDesc": (lambda: program().desc, str),
    "Executor": (vr.Executor, lambda one: type(one).__name__),
}  # fmt: skip


def flat(found):
    return [np.asarray(part) for part in (found if isinstance(found, (list, tuple)) else [found])]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("name", COPIED)
def test_a_copy_is_like_the_first(name, way):
    make, uses = COPIED[name]
    first = make()
    again = way(first)
    assert type(again) is type(first)
    for ours, wanted in zip(flat(uses(again)), flat(uses(first)), strict=True):
        np.testing.assert_array_equal(ours, wanted)


REFUSED = {
    "an output": (lambda: vr.nn.Linear(3, 2)(rows()), r"got a computed Variable of shape \(5, 2\) \(copy y.detach\(\)"),
    "a list of outputs": (lambda: [vr.nn.LSTM(3, 2)(rows())], "a computed Variable"),
    "a module with an output": (model_with_an_output, r"a computed Variable.*delete it: del module\.y"),
}


@pytest.mark.parametrize("way", [copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("name", REFUSED)
def test_what_holds_records_says_what_to_copy(name, way):
    make, message = REFUSED[name]
    with pytest.raises(vr.ProgramError, match=rf"pickle or deep copy: expected a leaf, .*{message}"):
        way(make())


def test_a_variable_of_a_program_says_what_to_copy():
    with vr.program_guard():
        y = vr.feed_data("x", [-1, 3], "float32") * 2.0
        for way in (copy.deepcopy, pickle.dumps):
            with pytest.raises(vr.ProgramError, match=r"got a variable of a program \(program.to_bytes"):
                way(y)


def test_copied_parameters_have_the_lod_that_all_arrays_share():
    """A program with another LoD is not bound."""
    for copied in (copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))):
        assert copied(vr.nn.Linear(3, 2)).weight.value.structure is NO_LOD


def test_prepared_layers_and_streams_are_copied_but_not_pickled():
    layer = vr.nn.GRU(3, 2)
    prepared, stream = layer.prepare(), layer.stream(2)
    first = prepared(X, offsets=[0, 5])[0]
    stream(X[:2])
    again, other = copy.deepcopy(prepared), copy.deepcopy(stream)
    np.testing.assert_array_equal(again(X, offsets=[0, 2, 5])[0], layer(rows())[0].numpy())
    np.testing.assert_array_equal(prepared(X, offsets=[0, 5])[0], first)
    np.testing.assert_array_equal(other(X[3:]), stream(X[3:]))
    other(X[:2])
    other.reset()
    assert stream.states.any()
    assert not other.states.any()
    for one in (prepared, stream):  # in another process, the addresses that they hold would be wrong
        with pytest.raises(vr.ProgramError, match=r"pickle the layer itself, and call prepare\(\) or stream\(\)"):
            pickle.dumps(one)


def test_a_copied_program_has_its_own_numbers():
    first = program()
    again = copy.deepcopy(first)
    (name,) = [name for name in first.persistables if first.persistables[name].data.ndim == 2]
    again.persistables[name].data[...] = 0
    assert first.persistables[name].data.any()


def public_classes():
    """Return the public classes, by name, of the package and its public modules."""
    found = {}
    for name in vr.__all__:
        one = getattr(vr, name)
        names = one.__all__ if isinstance(one, types.ModuleType) and hasattr(one, "__all__") else []
        found |= {f"{name}.{inside}": getattr(one, inside) for inside in names} | {name: one}
    return {name: one for name, one in found.items() if inspect.isclass(one)}


LIKE_OTHERS = (vr.nn.Module, vr.InputError, vr.metrics.Metric, vr.optim.Optimizer)


def test_every_other_public_class_has_no_locks_or_local_functions():
    """Those above are of every kind; of the others, classes are subclasses of them, descriptions, or interfaces."""
    tried = {name.partition(" ")[0] for name in COPIED}
    others = {name for name, one in public_classes().items() if name not in tried and not issubclass(one, LIKE_OTHERS)}
    known = {
        "BlockDesc", "GradientReport", "LoDTensorDesc", "OpDesc", "PaddingReport", "SortedSeqItem", "TensorDesc",
        "VarDesc", "VarType", "cells.Phase", "cells.Row", "distributed.Communicator", "distributed.MpiCommunicator",
        "distributed.Replica", "distributed.ReplicatedProgram", "distributed.Shard", "distributed.TorchCommunicator",
        "nn.ModelSummary", "nn.Buffer", "nn.Parameter", "training.Averaging", "training.Bound", "training.Callback",
        "training.Checkpoints", "training.JSONLog", "training.Progress", "training.Schedule", "training.Trainer",
        "nn.KenLM",  # in test_ken_lm.py
    }  # fmt: skip
    assert others - known == set()
