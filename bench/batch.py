"""benchdnn's batch files: descriptors with knobs between them.

Knobs that say what is computed hold for the descriptors after them, until `--reset`; those of benchdnn's own running
are passed over with a note; the rest is an error. `python -m bench.batch` prints the built-in table as such a file,
which is what `layers.batch` holds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from . import descriptor
from .layers import TABLE, Layer, parse
from .problem import DTYPES


class Entry(NamedTuple):
    """A layer to measure, and what its line in a batch file says of it; None leaves that to the command line."""

    layer: Layer
    dtype: str | None = None
    layout: str | None = None
    bias: bool | None = None


def _looked_up(what: str, known: dict) -> Callable:
    def read(word: str):
        if word not in known:
            raise ValueError(f"unknown {what} {word!r}; known here: {', '.join(known)}")
        return known[word]

    return read


_one_dtype = _looked_up("dtype", {name: name for name in DTYPES})


def _dtype(word: str) -> str:
    """From `bf16`, or from `bf16:bf16:bf16` as source, weights and destination."""
    words = set(word.split(":"))
    if len(words) > 1:
        raise ValueError(f"{word} mixes dtypes; one for data, filter and result is measured here")
    return _one_dtype(words.pop())


def _minibatch(word: str) -> int | None:
    """0 keeps the mb of each descriptor."""
    if not word.isdecimal():
        raise ValueError(f"wanted a whole number, got {word!r}")
    return int(word) or None


DIRECTIONS = {"FWD_B": True, "FWD_D": False, "FWD_I": False}
CONFIGURATIONS = {"f32": "f32", "f64": "f64", "f16": "f16", "f16f16f16": "f16", "bf16bf16bf16": "bf16"}
TAGS = {"any": None, "axb": "NXC", "nwc": "NXC", "nhwc": "NXC", "ndhwc": "NXC"}
TAGS |= {"abx": "NCX", "ncw": "NCX", "nchw": "NCX", "ncdhw": "NCX"}

# The knobs that say what is computed: what of it, and how a value is read.
KNOBS = {
    "--dir": ("bias", _looked_up("direction", DIRECTIONS)),
    "--dt": ("dtype", _dtype),
    "--cfg": ("dtype", _looked_up("configuration", CONFIGURATIONS)),
    "--stag": ("source", _looked_up("tag", TAGS)),
    "--dtag": ("target", _looked_up("tag", TAGS)),
    "--mb": ("batch", _minibatch),
}
FIXED = {"--wtag": "any", "--alg": "direct", "--engine": "cpu"}  # only this value has a meaning here
# Of benchdnn's own running and printing.
PASSED_OVER = frozenset(
    """
    --mode --mode-modifier --skip-impl --impl --global-impl --global-skip-impl --perf-template --verbose --max-ms-per-prb
    --fix-times-per-prb --repeats-per-prb --mem-check --canonical --allow-enum-tags-only --fast-ref --fast-ref-gpu
    --memory-kind --cold-cache --summary --start --attr-same-pd-check --execution-mode --stream-kind --cpu-isa-hints
    """.split()  # noqa: SIM905
)


class Batch:
    """The knobs in force while files are read. Each may have several values, and all combinations are measured."""

    def __init__(self, note: Callable[[str], None]):
        self._note = note
        self._open: list[Path] = []
        self._reset()

    def _reset(self) -> None:
        self._in_force = {what: [None] for what, _ in KNOBS.values()}

    def read(self, path: Path) -> Iterator[Entry]:
        """The entries of a file and of those it names; the ValueError for a bad word has the line."""
        if path.resolve() in self._open:
            raise ValueError(f"{path} includes itself")
        self._open.append(path.resolve())
        for number, word in _words(path.read_text(encoding="utf-8")):
            try:
                yield from self._word(word, path.parent)
            except (ValueError, OSError) as exc:
                raise ValueError(f"{path}:{number}: {exc}") from exc
        self._open.pop()

    def _word(self, word: str, folder: Path) -> Iterator[Entry]:
        name, _, value = word.partition("=")
        if not word.startswith("-"):
            yield from self._combined(descriptor.read(word))
        elif name == "--batch":
            yield from self.read(folder / value)
        elif name in KNOBS:
            what, reader = KNOBS[name]
            self._in_force[what] = [reader(each) for each in value.split(",")]
        elif name == "--reset":
            self._reset()
        elif name in PASSED_OVER or re.fullmatch(r"-v\d+", name):
            self._note(f"{name} has no meaning here and is passed over")
        elif name.startswith("--attr-"):
            if value:
                raise ValueError(f"{word} changes what is computed; the plain operator is measured here")
        elif name in FIXED:
            if value.lower() != FIXED[name]:
                raise ValueError(f"{word} is not measured here, only {name}={FIXED[name]}")
        elif name != "--deconv":
            raise ValueError(f"unknown knob {word}; known here: {', '.join((*KNOBS, *FIXED, '--batch', '--reset'))}")

    def _combined(self, layer: Layer) -> Iterator[Entry]:
        knobs = self._in_force
        source, target = knobs["source"], knobs["target"]
        if [None] not in (source, target) and source != target:
            raise ValueError("--stag and --dtag differ; one layout for data and result is measured here")
        layouts = target if source == [None] else source
        for bias, dtype, layout, batch in product(knobs["bias"], knobs["dtype"], layouts, knobs["batch"]):
            yield Entry(replace(layer, batch=batch or layer.batch), dtype, layout, bias)


def _words(text: str) -> Iterator[tuple[int, str]]:
    """The words of a file with their line numbers; `#` starts a comment, a backslash at a word's end joins the next."""
    held = ""
    for number, line in enumerate(text.splitlines(), 1):
        for word in line.split():
            if word.startswith("#"):
                break
            if word.endswith("\\"):
                held += word[:-1]
                continue
            yield number, held + word
            held = ""
    if held:
        yield number, held


def written(layers: list[Layer]) -> str:
    """The layers as a batch file, for benchdnn and for `--batch`."""
    lines = ["# Real layers, f32, channels last, no bias; made by `python -m bench.batch`."]
    lines += ["--reset", "--dt=f32", "--dir=FWD_I", "--stag=axb --dtag=axb"]
    for above, layer in zip([None, *layers], layers, strict=False):
        if above is None or layer.family != above.family:
            lines += ["", f"# {layer.family}"]
        lines += [f"# {layer.source}", descriptor.write(layer)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(written(parse(TABLE)))
