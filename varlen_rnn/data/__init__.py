"""Batches of sequences, data sets that come with Python, and readers of your own files."""

import sys
import types
import typing
import warnings

from varlen_rnn.data.batches import Batches, batches
from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.datasets import documentation_sentences, standard_library_functions, unicode_names
from varlen_rnn.data.parts import STEP_COST, StepCost, balanced_parts, measure_step_cost
from varlen_rnn.data.read import read
from varlen_rnn.data.readers import from_texts, read_csv, read_jsonl
from varlen_rnn.program.guard import feed_data as _feed_data
from varlen_rnn.tape import elsewhere

__all__ = [
    "STEP_COST", "Batches", "Dataset", "StepCost", "balanced_parts", "batches", "documentation_sentences", "from_texts",
    "measure_step_cost", "read", "read_csv", "read_jsonl", "standard_library_functions", "unicode_names",
]  # fmt: skip


class _Module(types.ModuleType):
    """The class of this module; it makes `vr.data(...)`, the former name of `vr.feed_data(...)`, still work."""

    def __call__(self, *arguments: typing.Any, **named: typing.Any) -> typing.Any:
        warnings.warn("vr.data(...) is now called vr.feed_data(...)", DeprecationWarning, stacklevel=2)
        return _feed_data(*arguments, **named)


sys.modules[__name__].__class__ = _Module

if not typing.TYPE_CHECKING:  # Hidden, because type checkers would accept any name.

    def __getattr__(name):
        raise elsewhere.missing_name(__name__, name)


def __dir__() -> list[str]:
    return __all__
