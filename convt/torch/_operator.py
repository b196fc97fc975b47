"""torch.ops.convt.conv_transpose: the operator as torch knows it, for compiled graphs, gradients, vmap and autocast."""

import torch

from ._compute import compute, memory_format

_LIBRARY = torch.library.Library("convt", "DEF")
_LIBRARY.define(
    "conv_transpose(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] output_padding, "
    "SymInt groups, SymInt[] dilation, str? precision=None) -> Tensor"
)
_LIBRARY.impl("conv_transpose", compute, "CPU")
conv_transpose = torch.ops.convt.conv_transpose.default


def output_sizes(sizes, kernel, stride, padding, output_padding, dilation):
    """The spatial sizes of the output."""
    axes = zip(sizes, kernel, stride, padding, output_padding, dilation, strict=True)
    return [(n - 1) * s - 2 * p + d * (k - 1) + extra + 1 for n, k, s, p, extra, d in axes]


@torch.library.register_fake("convt::conv_transpose", lib=_LIBRARY)
def _fake(input, weight, bias, stride, padding, output_padding, groups, dilation, precision=None):
    sizes = output_sizes(input.shape[2:], weight.shape[2:], stride, padding, output_padding, dilation)
    shape = (input.shape[0], weight.shape[1] * groups, *sizes)
    return torch.empty(shape, dtype=input.dtype, device=input.device, memory_format=memory_format(input, weight))


def _save(ctx, inputs, output):
    input, weight, bias, *ctx.attributes, _ = inputs
    ctx.save_for_backward(input, weight)
    ctx.biases = None if bias is None else list(bias.shape)


def _gradients(ctx, gradient):
    """By torch, as exactly as it is set to: the precision speaks of the forward alone."""
    input, weight = ctx.saved_tensors
    stride, padding, output_padding, groups, dilation = ctx.attributes
    wanted = [*ctx.needs_input_grad[:2], ctx.needs_input_grad[2] and ctx.biases is not None]
    found = torch.ops.aten.convolution_backward(
        gradient, input, weight, ctx.biases, stride, padding, dilation, True, output_padding, groups, wanted
    )
    return *(each if needed else None for each, needed in zip(found, wanted, strict=True)), *[None] * 6


torch.library.register_autograd("convt::conv_transpose", _gradients, setup_context=_save, lib=_LIBRARY)


@torch.library.register_vmap("convt::conv_transpose", lib=_LIBRARY)
def _vmap(info, in_dims, input, weight, bias, stride, padding, output_padding, groups, dilation, precision=None):
    """Many inputs of one filter are one batch; many filters are groups."""
    count = info.batch_size
    first = lambda tensor, dim: tensor if dim is None else tensor.movedim(dim, 0)  # noqa: E731
    input, weight, bias = (None if t is None else first(t, dim) for t, dim in zip((input, weight, bias), in_dims, strict=False))
    same_filter = in_dims[1] is None and (bias is None or in_dims[2] is None)
    attributes = stride, padding, output_padding
    if same_filter:
        result = conv_transpose(input.flatten(0, 1), weight, bias, *attributes, groups, dilation, precision)
        return result.unflatten(0, (count, -1)), 0
    each = lambda tensor, dim: tensor if dim is not None else tensor.unsqueeze(0).expand(count, *tensor.shape)  # noqa: E731
    input, weight = each(input, in_dims[0]), each(weight, in_dims[1])
    bias = None if bias is None else each(bias, in_dims[2]).flatten(0, 1)
    result = conv_transpose(
        input.transpose(0, 1).flatten(1, 2), weight.flatten(0, 1), bias, *attributes, groups * count, dilation, precision
    )
    return result.unflatten(1, (count, -1)), 1


def _autocast(input, weight, bias, stride, padding, output_padding, groups, dilation, precision=None):
    """As torch's convolutions do: in the dtype of autocast, but for what is float64."""
    dtype = torch.get_autocast_dtype("cpu")
    cast = lambda t: t if t is None or t.dtype == torch.float64 or not t.is_floating_point() else t.to(dtype)  # noqa: E731
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        tensors = cast(input), cast(weight), cast(bias)
        return conv_transpose(*tensors, stride, padding, output_padding, groups, dilation, precision)


_LIBRARY.impl("conv_transpose", _autocast, "AutocastCPU")
