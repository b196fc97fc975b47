"""ONNX ConvTranspose as opsets 1, 11 and 22 define it.

`conv_transpose` and `ConvTransposeOperator`, which packs its weights once, do not need the onnx package. `ConvTranspose` (an
operator for onnx.reference) and `Backend` (an onnx.backend.base.Backend) do: their first use imports it.
"""

from typing import TYPE_CHECKING

from .._call.onnx_rules import ConvTransposeOperator, conv_transpose

if TYPE_CHECKING:
    from .backend import Backend as Backend
    from .backend import ConvTranspose as ConvTranspose

__all__ = ["Backend", "ConvTranspose", "ConvTransposeOperator", "conv_transpose"]

_LAZY = ("Backend", "ConvTranspose")  # these need the onnx package

conv_transpose.__module__ = ConvTransposeOperator.__module__ = __name__


if not TYPE_CHECKING:

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module 'convt.onnx' has no attribute {name!r}")
        try:
            from . import backend
        except ImportError as error:
            raise ImportError(f'convt.onnx.{name} needs the onnx package: pip install onnx') from error
        return getattr(backend, name)


def __dir__() -> list[str]:
    return list(__all__)
