"""The plan of a batch as an operator: in a program, each run makes its own."""

from varlen_rnn import plan
from varlen_rnn.errors import LoDError, check_int
from varlen_rnn.ops.checks import check_lod_level
from varlen_rnn.tape.modes import recorder
from varlen_rnn.tape.operator import Op, register
from varlen_rnn.tape.spec import PLAN
from varlen_rnn.tape.variable import Variable, apply


def _infer_rank_table(x, level):
    check_lod_level("lod_rank_table", "x", x)
    if not -x.lod_level <= level < x.lod_level:
        raise LoDError("level", expected=f"one of the {x.lod_level} levels", got=level)
    return [PLAN]


def _rank_table(x, level):
    return [plan.sort_by_seq_len(x, level)]


register(Op("lod_rank_table", ("x",), _infer_rank_table, _rank_table, attrs={"level": "int"}))


def sort_by_seq_len(x, level=-1):
    """Return the plan of a batch, longest sequence first; see `varlen_rnn.plan.sort_by_seq_len`.

    Of a variable of a program, it is the plan that a run makes.
    """
    if isinstance(x, Variable) and recorder() is not None:
        return apply("lod_rank_table", x, level=check_int(level, "level"))
    return plan.sort_by_seq_len(x, level)
