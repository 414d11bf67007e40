"""Batches of sequences, embedded data sets, and readers of your own files.

Called as a function, `vr.data(name, shape, dtype, lod_level)` declares what a program is fed, as `fluid.data` did; see
`varlen_rnn.program.recording.data`.
"""

import sys
import types

from varlen_rnn.data.batches import Batches, batches
from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.datasets import documentation_sentences, standard_library_functions, unicode_names
from varlen_rnn.data.readers import from_texts, read_csv, read_jsonl
from varlen_rnn.program.recording import data as _declare

__all__ = [
    "Batches",
    "Dataset",
    "batches",
    "documentation_sentences",
    "from_texts",
    "read_csv",
    "read_jsonl",
    "standard_library_functions",
    "unicode_names",
]


class _CallableModule(types.ModuleType):
    """A module that declares an input of a program when it is called: both have the same good name."""

    def __call__(self, name, shape, dtype, lod_level=0, requires_grad=False):
        """Return a variable that is fed when the program runs; see `varlen_rnn.program.recording.data`."""
        return _declare(name, shape, dtype, lod_level, requires_grad)


sys.modules[__name__].__class__ = _CallableModule
