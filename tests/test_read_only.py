"""Operands that kernels are not compiled for, as memory maps are: no operator compiles its kernels again for them."""

from functools import partial

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.cells import CELLS
from varlen_rnn.kernels import updates
from varlen_rnn.nn import functional as F
from varlen_rnn.ops.sequence.pool import POOL_TYPES
from varlen_rnn.runtime.numba_internals import CPUDispatcher
from varlen_rnn.tape.operator import find

LENGTHS = [2, 0, 3, 1]
HIDDEN = 2
LINEAR = {"delta": True, "normalise": False, "scale": None}
NORMALISED = {"delta": False, "normalise": True, "scale": None}


def dense(*shape):
    return vr.LoDTensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def rows(*element):
    return vr.create_lod_tensor(dense(sum(LENGTHS), *element), [LENGTHS])


def integers(*values):
    return vr.LoDTensor(np.array(values))


def sparse():
    return vr.SelectedRows([3, 0, 3], dense(3, 2).data, 5)


def weights(cell, directions):
    size = len(CELLS[cell].gates) * HIDDEN
    return [dense(*shape) for _ in range(directions) for shape in ((size, 3), (size, HIDDEN), (size,), (size,))]


def inputs_of_gradient(cell, directions):
    """Return the inputs of `recurrent_grad` after a layer with initial states; what it kept is the layer's own."""
    states = [dense(directions, 4, HIDDEN) for _ in CELLS[cell].states]
    inputs = [rows(3), *states, *weights(cell, directions)]
    y, *others = find("recurrent").forward(*inputs, cell=cell, keep=True)
    return [*inputs, y, *others[len(states) :], y, *states]


def of_pool(pool_type):
    """Return the inputs of `sequence_pool_grad`."""
    out, index = find("sequence_pool").forward(X, pool_type=pool_type)
    return [X, index, out]


X, PLAN = rows(3), vr.sort_by_seq_len([0, 2, 2, 5, 6])
LR, STEP = vr.LoDTensor(np.array(0.1)), vr.LoDTensor(np.array(0))
TABLE = {"padding_idx": None, "sparse": False}
UPDATES = {
    name: (
        [STEP if state == "step" else dense(5, 2) for state in find(name).inputs[3:]],
        next(find(name).examples(np.random.default_rng(0)))[1],
    )
    for name in updates.UPDATES
}
UPDATES["adam of listed"] = (UPDATES["adam"][0], UPDATES["adam"][1] | {"lazy": True, "decoupled": True})
# Inputs, or what returns them, and constants of every operator with kernels, by a name that begins with its own.
CASES = {
    "recurrent": ([X, None, None, *weights("lstm", 1)], {"cell": "lstm", "keep": True}),
    "recurrent both ways": ([X, *[dense(2, 4, HIDDEN)] * 2, *weights("lstm", 2)], {"cell": "lstm", "keep": False}),
    "recurrent_grad": (
        lambda: inputs_of_gradient("lstm", 1),
        {"cell": "lstm", "num_forward": 7, "need_x": True, "need_weights": True},
    ),
    "recurrent_grad 2": (
        lambda: inputs_of_gradient("gru", 2),
        {"cell": "gru", "num_forward": 10, "need_x": True, "need_weights": True},
    ),
    "matmul": ([X, dense(3, 2), None], {"transposed": False}),
    "matmul bias": ([X, dense(2, 3), dense(2)], {"transposed": True}),
    "row_product": ([X, rows(2)], {}),
    "row_sum": ([X], {}),
    "embedding": ([integers(1, 1, 4), dense(5, 2)], TABLE),
    "embedding_grad": ([integers(1, 1, 4), dense(5, 2), dense(3, 2)], TABLE),
    "cross_entropy": ([X, integers(0, 2, 1, 1, 0, 2)], {}),
    "segment_inputs": ([X, PLAN], {"t": 1}),
    "segment_inputs_grad": ([X, PLAN, dense(2, 3)], {"t": 1}),
    "init_memories": ([dense(4, 3), PLAN], {}),
    "init_memories_grad": ([dense(4, 3), PLAN, dense(4, 3)], {}),
    "sequence_pad": ([X], {"pad_value": 1.0, "maxlen": None}),
    "sequence_pad_grad": ([X, dense(4, 3, 3)], {"pad_value": 1.0, "maxlen": None}),
    "sequence_unpad": ([dense(4, 3, 2), integers(*LENGTHS)], {}),
    "sequence_unpad_grad": ([dense(4, 3, 2), integers(*LENGTHS), rows(2)], {}),
    "sequence_conv": ([X, dense(9, 2), dense(2), dense(2, 3)], {"filter_size": 3, "padding_start": None}),
    "sequence_conv_grad": ([rows(2), dense(9, 2)], {"filter_size": 3, "padding_start": None}),
    "sequence_conv_weight_grad": ([rows(2), X, dense(9, 2), dense(2, 3)], {"filter_size": 3, "padding_start": None}),
    "sequence_conv_padding_grad": ([rows(2), dense(9, 2), dense(2, 3)], {"filter_size": 3, "padding_start": None}),
    "row_conv": ([X, dense(2, 3)], {}),
    "row_conv_grad": ([X, dense(2, 3), X], {}),
    "causal_conv": ([X, dense(3, 2), dense(3), dense(4, 1, 3)], {}),
    "causal_conv_grad": ([X, dense(3, 2), X, dense(4, 1, 3)], {}),
    "causal_conv_weight_grad": ([X, dense(3, 2), X, dense(4, 1, 3)], {}),
    "linear_attention": ([rows(1, 3)] * 3 + [rows(1), rows(1), dense(4, 1, 3, 3), None], LINEAR | {"keep": True}),
    "linear_attention_grad": (
        [rows(1, 3)] * 4 + [dense(4, 1, 3, 3), None, rows(1), rows(1), dense(4, 1, 3, 3)],
        LINEAR,
    ),
    "linear_attention normalised": (
        [rows(1, 3)] * 3 + [rows(1), rows(1), dense(4, 1, 3, 3), dense(4, 1, 3)],
        NORMALISED | {"keep": True},
    ),
    "linear_attention_grad normalised": (
        [
            *[rows(1, 3)] * 3,
            dense(0, 1, 3),
            *[dense(4, 1, 3, 3), dense(4, 1, 3), rows(1), rows(1)],
            *[dense(4, 1, 3, 3), dense(4, 1, 3), rows(1, 3), dense(4, 1, 3, 3), rows(1), dense(4, 1, 3)],
        ],
        NORMALISED,
    ),
    "sequence_cumsum": ([X], {"reverse": True}),
    "layer_norm": ([X, dense(3), dense(3)], {"eps": 0.1}),
    "layer_norm_grad": ([X, X, dense(3)], {"eps": 0.1, "centres": True}),
    "layer_norm_weight_grad": ([X, X], {"eps": 0.1, "centres": False}),
    "stabiliser": ([X, X, dense(4, 3)], {}),
    "rms_norm": ([X, dense(3)], {"eps": 0.1}),
    "sequence_softmax": ([X], {}),
    "sequence_softmax_grad": ([X, X, X], {}),
    "concat_outputs": ([PLAN, dense(3, 2), dense(2, 2), dense(1, 2)], {}),
}
CASES |= {f"sequence_pool {name}": ([X], {"pool_type": name}) for name in POOL_TYPES}
CASES |= {
    f"sequence_pool_grad {name}": (partial(of_pool, name), {"pool_type": name, "pad_value": 0.0, "level": -1})
    for name in POOL_TYPES
}
CASES |= {name: ([dense(5, 2), dense(5, 2), LR, *states], attrs) for name, (states, attrs) in UPDATES.items()}
CASES |= {f"{name} rows": ([dense(5, 2), sparse(), LR, *states], attrs) for name, (states, attrs) in UPDATES.items()}


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def strided(array):
    wide = np.zeros((*array.shape, 2), array.dtype)
    wide[..., 0] = array
    return wide[..., 0]


