"""An operator that notes the precision of products at which it runs, and its gradient."""

import varlen_rnn as vr


def declared(monkeypatch):
    """Return an operator that doubles its operand, until the test ends; the list `noted` has the precisions."""
    monkeypatch.setattr(vr.tape.operator, "OPERATORS", dict(vr.tape.operator.OPERATORS))
    noted = []

    def doubled(x):
        noted.append(vr.get_float32_matmul_precision())
        return x.like(x.data * 2)

    @vr.operator(multiplies=True)
    def asking(x):
        return doubled(x)

    asking.infer(lambda x: x)
    asking.backward("x")(lambda x, d_out: doubled(d_out))
    asking.noted = noted
    return asking
