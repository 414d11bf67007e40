"""The operators of varlen_rnn on sequences."""

import functools

import numpy as np

import varlen_rnn as vr
from benchmarks.sequence.case import Inputs
from varlen_rnn.nn import functional as F

LIKE = {"expand", "expand_as"}  # these read the LoD of the batch, and no rows of it


class Operator:
    """An operator on rows; their LoD, and what it keeps of them, is made once."""

    def __init__(self, case, threads):
        vr.set_num_threads(threads)
        inputs = Inputs(case)
        self.d_y = inputs.d_y
        self.leaves = {name: _leaf(case, array) for name, array in inputs.arrays.items()}
        self.call = functools.partial(_call_of(case, inputs), *self.leaves.values())

    def inference(self):
        """Return the result."""
        with vr.no_grad():
            return {"y": self.call()}

    def training(self):
        """Return the result and the gradients of all inputs."""
        y = self.call()
        y.backward(self.d_y)
        results = {"y": y}
        for name, leaf in self.leaves.items():
            results[f"d_{name}"], leaf.grad = leaf.grad, None
        return results

    def arrays(self, results):
        """Return results as arrays."""
        return {name: np.asarray(value) for name, value in results.items()}


def _leaf(case, array):
    """Return a Variable: of rows with the LoD of the case, of the two rows of each sequence with that, or as it is."""
    if case.operator == "expand":
        array = vr.create_lod_tensor(array, [[2] * len(case.lengths)])
    elif len(array) == case.rows:
        array = vr.create_lod_tensor(array, [case.lengths])
    return vr.Variable(array, requires_grad=True)


def _call_of(case, inputs):
    """Return the function of the inputs that applies an operator."""
    like = vr.create_lod_tensor(np.zeros((case.rows, 1), np.float32), [case.lengths]) if case.operator in LIKE else None
    labels = inputs.labels
    if case.operator == "ctc_loss":
        labels = vr.create_lod_tensor(labels, [inputs.targets.tolist()])
    return {
        "expand": lambda x: vr.sequence_expand(x, like),
        "expand_as": lambda x: vr.sequence_expand_as(x, like),
        "pool sum": lambda x: vr.sequence_pool(x, "sum"),
        "pool max": lambda x: vr.sequence_pool(x, "max"),
        "first_step": vr.sequence_first_step,
        "last_step": vr.sequence_last_step,
        "softmax": vr.sequence_softmax,
        "cumsum": vr.sequence_cumsum,
        "conv": vr.sequence_conv,
        "row_conv": vr.row_conv,
        "concat": lambda x, z: vr.sequence_concat([x, z]),
        "reverse": vr.sequence_reverse,
        "slice": lambda x: vr.sequence_slice(x, inputs.offset, inputs.length),
        "pad": lambda x: vr.sequence_pad(x)[0],
        "unpad": lambda x: vr.sequence_unpad(x, inputs.lengths),
        "ctc_loss": lambda logits: F.ctc_loss(F.log_softmax(logits), labels, reduction="none"),
        "linear_chain_crf": lambda emission, transition: vr.linear_chain_crf(emission, labels, transition),
        "attention": F.scaled_dot_product_attention,
    }[case.operator]
