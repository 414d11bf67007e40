"""Read the lengths of sequences: integers in a text or NumPy file, or the lengths of a data file's sequences."""

import pathlib
import re

import numpy as np

from varlen_rnn.data import read_csv, read_jsonl
from varlen_rnn.errors import DTypeError, InputError, OutOfRangeError, ShapeError, shown

LONGEST = 2**31 - 1  # the most rows of a sequence, so that the sum over a file fits 64 bits


def read_lengths(path, field="text", tokens="characters"):
    """Return the lengths of a file's sequences, int64, shape `(num_sequences,)`.

    A `.npy` file holds an array of integers.  A `.jsonl` or `.csv` file holds sequences, whose lengths are taken;
    `field` and `tokens` are options of `data.read_csv`.  Any other file is a text of integers, separated by white space
    or commas.
    """
    path = pathlib.Path(path)
    try:
        if path.suffix == ".npy":
            lengths = _of_array(path)
        elif path.suffix in (".jsonl", ".csv"):
            lengths = (read_csv if path.suffix == ".csv" else read_jsonl)(path, field, None, tokens=tokens).lengths
        else:
            lengths = _of_text(path)
    except OSError as error:
        raise InputError(path, expected="a file of lengths", got=error.strerror or error) from error
    if not lengths.size:
        raise InputError(path, expected="at least one length", got="no length", hint="is the file empty?")
    wrong = np.flatnonzero((lengths < 0) | (lengths > LONGEST))
    if len(wrong):
        entry, expected = int(wrong[0]), f"a length from 0 to {LONGEST:,} rows"
        raise OutOfRangeError(f"{path}, entry {entry + 1}", expected=expected, got=int(lengths[entry]))
    if not lengths.any():
        raise InputError(path, expected="a length above 0", got=f"{len(lengths)} sequences without rows")
    return lengths.astype(np.int64)


def _of_array(path):
    try:
        with path.open("rb") as file:
            lengths = np.lib.format.read_array(file, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # NumPy's reader raises many kinds of errors for a damaged header
        raise InputError(path, expected="a NumPy array of integers", got=shown(error)) from error
    if lengths.dtype.kind not in "iu":
        raise DTypeError(path, expected="integers", got=f"data type {lengths.dtype}")
    if lengths.ndim != 1:
        raise ShapeError(path, expected="an array of one axis", got=f"an array of shape {lengths.shape}")
    return lengths


def _of_text(path):
    words = re.findall(r"[^\s,]+", path.read_text(encoding="utf-8-sig", errors="replace"))
    hint = "the name of a data file must end in .jsonl or .csv"
    for number, word in enumerate(words, 1):
        if not re.fullmatch(r"[+-]?[0-9]+", word):
            raise DTypeError(f"{path}, entry {number}", expected="an integer", got=shown(word), hint=hint)
        if len(word) > len(str(LONGEST)) + 1:  # too many digits, which `int` may refuse to convert
            raise OutOfRangeError(f"{path}, entry {number}", expected=f"at most {LONGEST:,} rows", got=word[:40])
    return np.array(list(map(int, words)), np.int64)
