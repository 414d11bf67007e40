"""The tape: Variables, operators applied to them, and the gradients of these applications.

This floor knows arrays and their specs, but no kernels and no programs.  `ops/` declares the operators.  While a
program is recorded, `apply` hands each operator to the recorder.
"""
