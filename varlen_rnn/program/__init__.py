"""Programs: descriptions of computations, without values, that are recorded, run, cut and saved.

They consist of the operators of the tape.
"""
