"""A layer of each engine on its device: a step of training or inference, and its results as arrays of rows."""

import torch

import varlen_rnn as vr
from benchmarks.engines import OURS
from benchmarks.gpu.case import Inputs
from benchmarks.layers import ours, pytorch


class Unpadded(ours.Unpadded):
    """Our layer on rows of a CUDA device."""

    def __init__(self, case, device):
        inputs = Inputs(case)
        layer = getattr(vr.nn, case.cell)(case.input_size, case.hidden_size, bidirectional=case.directions == 2)
        layer.load_state_dict(inputs.weights)
        self.run = layer.to(device)
        x, d_y = (vr.create_lod_tensor(array, [case.lengths]).to(device) for array in (inputs.x, inputs.d_y))
        self.x, self.d_y = vr.Variable(x, requires_grad=True), d_y.data
        self.leaves = {"d_x": self.x, **dict(layer.named_parameters())}

    def arrays(self, results):
        """Return results as arrays on the host."""
        variables = {name: value if name == "y" else vr.Variable(value) for name, value in results.items()}
        return {name: value.detach().cpu().numpy() for name, value in variables.items()}


class _OnDevice:
    """A layer of PyTorch on a device; the rectangle, sorted by length, is there before a step begins."""

    def __init__(self, case, device):
        inputs = Inputs(case)
        layer = getattr(torch.nn, case.cell)(case.input_size, case.hidden_size, bidirectional=case.directions == 2)
        layer.load_state_dict({name: torch.from_numpy(array) for name, array in inputs.weights.items()})
        self.hold(case, inputs, layer.to(device), torch.get_num_threads())
        self.x = self.x.detach().to(device).requires_grad_()
        self.d_y = self.d_y.to(device)
        self.leaves["d_x"] = self.x

    def arrays(self, results):
        """Return results as arrays on the host, those in the rectangle as rows."""
        return super().arrays({name: value.cpu() for name, value in results.items()})


class Packed(_OnDevice, pytorch.Packed):
    """PyTorch's layer on a packed batch; packing and unpacking are part of a step."""


class Padded(_OnDevice, pytorch.Padded):
    """PyTorch's layer on the whole rectangle."""


ENGINES = {OURS: Unpadded, "torch packed": Packed, "torch padded": Padded}


def computes_the_same(engine, case):
    """Return whether an engine has the results of the others: in a rectangle, the reverse direction reads padding."""
    return engine != "torch padded" or case.directions == 1 or len(set(case.lengths)) == 1


def set_precision(precision):
    """Set the precision of products of float32, for us and for PyTorch: "fp32" or "tf32"."""
    vr.set_float32_matmul_precision(precision)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"  # cuDNN's layers have a switch of their own, on by default
