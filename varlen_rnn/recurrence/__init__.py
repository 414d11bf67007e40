"""The recurrence over a shrinking batch, straight over LoD rows, for any cell, on the device where the rows live.

Nothing is padded, packed to time-major order, or gathered.
"""

from varlen_rnn.recurrence.layer import backward, forward
from varlen_rnn.recurrence.task import Direction
