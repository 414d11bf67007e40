"""Names, calls and arguments of PyTorch and NumPy that are not here are answered with what to write instead."""

import contextlib
import importlib
import inspect

import numpy as np
import pytest

import varlen_rnn as vr
from tests.each import check_each
from varlen_rnn import foreign, nn
from varlen_rnn.cells.derivation import trace
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
    numbers = {"min": 0.0, "max": 1.0, "number": 2.0, "exponent": 2.0, "max_norm": 1.0, "num_heads": 2, "rank": 0}
    numbers |= {"axis": 1, "axis0": 0, "axis1": 1, "size": 4, "k": 2, "count": 2, "stop": 3, "seed": 0}
    layers = {"parameter": parameter, "parameters": [parameter], "model": model}
    return vars(vr) | numbers | layers | {
        "np": np, "varlen_rnn": vr, "x": x, "y": y, "mask": x > 1.0, "weight": y, "bias": y[0], "variables": [x, x],
        "targets": y / 8.0, "logits": x, "labels": np.arange(4), "loss": nn.Linear(4, 1)(x).sum(),
        "ids": vr.LoDTensor(np.array([1, 0, 1]), [[0, 1, 3]]), "array": np.ones(3), "shape": (2, 8),
        "optimizer": vr.optim.SGD(model.parameters(), 0.1), "dtype": np.float64,
        "sequences": [[1.0, 2.0], [3.0], [], [4.0]],
        "dataset": vr.data.Dataset("two", [np.array([1]), np.array([1])], None, ["<unk>", "a"], []),
    }  # fmt: skip


# The error of a hint with this text if CUDA or PyTorch is missing.
WITHOUT = {'"cuda"': vr.InputError, "varlen_rnn.torch": ModuleNotFoundError}


def test_every_hint_runs():
    def run(entry):
        for way in entry[1].partition(", because ")[0].split(", or "):
            lacking = tuple(error for part, error in WITHOUT.items() if part in way)
            with np.errstate(invalid="ignore"), contextlib.suppress(*lacking):
                exec(way, given())

    check_each(ENTRIES, run)


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
        (vr, "sum", r"x.sum\(\.\.\.\)"),
        (vr, "squeeze", r"x.squeeze\(\.\.\.\)"),
        (vr, "T", None),
        (vr, "sklearn_", None),
        (vr, "__add__", None),
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


# Arguments.

SIZES = {"input_size": 3, "hidden_size": 4}
WITH_POSITIONS = {
    nn.LSTM: ["input_size", "hidden_size", "num_layers", "bias"],
    nn.GRU: ["input_size", "hidden_size", "num_layers", "bias"],
    nn.RNN: ["input_size", "hidden_size", "num_layers", "nonlinearity", "bias"],
    nn.LSTMCell: ["input_size", "hidden_size", "bias"],
    nn.GRUCell: ["input_size", "hidden_size", "bias"],
    nn.RNNCell: ["input_size", "hidden_size", "bias", "nonlinearity"],
}  # As in PyTorch, whose recurrent layers hide their signature.
# What both libraries have, by other names.
RENAMED = {
    "axis": "dim", "entries": "modules", "features": "normalized_shape", "ids": "input", "labels": "target",
    "logits": "input", "parameters": "params", "table": "weight", "targets": "target", "x": "input",
}  # fmt: skip


def positions(function):
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds]


