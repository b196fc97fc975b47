"""`torch.nn`'s transposed convolutions: their parameters and names in a ``state_dict``, with convt's forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ._compute import precision_of
from ._functional import conv_transpose1d, conv_transpose2d, conv_transpose3d

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._typing import TorchPrecision


def _forward(rank: int, function: Callable[..., torch.Tensor]) -> Any:
    def forward(self: Any, input: torch.Tensor, output_size: list[int] | None = None) -> torch.Tensor:
        """The transposed convolution of ``input``, of spatial sizes ``output_size`` where these are given."""
        if self.padding_mode != "zeros":
            raise ValueError(f"Only `zeros` padding mode is supported for ConvTranspose{rank}d")
        output_padding = self.output_padding
        if output_size is not None:
            sizes = self.stride, self.padding, self.kernel_size
            output_padding = self._output_padding(input, output_size, *sizes, rank, self.dilation)
        return function(
            input, self.weight, self.bias, self.stride, self.padding, output_padding, self.groups, self.dilation,
            precision=self._convt_precision,
        )  # fmt: skip

    return forward


class _Precise:
    """A module with a precision, which is no part of its ``state_dict``."""

    _convt_precision: str | None = None

    def __init__(self, *args: Any, precision: TorchPrecision = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._convt_precision = precision_of(precision)


class ConvTranspose1d(_Precise, torch.nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d`, computed by convt: same arguments, parameters, ``state_dict`` and results.

    Examples
    --------
    >>> import torch, convt.torch
    >>> convt.torch.ConvTranspose1d(8, 4, 16, stride=8, padding=4)(torch.zeros(1, 8, 10)).shape
    torch.Size([1, 4, 80])
    """

    forward = _forward(1, conv_transpose1d)


class ConvTranspose2d(_Precise, torch.nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d`, computed by convt: same arguments, parameters, ``state_dict`` and results.

    Examples
    --------
    >>> import torch, convt.torch
    >>> convt.torch.ConvTranspose2d(8, 4, 3, stride=2, padding=1)(torch.zeros(1, 8, 5, 5), output_size=(10, 10)).shape
    torch.Size([1, 4, 10, 10])
    """

    forward = _forward(2, conv_transpose2d)


class ConvTranspose3d(_Precise, torch.nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d`, computed by convt: same arguments, parameters, ``state_dict`` and results.

    Examples
    --------
    >>> import torch, convt.torch
    >>> convt.torch.ConvTranspose3d(8, 4, 2, stride=2)(torch.zeros(1, 8, 3, 3, 3)).shape
    torch.Size([1, 4, 6, 6, 6])
    """

    forward = _forward(3, conv_transpose3d)
