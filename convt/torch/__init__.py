"""convt in PyTorch: torch's transposed convolutions, computed by convt on CPUs.

`conv_transpose1d`, `conv_transpose2d` and `conv_transpose3d` stand for the functions of `torch.nn.functional`, and
`ConvTranspose1d`, `ConvTranspose2d` and `ConvTranspose3d` for the modules of `torch.nn`; `accelerate` lets convt compute the
modules of a whole model, in place, `refresh` takes frozen weights anew, and `restore` gives everything back. What convt does
not serve (other devices, dtypes and layouts, subclasses of tensors, mistakes) goes to torch with its results and errors.

    _accelerate     models: what convt computes, and giving it back
    _forward        objects that stand in for a module's forward
    _fuse           torch.nn.Sequential, whose batch norms and activations are computed with the convolution before them
    _modules        torch.nn's modules, whose forward is a function below
    _functional     torch.nn.functional's functions: what convt computes, and what is left to torch
    _operator       torch.ops.convt.conv_transpose: shapes, gradients, vmap, autocast
    _compute        the call of convt
    _weights        packed weights, used while the filter's values are the same
    _arrays         tensors as arrays, and back
"""

try:
    import torch as _  # noqa: F401
except ImportError as error:
    raise ImportError('convt.torch needs PyTorch: pip install "convt[torch]"') from error

from ._accelerate import Report, accelerate, refresh, restore
from ._functional import conv_transpose1d, conv_transpose2d, conv_transpose3d
from ._modules import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d

__all__ = [
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Report",
    "accelerate",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "refresh",
    "restore",
]
