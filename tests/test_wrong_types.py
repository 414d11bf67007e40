"""Arguments of every wrong type: each public function refuses them by an error of ours, or takes them."""

import tempfile
import warnings
import weakref
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import varlen_rnn as vr
from tests.each import check_each
from varlen_rnn.cells import registry
from varlen_rnn.nn import functional as F
from varlen_rnn.nn.recurrent import options
from varlen_rnn.optim import lr_scheduler as schedules
from varlen_rnn.tape import operator

X = np.zeros((5, 3), np.float32)
H = np.zeros((1, 3, 4), np.float32)
Y = np.zeros((5, 3))


def nested():
    """Return lists inside of lists, more than `repr` prints."""
    found = []
    for _ in range(5000):
        found = [found]
    return found


class Unprintable:
    def __repr__(self):
        raise RuntimeError


READ = ["format", "sequence", "label", "id", "time", "features", "wide", "tokens", "delimiter", "missing"]
READ += ["label_kind", "classes", "ignore"]
WRONG = {
    "None": lambda: None, "a text": lambda: "a", "texts": lambda: ["a", "b"], "a dict": lambda: {"a": 1},
    "objects": lambda: np.array([object()]), "a generator": lambda: (number for number in [1]), "-1": lambda: -1,
    "large": lambda: 2**70, "no digits": lambda: 2**20_000, "NaN": lambda: float("nan"), "infinite": lambda: np.inf,
    "half": lambda: 1.5, "True": lambda: True, "complex": lambda: 1j, "bytes": lambda: b"ab", "a set": lambda: {1, 2},
    "an object": object, "nothing": list, "no printing": Unprintable, "a list of None": lambda: [None],
    "a number": lambda: np.array(1.0), "an array of texts": lambda: np.array(["a"]), "integers": lambda: np.arange(3),
    "a square": lambda: np.zeros((2, 2)), "a Variable": lambda: vr.Variable(X), "a type": lambda: int,
    "a slice": lambda: slice(None), "dots": lambda: ..., "nested": nested, "two lines": lambda: "a\0b",
    "a surrogate": lambda: "\ud800", "a date": lambda: np.array(["2020"], "M8[D]"),
    "a LoDTensor": lambda: vr.create_lod_tensor(X, [[2, 0, 3]]),
}  # fmt: skip


def rows():
    return vr.create_lod_tensor(X, [[2, 0, 3]])


def column():
    return vr.to_arrow(rows())


def frame(columns):
    return pytest.importorskip("pyarrow").table(columns)


def pd_objects(*values):
    pandas = pytest.importorskip("pandas")
    found = np.empty(len(values), object)
    for place, value in enumerate(values):
        found[place] = value
    return pandas.Series(found, dtype=object)


def objects(*values):
    """Return a frame of pandas with a column of these objects."""
    return pd_objects(*values).to_frame("text")


def awkward_rows():
    return vr.to_awkward(rows())


class Sum(vr.nn.Module):
    """A model whose loss is the sum of what it gets times its parameter."""

    def __init__(self):
        self.weight = parameter()

    def forward(self, x):
        return self.weight.sum() * float(np.asarray(x.data).sum())


class Steps:
    """What a schedule has."""

    step = state_dict = load_state_dict = len


def sgd():
    return vr.optim.SGD(parameters(), 0.1)


def two_schedules(given, steps):
    optimizer = sgd()
    two = [schedules.StepLR(optimizer, 3), schedules.StepLR(optimizer, 3)]
    return schedules.SequentialLR(optimizer, two if given is None else given, steps)


def epochs_of_one():
    return vr.data.batches([[1]], batch_size=1)


def trainer():
    model = Sum()
    return vr.training.Trainer(model, vr.optim.SGD(model.parameters(), 0.1), model, epochs_of_one())


def saved_training():
    path = tempfile.mkdtemp() + "/training"
    trainer().save(path)
    return path


def history():
    return [{"epoch": 1, "step": 4, "lr": 0.1, "loss": 0.5}]


def plan():
    return vr.sort_by_seq_len(rows())


def parameter():
    return vr.nn.Parameter(np.zeros((4, 2), np.float32))


def parameters():
    return [parameter()]


def data_set():
    return vr.data.from_texts(["ab", "b"], ["x", "y"])


def batches(**options):
    return vr.data.batches([[1, 2], [3]], **({"batch_size": 1} | options))


def with_gradient(function):
    def call(gradient):
        p = parameter()
        p.grad = gradient
        function([p])

    return call


def in_a_file(name, content, read):
    def call(*arguments):
        path = Path(tempfile.mkdtemp(), name)
        path.write_text(content)
        return read(path, *arguments)

    return call


def saved(value, save):
    path = Path(tempfile.mkdtemp(), "file")
    save(path, value)
    return path


def program():
    with vr.program_guard() as recorded:
        y = vr.feed_data("x", [-1, 3], "float32") * 2.0
        y.name = "y"
    return recorded


def of_a_step():
    with vr.program_guard() as recorded:
        weight = vr.nn.Parameter(np.ones((3, 2), np.float32))
        loss = (vr.feed_data("x", [-1, 3], "float32") @ weight).mean()
        loss.name = "loss"
        vr.optim.SGD([weight], 0.1).minimize(loss)
    return recorded


def guard(program):
    with vr.program_guard(program):
        pass


def guarded(*arguments):
    with vr.program_guard():
        return vr.feed_data(*arguments)


def hooked(returned):
    weight = parameter()
    weight.register_hook(lambda gradient: returned)
    (weight * 2.0).sum().backward()


def double(x, times: int = 2):
    return x.data * times


def double_grad(x, d_out, times):
    return d_out.data * times


def doubled(declare=vr.operator, function=double, infer=None, forward=None, **options):
    """Declare an operator, in place of the one that was declared before."""
    for name in ("double", "double_grad", "of_a_test", "result"):
        operator.OPERATORS.pop(name, None)

    def result(x, times: int = 2):
        return forward()

    made = declare(result if forward else function, **options)
    if function is not None:  # else it is a decorator
        made.infer(infer or (lambda x, times: x))
    return made


def with_backward(result):
    made = doubled()
    made.backward("x")(lambda x, d_out, times: result)
    made(vr.Variable(X, requires_grad=True)).sum().backward()


def checked(examples):
    made = doubled()
    made.examples(lambda rng: examples)
    vr.check_operator(made)


def linear(x, h, prev):
    y = x[0] + h[0]
    return (y,), (y,)


def linear_grad(slots, prev, states, d_states):
    return (d_states[0],), (type(d_states[0])(0),)


ACTIVATIONS = ["Tanh", "Sigmoid", "ReLU", "LeakyReLU", "ELU", "GELU", "SiLU", "Softplus", "Softmax"]

FRAME = vr.create_lod_tensor(np.ones((1, 3)), [[1]])

# By name: a function, and what makes each of its arguments, right ones.

