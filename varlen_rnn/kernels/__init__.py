"""Kernels for other code, too: movement of rows, pooling, losses, updates, activations.

They take arrays and numbers only and document them, so other `@njit` code may call them.  `<name>_cpu` is the CPU loop,
`<name>_cuda` its CUDA twin, and both compute the same; the name without a suffix chooses by where its arrays live.  A
kernel without a twin has no suffix, and takes arrays on the host.

They trust their arguments and check no bounds: a wrong index, offset or size reads or writes beside an array.  Where
the environment variable `VARLEN_RNN_CHECK` is 1 when they are imported, they are slower, and it is an `IndexError` on
the CPU.  Indices count as NumPy's do: -1 is the last.
"""
