"""Calls of `torch.nn.functional` in code that a program did not write for convt: a mode for a block, and one for a module's
forward."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from . import _forward
from ._compute import precision_of
from ._functional import Serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .._base.typing import TorchPrecision

FUNCTIONS = "torch.nn.functional.conv_transpose1d, 2d and 3d"
_OWN_FORWARDS = ("torch.nn.", "convt.torch.")  # where forwards are defined that call no function that convt could compute


@contextlib.contextmanager
def functional(*, precision: TorchPrecision = None, freeze: bool = False) -> Iterator[None]:
    """Let convt compute the calls of ``torch.nn.functional.conv_transpose1d``, ``2d`` and ``3d`` inside a ``with`` block.

    This includes ``torch.conv_transpose1d``, ``2d`` and ``3d``, and the modules of torch.nn, which call these functions. Only
    calls of the current thread count. torch computes the calls that `conv_transpose1d` of this module leaves to it, and all
    calls in graphs of ``torch.compile``.

    Inside the block torch calls Python for each of its functions, which takes about a microsecond each.

    Parameters
    ----------
    precision : None, "highest", "high", "medium" or "torch"
        The lowest precision that convt may use for float32: see `conv_transpose1d`. "torch" is read when the block begins.
    freeze : bool
        If True, you promise that the values of weights do not change: see `conv_transpose1d`.

    Raises
    ------
    ValueError
        ``precision`` is not one of the values above.

    Examples
    --------
    >>> import torch, convt.torch
    >>> with convt.torch.functional():
    ...     torch.nn.functional.conv_transpose1d(torch.ones(1, 2, 3), torch.ones(2, 1, 2), stride=2).tolist()
    [[[2.0, 2.0, 2.0, 2.0, 2.0, 2.0]]]
    """
    with Serving(precision_of(precision), freeze):
        yield


class FunctionalForward(_forward.Forward):
    """The forward of a module's class in the mode `Serving`, with its settings. ``cls`` is the class."""

    def __init__(self, module, settings, cls):
        super().__init__(module, settings, cls)
        self.torch_forward = cls.forward

    def __call__(self, *arguments, **keywords):
        module = self.module()
        forward = type(module).forward
        if torch.compiler.is_compiling() or _is_active(self.settings[0]):
            return forward(module, *arguments, **keywords)
        with Serving(*self.settings[0]):
            return forward(module, *arguments, **keywords)


def _is_active(settings):
    """Check whether the innermost mode is `Serving` with these settings, as in a module that another one calls."""
    count = torch._C._len_torch_function_stack()
    mode = torch._C._get_function_stack_at(count - 1) if count else None
    return type(mode) is Serving and mode.settings == settings


def has_own_forward(module):
    """Check whether the forward of a module's class is neither torch's nor convt's, so that it may call functions."""
    forward = getattr(type(module), "forward", None)
    where = getattr(forward, "__module__", None) or ""
    is_jit = isinstance(module, torch.jit.ScriptModule)
    return callable(forward) and not is_jit and not where.startswith(_OWN_FORWARDS)
