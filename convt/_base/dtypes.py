"""The table of dtypes: their numbers in ONNX, DLPack and oneDNN, and their names. Checks, integrations, command lines and tests
make their own tables from it.

This module imports no other one of convt, because the benchmark loads it alone.
"""

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np


class Row(NamedTuple):
    """A dtype, and its codes in other interfaces. Its name, which is also PyTorch's, and its item size are NumPy's."""

    dtype: np.dtype[Any]
    onnx: int  # number in onnx.TensorProto and in ONNX Runtime
    dlpack: int  # code of the kind in DLPack, which also wants the number of bits
    onednn: int = 0  # dnnl_data_type_t of its deconvolution on CPUs, 0 if there is none
    synonyms: tuple[str, ...] = ()  # of the name on command lines, the shortest first


# The dtypes that convt computes, in the order of kernels/convt_kernels.h. "float" and "f8" are no synonyms, because libraries
# disagree on their sizes.
COMPUTED = (
    Row(np.dtype(np.float32), 1, 2, 3, ("f32", "fp32", "single")),
    Row(np.dtype(np.float64), 11, 2, 0, ("f64", "fp64", "double")),
    Row(np.dtype(np.float16), 10, 2, 1, ("f16", "fp16", "half")),
    Row(np.dtype(ml_dtypes.bfloat16), 16, 4, 2, ("bf16",)),
)
# These and the dtypes of other arrays, such as quantized weights
ALL = (
    *COMPUTED,
    *(Row(np.dtype(name), number, 0) for name, number in (("int8", 3), ("int16", 5), ("int32", 6), ("int64", 7))),
    *(Row(np.dtype(name), number, 1) for name, number in (("uint8", 2), ("uint16", 4), ("uint32", 12), ("uint64", 13))),
    *(Row(np.dtype(name), number, 5) for name, number in (("complex64", 14), ("complex128", 15))),
    Row(np.dtype(bool), 9, 6),
)
