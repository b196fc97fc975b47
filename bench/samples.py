"""Random problems: neighbours of known layers for the benchmark, and random shapes of each class for calibration.

A library that is tuned on some layers is fast on these layers. Its speed on other layers of the same classes shows whether the
tuning generalises.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count, islice

from .layers import Layer

NEAR = "near_"  # prefix of the names of neighbours
MOST_ELEMENTS = 24_000_000  # data, filter and result together; larger layers take too long to measure
MOST_OPERATIONS = 12e9
LEAST_OPERATIONS = 4e5  # below, the overhead of a call dominates

_ROUNDS = 50  # extra rounds of one neighbour per layer, because some neighbours are too small or too large

# Problems of ten that have the first dtype; the others have one of the other dtypes.
SINGLE = 7


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


def sample(layers: list[Layer], dtypes: list[str], layouts: list[str], seed: int) -> Iterator[tuple[Layer, str, str]]:
    """Yield (layer, dtype, layout) without end, depending only on the seed.

    Known layers, their neighbours and random layers take turns until each known layer has been drawn. Known layers come in all
    layouts, other layers in one random layout.
    """
    chance = random.Random(seed)
    left = list(layers)
    chance.shuffle(left)
    for n in count():
        if left and n % 3 == 0:
            layer = left.pop()
        elif n % 3 == 1:
            layer = _neighbour(chance.choice(layers), chance, n)
        else:
            layer = _random(chance, n)
        dtype = dtypes[0] if len(dtypes) == 1 or chance.randrange(10) < SINGLE else chance.choice(dtypes[1:])
        if _is_measurable(layer):
            for layout in layouts if layer in layers else [chance.choice(layouts)]:
                yield layer, dtype, layout


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
    name = f"{NEAR}{layer.name}_{n}"
    return _layer(name, layer.family, batch, cin, cout, groups, size, kernel, strides, layer.dilations, chance)


def _random(chance: random.Random, n: int) -> Layer:
    """Return a random layer of a random class. The classes are those that algorithms are made for."""
    kind = chance.choice(["dense", "dense", "dense", "one tap", "few out", "depthwise", "groups", "audio", "volume", "brief"])
    rank = {"audio": 1, "volume": 3}.get(kind, chance.choice([1, 2, 2, 2]))
    strides = (chance.choice([1, 2, 2, 2, 3, 4]),) * rank
    kernel = (max(strides[0], chance.choice([1, 2, 3, 3, 4, 4, 5, 6, 7, 9])),) * rank
    if kind == "audio":
        strides = (chance.choice([2, 4, 5, 8, 16]),)
        kernel = (strides[0] * chance.choice([1, 2, 2, 3]) + chance.choice([0, 0, 1]),)
    if kind == "one tap":
        kernel = strides = (chance.choice([1, 2, 2, 3, 4]),) * rank
    log = lambda low, high: round(2 ** chance.uniform(low, high))  # noqa: E731
    channels = lambda low, high: max(1, log(low, high) // (step := chance.choice([1, 8, 16, 16, 32])) * step)  # noqa: E731
    groups, cin, cout = 1, channels(3, 10), channels(3, 10)
    if kind == "few out":
        cin, cout = channels(3, 8), chance.randint(1, 4)
    elif kind == "depthwise":
        groups = cin = cout = max(2, channels(3, 9))
    elif kind == "groups":
        groups = chance.choice([2, 4, 8, 16, 32])
        cin, cout = groups * chance.choice([2, 4, 8, 16]), groups * chance.choice([2, 4, 8, 16])
    side = {1: log(6, 14), 2: log(2, 8), 3: log(2, 5)}[rank]
    if kind == "brief":
        side = {1: log(1, 5), 2: log(0, 3), 3: log(0, 2)}[rank]
    size = tuple(max(1, round(side * chance.uniform(0.7, 1.4))) for _ in range(rank))
    dilations = (chance.choice([1] * 9 + [2]),) * rank
    name, batch = f"{kind} {n}", chance.choice([1, 1, 1, 2, 8])
    return _layer(name, "sample", batch, cin, cout, groups, size, kernel, strides, dilations, chance)


def _layer(name, family, batch, cin, cout, groups, size, kernel, strides, dilations, chance) -> Layer:
    pads = tuple(chance.choice([0, (k - s) // 2 if k > s else 0]) for k, s in zip(kernel, strides, strict=True))
    reach = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(size, strides, kernel, dilations, strict=True)]
    pads = tuple(p if 2 * p < n else 0 for p, n in zip(pads, reach, strict=True))
    return Layer(
        name=name, family=family, batch=batch, cin=cin, cout=cout, groups=groups, size=size, kernel=kernel,
        strides=strides, pads_begin=pads, pads_end=pads, output_padding=(0,) * len(size), dilations=dilations, source="",
    )  # fmt: skip
