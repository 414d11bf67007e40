"""Kernels, which other code can call, too: they move rows, pool, and compute losses, updates and activations.

They take only arrays and numbers, and document them, so other `@njit` code can call them.  `<name>_cpu` is the CPU
loop, and `<name>_cuda` its CUDA twin, which computes the same.  The function without a suffix runs one of them,
depending on where its arrays are.  A kernel without a twin has no suffix, and takes arrays on the host.

They trust their arguments and check no bounds: a wrong index, offset or size reads or writes outside of an array.  If
the environment variable `VARLEN_RNN_CHECK` is 1 when they are imported, they are slower, and raise `IndexError` on the
CPU instead.  As in NumPy, the index -1 is the last element.
"""
