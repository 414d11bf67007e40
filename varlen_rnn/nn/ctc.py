"""`CTCLoss` and `TransducerLoss`, the losses of labels whose alignment is unknown, as modules with their options."""

from __future__ import annotations

from varlen_rnn.errors import check_choice, check_flag, check_int
from varlen_rnn.nn.losses import Reduction, ctc_loss
from varlen_rnn.nn.module import Module
from varlen_rnn.nn.transducer import transducer_loss
from varlen_rnn.tape.variable import Variable
from varlen_rnn.typing import Rows


class CTCLoss(Module):
    """The CTC loss, for targets whose alignment with the steps is unknown; see `functional.ctc_loss`.

    Parameters
    ----------
    blank : int
    reduction : {"mean", "sum", "none"}
    zero_infinity : bool
        Whether the loss of a target that is too long for its steps is 0 instead of infinity.

    Raises
    ------
    DTypeError, ShapeError

    Examples
    --------
    >>> log_probs = vr.create_lod_tensor(np.log(np.full((3, 2), 0.5)), [[2, 1]])
    >>> targets = vr.create_lod_tensor(np.array([1, 1]), [[1, 1]])
    >>> np.exp(-np.asarray(CTCLoss(reduction="none")(log_probs, targets)))
    array([0.75, 0.5 ])

    Source: `torch.nn.CTCLoss`; the LoD replaces its arguments for lengths.
    """

    def __init__(self, blank: int = 0, reduction: Reduction = "mean", zero_infinity: bool = False) -> None:
        check_choice(reduction, "reduction", "mean", "sum", "none")
        self.blank, self.reduction = check_int(blank, "blank", 0), reduction
        self.zero_infinity = check_flag(zero_infinity, "zero_infinity")

    def forward(self, log_probs: Rows, targets: Rows) -> Variable:
        """Return one loss for all sequences, or one per sequence if `reduction` is "none"."""
        return ctc_loss(log_probs, targets, self.blank, self.reduction, self.zero_infinity)

    def extra_repr(self) -> str:
        """Return the options as text for `repr`."""
        return f"blank={self.blank}, reduction={self.reduction!r}, zero_infinity={self.zero_infinity}"


class TransducerLoss(Module):
    """The loss of a transducer (RNN-T), which may emit several labels at a frame; see `functional.transducer_loss`.

    Parameters
    ----------
    blank : int
    reduction : {"mean", "sum", "none"}

    Raises
    ------
    DTypeError, ShapeError

    Examples
    --------
    >>> frames = vr.create_lod_tensor(np.zeros((3, 2)), [[2, 1]])
    >>> words = vr.create_lod_tensor(np.zeros((3, 2)), [[2, 1]])  # a row before the first label, and one after each
    >>> labels = vr.create_lod_tensor(np.array([1]), [[1, 0]])
    >>> logits = vr.nn.functional.lattice_rows(frames, words)
    >>> np.exp(-np.asarray(TransducerLoss(reduction="none")(logits, labels)))
    array([0.25, 0.5 ])

    Source: `torchaudio.transforms.RNNTLoss`; the LoD replaces its arguments for lengths.
    """

    def __init__(self, blank: int = 0, reduction: Reduction = "mean") -> None:
        check_choice(reduction, "reduction", "mean", "sum", "none")
        self.blank, self.reduction = check_int(blank, "blank", 0), reduction

    def forward(self, logits: Rows, labels: Rows) -> Variable:
        """Return one loss for all sequences, or one per sequence if `reduction` is "none"."""
        return transducer_loss(logits, labels, self.blank, self.reduction)

    def extra_repr(self) -> str:
        """Return the options as text for `repr`."""
        return f"blank={self.blank}, reduction={self.reduction!r}"
