"""The transducer: rows of lattices, from frames and rows of a predictor, and the loss of labels over such rows."""

import numpy as np

from varlen_rnn.errors import LoDError, ShapeError
from varlen_rnn.kernels.copies import full
from varlen_rnn.kernels.lattice import check_lattices, lattice_places, lattice_rows
from varlen_rnn.kernels.pool import pool_sum, sum_copies
from varlen_rnn.kernels.transducer import COLUMNS, emissions, transducer, transducer_grad, transducer_shares
from varlen_rnn.ops.cost import per_input_element
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.indices import labels_of
from varlen_rnn.ops.sequence.ctc import check_scores, check_texts
from varlen_rnn.rows.checks import ends_of
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of
from varlen_rnn.runtime.device import as_operand, empty
from varlen_rnn.runtime.placeholder import first_of
from varlen_rnn.tape.checks import check_float, check_like, check_lod_level, check_rank
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec


@operator(name="lattice_rows", rows="batch")
def lattice(encoder, predictor):
    """Return the sum of each row of `encoder` and each row of `predictor`, sequence by sequence.

    A sequence with T rows and W rows of the predictor becomes a sequence of T W rows: row t W + u is the sum of row t
    and of row u.
    """
    offsets, ends, places = _places(encoder, predictor)
    frames, added = as_operand(encoder.data), as_operand(predictor.data)
    out = empty((int(places[-1]), frames.shape[1]), frames)
    lattice_rows(frames, offsets, added, ends, places, out)
    return LoDTensor.wrap(out, LoD([*levels_of(encoder.structure)[:-1], places]))


def _places(encoder, predictor):
    """Return the offsets of the frames, of the predictor's rows and of the lattices; raise if sequences differ."""
    offsets, ends = levels_of(encoder.structure)[-1], levels_of(predictor.structure)[-1]
    if len(offsets) != len(ends):
        expected = f"{len(offsets) - 1} sequences, as many as encoder has"
        raise LoDError("lattice_rows, predictor", expected=expected, got=len(ends) - 1)
    return offsets, ends, lattice_places(offsets, ends)


@lattice.infer
def _infer_lattice(encoder, predictor):
    check_float("lattice_rows", encoder=encoder, predictor=predictor)
    for name, given in (("encoder", encoder), ("predictor", predictor)):
        check_rank("lattice_rows", name, given, 2)
        check_lod_level("lattice_rows", name, given)
    width, other = encoder.shape[1], predictor.shape[1]
    if width != other and -1 not in (width, other):
        hint = "nn.Linear projects both to the same number of features"
        raise ShapeError("lattice_rows, predictor", expected=f"{width} features, as encoder has", got=other, hint=hint)
    return TensorSpec((-1, other if width == -1 else width), encoder.dtype, encoder.lod_level)


@lattice.backward("encoder", "predictor")
def _lattice_grad(encoder, predictor, d_out):
    """Return, for each row of both, the sum of the gradients of the rows of its lattice, in a fixed order."""
    offsets, ends, places = _places(encoder, predictor)
    d, frames = as_operand(d_out.data), np.diff(offsets)
    if len(d) != places[-1]:
        raise ShapeError("lattice_rows_grad, d_out", expected=f"{places[-1]} rows", got=len(d))
    d_encoder, d_predictor = empty(encoder.shape, d), empty(predictor.shape, d)
    of_frames = ends_of(np.repeat(np.diff(ends), frames))
    pool_sum(d, of_frames, full((len(d_encoder),), 1, d), d_encoder)
    sum_copies(d, ends, frames, d_predictor)
    return encoder.like(d_encoder), predictor.like(d_predictor)


@lattice.examples
def _lattice_examples(rng):
    for lengths, others in (([2, 0, 3, 1], [2, 1, 1, 3]), ([], []), ([2], [0])):
        lods = [LoD.from_lengths([each]) for each in (lengths, others)]
        yield [rows(rng, 3, lod=lod) for lod in lods], {}


