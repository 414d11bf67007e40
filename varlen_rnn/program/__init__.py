"""The recorder: operators applied to Variables, and the gradients of what was applied.

This floor knows arrays and names, but no kernels: what an operator computes is registered by `ops/`.
"""
