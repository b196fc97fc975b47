"""How far results with convt may differ from torch's.

Rounding errors of a transposed convolution are bounded by multiples of the sums of absolute products. What becomes of them in
the operations that follow depends on the model. So the text is executed again without convt, and each operation's result is
changed at random within its bound. Results may differ as far as these executions move them.
"""

import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ROUNDINGS = 8  # units in the last place by which an operation's result changes at most
_FACTOR = 3  # of the farthest that the executions move an element
_DIRECT = 4  # units in the last place that need no further look
_EXACT = {"clone", "detach", "_to_copy", "copy", "empty_like", "zeros_like", "ones_like", "full_like", "new_zeros", "neg"}
_CANCELLING = {"gelu", "mish", "silu", "hardswish", "softplus", "log_sigmoid_forward"}  # near 0 where the input is not


class Perturbed(TorchDispatchMode):
    """A mode that changes the result of each operation at random, at most by the bound of its rounding errors."""

    def __init__(self, seed, unit=0):
        """``unit`` is the relative error of a product of float32 numbers at a lower precision."""
        super().__init__()
        self.draws, self.unit = torch.Generator().manual_seed(seed), unit

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        schema = function._schema
        name = schema.name.partition("::")[2]
        if name in _EXACT or not schema.returns or any(each.alias_info for each in (*schema.returns, *schema.arguments)):
            return result
        if not any(isinstance(each, torch.Tensor) for each in arguments):
            return result
        results = result if isinstance(result, (tuple, list)) else [result]
        if _is_floating(results[0]) and results[0].layout is torch.strided:
            for each, size in zip(results, _sizes(function, name, arguments, results), strict=False):
                if _is_floating(each):
                    self._change(each, size, self.unit if "conv" in name and each.dtype == torch.float32 else 0)
        return result

    def _change(self, t, sizes, unit):
        if t.device.type == "cpu":
            random = torch.rand(t.shape, generator=self.draws, dtype=torch.float64).mul_(2).sub_(1)
            change = random * sizes.double() * (torch.finfo(t.dtype).eps * _ROUNDINGS + unit)
            t.add_(torch.where(change.isfinite(), change, 0))


def _is_floating(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _sizes(function, name, arguments, results):
    """Return the sums of the absolute values whose sums are the results of an operation."""
    magnitudes = [each.abs() if _is_floating(each) else each for each in arguments]
    if name.startswith("conv_transpose") or (name == "convolution" and arguments[6]):
        return [function(*magnitudes)]
    if name == "convolution_backward":
        return function(*magnitudes)
    if name == "_weight_norm_interface_backward":
        gradient, _, length, norm = magnitudes[:4]
        return [gradient * (length / norm).max() + function(*magnitudes)[0].abs(), function(*magnitudes)[1].abs()]
    if name.endswith("norm_backward"):
        named = {each.name: value for each, value in zip(function._schema.arguments, magnitudes, strict=False)}
        factors = [named.get(each) for each in ("grad_out", "weight", "save_invstd", "rstd")]
        size = math.prod(float(each.max()) for each in factors if each is not None and each.numel())
        sums = size * named["grad_out"].numel()
        return [torch.full_like(each, size if each.dim() > 1 else sums) if each is not None else each for each in results]
    if "batch_norm" in name and len(arguments) > 4:
        input, scale, shift, mean, variance = magnitudes[:5]
        if isinstance(mean, torch.Tensor) and mean.numel() == results[0].shape[1]:
            axes = (1, -1, *[1] * (input.dim() - 2))
            sizes = (input + mean.view(axes)) * (variance + 1e-5).rsqrt().view(axes)
            sizes = sizes if scale is None else sizes * scale.view(axes)
            return [sizes if shift is None else sizes + shift.view(axes)]
    if name in _CANCELLING:
        return [results[0].abs() + magnitudes[0]]
    return [results[0].abs()]


def allowed(got, wanted, perturbed):
    """Return why tensors differ too much, or None. ``perturbed()`` yields the tensor, or None, in further executions."""
    if not got.is_floating_point():
        return None if torch.equal(got, wanted) else f"got {got}, wanted {wanted}"
    a, b = got.double(), wanted.double()
    info = torch.finfo(wanted.dtype)
    error = b.abs() * (_DIRECT * info.eps) + 4 * info.smallest_normal * info.eps
    if not (bad := _beyond(a, b, error)).any():
        return None
    moved = torch.zeros_like(b)
    for each in perturbed():
        if each is None or each.shape != b.shape:  # the mode prevents this operation
            size = b[b.isfinite()].abs().max() if b.isfinite().any() else 0
            moved = torch.maximum(moved, torch.full_like(b, info.eps**0.6) * size)
            break
        each = each.double()
        change = torch.where(each.isfinite() & b.isfinite(), (each - b).abs(), torch.inf)
        moved = torch.maximum(moved, torch.where(_alike(each, b), 0, change))
        if not (bad := _beyond(a, b, error + _FACTOR * moved)).any():
            return None
    error = error + _FACTOR * moved
    if not (bad := _beyond(a, b, error)).any():
        return None
    at = int(bad.reshape(-1).nonzero()[0])
    numbers = [each.reshape(-1)[at].item() for each in (a, b, error)]
    return "{} of {} differ, at {}: got {!r}, wanted {!r} +- {:.3g}".format(int(bad.sum()), bad.numel(), at, *numbers)


def _alike(a, b):
    """Check which elements are both NaN or the same infinity."""
    return (a.isnan() & b.isnan()) | ((a == b) & a.isinf())


def _beyond(a, b, error):
    return ~_alike(a, b) & ~((a - b).abs() <= error)
