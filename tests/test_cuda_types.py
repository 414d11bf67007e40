"""Every CUDA kernel compiles for a real GPU, without one; the simulator knows no types.

float32 kernels must not compute in float64 anywhere: one literal without a type does that, silently.
"""

import inspect
import re
from types import SimpleNamespace

import numpy as np
import pytest
from numba import config, types

from varlen_rnn.attention import cuda as attention
from varlen_rnn.cells import CELLS, LN_LSTM, gru_cell, lstm_cell
from varlen_rnn.kernels import (
    convolutions,
    crf,
    ctc,
    edit_distance,
    largest,
    moves,
    norms,
    philox,
    pool,
    prefixes,
    rows,
    segment,
    softmax,
    updates,
    windows,
)
from varlen_rnn.products import gemm, row_sums
from varlen_rnn.recurrence import cuda as recurrence

if config.ENABLE_CUDASIM:
    pytest.skip("the simulator does not compile", allow_module_level=True)
from numba.cuda import compiler, dispatcher

NUMBERS = {"t", "a_column", "depth", "c_column", "columns", "b_column", "alive", "y_column", "num_slots", "column"}
NUMBERS |= {"outputs", "first_row", "first_pass", "norms", "scales", "direction"}
FLAGS = {"nesterov", "transposed", "accumulate", "first", "last", "to_caller", "of_outputs", "of_states"}
VECTORS = {"starts", "ids", "sorted_indices", "offsets", "rows", "order", "b_rows", "targets", "weight_rows"}
RATES = {"bound", "lr", *(name for update in updates.UPDATES.values() for name in update.constants)} - FLAGS
STATES = {"initial", "state", "carried", "passed"}
ALONE = "load_states", "recurrent_product", "transposed_product", "permute_states", "store_projection", "normalise"
MODULES = segment, rows, moves, pool, softmax, windows, norms, updates, gemm, row_sums
MODULES += convolutions, crf, ctc, edit_distance, largest, philox, prefixes
# Arguments of kernels in which names tell less, each by a letter: a number x, or an integer n; arrays of numbers of
# one axis, two or three, v, m and t; and of integers, i and j.
LETTERS = {
    "convolutions.shares_above_cuda": "mijjmm",
    "crf.crf_cuda": "miimmtvvmt",
    "crf.viterbi_cuda": "mimmji",
    "ctc.ctc_cuda": "miiinvivvm",
    "edit_distance.edit_distance_cuda": "iiiiii",
    "largest.largest_cuda": "viii",
    "philox.draw_mask_cuda": "iinnxxm",
    "prefixes.search_prefixes_cuda": "minnjjmi",
    "attention.attend": "mmmiivxmt",
    "attention.attend_grad_of_queries": "mmmmiivxtmmm",
    "attention.attend_grad_of_keys": "mmmmiivxtmmm",
}


def kernels():
    found = {
        f"{module.__name__.rpartition('.')[2]}.{name}": kernel
        for module in MODULES
        for name, kernel in vars(module).items()
        if name.endswith("_cuda")
    }
    for name in (*ALONE, "normalise_grad", "keep_projection_grad"):
        found[name] = getattr(recurrence, name)
    for name in ("attend", "attend_grad_of_queries", "attend_grad_of_keys"):
        found[f"attention.{name}"] = getattr(attention, name)
    for cell in (*CELLS.values(), LN_LSTM, gru_cell(reset_after=False), lstm_cell(peepholes=True)):
        for number in range(len(cell.phases)):
            found[f"{cell.name}.{number}.forward_step"] = recurrence.forward_step_of(cell, number)
            found[f"{cell.name}.{number}.backward_step"] = recurrence.backward_step_of(cell, number)
    return found


def argument(kernel, name, real):
    deep = (name in STATES and kernel != "store_projection") or (
        kernel == "permute_states" and name in ("source", "out")
    )
    deep = deep and not (kernel == "keep_projection_grad")
    deep = deep or (kernel == "load_states" and name == "out")
    deep = deep or (kernel.endswith("backward_step") and name in ("previous", "d_vectors"))
    if name == "first" and kernel == "normalise_grad":
        return types.int64
    if name in FLAGS:
        return types.boolean
    if name in NUMBERS:
        return types.int64
    if name in VECTORS:
        return types.int64[::1]
    if name == "index":
        return types.int64[:, ::1]
    if name.removeprefix("share_of_") in RATES:
        return real
    of_features = ("scale", "bias", "weight") if kernel.startswith("norms.") else ("scale", "bias")
    if name in of_features or (kernel == "row_sums.row_sum_cuda" and name == "out"):
        return real[::1]
    return real[:, :, ::1] if deep else real[:, ::1]


@pytest.mark.parametrize("real", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", kernels())
def test_compiles_for_sm_90(name, real, monkeypatch):
    # The compiler asks for a device only to learn its compute capability.
    device = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: device)
    function = kernels()[name].py_func
    number = types.float32 if real is np.float32 else types.float64
    if name in LETTERS:
        kinds = {"x": number, "n": types.int64, "v": number[::1], "m": number[:, ::1], "t": number[:, :, ::1]}
        kinds |= {"i": types.int64[::1], "j": types.int64[:, ::1]}
        arguments = tuple(kinds[letter] for letter in LETTERS[name])
    else:
        arguments = tuple(argument(name, parameter, number) for parameter in inspect.signature(function).parameters)
    compiled = compiler.compile_cuda(function, types.void, arguments, cc=(9, 0))
    if real is np.float32:  # constants are converted when the code is made for a GPU
        assert "double" not in re.sub(r"fptrunc double 0x\w+ to float", "", compiled.library.get_llvm_str())
