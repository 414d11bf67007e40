"""Products on a register tile, the private engine of the layers: no user calls it, nothing here checks its arguments.

`tile` multiplies rows by the panels that `packing` makes of a weight, with the vectors of the host (`vectors`); `gemm`
and `row_sums` are the big products made of it; `sync` is how the threads of one call share their work, and `tasks` cuts
sequences into work items.
"""
