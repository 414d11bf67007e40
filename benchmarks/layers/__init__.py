"""The task of one recurrent layer: a step of training or inference on given rows."""

from benchmarks.layers.case import Case
