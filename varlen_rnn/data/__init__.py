"""Batches of sequences, embedded data sets, and readers of your own files."""

from varlen_rnn.data.batches import Batches, batches
from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.datasets import documentation_sentences, standard_library_functions, unicode_names
from varlen_rnn.data.read import read
from varlen_rnn.data.readers import from_texts, read_csv, read_jsonl

__all__ = [
    "Batches",
    "Dataset",
    "batches",
    "documentation_sentences",
    "from_texts",
    "read",
    "read_csv",
    "read_jsonl",
    "standard_library_functions",
    "unicode_names",
]
