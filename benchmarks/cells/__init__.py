"""The task of one cell that is no built-in one: a step of training of a layer of it on given rows."""

from benchmarks.cells.case import Case
