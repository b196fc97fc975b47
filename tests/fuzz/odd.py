"""Arguments of every type that are no plain integers or words, each with its meaning."""

import decimal
import fractions

import numpy as np

INVALID = object()  # the value means no integer, so it must be refused


class Indexed:
    """An object with ``__index__``, which makes it an integer."""

    def __index__(self):
        return 2


def _generator():
    yield 2


# name -> (the value for a rank, its meaning: an integer for every axis, a list, or INVALID)
VALUES = {
    "None": (lambda rank: None, INVALID), "True": (lambda rank: True, INVALID),
    "np.bool_": (lambda rank: np.bool_(True), INVALID), "2.0": (lambda rank: 2.0, INVALID),
    "nan": (lambda rank: float("nan"), INVALID), "1j": (lambda rank: 1j, INVALID), "'2'": (lambda rank: "2", INVALID),
    "b'2'": (lambda rank: b"\x02" * rank, INVALID), "bytearray": (lambda rank: bytearray(b"\x02" * rank), INVALID),
    "dict": (lambda rank: dict.fromkeys(range(1, rank + 1)), INVALID), "set": (lambda rank: set(range(1, rank + 1)), INVALID),
    "object": (lambda rank: object(), INVALID), "type": (lambda rank: int, INVALID),
    "Decimal": (lambda rank: decimal.Decimal(2), INVALID), "Fraction": (lambda rank: fractions.Fraction(2), INVALID),
    "generator": (lambda rank: _generator(), INVALID), "[]": (lambda rank: [], INVALID),
    "nested": (lambda rank: [[2]] * rank, INVALID), "too many": (lambda rank: [2] * (rank + 1), INVALID),
    "floats": (lambda rank: np.full(rank, 2.0), INVALID), "square": (lambda rank: np.full((rank, rank), 2), INVALID),
    "mixed": (lambda rank: [2] * (rank - 1) + [2.5], INVALID), "-1": (lambda rank: -1, -1), "0": (lambda rank: 0, 0),
    "-2**63": (lambda rank: -(2**63), -(2**63)), "2**31": (lambda rank: 2**31, 2**31), "2**32": (lambda rank: 2**32, 2**32),
    "2**62": (lambda rank: 2**62, 2**62), "2**63-1": (lambda rank: 2**63 - 1, 2**63 - 1), "2**63": (lambda rank: 2**63, 2**63),
    "2**64": (lambda rank: 2**64, 2**64), "10**30": (lambda rank: 10**30, 10**30),
    "uint64": (lambda rank: np.uint64(2**64 - 1), 2**64 - 1), "int8": (lambda rank: np.int8(2), 2),
    "Indexed": (lambda rank: Indexed(), 2), "list": (lambda rank: [2] * rank, 2), "tuple": (lambda rank: (2,) * rank, 2),
    "range": (lambda rank: range(1, rank + 1), [1]), "array": (lambda rank: np.full(rank, 2, np.int16), 2),
    "scalar array": (lambda rank: np.array(2), 2), "strided array": (lambda rank: np.full(2 * rank, 2)[::-2], 2),
    "big list": (lambda rank: [1] * (rank - 1) + [2**63 - 1], None),
}  # fmt: skip
AXES = ("strides", "dilations", "pads_begin", "pads_end", "output_padding", "output_shape")
NAMES = (*AXES, "groups")


def draw(rng, dialect):
    """Return [argument, name of its value]."""
    return [rng.choice(NAMES if dialect == "core" else AXES[:2] + AXES[4:]), rng.choice(list(VALUES))]


def value(argument, name, rank):
    """Return the value to pass and its meaning for `oracle`: a list, an integer for groups, None, or INVALID."""
    make, meaning = VALUES[name]
    given = make(rank)
    if meaning is INVALID:
        return given, INVALID
    scalar = not hasattr(given, "__len__") or np.ndim(given) == 0
    if argument == "groups":
        return given, meaning if scalar else INVALID
    if argument == "output_shape" and scalar and rank > 1:
        return given, INVALID
    if name == "range":
        return given, list(given)
    if name == "big list":
        return given, given
    return given, [meaning] * rank
