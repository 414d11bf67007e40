"""Judge the launches of a whole run of the twin tests: was every kernel launched, in each type of float?"""

import collections
import importlib
import pkgutil

from tests.emulated.device import digest_of, float_types
from varlen_rnn import attention, kernels, ops, products, recurrence, runtime
from varlen_rnn.cells import CELLS, LN_LSTM, gru_cell, lstm_cell
from varlen_rnn.products.gemm import product_kernel
from varlen_rnn.products.row_sums import row_product_kernel
from varlen_rnn.products.tile_cuda import LARGE, SMALL
from varlen_rnn.recurrence import cuda_steps as steps
from varlen_rnn.runtime.cuda import Kernel

FLOATS = {"float32", "float64"}


def declared():
    """Return the names by digest of the kernels in modules, of every tile, and of every built-in cell's kernels."""
    found = {
        id(value): (f"{value.py_func.__module__}.{value.py_func.__name__}", value)
        for room in (attention, kernels, ops, products, recurrence, runtime)
        for _, name, _ in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")
        for made in vars(importlib.import_module(name)).values()
        for value in (made, getattr(made, "cuda", None), *map(twin_of, (made, *equations_of(made))))
        if isinstance(value, Kernel)
    }
    for cell in (*CELLS.values(), LN_LSTM, gru_cell(reset_after=False), lstm_cell(peepholes=True)):
        for number in range(len(cell.phases)):
            for make in (steps.forward_step_of, steps.backward_step_of):
                kernel = make(cell, number)
                found[id(kernel)] = (f"{kernel.py_func.__name__} of {cell.name}, phase {number}", kernel)
        kernel = steps.last_states_of(cell)
        found[id(kernel)] = (f"last_states of {cell.name}", kernel)
    for kernel in (*map(product_kernel, (LARGE, SMALL)), row_product_kernel()):
        found[id(kernel)] = (f"{kernel.py_func.__module__}.{kernel.py_func.__name__}", kernel)
    return {digest_of(kernel.py_func): name for name, kernel in found.values()}


def equations_of(made):
    """Return the functions of arrays of an elementwise operator; none of anything else."""
    return [getattr(made, name) for name in ("compute", "gradient") if hasattr(made, name)]


def twin_of(front):
    """Return the kernel of an elementwise function, which is made when it is asked for; None for anything else."""
    make = getattr(front, "twin", None)
    return make() if callable(make) else None


def launched(counts):
    """Return a dict of digest to the sets of float types that a kernel was launched with."""
    found = collections.defaultdict(list)
    for _, _, digest, signature in counts:
        found[digest].append(sorted(float_types(signature)))
    return dict(found)


def faults(names, variants):
    """Return sentences on kernels that were not launched, or not in each type of float.

    Parameters
    ----------
    names : dict of digest to name
    variants : dict of digest to list of list of str
        The float types of each variant that was launched.

    Examples
    --------
    >>> faults({"a": "add", "b": "sub"}, {"a": [["float32"]]})
    ['add: launched with float32, never with float64', 'sub: never launched']
    """
    found = []
    for digest, name in sorted(names.items(), key=lambda item: item[1]):
        if digest not in variants:
            found.append(f"{name}: never launched")
            continue
        seen = {kinds[0] for kinds in variants[digest] if len(kinds) == 1}
        if any(variants[digest]) and seen != FLOATS:
            lacking = " and ".join(sorted(FLOATS - seen))
            found.append(f"{name}: launched with {' and '.join(sorted(seen)) or 'mixed types'}, never with {lacking}")
    return found
