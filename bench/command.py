"""The command lines of the benchmark: their parsers, and the options that several of them share."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any

from . import COMMAND, layers
from .shared import arguments, files, words

# Types and options that convt's command line has, too
add_json, integer, positive, printing = arguments.add_json, arguments.integer, arguments.positive, arguments.printing


def parser(name: str, description: str, *examples: str, program: str = "", note: str = "") -> argparse.ArgumentParser:
    """Return the parser of the module ``name``, whose help ends in examples of its arguments. Tests parse these."""
    return arguments.parser(program or f"python -m {__package__}.{name}", description, *examples, note=note)


@contextlib.contextmanager
def packages(name: str) -> Iterator[None]:
    """Turn a missing package inside the block into one line and exit code 1 if the module ``name`` is the running command."""
    try:
        yield
    except ModuleNotFoundError as error:
        if name != "__main__":
            raise
        program = getattr(sys.modules[name].__spec__, "name", COMMAND)
        sys.exit(f"python -m {program} needs the package {error.name}: pip install {error.name}")


def several(parse: Callable[[str], Any]) -> Callable[[str], list]:
    """Return an argument type for words with commas between, each of the type ``parse``."""
    return lambda text: [parse(word) for word in text.split(",") if word] or [parse(text)]


def words_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return an argument type for words with commas between, all in ``known``."""

    def parse(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"got {text!r}, wanted one of {', '.join(known)}")
        return text

    return several(parse)


def _add(parser, name: str, parse: Callable, meaning: str, default) -> None:
    if isinstance(default, list):
        text, parse, metavar = ",".join(default), several(parse), f"{name.upper()},..."
    else:
        text, metavar = default, name.upper()
    parser.add_argument(f"--{name}", type=parse, default=default, metavar=metavar, help=f"{meaning} (default: {text})")


def folder(text: str) -> str:
    """Return the name of a folder in which index.html can be written. Missing folders can be made, too."""
    path = os.path.join(os.path.abspath(text), "index.html")
    while not os.path.lexists(os.path.dirname(path)):
        path = os.path.dirname(path)
    return files.argument(text, path, "folder")


def add_layout(parser, default: list[str] | str) -> None:
    """Add ``--layout``. Several layouts with commas between are permitted if the default is a list."""
    _add(parser, "layout", arguments.layout, arguments.LAYOUT, default)


def add_dtype(parser, default: list[str]) -> None:
    """Add ``--dtype``. Its results are the short names, which the benchmark uses."""
    _add(parser, "dtype", lambda text: words.DTYPES[arguments.dtype(text)][0], arguments.DTYPE, default)


def add_layers(parser, default: str = "the built-in layers") -> None:
    """Add ``--layers``, ``--suite`` and ``--names``, which `layers_of` reads."""
    parser.add_argument("--layers", metavar="FILE", help=f"layers of a JSON file (default: {default})")
    parser.add_argument("--suite", type=several(str), metavar="FAMILY,...", help="only layers of these families")
    parser.add_argument("--names", type=several(str), metavar="NAME,...", help="only layers with these names")


def layers_of(parser, options: argparse.Namespace, default: list[layers.Layer] | None = None) -> list[layers.Layer]:
    """Return the layers that the options of `add_layers` select, or exit with a message. The default is the built-in table."""
    try:
        known = layers.read(options.layers) if options.layers else default or layers.built_in(options.suite, options.names)
        return layers.select(known, options.suite, options.names)
    except (OSError, ValueError) as error:
        parser.error(str(error))


def add_threads(parser, default: int) -> None:
    """Add ``--threads``."""
    parser.add_argument("--threads", type=integer, default=default, metavar="N", help=f"threads (default: {default})")
