"""Recurrent networks on variable-length sequences, without padding."""

from typing import TYPE_CHECKING

from varlen_rnn import baselines, cells, data, distributed, metrics, nn, ops, optim, steps, training
from varlen_rnn.cells import cell
from varlen_rnn.checkpoint import load, save
from varlen_rnn.errors import (
    CheckpointError,
    DTypeError,
    InputError,
    LoDError,
    OutOfRangeError,
    PlaceError,
    ProgramError,
    ShapeError,
)
from varlen_rnn.interop import from_arrow, from_awkward, to_arrow, to_awkward
from varlen_rnn.ops.linear_attention import linear_attention
from varlen_rnn.ops.sequence.along import sequence_cumsum, sequence_reverse, sequence_softmax
from varlen_rnn.ops.sequence.beam_search import beam_search, beam_search_decode
from varlen_rnn.ops.sequence.by_mask import merge_by_mask, split_by_mask
from varlen_rnn.ops.sequence.causal_conv import causal_conv
from varlen_rnn.ops.sequence.conv import row_conv, sequence_conv
from varlen_rnn.ops.sequence.crf import crf_decoding, linear_chain_crf
from varlen_rnn.ops.sequence.ctc import ctc_beam_search_decoder, ctc_greedy_decoder
from varlen_rnn.ops.sequence.ctc_alignment import ctc_forced_align
from varlen_rnn.ops.sequence.expand import sequence_expand, sequence_expand_as
from varlen_rnn.ops.sequence.ids import edit_distance, sequence_enumerate, sequence_erase
from varlen_rnn.ops.sequence.im2sequence import im2sequence
from varlen_rnn.ops.sequence.join import sequence_concat, sequence_slice
from varlen_rnn.ops.sequence.pad import sequence_mask, sequence_pad, sequence_scatter, sequence_unpad
from varlen_rnn.ops.sequence.pool import (
    sequence_first_step,
    sequence_last_step,
    sequence_pool,
    sequence_topk_avg_pooling,
)
from varlen_rnn.ops.sequence.ranks import reorder_by_rank, sort_by_seq_len
from varlen_rnn.ops.sequence.steps import concat_outputs, init_memories, segment_inputs
from varlen_rnn.ops.sequence.structure import lod_append, lod_reset, sequence_reshape
from varlen_rnn.program.checker import check_operator
from varlen_rnn.program.desc import BlockDesc, LoDTensorDesc, OpDesc, ProgramDesc, TensorDesc, VarDesc, VarType
from varlen_rnn.program.executor import Executor
from varlen_rnn.program.format.wire import values_from_bytes, values_to_bytes
from varlen_rnn.program.guard import feed_data, program_guard
from varlen_rnn.program.inference import load_inference_model, save_inference_model
from varlen_rnn.program.program import Program
from varlen_rnn.program.stream import ProgramStream as _ProgramStream
from varlen_rnn.random import manual_seed
from varlen_rnn.rows.lod import LoD, LoDTensor, create_lod_tensor
from varlen_rnn.rows.plan import PaddingReport, SortedSeqItem, SortedSeqs
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.memory import release_memory
from varlen_rnn.runtime.place import device
from varlen_rnn.runtime.precision import (
    float32_matmul_precision,
    get_float32_matmul_precision,
    set_float32_matmul_precision,
)
from varlen_rnn.runtime.threads import get_num_threads, set_num_threads
from varlen_rnn.steps.while_loop import while_loop
from varlen_rnn.tape import elsewhere
from varlen_rnn.tape.backward import backward
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.inspect import GradientReport, inspect_gradients
from varlen_rnn.tape.modes import grad_enabled, no_grad
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import Variable
from varlen_rnn.training.bound import bound

__all__ = [
    "BlockDesc", "CheckpointError", "DTypeError", "Executor", "GradientReport", "InputError", "LoD", "LoDError",
    "LoDTensor", "LoDTensorDesc", "OpDesc", "OutOfRangeError", "PaddingReport", "PlaceError", "Program", "ProgramDesc",
    "ProgramError", "SelectedRows", "ShapeError", "SortedSeqItem", "SortedSeqs", "TensorDesc", "TensorSpec", "VarDesc",
    "VarType", "Variable", "backward", "baselines", "beam_search", "beam_search_decode", "bound", "causal_conv", "cell",
    "cells", "check_operator", "concat_outputs", "create_lod_tensor", "crf_decoding", "ctc_beam_search_decoder",
    "ctc_forced_align", "ctc_greedy_decoder", "data", "device", "distributed", "edit_distance", "feed_data",
    "float32_matmul_precision", "from_arrow", "from_awkward", "get_float32_matmul_precision", "get_num_threads",
    "grad_enabled", "im2sequence", "init_memories", "inspect_gradients", "linear_attention", "linear_chain_crf", "load",
    "load_inference_model", "lod_append", "lod_reset", "manual_seed", "merge_by_mask", "metrics", "nn", "no_grad",
    "operator", "ops", "optim", "program_guard", "release_memory", "reorder_by_rank", "row_conv", "save",
    "save_inference_model", "segment_inputs", "sequence_concat", "sequence_conv", "sequence_cumsum",
    "sequence_enumerate", "sequence_erase", "sequence_expand", "sequence_expand_as", "sequence_first_step",
    "sequence_last_step", "sequence_mask", "sequence_pad", "sequence_pool", "sequence_reshape", "sequence_reverse",
    "sequence_scatter", "sequence_slice", "sequence_softmax", "sequence_topk_avg_pooling", "sequence_unpad",
    "set_float32_matmul_precision", "set_num_threads", "sort_by_seq_len", "split_by_mask", "to_arrow", "to_awkward",
    "training", "values_from_bytes", "values_to_bytes", "while_loop",
]  # fmt: skip

__version__ = "0.1.0"

_PACKAGES = ("kernels", "onnx", "sklearn", "torch")  # public subpackages that `import varlen_rnn` does not load

if not TYPE_CHECKING:  # Hidden from type checkers: with a module's `__getattr__`, they accept any name.

    def __getattr__(name):
        raise elsewhere.missing_name(__name__, name)


def __dir__() -> list[str]:
    return [*__all__, *(name for name in _PACKAGES if name in globals())]
