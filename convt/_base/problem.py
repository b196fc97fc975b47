"""The canonical form of a call that all backends compute from."""

import math
from typing import NamedTuple

from . import dtypes

PRECISIONS = ("highest", "high", "medium")  # for float32: as accurate as float32, TF32 or bfloat16 products
NUMPY_DTYPE = {each.dtype.name: each.dtype for each in dtypes.COMPUTED}
ITEMSIZE = {name: dtype.itemsize for name, dtype in NUMPY_DTYPE.items()}


class Problem(NamedTuple):
    """A transposed convolution in canonical form: NXC axis order, one window per axis, plain ints.

    Output position ``o`` of an axis is position ``o + begin`` of the full scatter. Input ``i`` and tap ``t`` add their product
    to position ``i * stride + t * dilation`` of the full scatter. Outputs outside the full scatter are zero plus bias.
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
    planar: bool = False  # channels are planes in memory (NCX): some algorithms need this layout, others transpose
    precision: str = "highest"  # one of PRECISIONS: lowest accuracy of float32 that algorithm "auto" may choose
    # Order of summation that `direct` must use for "invariant" (algorithms/order.py); None: its own choice.
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
        """Floating-point operations of the full scatter: two for each input, tap and out channel, inside the output or not."""
        return 2 * self.batch * math.prod(self.in_sizes) * self.groups * self.ci * self.co * math.prod(self.kernel)

    def descriptor(self) -> str:
        """Return one line that identifies the problem, for CONVT_VERBOSE and tuning files."""
        axes = lambda values: "x".join(map(str, values))  # noqa: E731
        return (
            f"{self.dtype} mb{self.batch} g{self.groups} ic{self.groups * self.ci} oc{self.groups * self.co} "
            f"i{axes(self.in_sizes)} o{axes(self.out_sizes)} k{axes(self.kernel)} s{axes(self.strides)} "
            f"d{axes(self.dilations)} b{axes(self.begin)} act:{self.activation[0]}"
            + (f" precision:{self.precision}" if self.precision != "highest" else "")
        )
