"""Programs: descriptions of computations, without values, that are recorded, run, cut and saved.

A program consists of operators that are declared in `ops/`.
"""
