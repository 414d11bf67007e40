"""The tables of `docs/gpu_figures.md`, without a GPU; `python -m tests.gpu_page` writes them."""

import gc
from importlib import metadata
from pathlib import Path
from unittest import mock

import numpy as np

import varlen_rnn as vr
from benchmarks.tables import markdown, show
from tests import gpu_model
from tests.emulated.device import Driver
from tests.emulated.figures import ARCHITECTURES, figures_of
from tests.emulated.gate import declared
from tests.emulated.ledger import ALLOCATION, LAUNCH, TO_DEVICE, totals
from tests.emulated.sources import digest_of, ptx_of
from tests.test_cuda_training import Training
from tests.test_examples_on_cuda import STEPS, longest_of, stepper
from varlen_rnn.runtime import cuda

PATH = Path(__file__).parent.parent / "docs" / "gpu_figures.md"
EXAMPLES = ["classify_names", *STEPS]
KINDS = LAUNCH, TO_DEVICE, ALLOCATION
FLOORS = ["units", "weights from L2", "states in memory", "products, float32", "products, TF32", "barrier"]
TIMES = ["units", "forward: reads", "**step**", "backward: reads", "**step**"]
TIMES += ["**persistent, float32**", "**persistent, TF32**"]
HEAD = """# Figures of CUDA kernels

`python -m tests.gpu_page` writes this page, on a machine without a GPU. Nothing here was measured on a GPU.
[CUDA](gpu.md) says how kernels are tested.

"""
LAUNCHES = """## Launches of a training step

Forward, backward, clipping and Adam, for a batch that comes again. Examples are small. A large layer takes as many
launches as a small one on sequences of the same length.

"""
MODEL = """
## Predicted time of a step

A model of one time step of an LSTM with {batch} sequences in one direction, in microseconds, from these assumptions:

{assumptions}

Floors are the least time of each part. A launch per step reads the weights from L2 in each step. A persistent kernel
reads them once.

{floors}

The weights that a warp reads share a cache line. A thread of the forward step reads an output once for all gates, and
a weight per gate. A thread of the backward step reads two numbers per multiply-add. A multiprocessor reads one line a
cycle. Python prepares the next launch while the device works, so a step takes the larger of both times. The persistent
kernel is a forward step: a barrier, the reads of all states from L2 by each block, and the product at its peak rate.

{times}

The model says that, from 512 units on, reads take longer than launches, and a persistent kernel takes less time than
both. The model leaves out the products over all rows, latencies, and the caches of multiprocessors.

"""
KERNELS = """## Registers, shared memory and stack

By ptxas, from the PTX for sm_90 of the kernels that the examples above, and layers of each cell, launch:
{versions}. A kernel that was compiled for several types
of arguments has its largest figures.

"""


class Recorder(Driver):
    """The emulated device; it remembers the kernels that were launched, each with its signature, in their order."""

    def __init__(self):
        super().__init__()
        self.launched = {}

    def function(self, kernel, parameters):
        """Return a kernel for its parameters, and remember it."""
        found = super().function(kernel, parameters)
        self.launched[found] = None
        return found


def measured():
    """Return the driver after all examples and layers, and the counts of each example's third step."""
    counts = {}
    with mock.patch.object(cuda, "driver", Recorder()):
        for name in EXAMPLES:
            step, steps = _training_step(name)
            for _ in range(2):
                step()
                gc.collect()
            before = totals()
            step()
            after = totals()
            counts[f"`{name}.py`"] = [steps, *(after.get(kind, 0) - before.get(kind, 0) for kind in KINDS)]
        for layer in (vr.nn.LSTM, vr.nn.GRU, vr.nn.RNN):
            _train(layer(3, 4))
        return cuda.driver, counts


def _training_step(name):
    """Return the step of an example, and the length of its longest sequence."""
    if name in STEPS:
        return stepper(name, "cuda"), longest_of(name)
    training = Training("cuda")
    batch = training.batch()
    return lambda: training.step(*batch), vr.sort_by_seq_len(batch[0]).max_seq_len


def _train(layer):
    x = vr.create_lod_tensor(np.ones((3, 3), np.float32), [[2, 1]]).to("cuda")
    layer.to("cuda")(x)[0].sum().backward()


def named(launched):
    """Return a dict of the name of each launched kernel to its variants, each a kernel and its signature."""
    names, found = declared(), {}
    for kernel, signature in launched:
        name = names.get(digest_of(kernel.py_func), f"{kernel.py_func.__module__}.{kernel.py_func.__name__}")
        found.setdefault(name.removeprefix("varlen_rnn."), []).append((kernel, signature))
    return dict(sorted(found.items()))


def kernel_table(launched):
    """Return the table of figures by ptxas."""
    rows = []
    for name, variants in named(launched).items():
        found = [figures_of(ptx_of(kernel.source, signature)) for kernel, signature in variants]
        most = lambda figure, chip, found=found: max(its[chip][figure] for its in found)
        registers = [most("registers", chip) for chip in ARCHITECTURES]
        rows.append(
            [f"`{name}`", *registers, *(max(most(n, chip) for chip in ARCHITECTURES) for n in ("shared", "stack"))]
        )
    header = ["kernel", *(f"registers, sm_{chip}" for chip in ARCHITECTURES), "shared memory, bytes", "stack, bytes"]
    return markdown(header, rows)


def launch_table(counts):
    """Return the table of launches, and what else a step costs."""
    header = ["example", "longest sequence, steps", "launches", "copies to the device", "allocations"]
    return markdown(header, [[label, *its] for label, its in counts.items()])


def model_text():
    """Return the section of the model."""
    lines = [
        f"* `{name}` = {show(value)}: {gpu_model.ASSUMPTIONS[name]}."
        for name, value in gpu_model.H100._asdict().items()
    ]
    return MODEL.format(
        batch=gpu_model.BATCH,
        assumptions="\n".join(lines),
        floors=markdown(FLOORS, [gpu_model.floors(hidden) for hidden in gpu_model.SIZES]),
        times=markdown(TIMES, [gpu_model.predictions(hidden) for hidden in gpu_model.SIZES]),
    )


def page():
    """Return the page as the package is now: the part that depends on the package alone, and the figures of ptxas."""
    driver, counts = measured()
    packages = "numba", "numba-cuda", "nvidia-nvvm", "nvidia-cuda-nvcc"
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    fixed = HEAD + LAUNCHES + launch_table(counts) + "\n" + model_text()
    return fixed, KERNELS.format(versions=versions) + kernel_table(driver.launched) + "\n"


if __name__ == "__main__":
    PATH.write_text("".join(page()))
