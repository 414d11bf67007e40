"""The engines that are compared, and where each of them stands for a task.

A task is a folder (`layers`, `classifiers`, `policies`, `cells`, `sequence`) with a `Case` that says what is computed.
An engine of a task is a class: `Engine(case, threads)` has a method for each mode it knows (`training`, `inference`),
which runs one step and returns its results by name, and `arrays`, which turns those into NumPy arrays that all engines
agree on.
Engines of `cells` and of `sequence` stand apart: of a cell of one's own, a peer offers a loop, and of an operator some
forms of a batch.
"""

import importlib
import importlib.util
import shutil
from typing import NamedTuple

import llvmlite.binding as llvm

OURS, TWIN, BUILT_IN = "varlen_rnn", "varlen_rnn padded", "varlen_rnn built-in"
BFLOAT16 = "varlen_rnn bfloat16"
MODES = ("training", "inference")
_IN_BFLOAT16 = "torch", "avx512bw"  # LLVM's name of a feature of the processor, which an LSTM of oneDNN needs


class Engine(NamedTuple):
    """Module and class of an engine within the folder of a task, and the packages, programs and features it needs."""

    module: str
    name: str
    needs: tuple


ENGINES = {
    OURS: Engine("ours", "Unpadded", ("numba", "varlen_rnn")),
    TWIN: Engine("ours", "Padded", ("numba", "varlen_rnn")),
    "torch packed": Engine("pytorch", "Packed", ("torch",)),
    "torch padded": Engine("pytorch", "Padded", ("torch",)),
    "onnxruntime": Engine("ort", "Session", ("onnx", "onnxruntime")),
}
IN_TORCH = {  # layers too: ours, inside PyTorch
    f"in torch, {layout}": Engine("in_torch", layout.capitalize(), ("numba", "varlen_rnn", "torch"))
    for layout in ("rows", "jagged", "packed", "padded")
}
OF_STEPS = {  # layers that get one step per call, with states: ours inside PyTorch, and its own
    "in torch, step": Engine("in_torch", "Step", ("numba", "varlen_rnn", "torch")),
    "torch step": Engine("pytorch", "Step", ("torch",)),
}
OF_GROUPS = {  # layers as practitioners run them: sorted, and padded in groups of neighbouring lengths
    "torch groups": Engine("groups", "Groups", ("torch",)),
    "torch groups bfloat16": Engine("groups", "Bfloat16", _IN_BFLOAT16),
    "torch groups compiled": Engine("groups", "Compiled", ("torch", "g++")),
}
OF_BFLOAT16 = {  # layers whose products round their factors to bfloat16
    BFLOAT16: Engine("ours", "Bfloat16", ("numba", "varlen_rnn")),
    "torch padded bfloat16": Engine("pytorch", "PaddedBfloat16", _IN_BFLOAT16),
    "torch packed bfloat16": Engine("pytorch", "PackedBfloat16", _IN_BFLOAT16),
}
OF_POLICIES = {"torch loop over steps": Engine("pytorch", "Loop", ("torch",))}  # which resets states
OF_SERVING = {  # layers for inference
    "stream": Engine("serving", "Stream", ("numba", "varlen_rnn")),
    "prepared": Engine("serving", "Prepared", ("numba", "varlen_rnn")),
    "torch cell": Engine("pytorch", "Cell", ("torch",)),
}
OF_CELLS = {
    OURS: Engine("ours", "Layer", ("numba", "varlen_rnn")),
    BUILT_IN: Engine("ours", "BuiltIn", ("numba", "varlen_rnn")),
    "torch loop": Engine("pytorch", "Loop", ("torch",)),
    "torch compiled step": Engine("pytorch", "CompiledStep", ("torch", "g++")),
    "torch compiled loop": Engine("pytorch", "CompiledLoop", ("torch", "g++")),
}
OF_SEQUENCES = {
    OURS: Engine("ours", "Operator", ("numba", "varlen_rnn")),
    "torch padded": Engine("pytorch", "Padded", ("torch",)),
    "torch rows": Engine("pytorch", "Rows", ("torch",)),
    "torch jagged": Engine("pytorch", "Jagged", ("torch",)),
    "NumPy": Engine("scientific", "Operator", ("numpy",)),
}
LAYERS = ENGINES | OF_GROUPS | OF_BFLOAT16 | IN_TORCH | OF_STEPS | OF_SERVING | OF_POLICIES
ALL = LAYERS | OF_CELLS | OF_SEQUENCES
PYTORCH = ("torch packed", "torch padded")
PEERS = (*PYTORCH, "onnxruntime")
LOOPS = ("torch loop", "torch compiled step", "torch compiled loop")
GROUPED = "torch groups"
FORMS = ("torch padded", "torch rows", "torch jagged", "NumPy")
LIMITED = ("torch compiled loop", "torch groups compiled")  # their compiler takes minutes for some hundred steps


def build(task, engine, case, threads):
    """Return an engine of a task, ready for its first step.

    Parameters
    ----------
    task : str
        The folder: "layers", "classifiers", "policies", "cells" or "sequence".
    engine : str
        A key of `LAYERS`, of `OF_CELLS` for cells, or of `OF_SEQUENCES` for sequences.
    case : dict
        The fields of the task's `Case`.
    threads : int
    """
    found = {"cells": OF_CELLS, "sequence": OF_SEQUENCES}.get(task, LAYERS)[engine]
    make_case = importlib.import_module(f"benchmarks.{task}").Case
    return getattr(importlib.import_module(f"benchmarks.{task}.{found.module}"), found.name)(make_case(**case), threads)


def lacking(engine):
    """Return the packages, programs and features of the processor that an engine needs and that are not here."""
    host = llvm.get_host_cpu_features()
    ways = (importlib.util.find_spec, shutil.which, host.get)
    return [name for name in ALL[engine].needs if not any(find(name) for find in ways)]


def installed(engines):
    """Return those of the engines that can run here."""
    return [engine for engine in engines if not lacking(engine)]
