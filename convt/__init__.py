"""convt: transposed convolution (ConvTranspose, deconvolution) on CPUs.

    conv_transpose(data, filter)    compute one; its help describes all arguments
    ConvTranspose(filter)           an operator that packs its weights once: op(data), op.plan(shape), op.stream()
    show_config(), config(...)      what convt found, and settings: threads, backend, precision; tuning: measured choices
    convt.torch, convt.jax          accelerate(model), profile(model), and the functions of these libraries
    convt.onnxruntime               InferenceSession; convt.onnx, convt.openvino: operators; convt.dask: dask arrays

Modules of other libraries load when they are named. ``python -m convt --help`` lists commands.
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING

import numpy  # noqa: F401 - imported first, because importing NumPy from a nested module takes about 10% longer

try:
    _import("._core", __name__)
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("convt."):
        raise
    raise ImportError(
        f"convt is not compiled in {__path__[0]}: run `pip install -e .` in this checkout, or start Python in another folder"
    ) from None

from . import tuning
from ._base.errors import BackendUnavailableError
from ._call.api import clear_caches, conv_transpose, resolve
from ._call.operator import ConvTranspose
from ._call.show import show_config
from ._call.stream import Stream, stream_many
from ._run.config import (
    config,
    get_num_threads,
    get_packed_weights_limit,
    num_threads,
    set_num_threads,
    set_packed_weights_limit,
)
from ._version import __version__

__all__ = [
    "BackendUnavailableError",
    "ConvTranspose",
    "Stream",
    "__version__",
    "clear_caches",
    "config",
    "conv_transpose",
    "get_num_threads",
    "get_packed_weights_limit",
    "num_threads",
    "resolve",
    "set_num_threads",
    "set_packed_weights_limit",
    "show_config",
    "stream_many",
    "tuning",
]

_LAZY = ("dask", "jax", "onnx", "onnxruntime", "openvino", "torch")  # submodules imported at their first use


if TYPE_CHECKING:
    from . import dask as dask
    from . import jax as jax
    from . import onnx as onnx
    from . import onnxruntime as onnxruntime
    from . import openvino as openvino
    from . import torch as torch
else:

    def __getattr__(name):
        if name in _LAZY:
            return _import(f".{name}", __name__)
        raise AttributeError(f"module 'convt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_LAZY]
