"""convt: transposed convolution (ConvTranspose, deconvolution) on CPUs.

Modules in the order in which a call passes them:

    convt.torch                     integration with PyTorch: functions and modules on tensors
    convt.onnxruntime               integration with ONNX Runtime: an InferenceSession
    convt.dask                      integration with dask: one call for each chunk and its halo
    convt.onnx, convt.openvino      dialects: translate the attributes of ONNX and OpenVINO
    _operator                       ConvTranspose: weights packed once
    _api                            argument checks, output allocation              (_check, _activation)
    _padding                        auto_pad and output_shape -> one signed window per axis
    _problem                        Problem: the call in canonical form, plain ints
    _plan                           choice of backend and algorithm, plans per shape   (_repeat: fast path of repeated calls)
    algorithms/                     one folder per algorithm: schedule, cost, tables (bind.py), loops (loops.pyx), README.md
    _core                           execution of a plan: tasks, threads, workspace, instruction set
    kernels/                        SIMD micro-kernels, one table per instruction set
"""

from typing import TYPE_CHECKING

import numpy  # noqa: F401 - imported first, because importing NumPy from a nested module takes about 10% longer

from . import tuning
from ._base.errors import BackendUnavailableError
from ._call.api import clear_caches, conv_transpose, resolve
from ._call.operator import ConvTranspose
from ._call.show import show_config
from ._run.config import get_num_threads, get_packed_weights_limit, num_threads, set_num_threads, set_packed_weights_limit
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

_LAZY = ("dask", "onnx", "onnxruntime", "openvino", "torch")  # submodules imported at their first use


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
