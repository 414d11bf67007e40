"""An emulated CUDA device: kernels compiled by NVVM for a real GPU (sm_90), and their PTX executed on the CPU.

    monkeypatch.setattr(varlen_rnn.runtime.cuda, "driver", Driver())

Then arrays of the device are memory of the host that NumPy cannot read, and each launch is checked: every access for
its bounds and its alignment, every pair of accesses for races, every kernel for the figures of ptxas.

| file | content |
|---|---|
| `device` | the driver; which launches there were |
| `arrays`, `ledger` | device arrays; counts of copies and allocations by line, and `steady()`, which forbids them |
| `sources` | types of arguments, PTX by NVVM |
| `ptx`, `operands`, `arithmetic`, `memory`, `meetings`, `translation` | PTX to C++ |
| `kernels`, `folder` | C++ to code by g++; the folder that keeps everything |
| `scheduler`, `meetings`, `races` (C++) | fibers for threads; barriers, warps, clusters; vector clocks |
| `figures`, `gate`, `session` | registers, spills, float64; that every kernel is launched, in each type of float |
| `mutants` | kernels without one of their synchronisations, which the checks must see |

It says nothing on speed, and nothing on approximations of a GPU, because `ex2`, `rcp` and `tanh` are exact here.  It
does not translate grid barriers of cooperative groups, bulk copies, `wgmma`, `match.all` and `bar.arrive`: these raise
`Unsupported`.
"""
