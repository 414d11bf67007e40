"""What operators share whose states are carried from one piece of a sequence to the next."""

from varlen_rnn.ops.indices import evenly
from varlen_rnn.rows.lod import NO_LOD, levels_of


def rows_of_state(state, *weights):
    """Return the `rows` trait of an operator, given the positions of its state and of operands without rows.

    The trait is "sequence" if rows have a LoD and no state is given, otherwise "batch".  It is None if rows of an
    operand are along an axis other than the first, or if a weight has rows.
    """

    def rows(specs, axes, **constants):
        for number, (spec, axis) in enumerate(zip(specs, axes, strict=True)):
            if spec is not None and axis != (None if number in weights else 0):
                return None
        return "sequence" if specs[0].lod_level and specs[state] is None else "batch"

    return rows


def offsets_of(x):
    """Return the offsets of sequences in rows; a row without a LoD is a sequence of its own."""
    return levels_of(x.structure)[-1] if x.num_levels else evenly(len(x.data) + 1, x.data)


def lod_of_states(lod):
    """Return the LoD of states after the last rows: no levels, and the positions of the sequences.

    So dropout draws the same numbers for parts of a batch.
    """
    return NO_LOD.at_positions_of(lod) if lod.num_levels <= 1 else NO_LOD