CALLS = {
    "LoDTensor": (vr.LoDTensor, lambda: X, lambda: [[0, 2, 5]]),
    "create_lod_tensor": (vr.create_lod_tensor, lambda: X, lambda: [[2, 3]]),
    "from_sequences": (
        lambda s, n, t: vr.LoDTensor.from_sequences(s, num_levels=n, dtype=t),
        lambda: [[1.0, 2.0], [3.0]], lambda: 1, lambda: "float32",
    ),
    "LoD": (vr.LoD, lambda: [[0, 2]]),
    "LoD.from_lengths": (vr.LoD.from_lengths, lambda: [[2]]),
    "LoD.at": (rows().structure.at, lambda: [0, 1, 2]),
    "LoD.rows_of_level": (rows().structure.rows_of_level, int),
    "LoD.slice": (rows().structure.slice, int, int, lambda: 1),
    "set_lod": (lambda lod: rows().set_lod(lod), lambda: [[0, 5]]),
    "set_recursive_sequence_lengths": (lambda n: rows().set_recursive_sequence_lengths(n), lambda: [[5]]),
    "num_elements": (rows().num_elements, int),
    "LoDTensor.slice": (rows().slice, int, int, lambda: 1),
    "LoDTensor[]": (lambda index: rows()[index], int),
    "sort_by_seq_len": (vr.sort_by_seq_len, rows, lambda: -1),
    "SortedSeqs": (vr.SortedSeqs, lambda: [0, 2, 3]),
    "SortedSeqs[]": (lambda rank: plan()[rank], int),
    "padding": (lambda size: plan().padding(size), lambda: 2),
    "previous_rows": (lambda reverse: plan().previous_rows(reverse), bool),
    "SelectedRows": (vr.SelectedRows, lambda: [1], lambda: X[:1], lambda: 5),
    "segment_inputs": (vr.segment_inputs, rows, plan, int),
    "init_memories": (vr.init_memories, lambda: X[:3], plan),
    "concat_outputs": (vr.concat_outputs, lambda: [X[:n] for n in plan().batch_sizes], plan),
    "sequence_pool": (lambda x: vr.sequence_pool(x, "sum"), rows),
    "linear_chain_crf": (vr.linear_chain_crf, rows, lambda: np.zeros(5, int), lambda: np.zeros((5, 3), "f4")),
    "crf_decoding": (vr.crf_decoding, rows, lambda: np.zeros((5, 3), "f4"), lambda: np.zeros(5, int)),
    "TransducerLoss": (vr.nn.TransducerLoss, lambda: 0, lambda: "sum"),
    "CTCLoss": (vr.nn.CTCLoss, lambda: 0, lambda: "sum", bool),
    "CTCDecoder": (vr.nn.CTCDecoder, lambda: 2, lambda: 0, lambda: lambda labels: np.zeros(3)),
    "CTCDecoder, x": (vr.nn.CTCDecoder(2, hotwords=[[1, 2]]), rows),
    "CTCDecoder, wide": (lambda beam_size: vr.nn.CTCDecoder(beam_size)(rows()), lambda: 2),
    "CTCDecoder, hot words": (lambda words: vr.nn.CTCDecoder(2, hotwords=words)(rows()), lambda: [[1, 2]]),
    "CTCDecoder, hot word": (lambda word: vr.nn.CTCDecoder(2, hotwords=[word])(rows()), lambda: [1, 2]),
    "CTCDecoder, label": (lambda label: vr.nn.CTCDecoder(2, hotwords=[[label]])(rows()), lambda: 1),
    "CTCDecoder, boundary": (lambda label: vr.nn.CTCDecoder(2, boundary=label)(rows()), lambda: 1),
    "CTCDecoder, scores": (
        lambda scores: vr.nn.CTCDecoder(2, scorer=lambda labels: scores)(rows()), lambda: np.zeros(3),
    ),
    "CTCDecoder, score of a word": (
        lambda score: vr.nn.CTCDecoder(2, boundary=1, scorer=lambda words, word: score)(rows()), lambda: -1.0,
    ),
    "TransducerDecoder": (
        vr.nn.TransducerDecoder, lambda: lambda labels, states: 0, lambda: lambda frames, rows: 0, lambda: 2,
    ),
    "TransducerDecoder, x": (
        vr.nn.TransducerDecoder(lambda labels, states: (np.ones((len(labels), 2)), None), lambda f, w: f, 2), rows,
    ),
    "TransducerDecoder, rows": (
        lambda found: vr.nn.TransducerDecoder(lambda labels, states: (found, None), lambda f, w: f, 1)(FRAME),
        lambda: np.ones((1, 3)),
    ),
    "TransducerDecoder, states": (
        lambda states: vr.nn.TransducerDecoder(lambda n, s: (np.ones((1, 2)), states), lambda f, w: f, 1)(FRAME),
        lambda: None,
    ),
    "TransducerDecoder, scores": (
        lambda scores: vr.nn.TransducerDecoder(lambda n, s: (np.ones((1, 2)), None), lambda f, w: scores, 1)(FRAME),
        lambda: np.zeros((1, 3)),
    ),
    "LinearChainCRF": (vr.nn.LinearChainCRF, lambda: 3, lambda: "f4"),
    "LinearChainCRF, n_best": (vr.nn.LinearChainCRF(3).n_best, rows, lambda: 2),
    "LinearChainCRF, x": (vr.nn.LinearChainCRF(3), rows, lambda: np.zeros(5, int)),
    "sequence_first_step": (vr.sequence_first_step, rows),
    "sequence_last_step": (vr.sequence_last_step, rows),
    "sequence_expand": (vr.sequence_expand, rows, rows),
    "sequence_expand_as": (vr.sequence_expand_as, lambda: X[:3], rows),
    "sequence_reverse": (vr.sequence_reverse, rows),
    "sequence_slice": (vr.sequence_slice, rows, lambda: np.array([1, 0, 1]), lambda: np.array([1, 0, 2])),
    "sequence_erase": (vr.sequence_erase, lambda: rows().like(np.arange(5)), lambda: (1, 2)),
    "sequence_enumerate": (vr.sequence_enumerate, lambda: rows().like(np.arange(5)), lambda: 2, int),
    "sequence_reshape": (vr.sequence_reshape, rows, lambda: 1),
    "sequence_scatter": (vr.sequence_scatter, lambda: X[:3], lambda: rows().like(np.arange(5) % 3), lambda: X[:, 0]),
    "split_by_mask": (vr.split_by_mask, rows, lambda: np.array([True, False, True]), int),
    "merge_by_mask": (vr.merge_by_mask, rows, rows, lambda: np.arange(6) < 3, int),
    "sequence_topk_avg_pooling": (
        vr.sequence_topk_avg_pooling, lambda: vr.create_lod_tensor(np.zeros(12), [[4, 0, 8]]),
        lambda: vr.create_lod_tensor(X[:3], [[1, 0, 2]]), lambda: rows()[[0, 1, 0]], lambda: (1, 2), lambda: 2,
    ),
    "sequence_concat": (vr.sequence_concat, lambda: [rows(), rows()]),
    "lod_reset": (vr.lod_reset, rows, rows),
    "while_loop": (
        vr.while_loop,
        lambda: (lambda *n: n[0].sum() < 2.0),
        lambda: (lambda *n: [x + 1.0 for x in n]),
        lambda: [np.array(0.0)],
    ),
    "lod_reset, target_lod": (lambda lod: vr.lod_reset(X, target_lod=lod), lambda: (0, 5)),
    "beam_search": (
        vr.beam_search,
        lambda: np.arange(5),
        lambda: np.zeros(5, np.float32),
        lambda: None,
        rows,
        lambda: 2,
        lambda: 0,
        lambda: 0,
        bool,
    ),
    "beam_search_decode": (
        vr.beam_search_decode,
        lambda: [vr.LoDTensor(np.array([1]), [[0, 1], [0, 1]])],
        lambda: [vr.LoDTensor(np.array([1.0]), [[0, 1], [0, 1]])],
        lambda: 2,
        int,
    ),
    "ctc_greedy_decoder": (vr.ctc_greedy_decoder, rows, lambda: 1),
    "ctc_forced_align": (vr.ctc_forced_align, rows, lambda: vr.LoDTensor(np.array([1]), [[0, 1, 1, 1]]), lambda: 0),
    "ctc_beam_search_decoder": (vr.ctc_beam_search_decoder, rows, lambda: 2, lambda: 1),
    "edit_distance": (
        vr.edit_distance, lambda: rows().like(np.arange(5)), lambda: rows().like(np.arange(5)), lambda: False,
        lambda: (1, 2),
    ),
    "from_arrow": (vr.from_arrow, column),
    "to_arrow": (vr.to_arrow, rows),
    "from_awkward": (vr.from_awkward, awkward_rows),
    "to_awkward": (vr.to_awkward, rows),
    "lod_append": (vr.lod_append, lambda: X, lambda: np.array([0, 2, 5])),
    "reorder_by_rank": (vr.reorder_by_rank, rows, lambda: vr.sort_by_seq_len(rows())),
    "sequence_pad": (vr.sequence_pad, rows, lambda: 0.0, lambda: 3),
    "sequence_unpad": (vr.sequence_unpad, lambda: np.zeros((3, 2)), lambda: np.array([2, 0, 1])),
    "sequence_mask": (vr.sequence_mask, lambda: np.array([2, 0, 1]), lambda: 3, lambda: "int64"),
    "sequence_softmax": (vr.sequence_softmax, rows),
    "sequence_conv": (
        lambda x, weight, bias, padding, size, start: vr.sequence_conv(
            x, weight, bias, padding, filter_size=size, padding_start=start
        ),
        rows, lambda: np.zeros((6, 2), "f"), lambda: np.zeros(2, "f"), lambda: X[:1], lambda: 2, lambda: 0,
    ),
    "SequenceConv": (vr.nn.SequenceConv, lambda: 3, lambda: 2, lambda: 3, lambda: 0, bool, bool, lambda: "float32"),
    "SequenceConv, x": (vr.nn.SequenceConv(3, 2), rows),
    "linear_attention": (
        lambda query, key, value, decay, beta, state, *constants: vr.linear_attention(
            query, key, value, decay, beta, state,
            **dict(zip(("delta", "normalise", "scale", "recompute"), constants, strict=True)),
        ),
        *[lambda: rows().like(np.zeros((5, 1, 3), np.float32))] * 3, *[lambda: rows().like(X[:, :1])] * 2,
        lambda: np.zeros((3, 1, 3, 3), "f"), bool, bool, lambda: 0.5, bool,
    ),
    "row_conv": (vr.row_conv, rows, lambda: X[:2]),
    "RowConv": (vr.nn.RowConv, lambda: 3, lambda: 2, lambda: "float32"),
    "RowConv, x": (vr.nn.RowConv(3, 2), rows),
    "causal_conv": (
        vr.causal_conv, rows, lambda: np.zeros((3, 2), "f"), lambda: X[0], lambda: np.zeros((3, 1, 3), "f"),
        lambda: "silu",
    ),
    "slstm": (
        F.slstm, lambda: vr.create_lod_tensor(np.zeros((5, 8), "f"), [[2, 3]]), lambda: np.zeros((8, 2), "f"),
        lambda: np.zeros(8, "f"), lambda: (np.ones((1, 2, 2), "f"),) * 4,
    ),
    "im2sequence": (vr.im2sequence, lambda: np.zeros((1, 2, 4, 4)), lambda: 2, lambda: (1, 2), lambda: (0, 1, 0, 1)),
    "sequence_cumsum": (vr.sequence_cumsum, rows, bool),
    "layer_norm": (F.layer_norm, rows, lambda: X[0], lambda: X[0], lambda: 0.1),
    "LayerNorm": (vr.nn.LayerNorm, lambda: 3, lambda: 0.1, bool, bool),
    "LayerNorm, x": (vr.nn.LayerNorm(3), rows),
    "rms_norm": (F.rms_norm, rows, lambda: X[0], lambda: 0.1),
    "RMSNorm": (vr.nn.RMSNorm, lambda: 3, lambda: 0.1, bool),
    "RMSNorm, x": (vr.nn.RMSNorm(3), rows, rows),
    "Variable": (vr.Variable, lambda: X),
    "backward": (vr.backward, lambda: (parameter() * 2.0).sum()),
    "backward, gradient": (lambda g: (parameter() * 2.0).backward(g), lambda: np.ones((4, 2), np.float32)),
    "inspect_gradients": (
        vr.inspect_gradients, lambda: (parameter() * 2.0).sum(), lambda: 1.0, lambda: [("a", parameter())],
    ),
    "register_hook": (lambda hook: parameter().register_hook(hook), lambda: print),
    "register_hook, result": (hooked, lambda: np.ones((4, 2), np.float32)),
    "save": (lambda path, group: vr.save(path, group=group), lambda: Path(tempfile.mkdtemp(), "a"), dict),
    "load": (vr.load, lambda: saved(1, lambda path, value: vr.save(path, value=value)), bool),
    "manual_seed": (vr.manual_seed, int),
    "device": (vr.device, lambda: "cpu"),
    "to": (lambda place: vr.Variable(X).to(place), lambda: "cpu"),
    "LoDTensor.to": (rows().to, lambda: "cpu"),
    "SelectedRows.to": (vr.SelectedRows([1], X[:1], 5).to, lambda: "cpu"),
    "Module.to": (vr.nn.Linear(2, 3).to, lambda: "cpu"),
    "TensorSpec": (
        lambda *spec: doubled(infer=lambda x, times: vr.TensorSpec(*spec))(X), lambda: (-1, 3), lambda: X.dtype,
    ),
    "TensorSpec, level": (
        lambda level: doubled(infer=lambda x, times: vr.TensorSpec(x.shape, x.dtype, level))(rows()), lambda: 1,
    ),
    "operator": (lambda function, **options: doubled(vr.operator, function, **options), lambda: double),
    "cell": (lambda function, **options: vr.cell(function, **options), lambda: lambda a, /: vr.cells.tanh(a)),
    "cell, result": (lambda result: vr.cell(lambda a, /: a * result), lambda: 2),
    "lstm_cell": (vr.cells.lstm_cell,),
    "gru_cell": (vr.cells.gru_cell,),
    "rnn_cell": (vr.cells.rnn_cell,),
    "slstm_cell": (vr.cells.slstm_cell,),
    "operator, input": (lambda x: doubled()(x), lambda: X),
    "operator, constant": (lambda times: doubled()(X, times=times), lambda: 2),
    "operator, result": (lambda result: doubled(forward=lambda: result)(X), lambda: X),
    "infer": (lambda function: doubled().infer(function), lambda: print),
    "infer, result": (lambda result: doubled(infer=lambda x, times: result)(X), lambda: vr.TensorSpec((5, 3), X.dtype)),
    "grad": (lambda function: doubled().grad(function), lambda: print),
    "backward, of": (lambda of: doubled().backward(of)(double_grad), lambda: "x"),
    "backward, cost": (lambda given: doubled().backward("x", cost=given)(double_grad), lambda: print),
    "backward, function": (lambda function: doubled().backward("x")(function), lambda: double_grad),
    "backward, result": (with_backward, lambda: X),
    "examples": (lambda function: doubled().examples(function), lambda: print),
    "check_operator": (vr.check_operator, lambda: F.tanh),
    "check_operator, examples": (checked, lambda: [([Y], {"times": 2})]),
    "check_operator, example": (lambda made: checked([made]), lambda: ([Y], {"times": 2})),
    "check_operator, inputs": (lambda values: checked([(values, {"times": 2})]), lambda: [Y]),
    "check_operator, value": (lambda value: checked([([value], {"times": 2})]), lambda: Y),
    "check_operator, constants": (lambda constants: checked([([Y], constants)]), lambda: {"times": 2}),
    "check_operator, constant": (lambda times: checked([([Y], {"times": times})]), lambda: 2),
    "Cell": (vr.cells.Cell,),
    "Cell, product_slots": (
        lambda slot: call("Cell", "product_slots", lambda: {"y": slot}), lambda: "y",
    ),
    "Recurrent": (vr.nn.Recurrent, lambda: vr.cells.GRU, lambda: 3, lambda: 4),
    "Recurrent, x": (vr.nn.Recurrent(vr.cells.GRU, 3, 4), rows, lambda: H),
    "float32_matmul_precision": (lambda precision: vr.float32_matmul_precision(precision).__enter__(), lambda: "fp32"),
    "set_float32_matmul_precision": (vr.set_float32_matmul_precision, lambda: "fp32"),
    "set_num_threads": (vr.set_num_threads, lambda: 2),
    "values_to_bytes": (vr.values_to_bytes, dict),
    "values_to_bytes, value": (lambda value: vr.values_to_bytes({"x": value}), lambda: X),
    "values_from_bytes": (vr.values_from_bytes, lambda: vr.values_to_bytes({})),
    "feed_data": (lambda shape, level: guarded("x", shape, "float32", level), lambda: [-1], int),
    "Program.save": (lambda path: program().save(path), lambda: Path(tempfile.mkdtemp(), "a")),
    "Program.load": (vr.Program.load, lambda: saved(program(), lambda path, value: value.save(path))),
    "Program.from_bytes": (vr.Program.from_bytes, lambda: program().to_bytes()),
    "feed": (lambda feed: vr.Executor().run(program(), feed, ["y"]), lambda: {"x": X}),
    "feed, value": (lambda value: vr.Executor().run(program(), {"x": value}, ["y"]), lambda: X),
    "Executor.run": (
        lambda program, names: vr.Executor().run(program, {"x": X}, names), program, lambda: ["y"],
    ),
    "fetch": (lambda name: vr.Executor().run(program(), {"x": X}, [name]), lambda: "y"),
    "prune": (lambda names: program().prune(names), lambda: ["y"]),
    "Program.split": (lambda at: program().split(at), list),
    "program_guard": (guard, vr.Program),
    "bound": (vr.bound, lambda: lambda x: x),
    "bound, argument": (lambda value: vr.bound(lambda x: vr.nn.functional.relu(x))(value), lambda: X),
    "bound, result": (
        lambda result: vr.bound(lambda x: vr.Variable(X) if result is None else result)(X), lambda: None,
    ),
    "save_inference_model": (
        vr.save_inference_model, lambda: tempfile.mkdtemp(), lambda: ["x"], lambda: ["y"], program,
    ),
    "name": (lambda name: setattr(vr.Variable(X), "name", name), lambda: "x"),
    "operand": (lambda value: vr.Variable(X) + value, lambda: 1.0),
    "left operand": (lambda value: value * vr.Variable(X), lambda: 1.0),
    "exponent": (lambda value: vr.Variable(X) ** value, lambda: 2),
    "product": (lambda value: vr.Variable(X) @ value, lambda: X.T),
    "item": (lambda index: vr.Variable(X)[index], lambda: 1),
    "reshape": (lambda shape: vr.Variable(X).reshape(shape), lambda: (3, 5)),
    "sum": (lambda axis, keepdims: vr.Variable(X).sum(axis, keepdims), int, bool),
    "mean": (lambda axis, keepdims: vr.Variable(X).mean(axis, keepdims), int, bool),
    "SequencePool": (vr.nn.SequencePool, lambda: "sum"),
    "sequence_pool, pool_type": (lambda kind: vr.sequence_pool(rows(), kind), lambda: "sum"),
    "Stateful": (vr.nn.Stateful, lambda: vr.nn.GRU(3, 4)),
    "Stateful, x": (vr.nn.Stateful(vr.nn.GRU(3, 4)), rows, lambda: [1, 2, 3]),
    "DynamicRNN": (vr.nn.DynamicRNN, lambda: lambda x, s: (x, s)),
    "DynamicRNN, result": (
        lambda result: vr.nn.DynamicRNN(lambda x, s: (x, s) if result is None else result)(rows(), [X[:3]]),
        lambda: None,
    ),
    "load_inference_model": (
        vr.load_inference_model,
        lambda: saved(program(), lambda path, value: vr.save_inference_model(path, ["x"], ["y"], value)),
    ),
    "Embedding": (vr.nn.Embedding, lambda: 9, lambda: 2, int),
    "Embedding, from_pretrained": (
        vr.nn.Embedding.from_pretrained, lambda: X.copy(), bool, int,
    ),
    "state_dict, copy": (vr.nn.Linear(3, 2).state_dict, bool),
    "Optimizer, state_dict, copy": (lambda copy: sgd().state_dict(copy), bool),
    "Embedding, ids": (vr.nn.Embedding(9, 2), lambda: np.array([1, 2])),
    "Linear": (vr.nn.Linear, lambda: 3, lambda: 2, bool),
    "MultiheadAttention": (vr.nn.MultiheadAttention, lambda: 4, lambda: 2),
    "AdditiveAttention": (vr.nn.AdditiveAttention, lambda: 4, lambda: 2, lambda: 3, lambda: "f4"),
    "AdditiveAttention, x": (vr.nn.AdditiveAttention(3, 3, 2), rows, rows, rows, bool),
    "MultiheadAttention, x": (vr.nn.MultiheadAttention(3, 1), rows, rows, rows),
    "Linear, x": (vr.nn.Linear(3, 2), lambda: X),
    "MultiheadAttention, weights": (vr.nn.MultiheadAttention(3, 1), rows, rows, rows),
    "BatchNorm1d": (vr.nn.BatchNorm1d, lambda: 3, lambda: 0.1, lambda: 0.1, bool),
    "BatchNorm1d, x": (vr.nn.BatchNorm1d(3), rows),
    "ModuleList": (vr.nn.ModuleList, lambda: [vr.nn.Linear(3, 2)]),
    "ModuleList, entry": (lambda entry: vr.nn.ModuleList([vr.nn.Tanh()]).append(entry), lambda: vr.nn.Tanh()),
    "ModuleList[]": (lambda index: vr.nn.ModuleList([vr.nn.Tanh()])[index], int),
    "ModuleList[], entry": (
        lambda index, entry: vr.nn.ModuleList([vr.nn.Tanh()]).__setitem__(index, entry), int, lambda: vr.nn.Tanh(),
    ),
    "ParameterList": (vr.nn.ParameterList, lambda: [parameter()]),
    "ModuleDict": (vr.nn.ModuleDict, lambda: {"a": vr.nn.Linear(3, 2)}),
    "ModuleDict[]": (
        lambda name, module: vr.nn.ModuleDict().__setitem__(name, module), lambda: "a", lambda: vr.nn.Tanh(),
    ),
    "summary": (vr.nn.summary, lambda: vr.nn.Linear(3, 2), lambda: [[0, 2]]),
    "weight_norm": (vr.nn.weight_norm, lambda: vr.nn.Linear(3, 2), lambda: "weight"),
    "Dropout": (vr.nn.Dropout, lambda: 0.5),
    "Dropout, x": (vr.nn.Dropout(0.5), lambda: X),
    "SequencePool, x": (vr.nn.SequencePool("sum"), rows),
    "Sequential": (vr.nn.Sequential, lambda: vr.nn.Linear(3, 2)),
    "Sequential, x": (vr.nn.Sequential(vr.nn.Linear(3, 2)), lambda: X),
    "DynamicRNN, x": (vr.nn.DynamicRNN(lambda x, *states: (x, *states)), rows, lambda: [X[:3]]),
    "Buffer": (vr.nn.Buffer, lambda: X),
    "Parameter": (vr.nn.Parameter, lambda: X, bool),
    "Parameter, copy": (lambda array, copy: vr.nn.Parameter(array, copy=copy), lambda: X.copy(), bool),
    "assign": (lambda values: parameter().assign(values), lambda: np.ones((4, 2))),
    "load_state_dict": (
        lambda *a: vr.nn.Linear(3, 2).load_state_dict(*a), lambda: vr.nn.Linear(3, 2).state_dict(), bool,
    ),
    "load_state_dict, value": (
        lambda value: vr.nn.Linear(3, 2, bias=False).load_state_dict({"weight": value}), lambda: X[:2],
    ),
    "named_parameters": (vr.nn.Linear(3, 2).named_parameters, str),
    "train": (lambda mode: vr.nn.Linear(3, 2).train(mode), bool),
    "Padded": (vr.baselines.Padded, lambda: vr.nn.GRU(3, 4)),
    "Padded.rows": (vr.baselines.Padded.rows, rows),
    "concat": (F.concat, lambda: [vr.Variable(X)] * 2, int),
    "maximum": (F.maximum, lambda: X, lambda: X),
    "equal": (F.equal, lambda: X, lambda: X),
    "where": (F.where, lambda: X > 0, lambda: X, lambda: X),
    "gelu": (lambda x, approximate: F.gelu(x, approximate=approximate), lambda: X, lambda: "tanh"),
    **{name: (getattr(F, name), lambda: X) for name in ("elu", "log_sigmoid", "softplus")},
    **{f"{name}, x": (getattr(vr.nn, name)(), lambda: X) for name in ACTIVATIONS},
    "LeakyReLU": (vr.nn.LeakyReLU, lambda: 0.1),
    "ELU": (vr.nn.ELU, lambda: 0.1),
    "GELU": (vr.nn.GELU, lambda: "tanh"),
    "Softplus": (vr.nn.Softplus, lambda: 2.0, lambda: 5.0),
    "leaky_relu": (F.leaky_relu, lambda: X, lambda: 0.1),
    "normalize": (F.normalize, lambda: X, lambda: 3.0, lambda: 1, lambda: 0.1),
    "cosine_similarity": (F.cosine_similarity, lambda: X, lambda: X, lambda: 1, lambda: 0.1),
    "one_hot": (F.one_hot, lambda: np.array([1]), lambda: 2),
    "embedding": (F.embedding, lambda: np.array([1]), lambda: X, int),
    "rows by a Variable": (lambda index: vr.Variable(X)[vr.Variable(index)], lambda: np.array([1])),
    "topk": (F.topk, lambda: X, lambda: 2, lambda: 1),
    "astype": (vr.Variable(X).astype, lambda: "float64"),
    "argmax": (vr.Variable(X).argmax, lambda: 1, bool),
    **{name: (getattr(vr.Variable(X), name), lambda: 1, bool) for name in ("max", "min")},
    **{name: (getattr(vr.Variable(X), name), lambda: 1, lambda: 1, bool) for name in ("std", "var")},
    "clip": (vr.Variable(X).clip, lambda: 0.0, lambda: 1.0),
    "squeeze": (vr.Variable(X[:1]).squeeze, int),
    "unsqueeze": (vr.Variable(X).unsqueeze, lambda: -1),
    "requires_grad_": (lambda flag: parameter().requires_grad_(flag), bool),
    "cumsum": (vr.Variable(X).cumsum, lambda: 1),
    "huber_loss": (F.huber_loss, lambda: X, lambda: X, lambda: "mean", lambda: 1.0),
    "smooth_l1_loss": (F.smooth_l1_loss, lambda: X, lambda: X, lambda: "mean", lambda: 1.0),
    "stack": (F.stack, lambda: [vr.Variable(X)] * 2, int),
    "functional.split": (F.split, lambda: X, lambda: [1, 2], lambda: 1),
    "split, size": (lambda size: F.split(X, size), lambda: 2),
    "transpose": (vr.Variable(X).transpose, lambda: 0, lambda: 1),
    "dropout": (F.dropout, lambda: X, lambda: 0.5, bool),
    "cross_entropy": (
        F.cross_entropy, lambda: X, lambda: np.zeros(5, int), lambda: "mean",
    ),
    "binary_cross_entropy": (F.binary_cross_entropy_with_logits, lambda: X, lambda: X, lambda: "mean"),
    "cross_entropy, weights": (
        lambda weight, index, smoothing, sample_weight: F.cross_entropy(
            X, np.zeros(5, int), weight=weight, ignore_index=index, label_smoothing=smoothing,
            sample_weight=sample_weight,
        ),
        lambda: np.ones(3), lambda: 1, lambda: 0.1, lambda: np.ones(5),
    ),
    "focal_loss": (
        lambda gamma, weight: F.focal_loss(X, np.zeros(5, int), gamma=gamma, weight=weight),
        lambda: 2.0, lambda: np.ones(3),
    ),
    "binary_cross_entropy, weights": (
        lambda weight, pos_weight: F.binary_cross_entropy_with_logits(X, X, weight=weight, pos_weight=pos_weight),
        lambda: np.ones(3), lambda: np.ones(3),
    ),
    "hinge_loss": (F.hinge_loss, lambda: X, lambda: X, lambda: "mean"),
    "l1_loss": (F.l1_loss, lambda: X, lambda: X, lambda: "mean"),
    "poisson_nll_loss": (F.poisson_nll_loss, lambda: X, lambda: X, lambda: "mean"),
    "quantile_loss": (F.quantile_loss, lambda: X, lambda: X, lambda: 0.5, lambda: "mean"),
    "Standardize": (vr.nn.Standardize, lambda: 3, lambda: "f4"),
    "Standardize.fit": (vr.nn.Standardize(3).fit, lambda: [X]),
    "Standardize, x": (vr.nn.Standardize(3), rows),
    "mse_loss": (F.mse_loss, lambda: X, lambda: X, lambda: "mean"),
    "Trainer": (
        lambda *given: vr.training.Trainer(*given[:4], validate=given[4], clip_norm=given[5], accumulate=given[6],
                                           callbacks=given[7], comm=given[8], reproducible=given[9]),
        Sum, lambda: vr.optim.SGD(parameters(), 0.1), lambda: Sum().forward, epochs_of_one, lambda: dict, lambda: 1.0,
        lambda: 1, list, vr.distributed.Communicator, lambda: 2,
    ),
    "Trainer.load": (lambda path: trainer().load(path), saved_training),
    "Trainer.resume": (lambda folder: trainer().resume(folder), tempfile.mkdtemp),
    "EarlyStopping": (
        vr.training.EarlyStopping, lambda: "loss", lambda: 2, lambda: "min", lambda: 0.1, bool,
    ),
    "Schedule": (vr.training.Schedule, Steps, lambda: "epoch", lambda: "loss"),
    "Checkpoints": (vr.training.Checkpoints, tempfile.mkdtemp, lambda: 2, lambda: 1),
    "JSONLog": (vr.training.JSONLog, lambda: tempfile.mkdtemp() + "/log", lambda: 2),
    "plot_history": (vr.training.plot_history, history, lambda: tempfile.mkdtemp() + "/curve.svg", lambda: "title"),
    "SGD": (vr.optim.SGD, parameters, lambda: 0.1),
    "SGD, entry": (lambda p: vr.optim.SGD([p], 0.1), parameter),
    "Momentum": (vr.optim.Momentum, parameters, lambda: 0.1, lambda: 0.9),
    "Adagrad": (vr.optim.Adagrad, parameters, lambda: 0.1),
    "Adam": (vr.optim.Adam, parameters, lambda: 0.1, lambda: (0.9, 0.99), lambda: 1e-8, float),
    "AdamW": (vr.optim.AdamW, parameters, lambda: 0.1, lambda: (0.9, 0.99), lambda: 1e-8, float),
    "RMSprop": (vr.optim.RMSprop, parameters, lambda: 0.1, lambda: 0.9, lambda: 1e-8, float, float),
    "Adadelta": (vr.optim.Adadelta, parameters, lambda: 0.1, lambda: 0.9, lambda: 1e-8, float),
    "add_param_group": (vr.optim.SGD(parameters(), 0.1).add_param_group, lambda: {"params": parameters()}),
    "param_groups": (vr.optim.SGD(parameters(), 0.1).param_groups[0].__setitem__, lambda: "momentum", lambda: 0.5),
    "AveragedModel": (vr.optim.AveragedModel, Sum, lambda: 0.5),
    "state of an average": (
        vr.optim.AveragedModel(Sum()).load_state_dict, lambda: vr.optim.AveragedModel(Sum()).state_dict(),
    ),
    "LambdaLR": (schedules.LambdaLR, sgd, lambda: float),
    "StepLR": (schedules.StepLR, sgd, lambda: 3, lambda: 0.1),
    "MultiStepLR": (schedules.MultiStepLR, sgd, lambda: [3], lambda: 0.1),
    "ExponentialLR": (schedules.ExponentialLR, sgd, lambda: 0.1),
    "LinearLR": (schedules.LinearLR, sgd, lambda: 0.1, lambda: 1.0, lambda: 5),
    "CosineAnnealingLR": (schedules.CosineAnnealingLR, sgd, lambda: 5, lambda: 0.1),
    "OneCycleLR": (schedules.OneCycleLR, sgd, lambda: 0.5, lambda: 5, lambda: 5, lambda: 5, lambda: 0.5, lambda: "cos"),
    "SequentialLR": (
        two_schedules, lambda: None, lambda: [3],
    ),
    "ReduceLROnPlateau": (
        schedules.ReduceLROnPlateau, sgd, lambda: "max", lambda: 0.5, lambda: 3, lambda: 0.1, lambda: "abs", lambda: 3,
        lambda: 0.1, lambda: 0.1,
    ),
    "plateau": (schedules.ReduceLROnPlateau(sgd()).step, lambda: 0.5),
    "state of a schedule": (schedules.StepLR(sgd(), 3).load_state_dict, lambda: {"base_lrs": [0.1], "last_epoch": 3}),
    "Adam, beta": (lambda beta: vr.optim.Adam(parameters(), betas=(beta, 0.9)), lambda: 0.9),
    "lr": (lambda lr: setattr(vr.optim.SGD(parameters(), 0.1), "lr", lr), lambda: 0.1),
    "minimize": (lambda loss: vr.optim.SGD(parameters(), 0.1).minimize(loss), lambda: (parameter() * 2.0).sum()),
    "state of an optimizer": (
        lambda state: vr.optim.Adam(parameters()).load_state_dict(state), lambda: {"lr": np.array(0.1)},
    ),
    "entry of a state": (
        lambda value: vr.optim.Momentum(parameters(), 0.1).load_state_dict({"lr": np.array(0.1), "0.velocity": value}),
        lambda: np.zeros((4, 2), np.float32),
    ),
    "step": (with_gradient(lambda p: vr.optim.Adam(p).step()), lambda: np.zeros((4, 2), np.float32)),
    "clip_grad_norm_": (vr.optim.clip_grad_norm_, parameters, lambda: 1.0),
    "clip_grad_norm_, entry": (lambda p: vr.optim.clip_grad_norm_([p], 1.0), parameter),
    "clip_grad_norm_, gradient": (
        with_gradient(lambda p: vr.optim.clip_grad_norm_(p, 1.0)), lambda: np.zeros((4, 2), np.float32),
    ),
    "Accuracy": (vr.metrics.Accuracy, lambda: 1),
    "Accuracy, update": (vr.metrics.Accuracy().update, lambda: X, lambda: np.zeros(5, int), lambda: X[:, 0]),
    "Accuracy of sequences, update": (
        vr.metrics.Accuracy(per="sequence").update, rows, lambda: np.zeros(5, int), lambda: X[:3, 0],
    ),
    "AUC": (vr.metrics.AUC,),
    "AUC, update": (lambda *a: vr.metrics.AUC().update(*a), lambda: X[:, 0], lambda: np.zeros(5, int), lambda: X[:, 0]),
    "ConfusionMatrix": (vr.metrics.ConfusionMatrix, lambda: 3),
    "F1": (vr.metrics.F1, lambda: 3, lambda: "micro", lambda: 0.0),
    "F1, update": (vr.metrics.F1(3).update, lambda: X, lambda: np.zeros(5, int), lambda: X[:, 0]),
    "Mean": (vr.metrics.Mean().update, lambda: X[:, 0], lambda: X[:, 0]),
    "MeanAbsoluteError": (vr.metrics.MeanAbsoluteError,),
    "MeanAbsoluteError, update": (vr.metrics.MeanAbsoluteError().update, lambda: X, lambda: X, lambda: X[:, 0]),
    "MeanSquaredError": (vr.metrics.MeanSquaredError, bool),
    "R2": (vr.metrics.R2, lambda: 2),
    "R2, update": (vr.metrics.R2(3).update, lambda: X, lambda: X, lambda: X[:, 0]),
    "metric, update_counts": (vr.metrics.Accuracy().update_counts, lambda: np.zeros(2)),
    "metric, merge": (vr.metrics.Accuracy().merge, vr.metrics.Accuracy),
    "metric, load_state_dict": (vr.metrics.Accuracy().load_state_dict, vr.metrics.Accuracy().state_dict),
    "metric, count": (lambda value: vr.metrics.AUC().load_state_dict({"counts": value}), lambda: np.zeros((3, 1))),
    "batches": (vr.data.batches, lambda: [[1, 2], [3]], lambda: [0, 1]),
    "batches, sequence": (lambda rows: vr.data.batches([[1, 2], rows], batch_size=1)[0], lambda: [3]),
    "batches, label": (lambda label: batches(labels=[0, label])[0], int),
    "batches, label of rows": (lambda label: batches(labels=[[1, 2], label])[0], lambda: [3]),
    "batch": (lambda number: batches()[number], int),
    "indices": (lambda number: batches().indices(number), int),
    "part": (lambda *given: batches().part(*given), lambda: 0, lambda: 2, lambda: vr.data.STEP_COST),
    "part of ranks": (lambda part: batches(part=part), lambda: SimpleNamespace(rank=0, size=2)),
    "rank and size": (lambda r, s: batches(part=SimpleNamespace(rank=r, size=s)), lambda: 0, lambda: 2),
    "lengths": (lambda number: batches().lengths(number), int),
    "balanced_parts": (vr.data.balanced_parts, lambda: [3, 4], lambda: 2, lambda: vr.data.STEP_COST),
    "StepCost": (lambda *cost: vr.data.balanced_parts([3, 4], 2, vr.data.StepCost(*cost)), float, float, float, float),
    "StepCost, of": (vr.data.STEP_COST.of, lambda: [3, 4]),
    "measure_step_cost": (
        lambda *given: vr.data.measure_step_cost(lambda x: None, *given), lambda: [rows()], lambda: 1,
    ),
    "at_epoch": (lambda number: batches().at_epoch(number), int),
    "from_texts": (
        lambda texts, labels, v, c, t, m, most, name: vr.data.from_texts(
            texts, labels, vocabulary=v, classes=c, tokens=t, min_count=m, max_vocabulary=most, name=name
        ),
        lambda: ["a"], lambda: ["x"], lambda: ["<unk>", "a"], lambda: ["x"], lambda: "characters", lambda: 1, lambda: 9,
        lambda: "two",
    ),
    "from_texts, text": (lambda text: vr.data.from_texts(["a", text]), lambda: "b"),
    "from_texts, label": (lambda label: vr.data.from_texts(["a", "b"], ["x", label]), lambda: "y"),
    "vocabulary, entry": (lambda entry: vr.data.from_texts(["a"], vocabulary=["<unk>", entry]), lambda: "a"),
    "encode": (data_set().encode, lambda: "ab"),
    "take": (data_set().take, lambda: [0], lambda: "one"),
    "split": (data_set().split, lambda: 0.5, int),
    "Dataset": (
        vr.data.Dataset, lambda: "one", lambda: [np.array([1])], lambda: np.array([0]), lambda: ["<unk>", "a"],
        lambda: ["x"], lambda: "characters",
    ),
    "read_jsonl": (vr.data.read_jsonl, lambda: saved('{"text":"a","label":"b"}', Path.write_text)),
    "read_jsonl, fields": (
        in_a_file("a.jsonl", '{"text":"a","label":"b"}', vr.data.read_jsonl), lambda: "text", lambda: "label",
    ),
    "read": (
        lambda path, *given: vr.data.read(path, **dict(zip(READ, given, strict=True))),
        lambda: saved("id,t,x,y\na,1,2,u", Path.write_text), lambda: "csv", lambda: None, lambda: "y", lambda: "id",
        lambda: "t", lambda: ["x"], lambda: False, lambda: None, lambda: ",", lambda: "error", lambda: "classes",
        lambda: ["u"], lambda: ["z"],
    ),
    "read, frame": (
        lambda frame, *given: vr.data.read(frame, **dict(zip(READ, given, strict=True))),
        lambda: frame({"id": ["a"], "t": [1], "x": [2.0], "y": ["u"]}), lambda: None, lambda: None, lambda: "y",
        lambda: "id", lambda: "t", lambda: ["x"], lambda: False, lambda: None, lambda: None, lambda: "error",
        lambda: "classes", lambda: ["u"], lambda: ["z"],
    ),
    "read, entry": (lambda entry: vr.data.read(objects(entry, "ab")), lambda: "b"),
    "read, entry of numbers": (lambda entry: vr.data.read(objects(entry, [1.0])), lambda: [0.5]),
    "read, label of a frame": (
        lambda label: vr.data.read(objects("a", "b").assign(y=pd_objects(label, "u")), label="y"), lambda: "v",
    ),
    "read, row of a frame": (
        lambda x: vr.data.read(objects("a", "b").assign(x=pd_objects(x, 1.0)), id="text"), lambda: 0.5,
    ),
    "read, time of a frame": (
        lambda t: vr.data.read(objects("a", "a").assign(t=pd_objects(t, 1.0), x=[1.0, 2.0]), id="text", time="t"),
        lambda: 0.5,
    ),
    "read, id of a frame": (
        lambda id: vr.data.read(objects(id, "a").assign(x=[1.0, 2.0]), id="text"), lambda: "b",
    ),
    "batches, beside": (
        lambda static, weights: vr.data.batches([[1], [2]], static=static, weights=weights, batch_size=1),
        lambda: np.ones(2), lambda: np.ones(2),
    ),
    "split, groups": (
        vr.data.from_texts(["a", "b"], [0, 1]).split, lambda: 0.5, lambda: 0, lambda: False, lambda: [0, 1],
    ),
    "read_csv": (vr.data.read_csv, lambda: saved("text,label\na,b", Path.write_text)),
    "read_csv, fields": (in_a_file("a.csv", "text,label\na,b", vr.data.read_csv), lambda: "text", lambda: "label"),
    "read_csv, delimiter": (
        in_a_file("a.csv", "text,label\na,b", lambda path, d: vr.data.read_csv(path, delimiter=d)), lambda: ",",
    ),
    "connect": (vr.distributed.connect, lambda: 1.0),
    "Communicator": (vr.distributed.Communicator,),
    "replicate": (
        vr.distributed.replicate, Sum, lambda: vr.optim.SGD(parameters(), 0.1), vr.distributed.Communicator, lambda: 2,
    ),
    "ReplicatedProgram": (vr.distributed.ReplicatedProgram, of_a_step, vr.distributed.Communicator),
    "ReplicatedProgram.run": (
        lambda feed, names: vr.distributed.ReplicatedProgram(of_a_step()).run(feed, names), lambda: {"x": X},
        lambda: ["loss"],
    ),
    "metric, all_reduce": (vr.metrics.Accuracy().all_reduce, vr.distributed.Communicator),
    "all_reduce": (vr.distributed.Communicator().all_reduce, lambda: np.zeros(2), lambda: "max"),
    "start_all_reduce": (vr.distributed.Communicator().start_all_reduce, lambda: np.zeros(2)),
    "all_gather": (vr.distributed.Communicator().all_gather, lambda: X),
    "all_to_all": (vr.distributed.Communicator().all_to_all, lambda: [X]),
    "all_to_all, entry": (lambda array: vr.distributed.Communicator().all_to_all([array]), lambda: X),
    "broadcast": (vr.distributed.Communicator().broadcast, lambda: np.zeros(2), int),
    "standard_library_functions": (vr.data.standard_library_functions, lambda: ["json"], lambda: 1),
}  # fmt: skip
CALLS["batches"] = (batches,)
OPTIONS = {
**{name: {"per": lambda: "row"} for name in (
        "huber_loss", "smooth_l1_loss", "binary_cross_entropy", "hinge_loss", "l1_loss", "poisson_nll_loss",
        "quantile_loss", "mse_loss", "cross_entropy",
    )},
    "CTCDecoder": {"lm_weight": float, "word_score": float, "boundary": lambda: 1, "hotwords": lambda: [[2]],
                   "hotword_weight": float},
    "TransducerDecoder": {"blank": lambda: 0, "max_symbols": lambda: 2},
    "Momentum": {"nesterov": bool},
    **{name: {"dtype": lambda: "float32"} for name in ("LayerNorm", "Linear", "BatchNorm1d", "RMSNorm")},
    "Embedding": {"sparse": bool, "dtype": lambda: "float32", "shard": lambda: None}, "embedding": {"sparse": bool},
    "Embedding, from_pretrained": {"sparse": bool, "shard": vr.distributed.Communicator},
    "Dropout": {"per": lambda: "row"}, "dropout": {"per": lambda: "row"},
    "MultiheadAttention": {"bias": bool, "kdim": lambda: 3, "vdim": lambda: 5, "dtype": lambda: "f4"},
    "MultiheadAttention, weights": {"is_causal": bool, "window": lambda: (None, 1), "need_weights": lambda: True},
    **{name: {"lazy": bool, "epsilon": lambda: None} for name in ("Adam", "AdamW")},
    "Adagrad": {"eps": lambda: 1e-6, "weight_decay": float, "initial_accumulator_value": float,
                "epsilon": lambda: None},
    "OneCycleLR": {"div_factor": lambda: 5.0, "final_div_factor": lambda: 5.0},
    "Accuracy": {"ignore_index": int, "per": lambda: "row"}, "AUC": {"ignore_index": int}, "F1": {"ignore_index": int},
    "ConfusionMatrix": {"ignore_index": int}, "MeanAbsoluteError": {"per": lambda: "row"},
    "MeanSquaredError": {"per": lambda: "row"},
    "batches": {"labels": lambda: [0, 1], "batch_size": lambda: 2, "shuffle": bool, "bucket": bool, "drop_last": bool,
                "seed": int, "epoch": int},
    "operator": {"name": lambda: "of_a_test", "outputs": lambda: ("y",), "intermediate": tuple, "may_miss": tuple,
                 "in_place": bool, "cost": lambda: None, "inference": dict, "overwrites": lambda: None,
                 "places": lambda: None},
    "cell": {"name": lambda: "of_a_test"},
    "lstm_cell": {"peepholes": bool, "coupled": bool, "forget_gate": lambda: True, "cell_clip": lambda: None,
                  "proj_clip": lambda: None, "clip": lambda: None, "activations": lambda: ("sigmoid", "tanh", "tanh"),
                  "zoneout": bool, "recurrent_dropout": bool},
    "gru_cell": {"reset_after": bool, "origin_mode": bool, "clip": lambda: None,
                 "activations": lambda: ("sigmoid", "tanh"), "zoneout": bool, "recurrent_dropout": bool},
    "rnn_cell": {"activation": lambda: "tanh", "clip": lambda: None, "zoneout": bool, "recurrent_dropout": bool},
    "slstm_cell": {"forget": lambda: "exp"},
    "Cell": {"name": lambda: "of_a_test", "gates": lambda: "y", "states": lambda: "h", "slots": lambda: "y",
             "step": lambda: linear, "step_grad": lambda: linear_grad, "product_slots": dict},
}  # fmt: skip
for name in ("LSTM", "GRU", "RNN"):
    layer, states = getattr(vr.nn, name), (lambda: (H, H)) if name == "LSTM" else (lambda: H)
    CALLS[name] = (layer, lambda: 3, lambda: 4)
    OPTIONS[name] = {
        "num_layers": lambda: 1,
        "bias": bool,
        "dropout": float,
        "bidirectional": bool,
        "dtype": lambda: "f4",
        "direction": lambda: "forward",
        "merge": lambda: "concat",
        "dropout_per": lambda: "row",
        "recompute": bool,
        "precision": lambda: "fp32",
        "num_heads": lambda: 1,
        "clip": lambda: None,
        "zoneout": float,
        "recurrent_dropout": float,
        "weight_dropout": float,
    }
    CALLS[f"{name}, x"] = (layer(3, 4), rows, states)
    CALLS[f"Padded {name}, x"] = (vr.baselines.Padded(layer(3, 4)), rows, states)
    CALLS[f"{name}, all_states"] = (layer(3, 4).all_states, rows, states)
    CALLS[f"{name}Cell"] = (getattr(vr.nn, f"{name}Cell"), lambda: 3, lambda: 4)
    OPTIONS[f"{name}Cell"] = {"bias": bool, "dtype": lambda: "f4"}
    step, before = getattr(vr.nn, f"{name}Cell")(3, 4), (lambda: (H[0], H[0])) if name == "LSTM" else (lambda: H[0])
    CALLS[f"{name}Cell, x"] = (step, lambda: X[:3], before)
