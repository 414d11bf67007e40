"""Kernels that know no cell: movement of rows, products on tiles, pooling, updates.

Those of `segment`, `rows`, `pool` and `updates` take arrays and numbers only and document them, so other `@njit` code
may call them; products also take counters that threads share, and addresses.  `<name>_cpu` is the CPU loop,
`<name>_cuda` its CUDA twin, and both run the same body; the name without a suffix chooses by where its arrays live.
"""
