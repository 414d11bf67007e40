"""Kernels that know no cell: movement of rows, products on tiles, pooling, updates.

Every kernel takes arrays only and documents them, so other `@njit` code may call it.  `<name>_cpu` is the CPU loop,
`<name>_cuda` its CUDA twin, and both run the same body; the name without a suffix chooses by where its arrays live.
"""
