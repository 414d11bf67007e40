"""onnxruntime's layer, inference only: a padded, time-major batch with the lengths beside it."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from benchmarks.layers.case import Inputs
from benchmarks.rectangle import Rectangle

GATES = {"RNN": (0,), "LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}  # PyTorch's gates in ONNX's order: i o f c, z r h


class Session:
    """One ONNX node, with some of its outputs, in a session of its own."""

    def __init__(self, case, threads, outputs=("Y",)):
        inputs = Inputs(case)
        self.rectangle = Rectangle(case.lengths)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        model = _model(case, inputs.weights, outputs).SerializeToString()
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.feed = {"X": self.rectangle.pad(inputs.x), "lengths": self.rectangle.lengths.astype(np.int32)}

    def inference(self):
        """Return the outputs, `(steps, 1, sequences, hidden_size)`."""
        return {"y": self.session.run(["Y"], self.feed)[0]}

    def all_outputs(self):
        """Return all outputs, as a list."""
        return self.session.run(None, self.feed)

    def arrays(self, results):
        """Return the outputs as rows."""
        return {"y": self.rectangle.unpad(results["y"][:, 0])}


def _model(case, weights, outputs):
    ordered = {name: _reordered(array, case.cell) for name, array in weights.items()}
    constants = {
        "W": ordered["weight_ih_l0"][None],
        "R": ordered["weight_hh_l0"][None],
        "B": np.concatenate([ordered["bias_ih_l0"], ordered["bias_hh_l0"]])[None],
    }
    form = {"linear_before_reset": 1} if case.cell == "GRU" else {}  # the form of PyTorch, and ours
    node = helper.make_node(
        case.cell, ["X", "W", "R", "B", "lengths"], outputs, hidden_size=case.hidden_size, direction="forward", **form
    )
    graph = helper.make_graph(
        [node],
        "layer",
        [
            helper.make_tensor_value_info("X", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("lengths", TensorProto.INT32, None),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def _reordered(array, cell):
    blocks = np.split(array, len(GATES[cell]))
    return np.concatenate([blocks[gate] for gate in GATES[cell]])
