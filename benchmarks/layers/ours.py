"""The layers of varlen_rnn: on rows, and their padded twins."""

import numpy as np

import varlen_rnn as vr
from benchmarks.layers.case import Inputs


class Unpadded:
    """A layer on rows.  The plan of a batch is kept with its LoD, so sorting is no part of a step."""

    def __init__(self, case, threads):
        inputs = Inputs(case)
        layer = getattr(vr.nn, case.cell)(case.input_size, case.hidden_size)
        layer.load_state_dict(inputs.weights)
        self.hold(case, inputs, layer, dict(layer.named_parameters()), threads)

    def hold(self, case, inputs, layer, parameters, threads):
        """Hold a layer, its parameters by the names of the inputs' weights, and what a step of it needs."""
        vr.set_num_threads(threads)
        if hasattr(vr, "release_memory"):  # older checkouts keep nothing
            vr.release_memory()  # what an engine before this one left
        self.run = self.layer = layer
        self.x = vr.Variable(vr.create_lod_tensor(inputs.x, [case.lengths]), requires_grad=True)
        self.d_y = inputs.d_y
        self.leaves = {"d_x": self.x, **parameters}

    def inference(self):
        """Return the outputs."""
        with vr.no_grad():
            return {"y": self.run(self.x)[0]}

    def training(self):
        """Return the outputs and the gradients of rows and weights."""
        return self.backward(self.forward())

    def forward(self):
        """Return the outputs, with what their gradient needs."""
        return self.run(self.x)[0]

    def backward(self, y):
        """Return the outputs and the gradients of rows and weights."""
        y.backward(self.d_y)
        results = {"y": y}
        for name, leaf in self.leaves.items():
            results[name], leaf.grad = leaf.grad, None
        return results

    def arrays(self, results):
        """Return results as arrays."""
        return {name: np.asarray(value) for name, value in results.items()}


class Padded(Unpadded):
    """The same kernels on all rows of the rectangle; padding and taking rows back are part of a step."""

    def __init__(self, case, threads):
        super().__init__(case, threads)
        self.run = vr.baselines.Padded(self.layer)


def precision_of_host():
    """Return the precision in bfloat16 that this host computes by an instruction, "bf16-avx512" if there is none."""
    from varlen_rnn.products.bfloat16 import has_instruction  # `against` times checkouts without it

    return "bf16" if has_instruction("bf16") else "bf16-avx512"


class Bfloat16(Unpadded):
    """A layer on rows, with products in bfloat16: by AMX if the host has it, otherwise in the order of AVX512-BF16."""

    def inference(self):
        """Return the outputs."""
        with vr.float32_matmul_precision(precision_of_host()):
            return super().inference()

    def training(self):
        """Return the outputs and the gradients of rows and weights."""
        with vr.float32_matmul_precision(precision_of_host()):
            return super().training()
