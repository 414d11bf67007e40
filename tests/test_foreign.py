"""Names, calls and arguments of PyTorch and NumPy that are not here are answered with what to write instead."""

import contextlib
import importlib

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn import foreign, nn
from varlen_rnn.nn import functional as F

MODULES = [importlib.import_module(name) for name in foreign.MODULES]
ENTRIES = [
    (name, here)
    for names in (foreign.METHODS, foreign.FUNCTIONS, *foreign.MODULES.values())
    for name, here in names.items()
]


def given():
    """Return the names that hints use, with values."""
    x = vr.Variable(np.random.default_rng(0).random((4, 4), np.float32) + 0.5).with_lod([[0, 1, 4]])
    y = vr.Variable(np.full((4, 4), 2.0, np.float32))
    parameter, model = nn.Parameter(np.zeros(3)), nn.Linear(4, 2)
    parameter.grad = np.array([-3.0, 0.5, 2.0])
    numbers = {"min": 0.0, "max": 1.0, "number": 2.0, "exponent": 2.0, "p": 0.5, "max_norm": 1.0}
    numbers |= {
        "axis": 1,
        "axis0": 0,
        "axis1": 1,
        "size": 4,
        "k": 2,
        "count": 2,
        "start": 0,
        "stop": 3,
        "seed": 0,
        "rank": 0,
    }
    layers = {
        "parameter": parameter,
        "parameters": [parameter],
        "model": model,
        "table": nn.Embedding(4, 2),
        "name": "w",
    }
    return vars(vr) | numbers | layers | {
        "np": np, "varlen_rnn": vr, "x": x, "y": y, "mask": x > 1.0, "weight": y, "bias": y[0], "variables": [x, x],
        "targets": y / 8.0, "logits": x, "labels": np.arange(4), "loss": nn.Linear(4, 1)(x).sum(), "num_heads": 2,
        "ids": vr.LoDTensor(np.array([1, 0, 1]), [[0, 1, 3]]), "indices": [0], "array": np.ones(3), "shape": (2, 8),
        "optimizer": vr.optim.SGD(model.parameters(), 0.1), "dtype": np.float64, "weights": np.ones(4),
        "sequences": [[1.0, 2.0], [3.0], [], [4.0]],
        "dataset": vr.data.Dataset("two", [np.array([1]), np.array([1])], None, ["<unk>", "a"], []),
    }  # fmt: skip


@pytest.mark.parametrize(("name", "here"), ENTRIES)
def test_every_hint_runs(name, here):
    for way in here.partition(", because ")[0].split(", or "):
        no_gpu = contextlib.suppress(vr.InputError) if '"cuda"' in way else contextlib.nullcontext()
        with np.errstate(invalid="ignore"), no_gpu:
            exec(way, given())


def test_names_that_are_here_get_no_hint():
    for name in foreign.METHODS:
        assert not hasattr(vr.Variable, name), name
    for module in MODULES:
        assert not [name for name in foreign.MODULES[module.__name__] if hasattr(module, name)]
    assert not [name for name in foreign.FUNCTIONS if name in {*vr.__all__, *F.__all__, *nn.__all__}]


@pytest.mark.parametrize(
    ("module", "name", "here"),
    [
        (vr, "cat", r"nn.functional.concat\(variables, axis\)"),
        (vr, "tanh", "nn.functional.tanh"),
        (vr, "LSTM", "nn.LSTM"),
        (vr, "Adam", "optim.Adam"),
        (vr, "from_numpy", r"Variable\(array\)"),
        (vr, "inference_mode", r"no_grad\(\)"),
        (vr, "sklearn_", None),
        (nn, "Identity", r"nn.Sequential\(\)"),
        (nn, "CrossEntropyLoss", "nn.functional.cross_entropy"),
        (nn, "utils", "optim.clip_grad_norm_"),
        (F, "pad", "sequence_pad"),
        (F, "dog", None),
        (vr.optim, "StepLR", "optim.lr_scheduler.StepLR"),
        (vr.optim, "clip_grad_value_", "for p in parameters"),
        (vr.metrics, "Precision", "counts = metrics.ConfusionMatrix"),
        (vr.data, "DataLoader", r"data.batches\("),
    ],
)
def test_a_module_answers_a_foreign_name(module, name, here):
    hint = "$" if here is None else rf" \(write {here}"
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute '{name}'{hint}"):
        getattr(module, name)
    assert not hasattr(module, name)
    assert name not in dir(module)


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("view", r"x.reshape\(shape\)"), ("flatten", r"x.reshape\(-1\)"), ("permute", r"x.transpose\(axis0, axis1\)"),
        ("clamp", r"x.clip\(min, max\)"), ("float", r"x.astype\(np.float32\)"), ("amax", r"x.max\(axis\)"),
        ("topk", r"nn.functional.topk\(x, k, axis\)"), ("softmax", r"nn.functional.softmax\(x\)"),
    ],
)  # fmt: skip
def test_a_variable_answers_a_foreign_method(name, here):
    x = vr.Variable(np.ones((2, 3)))
    with pytest.raises(AttributeError, match=rf"'Variable' object has no attribute '{name}' \(write {here}"):
        getattr(x, name)
    assert not hasattr(x, name)
    assert getattr(nn.Parameter([1.0]), name, None) is None


@pytest.mark.parametrize("made", [lambda: vr.Variable([1.0]), lambda: nn.Parameter([1.0])])
def test_names_that_only_answer_with_a_hint_are_not_listed(made):
    x = made()
    assert {"shape", "reshape", "sum", "numpy"} <= set(dir(x))
    assert not foreign.METHODS.keys() & set(dir(x)) - {"data"}
    assert ("data" in dir(x)) == isinstance(x, nn.Parameter)


def test_the_size_of_pytorch_is_named():
    x = vr.Variable(np.ones((2, 3)))
    assert x.size == 6
    for call in (lambda: x.size(), lambda: x.size(0)):
        with pytest.raises(TypeError, match=r"Variable.size is the number of elements, as in NumPy \(write x.shape"):
            call()


def test_an_assignment_to_an_item_is_answered_with_a_way_to_replace_it():
    x = vr.Variable([1.0, 2.0])
    with pytest.raises(vr.DTypeError, match=r"x\[...\] = value: .* \(functional.where\(mask, value, x\) replaces"):
        x[0] = 1.0
    assert x.numpy().tolist() == [1.0, 2.0]
