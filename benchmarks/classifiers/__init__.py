"""The task of a whole model: embedding, LSTM, mean over each sequence, linear, cross entropy, Adam."""

from benchmarks.classifiers.case import Case
