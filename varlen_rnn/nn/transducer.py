"""The loss of a transducer, as functions and as the module `TransducerLoss`, and the rows of its lattices."""

from __future__ import annotations

from varlen_rnn.errors import check_choice, check_int
from varlen_rnn.nn.losses import Reduction, reduce_loss
from varlen_rnn.tape.variable import Variable, apply, required
from varlen_rnn.typing import Rows


def lattice_rows(encoder: Rows, predictor: Rows) -> Variable:
    """Return the sum of each frame and each row of the predictor, sequence by sequence, for a joint network.

    The lattice of a sequence with T frames and U labels has T (U + 1) rows: row t (U + 1) + u is the sum of frame t and
    of the predictor's row after u labels.  Nothing is padded to the longest sequence, or to the most labels.

    Parameters
    ----------
    encoder : Variable, shape `(frames, features)`
        The last LoD level gives the sequences.
    predictor : Variable, shape `(rows, features)`
        As many sequences as `encoder`, each of one row more than it has labels.  The predictor makes the first row
        from a start symbol.

    Returns
    -------
    Variable, shape `(lattice rows, features)`
        It has as many LoD levels as `encoder`; the last one gives the lattices.

    Raises
    ------
    DTypeError, ShapeError, LoDError

    Examples
    --------
    >>> frames = vr.create_lod_tensor(np.array([[10.0], [20.0], [30.0]]), [[2, 1]])
    >>> words = vr.create_lod_tensor(np.array([[1.0], [2.0], [3.0]]), [[2, 1]])
    >>> rows = lattice_rows(frames, words)
    >>> np.asarray(rows).ravel(), rows.lod()
    (array([11., 12., 21., 22., 33.]), [[0, 4, 5]])

    Source: the joint network of Graves, Mohamed and Hinton (2013), "Speech recognition with deep recurrent neural
    networks", before its hyperbolic tangent.
    """
    encoder, predictor = required(encoder, "lattice_rows, encoder"), required(predictor, "lattice_rows, predictor")
    return apply("lattice_rows", encoder, predictor)


def transducer_loss(logits: Rows, labels: Rows, blank: int = 0, reduction: Reduction = "mean") -> Variable:
    """Return the loss of a transducer (RNN-T): minus the log-probability of the labels, over all alignments.

    An alignment goes through the frames.  At each frame it emits any number of labels, and then the blank.

    Parameters
    ----------
    logits : Variable, shape `(lattice rows, classes)`
        Scores of classes; the loss applies the softmax.  The last LoD level gives the lattices: T (U + 1) rows for a
        sequence with T frames and U labels, in the order of `lattice_rows`.
    labels : integers, shape `(labels,)`
        The classes of each sequence, without `blank`; as many sequences as `logits`.  T follows from the number of rows
        and of labels.
    blank : int
    reduction : {"mean", "sum", "none"}
        "mean" is the mean over the sequences, not divided by the number of labels; "none" returns one loss per
        sequence.

    Returns
    -------
    Variable
        Without frames, the loss is 0 if there is no label, otherwise infinity, with gradient 0.  Without labels, it is
        minus the sum of the frames' log-probabilities of the blank.

    Raises
    ------
    DTypeError, ShapeError, LoDError, OutOfRangeError

    Examples
    --------
    >>> logits = vr.create_lod_tensor(np.zeros((5, 2)), [[4, 1]])  # 2 frames and 1 label; 1 frame and none
    >>> labels = vr.create_lod_tensor(np.array([1]), [[1, 0]])
    >>> np.exp(-np.asarray(transducer_loss(logits, labels, reduction="none")))
    array([0.25, 0.5 ])

    Source: Graves (2012), "Sequence transduction with recurrent neural networks"; the reduction of
    `torchaudio.functional.rnnt_loss`, where the LoD replaces the arguments for lengths.
    """
    check_choice(reduction, "reduction", "mean", "sum", "none")
    logits, labels = required(logits, "transducer_loss, logits"), required(labels, "transducer_loss, labels")
    losses = apply("transducer_loss", logits, labels, blank=check_int(blank, "transducer_loss, blank", 0))[0]
    return reduce_loss(losses, reduction)
