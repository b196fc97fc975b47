"""What the engines need to know about a call, and nothing more."""

import math
from typing import NamedTuple

import ml_dtypes
import numpy as np

PRECISIONS = ("highest", "high", "medium")  # of float32: as exact as sums of its products, of TF32's, of bfloat16's
ITEMSIZE = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
NUMPY_DTYPE = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


class Problem(NamedTuple):
    """One transposed convolution in canonical form: NXC axes order, one window per axis, plain ints.

    Output position ``o`` of an axis is position ``o + begin`` of the full scatter, where input ``i`` meets tap ``t`` at
    ``i * stride + t * dilation``. What the window shows outside the scatter is zero plus bias.
    """

    dtype: str
    batch: int
    groups: int
    ci: int  # input channels of one group
    co: int  # output channels of one group
    in_sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    out_sizes: tuple[int, ...]
    activation: tuple[str, float, float] = ("none", 0.0, 0.0)
    planar: bool = False  # each channel is a plane in memory (NCX), which is slower for some algorithms than for others
    precision: str = "highest"  # what "auto" may take for float32: of PRECISIONS
    # How `direct` is to sum, of a part of a larger problem (algorithms/order.py); else it chooses.
    order: tuple[object, ...] | None = None

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.in_sizes)

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Input shape with the axes in NXC order."""
        return (self.batch, *self.in_sizes, self.groups * self.ci)

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Output shape with the axes in NXC order."""
        return (self.batch, *self.out_sizes, self.groups * self.co)

    @property
    def flops(self) -> int:
        """Floating-point operations of the plain scatter, every tap of every input."""
        return 2 * self.batch * math.prod(self.in_sizes) * self.groups * self.ci * self.co * math.prod(self.kernel)

    def descriptor(self) -> str:
        """One line that names the problem, for CONVT_VERBOSE."""
        axes = lambda values: "x".join(map(str, values))  # noqa: E731
        return (
            f"{self.dtype} mb{self.batch} g{self.groups} ic{self.groups * self.ci} oc{self.groups * self.co} "
            f"i{axes(self.in_sizes)} o{axes(self.out_sizes)} k{axes(self.kernel)} s{axes(self.strides)} "
            f"d{axes(self.dilations)} b{axes(self.begin)} act:{self.activation[0]}"
            + (f" precision:{self.precision}" if self.precision != "highest" else "")
        )
