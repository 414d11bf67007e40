"""Operators over the sequences of a batch: pooling, and the steps of a recurrence written by hand over a plan."""
