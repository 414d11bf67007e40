"""The operators at the edges of a program: `feed` declares a variable that a run is given, `fetch` one that it returns.

They compute nothing: an executor puts values there and takes them.  Source: the operators of PaddlePaddle Fluid.
"""

from varlen_rnn.tape.kinds import Type
from varlen_rnn.tape.operator import Op, register
from varlen_rnn.tape.spec import TensorSpec

FEED_LIST = TensorSpec((), None, 0, Type.FEED_MINIBATCH)
FETCH_LIST = TensorSpec((), None, 0, Type.FETCH_LIST)


def _edge(*values, **attrs):
    raise NotImplementedError("an executor feeds and fetches")


FEED = register(Op("feed", ("feed",), _edge, _edge, attrs={"col": "int"}))
FETCH = register(Op("fetch", ("x",), _edge, _edge, outputs=("fetch",), attrs={"col": "int"}))
EDGES = ("feed", "fetch")
