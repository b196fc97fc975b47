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
            if _is_transposed_convolution(name, arguments) and results[0].device.type == "cpu":
                self._change_convolution(results[0], function, arguments)
                return result
            for each, size in zip(results, _sizes(function, name, arguments, results), strict=False):
                if _is_floating(each):
                    self._change(each, size, self.unit if "conv" in name and each.dtype == torch.float32 else 0)
            if name == "gelu":  # that of infinity is NaN in some of torch's kernels
                half = torch.rand(result.shape, generator=self.draws) < 0.5
                result.copy_(torch.where(result.isnan() & (arguments[0] == torch.inf) & half, torch.inf, result))
        return result

    def _change(self, t, sizes, unit):
        if t.device.type == "cpu":
            random = torch.rand(t.shape, generator=self.draws, dtype=torch.float64).mul_(2).sub_(1)
            change = random * sizes.double() * (torch.finfo(t.dtype).eps * _ROUNDINGS + unit)
            t.add_(torch.where(change.isfinite(), change, 0))

    def _overflow(self, t, where, values):
        """Replace elements that overflow or not, depending on the order of additions. ``values`` are exact ones."""
        draw = torch.randint(4, t.shape, generator=self.draws)
        others = [torch.full_like(t, each) for each in (torch.inf, -torch.inf, torch.nan)]
        if torch.rand((), generator=self.draws) < 0.5:  # no NaN, which would reach all that follows
            others = [values.to(t.dtype)] * 4
        for n, other in enumerate(others):
            t.copy_(torch.where(where & (draw == n), other, t))

    def _change_convolution(self, t, function, arguments):
        """Change the result of a transposed convolution. The sums of absolute products are exact, in float64."""
        info = torch.finfo(t.dtype)
        exact = [each.double() if _is_floating(each) else each for each in arguments]
        sizes = function(*[each.abs() if _is_floating(each) else each for each in exact])
        may_overflow = sizes.isfinite() & (sizes > info.max)  # depending on the order of additions
        values = function(*exact)
        spread = t.isnan() & ~values.isnan()  # some kernels of torch also multiply infinity by 0
        if _may_use_winograd(function, arguments) and t.numel():
            # Winograd's errors are those of the neighbours of an element.
            axes = tuple(range(2, t.dim()))
            near = torch.where(sizes.isfinite(), sizes, 0).amax(axes, keepdim=True)
            sizes = sizes + near * (min(info.eps, torch.finfo(torch.float32).eps) / info.eps)
        if t.dtype == torch.bfloat16:  # some instructions take denormal numbers for 0
            x, w = (each.abs() for each in exact[:2])
            small_x, small_w = (torch.where(each < info.smallest_normal, each, 0) for each in (x, w))
            lost = function(small_x, w, None, *exact[3:]) + function(x, small_w, None, *exact[3:])
            sizes = sizes + lost / (info.eps * _ROUNDINGS)
        self._change(t, sizes, self.unit if t.dtype == torch.float32 else 0)
        if may_overflow.any():
            self._overflow(t, may_overflow, values)
        if spread.any():
            t.copy_(torch.where(spread & (torch.rand(t.shape, generator=self.draws) < 0.5), values, t))


def _is_transposed_convolution(name, arguments):
    return name.startswith("conv_transpose") or (name == "convolution" and arguments[6])


def _may_use_winograd(function, arguments):
    """Check whether two taps of the filter reach the same output, as Winograd needs it."""
    named = {each.name: value for each, value in zip(function._schema.arguments, arguments, strict=False)}
    kernel = arguments[1].shape[2:]
    stride, dilation = (_per_axis(named.get(name, 1), len(kernel)) for name in ("stride", "dilation"))
    return any(k > s // math.gcd(s, d) for k, s, d in zip(kernel, stride, dilation, strict=True))


def _per_axis(value, rank):
    value = [value] if isinstance(value, int) else list(value)
    return value * rank if len(value) == 1 else value


def _is_floating(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _sizes(function, name, arguments, results):
    """Return the sums of the absolute values whose sums are the results of an operation."""
    magnitudes = [each.abs() if _is_floating(each) else each for each in arguments]
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


def allowed(got, wanted, perturbed, repeated=tuple):
    """Return why tensors differ too much, or None. ``perturbed()`` yields the tensor, or None, in further executions.

    ``repeated()`` yields it in executions without changes, in which other bytes are in new memory. Elements that they change
    are not compared, because torch computed them from memory that it had not written.
    """
    if not got.is_floating_point():
        return None if torch.equal(got, wanted) else f"got {got}, wanted {wanted}"
    a, b = got.double(), wanted.double()
    info = torch.finfo(wanted.dtype)
    error = b.abs() * (_DIRECT * info.eps) + 4 * info.smallest_normal * info.eps
    if not (bad := _beyond(a, b, error)).any():
        return None
    moved, unsure = torch.zeros_like(b), torch.zeros_like(b, dtype=torch.bool)
    for each in perturbed():
        if each is None or each.shape != b.shape:  # the mode prevents this operation
            size = b[b.isfinite()].abs().max() if b.isfinite().any() else 0
            moved = torch.maximum(moved, torch.full_like(b, info.eps**0.6) * size)
            break
        each = each.double()
        change = torch.where(each.isfinite() & b.isfinite(), (each - b).abs(), torch.inf)
        moved = torch.maximum(moved, torch.where(_alike(each, b), 0, change))
        unsure |= moved.isinf()  # rounding decides whether the element is finite, and may also make it NaN
        if not (bad := _beyond(a, b, error + _FACTOR * moved) & ~unsure).any():
            return None
    for each in repeated():
        if each is not None and each.shape == b.shape and not (bad := bad & ~_beyond(each.double(), b, error)).any():
            return None
    error = error + _FACTOR * moved
    if not (bad := bad & _beyond(a, b, error)).any():
        return None
    at = int(bad.reshape(-1).nonzero()[0])
    numbers = [each.reshape(-1)[at].item() for each in (a, b, error)]
    return "{} of {} differ, at {}: got {!r}, wanted {!r} +- {:.3g}".format(int(bad.sum()), bad.numel(), at, *numbers)


def _alike(a, b):
    """Check which elements are both NaN or the same infinity."""
    return (a.isnan() & b.isnan()) | ((a == b) & a.isinf())


def _beyond(a, b, error):
    return ~_alike(a, b) & ~((a - b).abs() <= error)
