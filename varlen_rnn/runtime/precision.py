"""How exact products of float32 matrices are on a CUDA device."""

from typing import Literal

from varlen_rnn.errors import InputError, shown

_PRECISIONS = "fp32", "tf32"
_OF_TORCH = {"highest": "fp32", "high": "tf32", "medium": "tf32"}
_chosen = "fp32"


def set_float32_matmul_precision(precision: Literal["fp32", "tf32"]) -> None:
    """Set how exact products of float32 matrices are on a CUDA device, for all threads of this process.

    "tf32" rounds operands to 10 bits of mantissa and sums in float32, as tensor cores do; a result is right to about
    1e-3.  Layers whose recurrent weights fit into registers then run all steps in one launch.  Products on the host,
    and of float64, stay as they are.  A gradient uses the setting of the time when it is computed.

    Parameters
    ----------
    precision : {"fp32", "tf32"}
        "fp32" at the start of a process.

    Raises
    ------
    InputError
        Another value.

    Examples
    --------
    >>> import varlen_rnn as vr
    >>> vr.set_float32_matmul_precision("tf32")
    >>> vr.get_float32_matmul_precision()
    'tf32'
    >>> vr.set_float32_matmul_precision("fp32")

    Source: `torch.set_float32_matmul_precision`, whose "highest" is "fp32", and whose "high" is "tf32".
    """
    global _chosen
    if precision not in _PRECISIONS:
        hint = f"PyTorch's {precision!r} is {_OF_TORCH[precision]!r} here" if precision in _OF_TORCH else None
        raise InputError("precision", expected="'fp32' or 'tf32'", got=shown(precision), hint=hint)
    _chosen = precision


def get_float32_matmul_precision() -> str:
    """Return how exact products of float32 matrices are on a CUDA device: "fp32" or "tf32"."""
    return _chosen
