"""What runs and remembers: Variables, operators applied to them, and the gradients of what was applied.

This floor knows arrays and what is known of them, but no kernels and no programs: what an operator computes is declared
by `ops/`, and where a program is recorded, `apply` hands the operator to its recorder.
"""
