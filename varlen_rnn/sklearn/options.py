"""The options of estimators: each is written once, with its type, default and meaning; docstrings list them.

An estimator is a dataclass of its options, so its constructor has an explicit signature.
"""

import dataclasses
import inspect
import textwrap
from collections.abc import Sequence
from typing import Any, TypeVar

from varlen_rnn.nn.matrix.names import BY_NAME
from varlen_rnn.training import Callback

Class = TypeVar("Class", bound=type)
_PLACE = "{options}"  # in a docstring, a line that the options replace
_MATRICES = ", ".join(f'"{name}"' for name in BY_NAME)


def option(default: Any, kind: str, meaning: str) -> Any:
    """Return the field of a dataclass: the default of an option, its type in words, and its meaning."""
    return dataclasses.field(default=default, metadata={"kind": kind, "meaning": meaning})


def listed_in_docstring(cls: Class) -> Class:
    """Return a dataclass of options whose docstring lists them where it says {options}."""
    if cls.__doc__ is not None:  # `python -OO` drops docstrings
        entries = (_entry(field) for field in dataclasses.fields(cls))
        cls.__doc__ = inspect.cleandoc(cls.__doc__).replace(_PLACE, "\n".join(entries))
    return cls


def _entry(field: Any) -> str:
    meaning = textwrap.fill(field.metadata["meaning"], 112, break_long_words=False, break_on_hyphens=False)
    return f"{field.name} : {field.metadata['kind']}, default {field.default!r}\n{textwrap.indent(meaning, '    ')}"


PRECISION = (
    None,
    "str or None",
    "The precision of the network's products, as in `vr.set_float32_matmul_precision`; None means the precision that "
    "is set.",
)


@dataclasses.dataclass(eq=False, repr=False, match_args=False)
class Options:
    """The options of all estimators that learn from sequences and labels."""

    cell: str = option(
        "lstm",
        "str",
        f'The cell of the network: "lstm", "gru" or "rnn"; with four heads and states that are matrices {_MATRICES}; '
        "or the name of another cell.",
    )
    hidden_size: int = option(64, "int", "The units of a recurrent layer, in each direction.")
    _: dataclasses.KW_ONLY
    num_layers: int = option(1, "int", "The number of recurrent layers, as in `nn.Recurrent`.")
    bidirectional: bool = option(True, "bool", "Whether the recurrent layers run in both directions.")
    embedding_size: int = option(48, "int", "The size of the embedding of a token (`nn.Embedding`).")
    dropout: float = option(0.3, "float", "The share of features that is dropped before the linear layer in training.")
    tokens: str = option(
        "auto",
        '{"auto", "characters", "words"}',
        'How texts are divided into tokens.  "auto" means words if the median text has at least ten words, otherwise '
        "characters; for a tagger, characters if each character has a label, otherwise words.",
    )
    min_count: int = option(1, "int", "Tokens that occur fewer times are treated as unknown.")
    max_vocabulary: int | None = option(
        None, "int or None", "The number of most frequent tokens that are known; other tokens are treated as unknown."
    )
    max_epochs: int | str = option(
        "auto",
        'int or "auto"',
        '"auto" trains for about 2,000 steps, but for at least 6 and at most 200 epochs.  With numbers, it trains for '
        "600 steps, or for 25 times the root of the number of sequences (at most 2,000), in at most 400 epochs.  A "
        "tagger trains until about 500,000 steps of sequences have passed.",
    )
    batch_size: int | str = option(
        "auto",
        'int or "auto"',
        'Sequences per step.  "auto" means a fortieth of all sequences, but at least 8 and at most 64.  With numbers, '
        "it means at least 16, and all batches have about the same size.",
    )
    precision: str | None = option(*PRECISION)
    lr: float = option(4e-3, "float", "The learning rate of AdamW.")
    weight_decay: float = option(0.01, "float", "The weight decay of AdamW, for matrices.")
    schedule: str = option(
        "one_cycle", '{"one_cycle", "cosine", "constant"}', "How the learning rate changes during training."
    )
    clip_norm: float | None = option(
        1.0, "float or None", "The largest norm of the gradient, above which it is scaled down."
    )
    early_stopping: bool = option(
        False,
        "bool",
        "Whether to stop when the loss on a validation set has not fallen for `n_iter_no_change` epochs, and to use "
        "the weights of the best epoch.  The validation set is the `eval_set` of `fit`, or otherwise the share "
        "`validation_fraction` of the sequences.",
    )
    validation_fraction: float = option(0.1, "float", "The share of sequences that `early_stopping` holds back.")
    n_iter_no_change: int = option(5, "int", "The epochs without a lower loss after which `early_stopping` stops.")
    random_state: Any = option(  # noqa: RUF009
        None, "int, RandomState or None", "With an int, every fit gives the same result, bit for bit."
    )
    warm_start: bool = option(False, "bool", "Whether `fit` starts from the weights of the previous fit.")
    verbose: int = option(
        0, "int", "1 or more prints the candidates and shows a progress bar (`training.Progress`); 0 shows nothing."
    )
    checkpoints: Any = option(  # noqa: RUF009
        None,
        "path or None",
        "A folder for checkpoints.  If a fit is killed, the next call of `fit` continues from the last checkpoint and "
        "ends with the same bits.  With `checkpoints`, a `random_state` of None means 0.",
    )
    callbacks: Sequence[Callback] = option((), "list of training.Callback", "Callbacks of the training.")


MODEL = (
    "auto",
    '{"auto", "recurrent", "convolutions", "ngrams"}',
    '"auto" chooses.  "recurrent" always trains the network, on all sequences.  Its predictions are calibrated with '
    '`early_stopping` or `eval_set` only, which leave sequences out of the training.  "convolutions" is for numbers, '
    '"ngrams" for other inputs.  All options but `tokens`, `min_count`, `max_vocabulary`, `class_weight`, `loss`, '
    "`quantiles`, `random_state` and `verbose` govern the network.  `warm_start`, `checkpoints` and `partial_fit` need "
    '"recurrent".',
)
CLASS_WEIGHT = (
    None,
    'dict, "balanced" or None',
    "The weight of each class in the loss of sequences; for a tagger, of steps.",
)
