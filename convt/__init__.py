"""convt: transposed convolution (ConvTranspose, deconvolution) on CPUs.

The way of a call, one direction:

    convt.torch                     PyTorch's functions and modules: tensors as arrays, weights packed while they stay
    convt.onnxruntime               ONNX Runtime's session: the nodes of a model, tensors as arrays
    convt.dask                      dask arrays: a call for each chunk and its halo
    convt.onnx, convt.openvino      dialects: attributes renamed, nothing computed
    _api                            check, coerce, allocate            (_check, _activation)
    _padding                        auto_pad, output_shape -> one signed window per axis
    _problem                        Problem: canonical, plain ints
    _plan                           backend and algorithm; what is kept per shape   (_repeat: calls like one before)
    algorithms/                     a folder each: cost, packing, blocks (plan.py), loops (loops.pyx), a page (README.md)
    _core                           a plan's life: tasks, threads, workspace, the instruction set in use
    kernels/                        SIMD micro-kernels, one table per instruction set
"""

from typing import TYPE_CHECKING

import numpy  # noqa: F401 - first: its hundred modules, imported from deep within ours, take a tenth longer

from . import tuning
from ._api import ConvTranspose, clear_caches, conv_transpose, resolve
from ._config import (
    get_num_threads,
    get_packed_weights_limit,
    num_threads,
    set_num_threads,
    set_packed_weights_limit,
)
from ._errors import BackendUnavailableError
from ._show import show_config
from ._version import __version__

__all__ = [
    "BackendUnavailableError",
    "ConvTranspose",
    "__version__",
    "clear_caches",
    "conv_transpose",
    "get_num_threads",
    "get_packed_weights_limit",
    "num_threads",
    "resolve",
    "set_num_threads",
    "set_packed_weights_limit",
    "show_config",
    "tuning",
]

_LAZY = ("dask", "onnx", "onnxruntime", "openvino", "torch")  # imported when first asked for


if TYPE_CHECKING:
    from . import dask as dask
    from . import onnx as onnx
    from . import onnxruntime as onnxruntime
    from . import openvino as openvino
    from . import torch as torch
else:

    def __getattr__(name):
        if name in _LAZY:
            import importlib

            return importlib.import_module(f".{name}", __name__)
        raise AttributeError(f"module 'convt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_LAZY]
