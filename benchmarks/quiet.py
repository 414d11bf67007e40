"""Whether anything else runs on the machine.

A peer whose threads spin at barriers takes a hundred times as long when a stranger takes one of its cores, so rounds
begin in quiet moments, and those that were disturbed all the same do not count where there are better.  Linux only:
elsewhere nobody is ever seen.
"""

import os
import time
from pathlib import Path

TOLERATED = 0.25  # cores; a clock tick more or less in a window of a tenth of a second is 0.1
WINDOW_SECONDS = 0.1


class Watch:
    """Counts the cores that others keep busy from now on; `own` is the process that is not among them."""

    def __init__(self, own):
        self._own, self._began, self._before = own, time.perf_counter(), _seconds_of_others(own)

    def others(self):
        """Return the cores that others kept busy, on average since the beginning."""
        return (_seconds_of_others(self._own) - self._before) / (time.perf_counter() - self._began)


def wait_for_quiet(limit):
    """Wait until others leave the cores alone, at most `limit` seconds."""
    began = time.perf_counter()
    while time.perf_counter() - began < limit:
        watch = Watch(os.getpid())
        time.sleep(WINDOW_SECONDS)
        if watch.others() <= TOLERATED:
            return


def undisturbed(values, others):
    """Return the values of the rounds that nobody disturbed, or of all if there is none.

    Parameters
    ----------
    values : sequence
        One per round.
    others : sequence of float
        The cores that others took in each round.

    Examples
    --------
    >>> undisturbed([1.0, 5.0, 2.0], [0.0, 0.9, 0.1])
    [1.0, 2.0]
    """
    return [value for value, taken in zip(values, others, strict=True) if taken <= TOLERATED] or list(values)


def _seconds_of_others(own):
    try:
        machine = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        process = Path(f"/proc/{own}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, *interrupts_and_stolen = map(int, machine[:8])
    busy = user + nice + system + sum(interrupts_and_stolen)
    return (busy - int(process[11]) - int(process[12])) / os.sysconf("SC_CLK_TCK")
