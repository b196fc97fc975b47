"""The transposed convolution of tensors, computed by convt."""

import torch

from .. import _api, _check, _config, _padding
from .._problem import PRECISIONS
from . import _weights
from ._arrays import array, memory_format, tensor_of

# When weights that an earlier call packed are used again: if all values of the filter are still the same; without a look at
# them, because somebody promised that; not at all.
COMPARED, TRUSTED, NEVER = "compared", "trusted", "never"

# Exceptions by which convt refuses a call: the caller leaves it to torch, which computes it or raises an error of its own.
REFUSED = (MemoryError, OverflowError, ValueError)


def check_precision(word):
    """Raises ValueError for a word that is no precision. Graphs can hold this check, but not torch's setting."""
    if word is not None:
        _check.word("precision", word, (*PRECISIONS, "torch"))


def precision_of(word):
    """A precision as convt knows it: for "torch" the one that torch is set to, which has the same words."""
    check_precision(word)
    return torch.get_float32_matmul_precision() if word == "torch" else word


_NAMES = (
    "strides", "pads_begin", "pads_end", "output_padding", "groups", "dilations", "data_format", "filter_format", "activation",
    "precision",
)  # fmt: skip


def compute(
    input, weight, bias, stride, padding, output_padding, groups, dilation, precision=None, reuse=COMPARED, activation=None,
    tune=False,
):  # fmt: skip
    """The transposed convolution of tensors that fit each other, in the memory format of the input or the weight, on as many
    threads as torch uses. ``tune`` measures which algorithm is the fastest for packed weights, once for each shape."""
    precision = precision_of(precision)  # here, because a graph calls this at another setting of torch than it was made at
    attributes = tuple(stride), tuple(padding), tuple(output_padding), groups, tuple(dilation), precision, activation
    threads = torch.get_num_threads()
    if threads != _config.get_num_threads():
        with _config.num_threads(threads):
            return _compute(input, weight, bias, attributes, reuse, tune)
    return _compute(input, weight, bias, attributes, reuse, tune)


def _compute(input, weight, bias, attributes, reuse, tune):
    channels_last = memory_format(input, weight) is not torch.contiguous_format
    data = array(input)
    if channels_last:
        data = data.transpose(0, *range(2, data.ndim), 1)
    operator = None
    if reuse != NEVER:
        operator = _weights.operator(weight, bias, (attributes, channels_last, tune), _keywords, reuse == TRUSTED)
    if operator is not None:
        result = operator(data)
    else:
        bias = None if bias is None else array(bias)
        result = _api.one_shot(_padding.CORE, data, array(weight), bias, _NAMES, _values(attributes, channels_last))
    if channels_last:
        result = result.transpose(0, result.ndim - 1, *range(1, result.ndim - 1))
    return tensor_of(result)


def _keywords(attributes, channels_last, tune):
    """The keywords of `convt.ConvTranspose`."""
    keywords = dict(zip(_NAMES, _values(attributes, channels_last), strict=True))
    return keywords | {"backend": "tune"} if tune else keywords


def _values(attributes, channels_last):
    """The values of _NAMES."""
    stride, padding, output_padding, groups, dilation, precision, activation = attributes
    layout = "NXC" if channels_last else "NCX"
    return stride, padding, padding, output_padding, groups, dilation, layout, "IOX", activation, precision
