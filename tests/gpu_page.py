"""The tables of `docs/gpu_figures.md`, without a GPU; `python -m tests.gpu_page` writes them."""

import gc
from importlib import metadata
from pathlib import Path
from unittest import mock

import varlen_rnn as vr
from benchmarks.tables import markdown, show
from tests import gpu_model
from tests.emulated.device import Driver, float_types
from tests.emulated.figures import ARCHITECTURES, figures_of
from tests.emulated.gate import declared
from tests.emulated.ledger import ALLOCATION, LAUNCH, TO_DEVICE, totals
from tests.emulated.sources import digest_of, ptx_of
from tests.kernel_launches import launch_all
from tests.test_cuda_training import Training
from tests.test_examples_on_cuda import STEPS, longest_of, stepper
from tests.test_persistent import SIZES, kinds
from varlen_rnn.cells import CELLS
from varlen_rnn.products.tile_cuda import LARGE, SMALL
from varlen_rnn.recurrence.persistent import Layout, forward_kernel
from varlen_rnn.runtime import cuda

PATH = Path(__file__).parent.parent / "docs" / "gpu_figures.md"
EXAMPLES = ["classify_names", *STEPS]
KINDS = LAUNCH, TO_DEVICE, ALLOCATION
FLOORS = ["units", "weights from L2", "states in memory", "products, float32", "products, TF32", "barrier"]
TIMES = ["units", "forward: reads", "**step**", "backward: reads", "**step**"]
TIMES += ["**persistent, float32**", "**persistent, TF32**"]
PRODUCTS = ["kernel", "global memory", "shared memory", "instructions", "rows: memory", "**time**", "columns: memory"]
PRODUCTS += ["**time**"]
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
PRODUCT = """## Predicted time of a product

The same model of a product in float32: {rows} rows of {inputs} inputs become {columns} columns, as for an LSTM with
512 units and 64 sequences of 100 steps. Cells are numbers read per multiply-add from global and from shared memory,
and times in microseconds. "Rows" is a weight with a row for each column of the result, as layers have it. "Columns"
is a weight with a column for each, as for the gradient of the inputs.

{products}

With a thread per result, a thread reads two numbers of global memory for each multiply-add, and a warp reads weights
with rows from 32 cache lines. In tiles, a block of threads copies operands to shared memory, 16 numbers of each row and
column at a time, and a thread has 4 x 4 or 8 x 8 results in registers. A copy of 32 numbers takes a cycle to read and a
cycle to write, or two of each if rows become columns. A load of 16 bytes takes a warp two cycles, because two of four
neighbouring threads read the same address. In the loop over k, a large tile has {large} instructions besides 256
multiply-adds, and a small one {small} besides 64. The time is the larger one of memory and instructions, on the
multiprocessor with the most tiles. Small tiles are for products that have not two large ones for each multiprocessor.
The model leaves out latencies, which the blocks of a multiprocessor hide from one another.

"""
KERNELS = """## Registers, shared memory and stack

By ptxas, from the PTX for sm_90 of every kernel:
{versions}. Floats are float32. A kernel that was compiled
for several types of arguments has its largest figures. The shared memory is declared in the kernel; a persistent
kernel gets more at its launch, and needs sm_80.

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
        launch_all()
        return cuda.driver, counts


def _training_step(name):
    """Return the step of an example, and the length of its longest sequence."""
    if name in STEPS:
        return stepper(name, "cuda"), longest_of(name)
    training = Training("cuda")
    batch = training.batch()
    return lambda: training.step(*batch), vr.sort_by_seq_len(batch[0]).max_seq_len


def named(launched):
    """Return a dict of the name of each launched kernel to its variants without float64: a kernel and a signature."""
    names, found = declared(), {}
    for kernel, signature in launched:
        if "float64" in float_types(signature):
            continue
        name = names.get(digest_of(kernel.py_func), f"{kernel.py_func.__module__}.{kernel.py_func.__name__}")
        found.setdefault(name.removeprefix("varlen_rnn."), []).append((kernel, signature))
    return dict(sorted(found.items()))


def persistent_kernels():
    """Return the kernels of large layers that run all steps in one launch, by name, as `named` does."""
    found = {}
    for name, hidden, directions in SIZES:
        kernel = forward_kernel(CELLS[name], Layout.of(CELLS[name], hidden))
        ways = "both directions" if directions == 2 else "one direction"
        found[f"persistent_forward of {name}, {hidden:,} units, {ways}"] = [(kernel, kinds(directions))]
    return found


def kernel_table(launched):
    """Return the table of figures by ptxas."""
    rows = []
    for name, variants in (named(launched) | persistent_kernels()).items():
        found = [figures_of(ptx_of(kernel.source, signature)) for kernel, signature in variants]
        most = lambda figure, chip, found=found: max(its[chip][figure] for its in found if chip in its)
        registers = [most("registers", chip) if chip in found[0] else "-" for chip in ARCHITECTURES]
        rows.append([f"`{name}`", *registers, *(max(most(n, chip) for chip in found[0]) for n in ("shared", "stack"))])
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


def product_text():
    """Return the section of the model of a product."""
    sizes = {"rows": gpu_model.ROWS, "inputs": gpu_model.INPUTS, "columns": gpu_model.COLUMNS}
    shown = {name: show(size) for name, size in sizes.items()}
    large, small = (gpu_model.OTHERS[tile] for tile in (LARGE, SMALL))
    return PRODUCT.format(**shown, large=large, small=small, products=markdown(PRODUCTS, gpu_model.product_lines()))


def page():
    """Return the page as the package is now: the part that depends on the package alone, and the figures of ptxas."""
    driver, counts = measured()
    packages = "numba", "numba-cuda", "nvidia-nvvm", "nvidia-cuda-nvcc"
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    fixed = HEAD + LAUNCHES + launch_table(counts) + "\n" + model_text() + product_text()
    return fixed, KERNELS.format(versions=versions) + kernel_table(driver.launched) + "\n"


if __name__ == "__main__":
    PATH.write_text("".join(page()))
