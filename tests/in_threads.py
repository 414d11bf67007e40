"""Calls with several numbers of threads, and in threads of their own."""

import threading

import numpy as np

from tests.waiting import HANGS
from varlen_rnn.runtime import threads


def on_threads(call):
    """Return the arrays that a call returns, after a comparison of their bits with 1, 2 and 3 threads."""
    before, found = threads.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            threads.set_num_threads(count)
            found.append([np.asarray(value) for value in call()])
    finally:
        threads.set_num_threads(before)
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)
    return found[0]


def at_once(function, arguments):
    """Call a function in a thread for each tuple of arguments, all at once, and wait for the threads."""
    started = [threading.Thread(target=function, args=given) for given in arguments]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(HANGS)
