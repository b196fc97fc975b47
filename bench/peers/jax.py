"""JAX: a convolution of the dilated input with the flipped filter, compiled by XLA. JAX implements conv_transpose this way.

In mode prepacked, the filter is a constant of the compiled function. In mode one-shot, it is an argument.
"""

from __future__ import annotations

import os

import numpy as np

from ..problem import Problem, as_nxc, in_layout
from . import Ready

DTYPES = ("f32", "f16", "bf16", "f64")


def _import():
    """Import JAX with as many cores as threads, because XLA starts one thread per allowed core and has no other setting."""
    threads = int(os.environ["OMP_NUM_THREADS"])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    return jax


jax = _import()


def version() -> str:
    return jax.__version__


def prepare(problem: Problem, threads: int) -> Ready:
    layer, letters = problem.layer, "DHW"[-len(problem.layer.size) :]
    data_spec = f"N{letters}C" if problem.layout == "NXC" else f"NC{letters}"
    axes = zip(layer.size, layer.kernel, layer.strides, layer.dilations, layer.pads_begin, layer.output, strict=True)
    padding = [(d * (k - 1) - begin, o - s * (n - 1) - 1 + begin) for n, k, s, d, begin, o in axes]
    spatial = tuple(range(len(layer.kernel)))
    filter, bias = jax.numpy.asarray(np.flip(problem.filter(), spatial)), problem.bias()
    if bias is not None and problem.layout == "NCX":
        bias = bias.reshape(-1, *(1 for _ in spatial))

    def layer_of(data, filter):
        result = jax.lax.conv_general_dilated(
            data,
            filter,
            window_strides=[1] * len(spatial),
            padding=padding,
            lhs_dilation=layer.strides,
            rhs_dilation=layer.dilations,
            dimension_numbers=(data_spec, f"{letters}IO", data_spec),
            feature_group_count=layer.groups,
        )
        return result if bias is None else result + bias

    # With groups, JAX wants a filter whose in-channels are divided by the groups, and not its out-channels.
    groups = layer.groups
    if groups > 1:
        split = filter.reshape(*layer.kernel, groups, layer.cin // groups, layer.cout // groups)
        filter = jax.numpy.moveaxis(split, -3, -2).reshape(*layer.kernel, layer.cin // groups, layer.cout)
    compiled = jax.jit((lambda data: layer_of(data, filter)) if problem.prepacked else layer_of)
    arguments = [jax.numpy.asarray(in_layout(problem.data(), problem.layout))]
    arguments += [] if problem.prepacked else [filter]

    def run():
        return compiled(*arguments).block_until_ready()

    return Ready(run, lambda y: as_nxc(np.asarray(y), problem.layout), "")
