"""PyTorch's layers: packed, and padded with a masked loss.

The batch stands ready as a time-major rectangle, longest sequence first, so neither padding nor sorting is part of a
step: the cheapest form for PyTorch.  Packing and unpacking are, for every step of a packed network pays them.
"""

import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from benchmarks.layers.case import STATES, Inputs
from benchmarks.rectangle import Rectangle


class Padded:
    """A layer on all rows of the rectangle; the gradient of outputs in the padding is zero, as a mask makes it."""

    def __init__(self, case, threads):
        inputs = Inputs(case)
        layer = getattr(torch.nn, case.cell)(case.input_size, case.hidden_size)
        layer.load_state_dict({name: torch.from_numpy(array) for name, array in inputs.weights.items()})
        self.hold(case, inputs, layer, threads)

    def hold(self, case, inputs, layer, threads):
        """Hold a layer, and what a step of it needs."""
        torch.set_num_threads(threads)
        self.rectangle = Rectangle(case.lengths)
        self.lengths = torch.from_numpy(self.rectangle.lengths)
        self.layer = layer
        self.x = torch.from_numpy(self.rectangle.pad(inputs.x)).requires_grad_()
        self.d_y = torch.from_numpy(self.rectangle.pad(inputs.d_y))
        self.leaves = {"d_x": self.x, **dict(self.layer.named_parameters())}

    def run(self):
        """Return the outputs, in the rectangle."""
        return self.layer(self.x)[0]

    def inference(self):
        """Return the outputs."""
        with torch.inference_mode():
            return {"y": self.run()}

    def training(self):
        """Return the outputs and the gradients of rows and weights."""
        y = self.run()
        gradients = torch.autograd.grad(y, list(self.leaves.values()), self.d_y)
        return {"y": y, **dict(zip(self.leaves, gradients, strict=True))}

    def arrays(self, results):
        """Return results as arrays, those of the rectangle as rows."""
        arrays = {name: value.detach().numpy() for name, value in results.items()}
        return arrays | {name: self.rectangle.unpad(arrays[name]) for name in ("y", "d_x") if name in arrays}


class Packed(Padded):
    """A layer on a packed batch."""

    def run(self):
        """Return the outputs, in the rectangle."""
        packed, _ = self.layer(pack_padded_sequence(self.x, self.lengths))
        return pad_packed_sequence(packed)[0]


class _Bfloat16:
    """A layer whose weights, rows and results are all bfloat16: here 5 to 10 % faster than under `torch.autocast`."""

    def hold(self, case, inputs, layer, threads):
        """Hold a layer, and what a step of it needs."""
        super().hold(case, inputs, layer.bfloat16(), threads)
        self.x, self.d_y = self.x.detach().bfloat16().requires_grad_(), self.d_y.bfloat16()
        self.leaves["d_x"] = self.x

    def arrays(self, results):
        """Return results as arrays of float32, those of the rectangle as rows."""
        return super().arrays({name: value.float() for name, value in results.items()})


class PaddedBfloat16(_Bfloat16, Padded):
    """A layer in bfloat16 on all rows of the rectangle."""


class PackedBfloat16(_Bfloat16, Packed):
    """A layer in bfloat16 on a packed batch."""


class Step(Padded):
    """A layer on one step of all sequences, with initial states, as a loop that decodes calls it."""

    def hold(self, case, inputs, layer, threads):
        """Hold a layer and states of zeros."""
        super().hold(case, inputs, layer, threads)
        zeros = [torch.zeros(1, len(case.lengths), case.hidden_size) for _ in range(STATES[case.cell])]
        self.states = tuple(zeros) if len(zeros) > 1 else zeros[0]

    def run(self):
        """Return the outputs."""
        return self.layer(self.x, self.states)[0]

    def inference(self):
        """Return the outputs."""
        with torch.no_grad():
            return {"y": self.run()}


class Cell:
    """One step of a cell on one row, from zeros; inference only."""

    def __init__(self, case, threads):
        torch.set_num_threads(threads)
        inputs = Inputs(case)
        self.cell = getattr(torch.nn, f"{case.cell}Cell")(case.input_size, case.hidden_size)
        weights = {name.removesuffix("_l0"): torch.from_numpy(array) for name, array in inputs.weights.items()}
        self.cell.load_state_dict(weights)
        zeros = [torch.zeros(1, case.hidden_size) for _ in range(STATES[case.cell])]
        self.x, self.states = torch.from_numpy(inputs.x), tuple(zeros) if len(zeros) > 1 else zeros[0]

    def inference(self):
        """Return the output."""
        with torch.inference_mode():
            last = self.cell(self.x, self.states)
        return {"y": last[0] if isinstance(last, tuple) else last}

    def arrays(self, results):
        """Return results as arrays."""
        return {"y": results["y"].numpy()}
