"""Packages of others, before and after one changed line: the same results, and the CPU time of their own code.

Each package needs an environment of its own with PyTorch and this library.  There,

    python -m benchmarks.clients sb3-contrib

compares the results of one call, times the call both ways in turns, prints a line, and adds it to
`benchmarks/results/clients.jsonl`.  `docs/clients.md` has the lines as a table.
"""
