"""The table of dtypes. Every other table of dtypes in Python is made from it."""

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np


class Row(NamedTuple):
    """A dtype, and its codes in other interfaces. Its name, which is also PyTorch's, and its item size are NumPy's."""

    dtype: np.dtype[Any]
    onnx: int  # number in onnx.TensorProto and in ONNX Runtime
    dlpack: int  # code of the kind in DLPack, which also wants the number of bits
    onednn: int = 0  # dnnl_data_type_t of its deconvolution on CPUs, 0 if there is none


COMPUTED = (  # what convt computes, in the order of kernels/convt_kernels.h
    Row(np.dtype(np.float32), 1, 2, 3),
    Row(np.dtype(np.float64), 11, 2),
    Row(np.dtype(np.float16), 10, 2, 1),
    Row(np.dtype(ml_dtypes.bfloat16), 16, 4, 2),
)
ALL = (  # also what other arrays may have, such as quantized weights
    *COMPUTED,
    *(Row(np.dtype(name), number, 0) for name, number in (("int8", 3), ("int16", 5), ("int32", 6), ("int64", 7))),
    *(Row(np.dtype(name), number, 1) for name, number in (("uint8", 2), ("uint16", 4), ("uint32", 12), ("uint64", 13))),
    *(Row(np.dtype(name), number, 5) for name, number in (("complex64", 14), ("complex128", 15))),
    Row(np.dtype(bool), 9, 6),
)
