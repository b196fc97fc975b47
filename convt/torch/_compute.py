"""Tensors computed by convt: arrays that share their memory, and weights packed while they stay as they are."""

import math
import weakref

import ml_dtypes
import numpy as np
import torch

from .. import _api, _check, _config, _padding
from .._problem import PRECISIONS

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_MEMORY_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_SAMPLE = 64  # about so many weights are looked at for changes which torch does not count
_OPERATORS = 8  # of a filter
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def check_precision(word):
    """Raises ValueError for what is no precision; a graph can hold this, and not what torch is set to."""
    if word is not None:
        _check.word("precision", word, (*PRECISIONS, "torch"))


def precision_of(word):
    """A precision as convt knows it: for "torch" the one that torch is set to, which has the same words."""
    check_precision(word)
    return torch.get_float32_matmul_precision() if word == "torch" else word


def memory_format(input, weight):
    """The format of the output: channels last where the input or the weight is, and not contiguous as well."""
    for tensor in (input, weight):
        if not tensor.is_contiguous():
            channels_last = _MEMORY_FORMATS.get(tensor.dim())
            if channels_last is not None and tensor.is_contiguous(memory_format=channels_last):
                return channels_last
    return torch.contiguous_format


def array(tensor):
    """A NumPy array of a tensor's memory."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(_BFLOAT16)
    return tensor.numpy()


def tensor_of(array):
    """A tensor of an array's memory."""
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def sampled(values):
    """A view of some elements of an array, which shows changes by way of ``.data`` or NumPy: torch does not count these."""
    each = math.ceil(_SAMPLE ** (1 / values.ndim) - 1e-9)  # of an axis
    return values[tuple(slice(None, None, max(1, -(-size // each))) for size in values.shape)]


class _Weights:
    """Operators of one filter: those of a `version` of it that was met before."""

    def __init__(self, weight):
        key = id(weight)
        self.weight = weakref.ref(weight, lambda _: _known.pop(key, None))
        self.operators = {}  # attributes and the bias's bytes -> ConvTranspose
        self.bias_at, self.bias_values = None, None
        self.remember(weight)

    def remember(self, weight):
        self.operators.clear()
        self.version, self.place = weight._version, weight.data_ptr()
        self.sampled = sampled(array(weight))
        self.sample = self.sampled.tobytes()

    def bias(self, bias):
        """The array of a bias: the one of before where its memory, which that keeps, is the same."""
        at = bias.data_ptr(), bias.shape, bias.stride(), bias.dtype
        if at != self.bias_at:
            self.bias_at, self.bias_values = at, array(bias)
        return self.bias_values

    def unchanged(self, weight):
        """Whether the filter is as it was: torch counts its changes, and a sample shows those by way of ``.data`` or NumPy."""
        if self.version != weight._version or self.place != weight.data_ptr():
            return False
        return self.sampled.tobytes() == self.sample


_known = {}  # id of a filter -> its _Weights


def _operator(weight, bias, attributes, channels_last):
    """The operator of a filter that is met again, with its weights packed; None at first sight, and for filters whose changes
    torch does not count."""
    if weight.is_inference() or (bias is not None and bias.is_inference()):
        return None
    known = _known.get(id(weight))
    if known is None or known.weight() is not weight:
        _known[id(weight)] = _Weights(weight)
        return None
    if not known.unchanged(weight):
        known.remember(weight)
        return None
    values = None if bias is None else known.bias(bias)
    # A bias is small: it is compared as a whole.
    key = attributes, channels_last, None if bias is None else values.tobytes()
    found = known.operators.get(key)
    if found is None:
        if len(known.operators) == _OPERATORS:
            known.operators.clear()
        keywords = dict(zip(_NAMES, _values(attributes, channels_last), strict=True))
        found = known.operators[key] = _api.ConvTranspose.borrowing(array(weight), values, **keywords)
    return found


def forget():
    """Drop all packed weights."""
    _known.clear()


_NAMES = (
    "strides", "pads_begin", "pads_end", "output_padding", "groups", "dilations", "data_format", "filter_format", "activation",
    "precision",
)  # fmt: skip


def _values(attributes, channels_last):
    """The values of _NAMES."""
    stride, padding, output_padding, groups, dilation, precision, activation = attributes
    layout = "NXC" if channels_last else "NCX"
    return stride, padding, padding, output_padding, groups, dilation, layout, "IOX", activation, precision


def compute(input, weight, bias, stride, padding, output_padding, groups, dilation, precision=None, activation=None):
    """The transposed convolution of tensors that fit each other, in the memory format of the input or the weight, on as
    threads as torch uses."""
    precision = precision_of(precision)  # here, where a graph calls, too
    attributes = tuple(stride), tuple(padding), tuple(output_padding), groups, tuple(dilation), precision, activation
    threads = torch.get_num_threads()
    if threads != _config.get_num_threads():
        with _config.num_threads(threads):
            return _compute(input, weight, bias, attributes)
    return _compute(input, weight, bias, attributes)


def _compute(input, weight, bias, attributes):
    channels_last = memory_format(input, weight) is not torch.contiguous_format
    data = array(input)
    if channels_last:
        data = data.transpose(0, *range(2, data.ndim), 1)
    operator = _operator(weight, bias, attributes, channels_last)
    if operator is not None:
        result = operator(data)
    else:
        bias = None if bias is None else array(bias)
        result = _api.one_shot(_padding.CORE, data, array(weight), bias, _NAMES, _values(attributes, channels_last))
    if channels_last:
        result = result.transpose(0, result.ndim - 1, *range(1, result.ndim - 1))
    return tensor_of(result)
