"""The task of one operator on sequences: its result, and the gradients of what it reads."""

from benchmarks.sequence.case import Case
