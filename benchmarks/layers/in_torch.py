"""The layers of `varlen_rnn.torch`, under PyTorch's autograd, in the layouts that its users have."""

import numpy as np
import torch

import varlen_rnn as vr
import varlen_rnn.torch as vt
from benchmarks.layers import pytorch


class Rows(pytorch.Padded):
    """A layer on rows with offsets.  As a caller of PyTorch's does, it makes the plan of a batch at every step."""

    def hold(self, case, inputs, layer, threads):
        """Hold a layer that takes the place of another, and what a step of it needs."""
        vr.set_num_threads(threads)
        torch.set_num_threads(threads)
        self.layer, self.offsets = vt.replace(layer), torch.from_numpy(np.cumsum([0, *case.lengths]))
        self.x, self.d_y = torch.from_numpy(inputs.x).requires_grad_(), torch.from_numpy(inputs.d_y)
        self.leaves = {"d_x": self.x, **dict(layer.named_parameters())}

    def run(self):
        """Return the outputs of rows."""
        return self.layer(self.x, offsets=self.offsets)[0]

    def arrays(self, results):
        """Return results as arrays."""
        return {name: value.detach().numpy() for name, value in results.items()}


class Jagged(Rows):
    """A layer on a jagged nested tensor, which is made at every step."""

    def run(self):
        """Return the outputs of rows."""
        return self.layer(torch.nested.nested_tensor_from_jagged(self.x, self.offsets))[0].values()

    def inference(self):
        """Return the outputs; nested tensors of inference mode refuse views."""
        with torch.no_grad():
            return {"y": self.run()}


class Packed(pytorch.Packed):
    """PyTorch's own layer on a packed batch, replaced."""

    def hold(self, case, inputs, layer, threads):
        """Hold the layer that takes the place of another."""
        vr.set_num_threads(threads)
        super().hold(case, inputs, vt.replace(layer), threads)


class Padded(pytorch.Padded):
    """PyTorch's own layer on a padded batch, replaced, with the lengths beside it."""

    def hold(self, case, inputs, layer, threads):
        """Hold the layer that takes the place of another."""
        vr.set_num_threads(threads)
        super().hold(case, inputs, vt.replace(layer), threads)

    def run(self):
        """Return the outputs, in the rectangle."""
        return self.layer(self.x, lengths=self.lengths)[0]


class Step(pytorch.Step):
    """PyTorch's own layer on one step of all sequences, replaced."""

    def hold(self, case, inputs, layer, threads):
        """Hold the layer that takes the place of another."""
        vr.set_num_threads(threads)
        super().hold(case, inputs, vt.replace(layer), threads)
