"""The numbers that represent kinds of values and data types in files."""

from enum import IntEnum

import numpy as np


class Type(IntEnum):
    """Data types, then kinds of variables, numbered as in "Var_desc"; those after CHANNEL as in Fluid 1.8."""

    BOOL = 0
    INT16 = 1
    INT32 = 2
    INT64 = 3
    FP16 = 4
    FP32 = 5
    FP64 = 6
    LOD_TENSOR = 7
    SELECTED_ROWS = 8
    FEED_MINIBATCH = 9
    FETCH_LIST = 10
    STEP_SCOPES = 11
    LOD_RANK_TABLE = 12
    LOD_TENSOR_ARRAY = 13
    PLACE_LIST = 14
    READER = 15
    CHANNEL = 16
    UINT8 = 20
    INT8 = 21


_DTYPES = {
    Type.BOOL: "bool", Type.INT16: "int16", Type.INT32: "int32", Type.INT64: "int64", Type.FP16: "float16",
    Type.FP32: "float32", Type.FP64: "float64", Type.UINT8: "uint8", Type.INT8: "int8",
}  # fmt: skip
DTYPES = {kind: np.dtype(name) for kind, name in _DTYPES.items()}
TYPES = {dtype: kind for kind, dtype in DTYPES.items()}

LOD_TENSOR = Type.LOD_TENSOR
SELECTED_ROWS = Type.SELECTED_ROWS
LOD_RANK_TABLE = Type.LOD_RANK_TABLE  # Fluid's name for a plan, `SortedSeqs`
STEP_SCOPES = Type.STEP_SCOPES  # values that the steps of a recurrence save for its gradient
