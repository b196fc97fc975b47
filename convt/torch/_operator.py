"""torch.ops.convt.conv_transpose: the operator registered with torch, for compiled graphs, gradients, vmap and autocast."""

import torch
from torch.autograd import forward_ad
from torch.utils import flop_counter

from .._run import log
from ._arrays import is_channels_last
from ._compute import COMPARED, NEVER, REFUSED, compute

_LIBRARY = torch.library.Library("convt", "DEF")
_LIBRARY.define(
    "conv_transpose(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] output_padding, "
    f'SymInt groups, SymInt[] dilation, str? precision=None, str reuse="{COMPARED}") -> Tensor'
)
conv_transpose = torch.ops.convt.conv_transpose.default


def _compute_with_torch(input, weight, bias, stride, padding, output_padding, groups, dilation):
    """Compute the transposed convolution with torch's own operator."""
    return torch.ops.aten.convolution(input, weight, bias, stride, padding, dilation, True, output_padding, groups)


def _cpu(*arguments):
    try:
        return compute(*arguments)
    except REFUSED as error:
        log.note("torch", f"left to torch: {error}")
    return _compute_with_torch(*arguments[:8])


_LIBRARY.impl("conv_transpose", _cpu, "CPU")


def output_sizes(sizes, kernel, stride, padding, output_padding, dilation):
    """Return the spatial sizes of the output."""
    axes = zip(sizes, kernel, stride, padding, output_padding, dilation, strict=True)
    return [(n - 1) * s - 2 * p + d * (k - 1) + extra + 1 for n, k, s, p, extra, d in axes]


@torch.library.register_fake("convt::conv_transpose", lib=_LIBRARY)
def _fake(input, weight, bias, stride, padding, output_padding, groups, dilation, precision=None, reuse=COMPARED):
    sizes = output_sizes(input.shape[2:], weight.shape[2:], stride, padding, output_padding, dilation)
    batch, channels = input.shape[0], weight.shape[1] * groups
    if is_channels_last(input, weight, stride, padding, output_padding, groups, dilation):
        return input.new_empty((batch, *sizes, channels)).movedim(-1, 1)
    return input.new_empty((batch, channels, *sizes))


@flop_counter.register_flop_formula(torch.ops.convt.conv_transpose)
def _flops(input, weight, bias, *attributes, out_shape=None, **keywords):
    return flop_counter.conv_flop_count(input, weight, out_shape, transposed=True)


def is_transformed():
    """Check whether torch.func (except vmap, for which the operator has a rule) or forward-mode differentiation is active."""
    levels = torch._C._functorch.get_interpreter_stack() or ()
    vmap = torch._C._functorch.TransformType.Vmap
    return forward_ad._current_level >= 0 or any(level.key() != vmap for level in levels)


def _is_asked(node):
    """Check whether a backward pass computes the gradient that a node of the graph takes, as torch's own operators do."""
    if torch.compiler.is_compiling():
        return True
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # a leaf whose gradient torch.autograd.grad returns
        return True


class _WithGradients(torch.autograd.Function):
    """convt's forward with torch's backward. ``precision`` applies to the forward; torch's own settings to the backward."""

    @staticmethod
    def forward(ctx, input, weight, bias, *attributes):
        ctx.save_for_backward(input, weight)
        ctx.biases, ctx.attributes = None if bias is None else list(bias.shape), attributes[:5]
        with torch._C._AutoDispatchBelowAutograd():
            # NEVER, because weights change between training steps, and gradient checks change them element by element.
            return conv_transpose(input, weight, bias, *attributes, NEVER)

    @staticmethod
    def backward(ctx, gradient):
        input, weight = ctx.saved_tensors
        stride, padding, output_padding, groups, dilation = ctx.attributes
        nodes = [node for node, _ in ctx.next_functions] + [None]  # of the tensors; the last one is for a bias of None
        wanted = [need and _is_asked(node) for need, node in zip(ctx.needs_input_grad[:3], nodes, strict=False)]
        found = torch.ops.aten.convolution_backward(
            gradient, input, weight, ctx.biases, stride, padding, dilation, True, output_padding, groups, wanted
        )
        return *(each if needed else None for each, needed in zip(found, wanted, strict=True)), *[None] * 6


def _autograd(input, weight, bias, stride, padding, output_padding, groups, dilation, precision=None, reuse=COMPARED):
    arguments = input, weight, bias, stride, padding, output_padding, groups, dilation
    if is_transformed():
        return _compute_with_torch(*arguments)
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in arguments[:3]):
        return _WithGradients.apply(*arguments, precision)
    with torch._C._AutoDispatchBelowAutograd():
        return conv_transpose(*arguments, precision, reuse)


_LIBRARY.impl("conv_transpose", _autograd, "Autograd")


@torch.library.register_vmap("convt::conv_transpose", lib=_LIBRARY)
def _vmap(
    info, in_dims, input, weight, bias, stride, padding, output_padding, groups, dilation, precision=None, reuse=COMPARED
):  # fmt: skip
    """Merge the mapped axis into others as torch's rule does, so that results have torch's strides.

    It goes into the batch if only the input is mapped, into the channels of a group if only the weight is, else into the
    groups. A bias that is mapped, or whose weight is, is added afterwards.
    """
    count, (input_dim, weight_dim, bias_dim) = info.batch_size, in_dims[:3]
    added = bias if weight_dim is not None or bias_dim is not None else None
    more = None if added is not None else bias, stride, padding, output_padding
    if weight_dim is None and input_dim is None:
        result, dim = conv_transpose(input, weight, *more, groups, dilation, precision, reuse).unsqueeze(0), 0
    elif weight_dim is None:
        result = conv_transpose(input.movedim(input_dim, 0).flatten(0, 1), weight, *more, groups, dilation, precision, reuse)
        result, dim = result.unflatten(0, (count, -1)), 0
    elif input_dim is None:
        result = conv_transpose(input, weight.movedim(weight_dim, 1).flatten(1, 2), *more, groups, dilation, precision)
        result, dim = result.unflatten(1, (groups, count, -1)).transpose(1, 2).flatten(2, 3), 1
    else:
        input, weight = input.movedim(input_dim, 1).flatten(1, 2), weight.movedim(weight_dim, 0).flatten(0, 1)
        result = conv_transpose(input, weight, *more, groups * count, dilation, precision)
        result, dim = result.unflatten(1, (count, -1)), 1
    if added is None:
        return result, dim
    added = added.movedim(bias_dim, 0).unsqueeze(1) if bias_dim is not None else added
    return result.movedim(dim, 0) + added.reshape(*added.shape, *[1] * len(stride)), 0


def _autocast(input, weight, bias, stride, padding, output_padding, groups, dilation, precision=None, reuse=COMPARED):
    """Cast tensors to autocast's dtype, except float64, as torch's convolutions do."""
    dtype = torch.get_autocast_dtype("cpu")
    cast = lambda t: t if t is None or t.dtype == torch.float64 or not t.is_floating_point() else t.to(dtype)  # noqa: E731
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        tensors = cast(input), cast(weight), cast(bias)
        reuse = reuse if tensors[1] is weight else COMPARED  # a weight cast for this call is not reused
        return conv_transpose(*tensors, stride, padding, output_padding, groups, dilation, precision, reuse)


_LIBRARY.impl("conv_transpose", _autocast, "AutocastCPU")