@pytest.mark.parametrize("layer", WITH_POSITIONS, ids=lambda layer: layer.__name__)
def test_recurrent_layers_take_positions_of_pytorch(layer):
    assert positions(layer) == WITH_POSITIONS[layer]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        *((nn, name) for name in ("BatchNorm1d", "CTCLoss", "Dropout", "ELU", "Embedding", "GELU", "LayerNorm")),
        *((nn, name) for name in ("LeakyReLU", "Linear", "MultiheadAttention", "Softplus")),
        *((F, name) for name in ("dropout", "elu", "embedding", "huber_loss", "leaky_relu", "normalize")),
        *((vr.optim, name) for name in ("SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "RMSprop")),
        *((vr.optim.lr_scheduler, name) for name in vr.optim.lr_scheduler.__all__ if name != "LRScheduler"),
    ],
)
def test_positions_mean_what_they_mean_in_pytorch(module, name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    theirs = {nn: torch.nn, F: torch.nn.functional, vr.optim: torch.optim}.get(module, torch.optim.lr_scheduler)
    found = [RENAMED.get(name, name) for name in positions(getattr(module, name))]
    assert found == positions(getattr(theirs, name))[: len(found)]


X = vr.create_lod_tensor(np.ones((3, 3), np.float32), [[1, 2]])
STATE = np.zeros((1, 2, 4), np.float32)


def test_calls_that_are_written_as_in_pytorch():
    assert nn.LSTM(3, 4, 2)(X)[0].shape == (3, 4)
    assert nn.RNN(3, 4, 1, "relu", False).bias_ih_l0 is None
    assert nn.Embedding(10, 4, 0).padding_idx == 0
    assert nn.LSTM(3, 4)(X, (STATE, STATE))[0].shape == nn.GRU(3, 4)(X, STATE)[0].shape == (3, 4)
    assert nn.Sequential()(X) is X


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.LSTM(3, 4, 2, True, False), r"LSTM\(\) takes 4 positional arguments, got 5 \(.*: dropout="),
        (lambda: nn.Recurrent(vr.cells.GRU, 3, 4, 1, True, 0.1), r"Recurrent\(\) takes 5 .* got 6 \(.* dropout="),
        (lambda: nn.GRU(3, 4, batch_first=True), r"GRU\(\) .* 'batch_first' \(leave it out: rows have no batch axis\)"),
        (lambda: nn.LSTM(3, 4, device="cpu"), r"LSTM\(\) .* 'device' \(leave it out: to\(\"cuda\"\) moves it\)"),
        (lambda: nn.LSTM(3, 4, drop_out=0.1), r"LSTM\(\) .* 'drop_out' \(is it 'dropout'\?\)"),
        (lambda: nn.LSTM(3, 4)(X, hx=(STATE, STATE)), r"LSTM.forward\(\) .* 'hx' \(its name is states: a tuple"),
        (lambda: nn.LSTM(3, 4)(X, STATE, STATE), r"LSTM.forward\(\) takes 2 positional arguments, got 3 \(.*a tuple"),
        (lambda: nn.GRU(3, 4)(X, hx=STATE), r"GRU.forward\(\) .* 'hx' \(its name is h_0\)"),
        (lambda: nn.GRU(3, 4)(X, (STATE, STATE)), "GRU, states: expected h_0, got 2 values"),
        (lambda: nn.LSTM(3, 4)(X, STATE), r"LSTM, states: expected \(h_0, c_0\), got ndarray"),
        (lambda: nn.LSTMCell(3, 4)(X, STATE[0], STATE[0]), r"LSTMCell.forward\(\) takes 2 .* got 3 \(.*a tuple"),
        (lambda: nn.Embedding(9, 4, 0, 1.0), r"Embedding\(\) takes 3 positional arguments, got 4 \(.*sparse=, dtype="),
        (lambda: nn.Embedding(9, 4, max_norm=1.0), r"Embedding\(\) .* 'max_norm' \(leave it out: "),
        (lambda: nn.Linear(3, 4, True, "cpu"), r"Linear\(\) takes 3 positional arguments, got 4 \(.*dtype="),
        (lambda: nn.Linear(3, 4, device="cpu"), r"Linear\(\) .* 'device' \(leave it out: "),
        (lambda: nn.LayerNorm(normalized_shape=4), "'normalized_shape' .its name is features"),
        (lambda: nn.BatchNorm1d(3, track_running_stats=False), "'track_running_stats' .leave it out: "),
        (lambda: nn.Dropout(0.1, inplace=True), r"Dropout\(\) .* 'inplace' \(leave it out: no operator changes its"),
        (lambda: nn.Dropout(0.1, True), r"Dropout\(\) takes 1 positional argument, got 2 \(options have names: per="),
        (lambda: nn.ReLU(inplace=True), r"ReLU\(\) .* 'inplace' \(leave it out: no operator changes its operands\)"),
        (lambda: nn.ReLU(True), r"ReLU\(\) takes 0 positional arguments, got 1 \(inplace: leave it out"),
        (lambda: nn.LeakyReLU(0.1, True), r"LeakyReLU\(\) takes 1 positional argument, got 2 \(inplace: leave it out"),
        (lambda: nn.Softmax(dim=-1), r"Softmax\(\) .* 'dim' \(leave it out, because the function always uses the"),
        (lambda: nn.Softmax(1), r"Softmax\(\) takes 0 positional arguments, got 1 \(.*: leave it out, because the"),
        (lambda: F.softmax(X, 1), r"softmax\(\) takes 1 positional argument, got 2 \(.*: leave it out, because"),
        (lambda: F.log_softmax(X, 1), r"log_softmax\(\) takes 1 positional argument, got 2 \(.*: leave it out"),
        (lambda: F.relu(X, inplace=True), r"relu\(\) .* 'inplace' \(leave it out: "),
        (lambda: F.dropout(X, 0.1, True, True), r"dropout\(\) takes 3 positional arguments, got 4 \(.*per="),
        (lambda: F.embedding([0], np.ones((2, 2)), 0, 1.0), r"embedding\(\) takes 3 .* got 4 \(.*sparse="),
        (lambda: nn.MultiheadAttention(8, 2, 0.1), r"MultiheadAttention\(\) takes 2 .* got 3 \(.*bias="),
        (lambda: nn.MultiheadAttention(8, 2, dropout=0.1), r"MultiheadAttention\(\) .* 'dropout' \(leave it out: "),
        (lambda: nn.MultiheadAttention(3, 1)(X, X, X, None), r"forward\(\) takes 3 .* got 4 \(.*is_causal="),
        (lambda: nn.MultiheadAttention(3, 1)(X, X, X, key_padding_mask=None), "'key_padding_mask' .leave it out: "),
        (lambda: vr.Variable([1.0, 2.0]).std(unbiased=False), "'unbiased' .its name is ddof"),
        (lambda: vr.optim.Adam([nn.Parameter([1.0])], 0.1, (0.9, 0.99), 1e-8, 0.0, True), r"Adam\(\) takes 5 .* got 6"),
        (lambda: nn.Embedding.from_pretrained(np.ones((2, 2)), True, 0, 1.0), r"from_pretrained\(\) takes 3 .* 4"),
        (lambda: vr.Variable([1.0]).backward(retain_graph=True), r"Variable.backward\(\) .* 'retain_graph' \(leave"),
        (lambda: vr.Variable([1.0]).to(dtype=np.float32), r"Variable.to\(\) .* 'dtype' \(x.astype\(dtype\) converts"),
        (lambda: vr.Variable([1.0]).to(np.float32), r"device: expected 'cpu', .* \(x.astype\(dtype\) converts"),
        (lambda: vr.optim.Adam(params=[nn.Parameter([1.0])]), "'params' .its name is parameters"),
        (lambda: nn.Recurrent(nn.LSTMCell, 3, 4), r"cell: .* got LSTMCell \(cells.LSTM is a cell; "),
        (lambda: nn.Recurrent(nn.LSTMCell(3, 4), 3, 4), r"cell: .* got LSTMCell \(cells.LSTM is a cell; "),
        (lambda: nn.Recurrent("lstm", 3, 4), r"cell: expected a cells.Cell, got 'lstm' \(cells.LSTM is a cell; "),
        (lambda: nn.DynamicRNN(nn.LSTMCell(3, 4)), r"DynamicRNN, cell: .* got LSTMCell .*return h, h, c"),
        (lambda: nn.DynamicRNN(nn.GRUCell(3, 4)), r"DynamicRNN, cell: .* got GRUCell .*return h, h\)"),
        (lambda: nn.DynamicRNN(nn.LSTM(3, 4)), r"DynamicRNN, cell: .* got LSTM"),
    ],
)  # fmt: skip
def test_arguments_of_pytorch_are_answered(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


# Equations of cells.


def cell_of(equation):
    def equations(a, /, h):
        return equation(a, h)

    return vr.cell(equations)


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        (lambda a, h: F.sigmoid(a), "got sigmoid, a function of arrays .*write sigmoid of varlen_rnn.cells"),
        (lambda a, h: F.relu(a), "got relu, a function of arrays .*write relu of varlen_rnn.cells"),
        (lambda a, h: F.where(a > 0, a, h), "got where, a function of arrays .*write where of varlen_rnn.cells"),
        (lambda a, h: F.softplus(a), "got softplus, a function of arrays .*varlen_rnn.cells has sigmoid, tanh, "),
        (lambda a, h: F.concat([a, h]), "got concat, a function of arrays .*varlen_rnn.cells has "),
        (lambda a, h: nn.Tanh()(a), "got tanh, a function of arrays .*write tanh of varlen_rnn.cells"),
        (lambda a, h: nn.Linear(4, 4)(a), "got a function of arrays .*varlen_rnn.cells has "),
        (lambda a, h: np.where(a > 0, a, h), r"use where\(condition, a, b\), not if"),
        (lambda a, h: np.asarray(a), "expected numbers, got ndarray"),
        (lambda a, h: vr.Variable(a), "got a function of arrays .*varlen_rnn.cells has "),
        (lambda a, h: h * vr.Variable([1.0]), "expected numbers, got Variable"),
        (lambda a, h: a.tanh(), "no attribute 'tanh' .write tanh of varlen_rnn.cells: tanh.x."),
        (lambda a, h: h.clip(0.0, 1.0), "no attribute 'clip' .write clip of varlen_rnn.cells"),
        (lambda a, h: h.softplus(), "no attribute 'softplus'$"),
    ],
)
def test_functions_of_arrays_in_equations_are_answered(equation, message):
    with pytest.raises(vr.cells.EquationError, match=message):
        cell_of(equation)


