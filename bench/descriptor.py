"""Reader and writer of benchdnn's deconvolution descriptors, such as `mb1_ic256oc128_ih16oh32kh4sh2dh0ph1_n"name"`.

In a descriptor, dh is the dilation minus one, and the end pads follow from the output size. Missing values have defaults: one
axis h or d alone stands for a square or a cube, a missing output size or missing pads are computed from the other values, and
a missing mb is 2.
"""

from __future__ import annotations

import re

from .layers import Layer

FIELD = re.compile(r"_*(g|mb|[io][cdhw]|[kspd][dhw])(-?\d*)")
AXES = "dhw"
WORDS = "ioksdp"  # letters of input, output, kernel, stride, dilation and pad


def read(text: str) -> Layer:
    """Parse a descriptor into a layer. Raise ValueError if it is malformed."""
    given, name = _fields(text)
    for word in ("ic", "oc"):
        if not given.get(word):
            raise ValueError(f"{text}: {word} is missing or 0")
    axes = [axis for letter in AXES if (axis := _axis(text, given, letter))]
    letters = "".join(axis["letter"] for axis in axes)
    if letters not in ("w", "h", "hw", "d", "dhw"):
        raise ValueError(f"{text}: wanted the axes w, hw or dhw, or h or d alone, got {letters or 'none'}")
    axes *= {"h": 2, "d": 3}.get(letters, 1)
    return Layer(
        name=name or text,
        family="deconv",
        batch=given.get("mb", 2),
        cin=given["ic"],
        cout=given["oc"],
        groups=given.get("g", 1),
        source="",
        **{field: tuple(axis[field] for axis in axes) for field in axes[0] if field != "letter"},
    )


def _fields(text: str) -> tuple[dict[str, int], str]:
    """Return the numbers of a descriptor by their names, and the name of the layer without quotes."""
    given, at = {}, 0
    while (rest := text[at:].lstrip("_")) and not rest.startswith("n"):
        field = FIELD.match(text, at)
        if field is None:
            raise ValueError(f"{text}: {rest!r} does not start with a field of a descriptor and a number")
        word, number = field.groups()
        if not number.isdecimal():
            raise ValueError(f"{text}: wanted a whole number of at least 0 after {word}, got {number or rest!r}")
        given[word] = int(number)
        at = field.end()
    return given, rest[1:].strip("\"'")


def _axis(text: str, given: dict[str, int], letter: str) -> dict | None:
    """Return the fields of a `Layer` for one axis, or None if the descriptor does not have the axis."""
    defaults = {"s": 1, "p": None, "d": 0}
    size, output, kernel, stride, dilation, begin = (given.get(word + letter, defaults.get(word, 0)) for word in WORDS)
    if not (size or output or kernel or dilation or begin) and stride == 1:
        return None
    for word, value in (("i", size), ("k", kernel), ("s", stride)):
        if not value:
            raise ValueError(f"{text}: {word}{letter} is missing or 0")
    natural = stride * (size - 1) + (dilation + 1) * (kernel - 1) + 1
    if begin is None:
        begin = int((natural - output) / 2) if output else 0  # rounds towards zero, as C does
        if begin < 0:
            raise ValueError(f"{text}: without p{letter}, an o{letter} of {output} needs negative pads")
    end = natural - begin - output if output else begin
    if natural - begin - end < 1:
        raise ValueError(f"{text}: axis {letter} of the output is empty")
    return {
        "letter": letter,
        "size": size,
        "kernel": kernel,
        "strides": stride,
        "dilations": dilation + 1,
        "pads_begin": begin,
        "pads_end": max(end, 0),
        "output_padding": max(-end, 0),
    }


def write(layer: Layer) -> str:
    """Return the descriptor of a layer."""
    groups = f"g{layer.groups}" if layer.groups > 1 else ""
    columns = (layer.size, layer.output, layer.kernel, layer.strides, (d - 1 for d in layer.dilations), layer.pads_begin)
    axes = zip(AXES[-len(layer.size) :], *columns, strict=True)
    spatial = "".join(
        "_" + "".join(f"{word}{letter}{n}" for word, n in zip(WORDS, numbers, strict=True)) for letter, *numbers in axes
    )
    return f'{groups}mb{layer.batch}_ic{layer.cin}oc{layer.cout}{spatial}_n"{layer.name}"'
