"""Products computed in register tiles, for the layers.  Private: nothing here checks its arguments.

`tile` multiplies rows by panels, into which `packing` packs a weight, with the vectors of the host (`vectors`).  `gemm`
and `row_sums` are the big products made of tiles.  `sync` has the counters by which threads share the work of a call.
`tasks` cuts sequences into work items.
"""
