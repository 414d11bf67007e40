"""Kernels for other code, too: movement of rows, pooling, updates, activations.

They take arrays and numbers only and document them, so other `@njit` code may call them.  `<name>_cpu` is the CPU loop,
`<name>_cuda` its CUDA twin, and both run the same body; the name without a suffix chooses by where its arrays live.
"""
