"""Random layers: neighbours of known layers.

A library that is tuned on some layers is fast on these layers. Its speed on other layers of the same classes shows whether the
tuning generalises.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from .layers import Layer

NEAR = "near_"  # prefix of the names of neighbours
MOST_ELEMENTS = 24_000_000  # data, filter and result together; larger layers take too long to measure
MOST_OPERATIONS = 12e9
LEAST_OPERATIONS = 4e5  # below, the overhead of a call dominates

_ROUNDS = 50  # extra rounds of one neighbour per layer, because some neighbours are too small or too large


def neighbours(layers: list[Layer], number: int, seed: int) -> list[Layer]:
    """Return ``number`` random layers of the same classes as ``layers``, which depend only on the seed.

    The layers get neighbours in turns, in random order, so that all classes are represented. Raise ValueError if too many
    neighbours are too small or too large to be measured.
    """
    chance = random.Random(seed)
    found = list(islice(_neighbours(layers, chance, _ROUNDS + number), number))
    if len(found) < number:
        raise ValueError(f"wanted {number} neighbours, but only {len(found)} near these layers can be measured")
    return found


def _neighbours(layers: list[Layer], chance: random.Random, rounds: int) -> Iterator[Layer]:
    for n in range(rounds):
        for layer in chance.sample(layers, len(layers)):
            near = _neighbour(layer, chance, n)
            if _is_measurable(near):
                yield near


def _is_measurable(layer: Layer) -> bool:
    """Check whether a layer is neither too small nor too large to be measured."""
    return LEAST_OPERATIONS <= layer.flops <= MOST_OPERATIONS and layer.elements <= MOST_ELEMENTS


def _around(number: int, chance: random.Random, least: int = 1) -> int:
    """Return a random number between half and double of another, mostly divisible by the same power of two (up to 64)."""
    near = max(least, round(number * 2 ** chance.uniform(-1, 1)))
    for step in (64, 16, 8, 4):
        if number % step == 0 and near >= step and chance.random() < 0.7:
            return near // step * step
    return near


def _neighbour(layer: Layer, chance: random.Random, n: int) -> Layer:
    """Return a layer of the same class with other sizes and channels, and sometimes another kernel or batch."""
    kernel, strides = layer.kernel, layer.strides
    if chance.random() < 0.25:
        more = chance.choice([-1, 1])
        kernel = tuple(max(s, k + more) for k, s in zip(kernel, strides, strict=True))
    if layer.groups == 1:
        groups = 1
        cin = _around(layer.cin, chance)
        cout = _around(layer.cout, chance) if layer.cout > 4 else chance.randint(1, 4)
    else:
        groups = _around(layer.groups, chance, 2)
        cin, cout = layer.cin // layer.groups * groups, layer.cout // layer.groups * groups
    size = tuple(_around(i, chance, 2) for i in layer.size)
    batch = layer.batch if chance.random() < 0.7 else _around(layer.batch, chance)
    pads = tuple(chance.choice([0, (k - s) // 2 if k > s else 0]) for k, s in zip(kernel, strides, strict=True))
    reach = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(size, strides, kernel, layer.dilations, strict=True)]
    pads = tuple(p if 2 * p < n else 0 for p, n in zip(pads, reach, strict=True))
    return replace(
        layer, name=f"{NEAR}{layer.name}_{n}", batch=batch, cin=cin, cout=cout, groups=groups, size=size, kernel=kernel,
        pads_begin=pads, pads_end=pads, output_padding=(0,) * len(size), source="",
    )  # fmt: skip
