"""The front of a kernel and its CUDA twin: a function that chooses the device of a call, and calls one of them.

    @twins(gather_rows_cpu, gather_rows_cuda)
    def gather_rows(table, ids, out):
        '''What it computes, its parameters, and an example.'''

The last argument of a kernel is an array that it writes.  If this array is on the host, the CPU loop runs; if it is on
a CUDA device, the twin runs there.  Other arrays that are still on the host, mostly indices and offsets, are then
copied to the device; equal arrays are copied only once (`device.beside`).  In a dry run, they are constants.
"""

import functools

import numpy as np

from varlen_rnn.runtime.device import beside, launch, on_device
from varlen_rnn.runtime.placeholder import Placeholder
from varlen_rnn.runtime.threads import count_shards, for_each_shard


def elements(*arguments):
    """Return the number of threads: one for each element of the last argument."""
    return arguments[-1].size


def elements_of_first(first, *rest):
    """Return the number of threads: one for each element of the first argument."""
    return first.size


def sequences(x, offsets, *rest):
    """Return the number of threads: one for each sequence, whose offsets are the second argument."""
    return offsets.size - 1


def columns_of_sequences(x, offsets, *rest):
    """Return the number of threads: one per column of each sequence; the second argument is the sequences' offsets."""
    return (offsets.size - 1) * rest[-1].shape[1]


def rows_of_last(*arguments):
    """Return the number of threads: one for each row of the last argument."""
    return arguments[-1].shape[0]


def launch_beside(kernel, num_threads, *arguments):
    """Copy arrays of the host to the device, and launch a CUDA kernel on at least `num_threads` threads.

    Python's floats take the data type of the last argument, because float64 is slow on a GPU.
    """
    out = arguments[-1]
    dtype = out.dtype

    def moved(argument):
        if isinstance(argument, np.ndarray):
            return beside(argument, out)
        return dtype.type(argument) if isinstance(argument, float) and dtype.kind == "f" else argument

    launch(kernel, num_threads, *map(moved, arguments))


def twins(cpu, cuda, size=elements, work=None):
    """Return a decorator that makes the front of a kernel from a function that only documents it.

    cpu: the CPU loop
    cuda: its twin, a CUDA kernel; if `size` is None, a function that launches kernels itself
    size: `size(*arguments)` returns how many threads the twin needs
    work: if given, `work(*arguments)` returns about how many operations the CPU loop takes.  The loop then runs on
        several threads, at most `size`, and its first arguments are its shard and the number of shards.
    """

    def on_host(*arguments):
        shards = count_shards(work(*arguments), max(1, size(*arguments)))
        for_each_shard(cpu, *arguments, num_shards=shards)

    def on_cuda(*arguments):
        launch_beside(cuda, size(*arguments), *arguments)

    run, start = cpu if work is None else on_host, cuda if size is None else on_cuda

    def declare(documented):
        @functools.wraps(documented)
        def front(*arguments):
            out = arguments[-1]
            if type(out) is Placeholder:
                run(*[beside(argument, out) for argument in arguments])
            elif on_device(out):
                start(*arguments)
            else:
                run(*arguments)

        front.cpu, front.cuda = cpu, cuda
        return front

    return declare