def changed(value, change):
    if isinstance(value, vr.LoDTensor):
        return vr.LoDTensor.wrap(change(value.data), value.structure)
    if isinstance(value, vr.SelectedRows):
        return vr.SelectedRows(value.rows, change(value.value), value.height)
    return value


def run(op, values, attrs, change):
    """Return the outputs of an operator, and of its shortcut, where it has one; memory that it writes to is its own."""
    written = (*op.in_place, *(op.overwrites(len(values), **attrs) if op.overwrites else ()))
    values = [changed(value, np.copy if place in written else change) for place, value in enumerate(values)]
    short = op.shortcut and op.shortcut(values, **attrs)
    given = op.forward(*values, **attrs)
    return [*(short or ()), *(given if isinstance(given, (tuple, list)) else [given])]


def compile_nothing(monkeypatch):
    def compile_again(self, signature):
        raise AssertionError(f"{self.py_func.__name__} is compiled again for {signature}")

    monkeypatch.setattr(CPUDispatcher, "compile", compile_again)


@pytest.mark.parametrize("change", [read_only, strided])
@pytest.mark.parametrize("name", CASES)
def test_operands_of_any_kind_run_the_kernels_that_were_compiled(monkeypatch, name, change):
    (values, attrs), op = CASES[name], find(name.split()[0])
    values = values() if callable(values) else values
    wanted = run(op, values, attrs, np.copy)
    compile_nothing(monkeypatch)
    for value, other in zip(run(op, values, attrs, change), wanted, strict=True):
        if isinstance(value, vr.LoDTensor):
            np.testing.assert_array_equal(value.data, other.data)


@pytest.mark.parametrize("change", [read_only, strided])
def test_so_does_a_step_of_the_users_own(monkeypatch, change):
    layer = vr.nn.DynamicRNN(lambda x_t, state: (x_t * state, state + x_t))

    def gradients(change):
        x, boot = (vr.Variable(changed(value, change), requires_grad=True) for value in (X, dense(4, 3)))
        y, last = layer(x, [boot])
        F.mse_loss(y, changed(X, change)).backward()
        return x.grad, boot.grad, np.asarray(last)

    wanted = gradients(np.copy)
    compile_nothing(monkeypatch)
    for value, other in zip(gradients(change), wanted, strict=True):
        np.testing.assert_array_equal(value, other)


def test_a_memory_map_is_an_operand_like_any_other(monkeypatch, tmp_path):
    np.save(tmp_path / "x.npy", X.data)
    layer = vr.nn.GRU(3, HIDDEN)
    wanted = np.asarray(layer(X)[0])
    compile_nothing(monkeypatch)
    mapped = vr.create_lod_tensor(np.load(tmp_path / "x.npy", mmap_mode="r"), [LENGTHS])
    np.testing.assert_array_equal(layer(mapped)[0], wanted)