CALLS["SLSTM"] = (vr.nn.SLSTM, lambda: 3, lambda: 4, lambda: 2)
CALLS["SLSTM, x"] = (vr.nn.SLSTM(3, 4), rows, lambda: (H, H, H, H))
not_of_slstm = {"num_heads", "clip", "zoneout", "recurrent_dropout"}
OPTIONS["SLSTM"] = {key: make for key, make in OPTIONS["GRU"].items() if key not in not_of_slstm}
OPTIONS["SLSTM"] |= {"forget": lambda: "exp"}
OPTIONS["LSTM"] |= {"proj_size": lambda: 2, "proj_clip": lambda: 1.0}
for name, option in {"GatedDeltaNet": "conv_size", "DeltaNet": "conv_size", "Mamba2": "d_conv", "MLSTM": None,
                     "GatedLinearAttention": "gate_low_rank_dim"}.items():  # fmt: skip
    layer = getattr(vr.nn, name)
    CALLS[name] = (layer, lambda: 3, lambda: 4, lambda: 2, lambda: 1)
    OPTIONS[name] = {
        **({} if option is None else {option: lambda: 2}), "dropout": float, "bidirectional": bool,
        "direction": lambda: "forward", "dtype": lambda: "f4", **({"d_state": lambda: 3} if name == "Mamba2" else {}),
        **({"allow_neg_eigval": bool} if "DeltaNet" in name else {}),
    }  # fmt: skip
    CALLS[f"{name}, x"] = (layer(3, 4), rows, lambda: None)
