"""The recurrence over a shrinking batch of sequences, for any cell, on LoD rows as they are, on the rows' device.

Nothing is padded, packed to time-major order, or gathered.
"""

from varlen_rnn.recurrence.layer import backward, forward
from varlen_rnn.recurrence.task import Arriving, Direction, Saved
