"""The call of convt for tensors."""

import functools

import numpy as np
import torch

from .._base import check
from .._base import padding as _padding
from .._base.problem import PRECISIONS
from .._call import api
from .._call.operator import ConvTranspose
from .._model import machine
from .._plan import choose
from .._run import config
from . import _weights
from ._arrays import array, is_channels_last, tensor_of

# When a call reuses packed weights. COMPARED: if a checksum shows that the filter's values are unchanged. TRUSTED: without a
# check, because the user promised not to change the filter. NEVER: not at all.
COMPARED, TRUSTED, NEVER = "compared", "trusted", "never"

_LEAST_BYTES = 1 << 17  # smaller filters are compared in less time than it takes to ask whether that is worth it

# Exceptions with which convt refuses a call. The caller then calls torch, which computes the result or raises its own error.
REFUSED = (MemoryError, OverflowError, ValueError)


def check_precision(word):
    """Raise ValueError for an invalid precision. Unlike `precision_of`, compiled graphs can contain this check."""
    if word is not None:
        check.word("precision", word, (*PRECISIONS, "torch"))


def precision_of(word):
    """Return a precision of convt. "torch" stands for torch's float32 matmul precision, which has the same names."""
    check_precision(word)
    return torch.get_float32_matmul_precision() if word == "torch" else word


def compute(
    input, weight, bias, stride, padding, output_padding, groups, dilation, precision=None, reuse=COMPARED, activation=None,
    tune=False,
):  # fmt: skip
    """Compute the transposed convolution of valid tensors on as many threads as torch uses.

    ``stride``, ``padding``, ``output_padding`` and ``dilation`` have one integer per spatial axis. `is_channels_last`
    determines the layout of the result. ``tune`` measures once per shape which algorithm is the fastest for packed weights.
    """
    # Here, because the setting of torch or convt may differ from when a graph was compiled.
    precision = precision_of(precision) or config.default_precision()
    attributes = (
        tuple(stride), tuple(padding), tuple(output_padding), groups, tuple(dilation), precision, activation,
        config.default_backend(),
    )  # fmt: skip
    return on_torchs_threads(_compute, input, weight, bias, attributes, reuse, tune)


def on_torchs_threads(function, *arguments):
    """Call a function on as many threads as torch uses."""
    threads = torch.get_num_threads()
    if threads == config.get_num_threads():
        return function(*arguments)
    with config.num_threads(threads):
        return function(*arguments)


def _compute(input, weight, bias, attributes, reuse, tune):
    channels_last = is_channels_last(input, weight, *attributes[:5])
    data = array(input)
    if channels_last:
        data = data.transpose(0, *range(2, data.ndim), 1)
    given = operator = None
    if reuse != TRUSTED and not tune and weight.nbytes >= _LEAST_BYTES and weight.is_contiguous():
        here = machine.current(), choose.tuning.version
        given = _unpacked(attributes, channels_last, data.shape, data.dtype, weight.shape, here)
    if given is None and reuse != NEVER:
        # With ``tune``, the first call measures, so that later calls give the same bits.
        operator = _weights.operator(weight, bias, (attributes, channels_last, tune), keywords, reuse == TRUSTED, tune)
    if operator is not None:
        result = operator(data)
    else:
        bias = None if bias is None else array(bias)
        # Without counts_packing, so that this call and later calls with packed weights give the same bits.
        given = given or keywords(attributes, channels_last)
        result = api.one_shot(_padding.CORE, data, array(weight), bias, given, counts_packing=False)
    if channels_last:
        result = result.transpose(0, result.ndim - 1, *range(1, result.ndim - 1))
    return tensor_of(result)


@functools.lru_cache(1024)
def _unpacked(attributes, channels_last, shape, dtype, filter_shape, here):
    """Return the `keywords` of a call that multiplies a contiguous filter as it is, or None.

    It does so if reading the filter once is faster than comparing it and multiplying packed weights. All calls of a shape do
    the same, so that they give the same bits. ``here`` has the machine and the tuning.
    """
    given = keywords(attributes, channels_last)
    filter = np.broadcast_to(np.zeros((), dtype), tuple(filter_shape))
    attributes = ConvTranspose._borrowing(filter, None, **given._asdict())._attributes
    pays = choose.unpacked_pays(attributes.problem(shape), attributes, filter.size * filter.itemsize)
    return given._replace(algorithm="unpacked") if pays else None


def keywords(attributes, channels_last, tune=False):
    """Return the keywords of `convt.ConvTranspose`, an `api.Keywords`."""
    stride, padding, output_padding, groups, dilation, precision, activation, backend = attributes
    return api.Keywords(
        strides=stride, pads_begin=padding, pads_end=padding, dilations=dilation, output_padding=output_padding, groups=groups,
        data_format="NXC" if channels_last else "NCX", filter_format="IOX", activation=activation,
        backend="tune" if tune else backend, precision=precision,
    )  # fmt: skip