for name in ("RNN", "RNNCell"):
    OPTIONS[name]["nonlinearity"] = lambda: "tanh"


def tables_of_its_own(patch):
    """Let what calls declare be forgotten when a patch is undone."""
    patch.setattr(operator, "OPERATORS", dict(operator.OPERATORS))
    patch.setattr(registry, "_CELLS", weakref.WeakValueDictionary(registry._CELLS))


def call(name, place=None, wrong=None):
    """Call a function with right arguments, or a wrong one at a place."""
    function, *arguments = CALLS[name]
    made = [wrong() if number == place else make() for number, make in enumerate(arguments)]
    options = {key: wrong() if key == place else make() for key, make in OPTIONS.get(name, {}).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of conversions
        return function(*made, **options)


@pytest.mark.slow
def test_arguments_of_a_wrong_type(tmp_path_factory, monkeypatch):
    def check(name):
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path_factory.mktemp("call"))  # where texts are paths
            tables_of_its_own(patch)
            call_with_wrong_arguments(name)

    check_each(CALLS, check)


def call_with_wrong_arguments(name):
    call(name)
    for place in [*range(len(CALLS[name]) - 1), *OPTIONS.get(name, ())]:
        for kind, wrong in WRONG.items():
            try:
                call(name, place, wrong)
            except (vr.InputError, OSError):
                pass
            except Exception as error:
                raise AssertionError(f"argument {place}, {kind}: {type(error).__name__}") from error


