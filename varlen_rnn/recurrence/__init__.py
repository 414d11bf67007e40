"""The recurrence over a shrinking batch (step t has the sequences longer than t), for any cell, on the rows' device.

Rows stay where the caller has them: they are not padded, packed to time-major order, or gathered.
"""

from varlen_rnn.recurrence.layer import backward, forward, saved_columns, saved_numbers
from varlen_rnn.recurrence.phases import Shape, heads_of, shape_of
from varlen_rnn.recurrence.task import Arriving, Direction, Saved
