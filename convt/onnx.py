"""The ONNX dialect: ConvTranspose as opsets 1, 11 and 22 define it.

`conv_transpose` needs NumPy only. `ConvTranspose` (an operator for onnx.reference) and `Backend` (onnx.backend.base)
live in _onnx_backend, and the onnx package is imported when one of them is first asked for.
"""

from ._onnx import conv_transpose

__all__ = ["conv_transpose"]

_LAZY = ("Backend", "ConvTranspose")  # they import onnx

conv_transpose.__module__ = __name__


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"module 'convt.onnx' has no attribute {name!r}")
    try:
        from . import _onnx_backend
    except ImportError as error:
        raise ImportError(f'convt.onnx.{name} needs the onnx package: pip install "convt[onnx]"') from error
    return getattr(_onnx_backend, name)


def __dir__():
    return [*__all__, *_LAZY]
