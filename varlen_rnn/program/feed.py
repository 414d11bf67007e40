"""The operators at a program's edges: `feed` declares a variable that is fed, `fetch` a variable that a run returns.

They compute nothing: the executor sets and reads the values.  Source: the operators of PaddlePaddle Fluid.
"""

from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import Type
from varlen_rnn.tape.spec import TensorSpec

FEED_LIST = TensorSpec((), None, 0, Type.FEED_MINIBATCH)
FETCH_LIST = TensorSpec((), None, 0, Type.FETCH_LIST)
EDGES = ("feed", "fetch")


@operator(name="feed", cost=lambda inputs, outputs, col: 0)
def _feed(feed, col: int):
    """Represent the fed value in column `col` of the list of feeds."""
    raise NotImplementedError("an executor feeds")


@operator(name="fetch", outputs=("fetch",), cost=lambda inputs, outputs, col: 0)
def _fetch(x, col: int):
    """Represent the returned value in column `col` of the list of fetches."""
    raise NotImplementedError("an executor fetches")
