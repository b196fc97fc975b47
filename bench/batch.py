"""Reader and writer of benchdnn's batch files, which consist of options and layer descriptors.

An option that changes the computation applies to all descriptors after it, until `--reset`. An option that only controls how
benchdnn runs is ignored with a note. Any other option is an error.

`python -m bench.batch` prints the built-in layers as a batch file.
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
    """A layer and its settings from a batch file. The command line decides settings that are None."""

    layer: Layer
    dtype: str | None = None
    layout: str | None = None
    bias: bool | None = None


def _looked_up(what: str, known: dict) -> Callable:
    """Return a function that looks a word up in ``known``. ``what`` names the word in the error message."""

    def read(word: str):
        if word not in known:
            raise ValueError(f"unknown {what} {word!r}; known: {', '.join(known)}")
        return known[word]

    return read


_one_dtype = _looked_up("dtype", {name: name for name in DTYPES})


def _dtype(word: str) -> str:
    """Parse `bf16`, or `bf16:bf16:bf16` for source, weights and destination, which must have the same dtype."""
    words = set(word.split(":"))
    if len(words) > 1:
        raise ValueError(f"{word} mixes dtypes; data, filter and result must have the same")
    return _one_dtype(words.pop())


def _minibatch(word: str) -> int | None:
    """Parse a batch size. 0 returns None, which keeps the batch size of each descriptor."""
    if not word.isdecimal():
        raise ValueError(f"wanted a whole number, got {word!r}")
    return int(word) or None


DIRECTIONS = {"FWD_B": True, "FWD_D": False, "FWD_I": False}
CONFIGURATIONS = {"f32": "f32", "f64": "f64", "f16": "f16", "f16f16f16": "f16", "bf16bf16bf16": "bf16"}
TAGS = {"any": None, "axb": "NXC", "nwc": "NXC", "nhwc": "NXC", "ndhwc": "NXC"}
TAGS |= {"abx": "NCX", "ncw": "NCX", "nchw": "NCX", "ncdhw": "NCX"}

# Options that change the computation: the setting that each changes, and the parser of its value.
OPTIONS = {
    "--dir": ("bias", _looked_up("direction", DIRECTIONS)),
    "--dt": ("dtype", _dtype),
    "--cfg": ("dtype", _looked_up("configuration", CONFIGURATIONS)),
    "--stag": ("source", _looked_up("tag", TAGS)),
    "--dtag": ("target", _looked_up("tag", TAGS)),
    "--mb": ("batch", _minibatch),
}
FIXED = {"--wtag": "any", "--alg": "direct", "--engine": "cpu"}  # options with one supported value
# Options that only control how benchdnn runs and prints.
IGNORED = frozenset(
    """
    --mode --mode-modifier --skip-impl --impl --global-impl --global-skip-impl --perf-template --verbose --max-ms-per-prb
    --fix-times-per-prb --repeats-per-prb --mem-check --canonical --allow-enum-tags-only --fast-ref --fast-ref-gpu
    --memory-kind --cold-cache --summary --start --attr-same-pd-check --execution-mode --stream-kind --cpu-isa-hints
    """.split()  # noqa: SIM905
)


class Batch:
    """The options in effect while files are read. An option can have several values; all combinations are measured."""

    def __init__(self, note: Callable[[str], None]):
        self._note = note
        self._open_files: list[Path] = []
        self._reset()

    def _reset(self) -> None:
        self._values = {what: [None] for what, _ in OPTIONS.values()}

    def read(self, path: Path) -> Iterator[Entry]:
        """Yield the entries of a file and of the files that it includes. A ValueError names the file and line of a bad word."""
        if path.resolve() in self._open_files:
            raise ValueError(f"{path} includes itself")
        self._open_files.append(path.resolve())
        for number, word in _words(path.read_text(encoding="utf-8")):
            try:
                yield from self._word(word, path.parent)
            except (ValueError, OSError) as exc:
                raise ValueError(f"{path}:{number}: {exc}") from exc
        self._open_files.pop()

    def _word(self, word: str, folder: Path) -> Iterator[Entry]:
        name, _, value = word.partition("=")
        if not word.startswith("-"):
            yield from self._combined(descriptor.read(word))
        elif name == "--batch":
            yield from self.read(folder / value)
        elif name in OPTIONS:
            what, reader = OPTIONS[name]
            self._values[what] = [reader(each) for each in value.split(",")]
        elif name == "--reset":
            self._reset()
        elif name in IGNORED or re.fullmatch(r"-v\d+", name):
            self._note(f"{name} is ignored: it only controls how benchdnn runs")
        elif name.startswith("--attr-"):
            if value:
                raise ValueError(f"{word} changes the computation; only the plain operator is supported")
        elif name in FIXED:
            if value.lower() != FIXED[name]:
                raise ValueError(f"{word} is not supported, only {name}={FIXED[name]}")
        elif name != "--deconv":
            raise ValueError(f"unknown option {word}; known: {', '.join((*OPTIONS, *FIXED, '--batch', '--reset'))}")

    def _combined(self, layer: Layer) -> Iterator[Entry]:
        values = self._values
        source, target = values["source"], values["target"]
        if [None] not in (source, target) and source != target:
            raise ValueError("--stag and --dtag differ; data and result must have the same layout")
        layouts = target if source == [None] else source
        for bias, dtype, layout, batch in product(values["bias"], values["dtype"], layouts, values["batch"]):
            yield Entry(replace(layer, batch=batch or layer.batch), dtype, layout, bias)


def _words(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, word) for each word. `#` starts a comment; a final backslash joins the next word."""
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


def batch_text(layers: list[Layer]) -> str:
    """Return the layers as the text of a batch file, which benchdnn and `--batch` read."""
    lines = ["# Real layers, f32, channels last, no bias; made by `python -m bench.batch`."]
    lines += ["--reset", "--dt=f32", "--dir=FWD_I", "--stag=axb --dtag=axb"]
    for previous, layer in zip([None, *layers], layers, strict=False):
        if previous is None or layer.family != previous.family:
            lines += ["", f"# {layer.family}"]
        lines += [f"# {layer.source}", descriptor.write(layer)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(batch_text(parse(TABLE)))
