"""Operators over the sequences of a batch, and over the steps of a recurrence that is written by hand."""
