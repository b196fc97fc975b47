"""Time of convt.jax beside jax.lax, both under jax.jit, on each built-in layer.

`call` is an operator whose weights are packed once, `constant` are weights that are a constant of the program, `same` are
weights that are an argument with equal values at each call, and `new` are weights that differ at each call. Turns alternate
between the programs, and each number is the least of its times. The ratios are jax.lax's time divided by convt's. convt.jax
leaves a grouped layer with strides of 1 to JAX, except for `call`.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable

import numpy as np

from . import command, tables, timing
from .layers import Layer
from .problem import Problem, in_layout

WAYS = ("call", "constant", "same", "new")
TURNS = 5
NEW_WEIGHTS = 6  # more than a program keeps packed


def programs(layer: Layer, layout: str) -> dict[str, Callable]:
    """Return a function without arguments for jax.lax ("lax") and for each of WAYS."""
    import jax

    import convt
    import convt.jax

    from .peers.convt import keywords

    problem, spatial = Problem(layer, "f32", layout), range(len(layer.kernel))
    letters = "DHW"[-len(spatial) :]
    spec = f"N{letters}C" if layout == "NXC" else f"NC{letters}"
    axes = zip(layer.size, layer.kernel, layer.strides, layer.dilations, layer.pads_begin, layer.output, strict=True)
    padding = [(d * (k - 1) - begin, o - s * (n - 1) - 1 + begin) for n, k, s, d, begin, o in axes]
    groups, filter = layer.groups, problem.filter()
    turned = np.flip(filter, spatial).reshape(*layer.kernel, groups, layer.cin // groups, layer.cout // groups)
    turned = np.moveaxis(turned, -3, -2).reshape(*layer.kernel, layer.cin // groups, layer.cout)
    data, weights = jax.numpy.asarray(in_layout(problem.data(), layout)), jax.numpy.asarray(turned)
    others = itertools.cycle([jax.block_until_ready(weights * (1 + n / 8)) for n in range(NEW_WEIGHTS)])
    op = convt.ConvTranspose(filter, **keywords(problem))

    def function(module):
        settings = layer.strides, padding, layer.dilations, (spec, f"{letters}IO", spec)
        if is_ordinary:
            return lambda data, weights: module.conv_transpose(data, weights, *settings)
        ones = [1] * len(spatial)
        return lambda data, weights: module.conv_general_dilated(data, weights, ones, settings[1], settings[0],
                                                                 *settings[2:], groups)  # fmt: skip

    is_ordinary = max(layer.strides) == 1 and groups == 1  # conv_general_dilated leaves strides of 1 to JAX
    lax, ours, call = jax.jit(function(jax.lax)), function(convt.jax), jax.jit(lambda data: convt.jax.call(op, data))
    found = {"lax": lambda: lax(data, weights), "call": lambda: call(data)}
    if is_ordinary or max(layer.strides) > 1:
        constant = jax.jit(lambda data: ours(data, weights))
        same, new = jax.jit(function(convt.jax)), jax.jit(function(convt.jax))
        found |= {
            "constant": lambda: constant(data), "same": lambda: same(data, weights), "new": lambda: new(data, next(others)),
        }  # fmt: skip
        np.testing.assert_array_equal(new(data, weights), same(data, weights))
    wanted = np.asarray(found["lax"]())
    for name in found.keys() - {"new"}:
        np.testing.assert_allclose(found[name](), wanted, atol=1e-4 * np.abs(wanted).max())
    return found


def times(functions: dict[str, Callable], seconds: float) -> dict[str, float]:
    """Return the least milliseconds of each function."""
    found = timing.in_turns([lambda run=run: run().block_until_ready() for run in functions.values()], seconds, TURNS, min)
    return {name: each * 1e3 for name, each in zip(functions, found, strict=True)}


def main(arguments: list[str] | None = None) -> None:
    parser = command.parser("jax_door", __doc__, "--names unet_up1,dcgan_mid", "--layout NCX --seconds 0.2 --json jax.json")
    command.add_layers(parser)
    command.add_layout(parser, "NXC")
    parser.add_argument("--seconds", type=command.positive, default=0.5, help="time for each program of a layer (default: 0.5)")
    command.add_json(parser)
    options = parser.parse_args(arguments)
    with command.packages(__name__), command.printing(options.json) as write_json:
        write_json(_show(command.layers_of(parser, options), options))


def _show(chosen: list[Layer], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure and print. Return the milliseconds of each layer."""
    found: dict[str, dict[str, float]] = {}
    heads = ["layer", "jax.lax, ms", *(f"{way}, ms" for way in WAYS), *(f"{way}, ratio" for way in WAYS)]
    print("\n".join(tables.markdown(heads, ())))
    for layer in chosen:
        found[layer.name] = each = times(programs(layer, options.layout), options.seconds)
        numbers = [f"{each[way]:.3f}" if way in each else "" for way in ("lax", *WAYS)]
        ratios = [f"{each['lax'] / each[way]:.2f}" if way in each else "" for way in WAYS]
        print(f"| {layer.name} | {' | '.join(numbers + ratios)} |", flush=True)
    for way in WAYS:
        ratios = [each["lax"] / each[way] for each in found.values() if way in each]
        mean = math.exp(sum(map(math.log, ratios)) / max(1, len(ratios)))
        least = min(ratios, default=math.nan)
        print(f"{way}: geometric mean {mean:.2f}, least {least:.2f}, {sum(r < 1 for r in ratios)} of {len(ratios)} below 1")
    return found


if __name__ == "__main__":
    main()
