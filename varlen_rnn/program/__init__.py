"""What describes: programs, which are recorded, run, cut and saved.

A program is the description of a computation apart from its values; the operators in it are those of the tape.
"""