def test_functions_of_equations_are_public():
    assert set(trace.FUNCTIONS) <= set(vr.cells.__all__)
    assert trace.OPERATIONS.keys() & set(vr.cells.__all__) <= set(trace.FUNCTIONS)


# Batches.

SEQUENCES = [[1, 2], [3]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 2}, r"batches\(\) .* 'num_workers' \(leave it out: "),
        ({"pin_memory": True}, r"batches\(\) .* 'pin_memory' \(leave it out: "),
        ({"collate_fn": len}, r"batches\(\) .* 'collate_fn' \(leave it out: "),
        ({"sampler": None}, r"batches\(\) .* 'sampler' \(weights= "),
        ({"batch_sampler": None}, r"batches\(\) .* 'batch_sampler' \(max_tokens= "),
        ({"generator": 0}, r"batches\(\) .* 'generator' \(pass seed="),
        ({"random_state": 0}, r"batches\(\) .* 'random_state' \(its name is seed\)"),
        ({"lengths": [2, 1]}, r"batches\(\) .* 'lengths' \(leave it out: "),
        ({"y": [0, 1]}, r"batches\(\) .* 'y' \(its name is labels\)"),
        ({"drop_lst": True}, r"batches\(\) .* 'drop_lst' \(is it 'drop_last'\?\)"),
        ({"age": [4, 5]}, r"batches\(\) .* 'age' \(static=array .*others=\[sequences"),
        ({"others": {"answers": SEQUENCES}}, r"others: expected a list of inputs.*\(a batch is a tuple"),
        ({"others": SEQUENCES}, r"others, input 0: .* \(.*others=\[sequences\]"),
        ({"others": [np.array([1, 2]), np.array([3])]}, r"others, input 0: .* \(.*others=\[sequences\]"),
        ({"others": [np.ones((3, 2)), np.ones((1, 2))]}, r"others, input 0: .* \(.*others=\[sequences\]"),
        ({"static": {"age": [4, 5]}}, r"static: .* one array.*\(np.column_stack"),
    ],
)
def test_arguments_of_other_loaders_are_answered(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        vr.data.batches(SEQUENCES, batch_size=1, **options)


def test_more_positions_of_a_loader_are_answered():
    with pytest.raises(TypeError, match=r"batches\(\) takes 2 positional arguments, got 3 \(.*: batch_size="):
        vr.data.batches(SEQUENCES, [0, 1], 32)


def test_a_data_set_of_pytorch_is_answered():
    with pytest.raises(vr.DTypeError, match=r"a subclass that defines __getitem__ \(.*data.batches\(sequences"):

        class Mine(vr.data.Dataset):
            def __getitem__(self, index):
                return index
