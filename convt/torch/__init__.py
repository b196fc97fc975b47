"""PyTorch's transposed convolutions, computed by convt on CPUs.

`conv_transpose1d`, `conv_transpose2d` and `conv_transpose3d` replace the functions of `torch.nn.functional`.
`ConvTranspose1d`, `ConvTranspose2d` and `ConvTranspose3d` replace the modules of `torch.nn`. `accelerate` lets convt compute
the modules of a whole model, in place, and `functional` the functions of `torch.nn.functional` in a block. In a block of
`streaming`, a model computes a signal chunk by chunk. `refresh` updates frozen weights after a change, and `restore` undoes
`accelerate`. torch computes every call that convt does not support (other devices, dtypes and layouts, subclasses of tensors,
invalid arguments), with torch's results and errors.

    _accelerate     whole models: accelerate, refresh, restore
    _profile        what convt changes in a whole model; `__main__` measures the models of a script
    _streaming      models that compute a signal chunk by chunk
    _frames         which modules and functions may be called chunk by chunk, and the check of forwards in a session
    _forward        objects that replace the forward of a module
    _fuse           fusion of batch norms and activations with the transposed convolution before them in a Sequential
    _modules        modules of torch.nn with convt's forward
    _mode           calls of torch.nn.functional in a block, or in the forward of a module
    _functional     functions of torch.nn.functional: calls computed by convt, and calls left to torch
    _operator       torch.ops.convt.conv_transpose: shapes, gradients, vmap, autocast
    _compute        the call of convt
    _weights        packed weights, reused while the values of the filter are unchanged; weights that a module computes
    _arrays         conversion between tensors and NumPy arrays
"""

try:
    import torch as _  # noqa: F401
except ImportError as error:
    raise ImportError('convt.torch needs PyTorch: pip install torch') from error

from ._accelerate import Report, accelerate, refresh, restore
from ._functional import conv_transpose1d, conv_transpose2d, conv_transpose3d
from ._mode import functional
from ._modules import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from ._profile import Worth, profile
from ._streaming import streaming

__all__ = [
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Report",
    "Worth",
    "accelerate",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "functional",
    "profile",
    "refresh",
    "restore",
    "streaming",
]
