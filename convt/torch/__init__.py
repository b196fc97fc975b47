"""convt in PyTorch: torch's transposed convolutions, computed by convt on CPUs.

`conv_transpose1d`, `conv_transpose2d` and `conv_transpose3d` stand for the functions of `torch.nn.functional`, and
`ConvTranspose1d`, `ConvTranspose2d` and `ConvTranspose3d` for the modules of `torch.nn`; `accelerate` swaps the modules of a
whole model, in place, and `restore` swaps them back. What convt does not serve (other devices, dtypes and layouts, subclasses
of tensors, mistakes) goes to torch, whose results and errors these are then.

    _accelerate     models: which modules are swapped, and back
    _traced         modules with a forward of their own: a graph in which that is done, too, while it stands for the forward
    _stand          classes that stand for the user's, when copied and pickled as well
    _fuse           torch.nn.Sequential, whose batch norms and activations are computed with the convolution before them
    _modules        torch.nn's modules, whose forward is a function below
    _functional     torch.nn.functional's functions: what is served, and by which way
    _operator       torch.ops.convt.conv_transpose: shapes, gradients, vmap, autocast
    _compute        tensors as arrays, and back; weights packed while they stay as they are
"""

try:
    import torch as _  # noqa: F401
except ImportError as error:
    raise ImportError('convt.torch needs PyTorch: pip install "convt[torch]"') from error

from ._accelerate import Report, accelerate, restore
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
    "restore",
]