@operator(
    name="transducer_loss",
    outputs=("losses", "lattice"),
    intermediate=("lattice",),
    cost=per_input_element,
    rows="batch",
)
def transducer_losses(logits, labels, blank: int):
    """Return minus the logarithm of each sequence of labels' probability, a sum over all alignments with the frames.

    `logits` has the scores of classes for each row of the lattices, as `lattice_rows` makes them.
    """
    data, offsets, ends, classes = _checked("transducer_loss", logits, labels, blank)
    found, losses = empty((len(data), COLUMNS), data), empty((len(offsets) - 1,), data)
    emissions(data, offsets, classes, ends, blank, found)
    transducer(found, offsets, ends, losses)
    return LoDTensor.wrap(losses), LoDTensor.wrap(found)


def _checked(op, logits, labels, blank):
    """Return the rows of logits, their offsets, and the labels with their offsets, or raise unless they fit."""
    offsets, ends = levels_of(logits.structure)[-1], levels_of(labels.structure)[-1]
    if len(offsets) != len(ends):
        expected = f"{len(offsets) - 1} sequences, as many as logits has"
        raise LoDError(f"{op}, labels", expected=expected, got=len(ends) - 1)
    given, found = labels_of(f"{op}, labels", labels, logits.shape[1], "classes", blank), empty((1,), offsets)
    check_lattices(offsets, ends, found)
    i = first_of(found, -1)
    if i >= 0:
        width, count = (int(each[i + 1] - each[i]) for each in (ends, offsets))
        expected = f"a multiple of {width + 1} rows, a row for each frame and each of 0 to {width} labels"
        hint = "functional.lattice_rows makes them; the predictor reads a start symbol, and then the labels"
        raise LoDError(f"{op}, logits, sequence {i}", expected=expected, got=f"{count} rows", hint=hint)
    return as_operand(logits.data), offsets, ends, given


@transducer_losses.infer
def _infer_transducer(logits, labels, blank):
    check_scores("transducer_loss", "logits", logits, blank)
    check_texts("transducer_loss", "labels", labels)
    return TensorSpec((-1,), logits.dtype), TensorSpec((logits.shape[0], COLUMNS), logits.dtype)


@transducer_losses.backward("logits", rows="batch")
def _transducer_grad(logits, labels, lattice, d_losses, blank: int):
    """Return the gradient of `transducer_loss`: each row's softmax, less the classes that alignments take there."""
    data, offsets, ends, classes = _checked("transducer_loss_grad", logits, labels, blank)
    if len(d_losses.data) != len(offsets) - 1:
        raise ShapeError("transducer_loss_grad, d_losses", expected=f"{len(offsets) - 1} sequences", got=d_losses.shape)
    found, shares, d = as_operand(lattice.data), empty((len(data), 2), data), empty(data.shape, data)
    later = empty((len(classes) + len(offsets) - 1, 2), data)
    transducer_shares(found, offsets, ends, as_operand(d_losses.data), later, shares)
    transducer_grad(data, offsets, classes, ends, blank, found, shares, d)
    return logits.like(d)


@_transducer_grad.infer
def _infer_transducer_grad(logits, labels, lattice, d_losses, blank):
    losses, saved = _infer_transducer(logits, labels, blank)
    check_like("transducer_loss_grad", "lattice", lattice, saved)
    check_like("transducer_loss_grad", "d_losses", d_losses, losses)
    return logits


@transducer_losses.examples
def _transducer_examples(rng):
    lods = [LoD.from_lengths([lengths]) for lengths in ([6, 3, 0, 4, 2], [1, 0, 0, 3, 1])]
    labels = LoDTensor(np.array([1, 2, 2, 3, 1]), lods[1])
    yield [rows(rng, 4, lod=lods[0]), labels], {"blank": 0}
    none = LoDTensor(np.zeros((0, 1), np.int32), [[0, 0]])
    yield [rows(rng, 2, lod=LoD.from_lengths([[3]])), none], {"blank": 1}
    yield [LoDTensor(np.zeros((0, 2)), [[0]]), LoDTensor(np.zeros(0, np.int64), [[0]])], {"blank": 0}