FAMILIES = {"LSTM": "lstm_cell", "GRU": "gru_cell", "RNN": "rnn_cell", "SLSTM": "slstm_cell"}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_option_of_a_layer_is_tried(name):
    """An option is in the cell's `OPTIONS` or, if the cell has none of its name, in the layer's."""
    of_cell, of_layer = getattr(vr.cells, FAMILIES[name]).options, getattr(options, f"{name}Options").__annotations__
    assert set(of_cell) == set(OPTIONS[FAMILIES[name]])
    assert set(of_layer) - set(of_cell) <= set(OPTIONS[name])


def test_every_public_function_is_called():
    public = {"vr": vr, "nn": vr.nn, "optim": vr.optim, "data": vr.data, "baselines": vr.baselines,
              "metrics": vr.metrics, "distributed": vr.distributed}  # fmt: skip
    found = {name: getattr(module, name) for module in public.values() for name in dir(module)}
    functions = {name for name, value in found.items() if callable(value) and not isinstance(value, ModuleType)}
    of_descriptions = {name for name in functions if name.endswith("Desc")} | {"VarType"}
    of_programs = {"Executor", "Program"}
    made_by_others = {"PaddingReport", "GradientReport", "SortedSeqItem", "Batches", "Module", "Optimizer", "Metric"}
    made_by_others |= {"ModelSummary", "Replica", "Shard"}
    without_arguments = {"get_float32_matmul_precision", "get_num_threads", "grad_enabled", "no_grad", "release_memory"}
    of_python = {"documentation_sentences", "unicode_names"}
    errors = {name for name in functions if name.endswith("Error")}
    of_engines = {"TorchCommunicator", "MpiCommunicator"}  # `test_distributed.py` gives their arguments
    of_engines |= {"KenLM"}  # `test_ken_lm.py` does
    others = of_engines | of_descriptions | of_programs | made_by_others | without_arguments | of_python | errors
    assert functions - others <= {name.split(",")[0] for name in CALLS}
