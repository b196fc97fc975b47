"""The table of dtypes: their numbers in ONNX, DLPack and oneDNN. Checks and integrations make their own tables from it."""

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np


class Row(NamedTuple):
    """A dtype, and its codes in other interfaces. Its name, which is also PyTorch's, and its item size are NumPy's."""

    dtype: np.dtype[Any]
    onnx: int  # number in onnx.TensorProto and in ONNX Runtime
    dlpack: int  # code of the kind in DLPack, which also wants the number of bits
    onednn: int = 0  # dnnl_data_type_t of its deconvolution on CPUs, 0 if there is none


# The dtypes that convt computes, in the order of kernels/convt_kernels.h
COMPUTED = (
    Row(np.dtype(np.float32), 1, 2, 3),
    Row(np.dtype(np.float64), 11, 2),
    Row(np.dtype(np.float16), 10, 2, 1),
    Row(np.dtype(ml_dtypes.bfloat16), 16, 4, 2),
)
# These and the dtypes of other arrays, such as quantized weights
ALL = (
    *COMPUTED,
    *(Row(np.dtype(name), number, 0) for name, number in (("int8", 3), ("int16", 5), ("int32", 6), ("int64", 7))),
    *(Row(np.dtype(name), number, 1) for name, number in (("uint8", 2), ("uint16", 4), ("uint32", 12), ("uint64", 13))),
    *(Row(np.dtype(name), number, 5) for name, number in (("complex64", 14), ("complex128", 15))),
    Row(np.dtype(bool), 9, 6),
)
