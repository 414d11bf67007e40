"""Export programs as ONNX models for inference, and load recurrent ONNX models as programs."""

from varlen_rnn.onnx.export import export
from varlen_rnn.onnx.load import load

__all__ = ["export", "load"]


def __dir__() -> list[str]:
    return __all__
