"""The command lines of the benchmark: their parsers, and the options that several of them share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection

from .shared import arguments

# Types and options that convt's command line has, too
add_json, integer, positive, printing, several = (
    arguments.add_json, arguments.integer, arguments.positive, arguments.printing, arguments.several
)  # fmt: skip


def parser(name: str, description: str, *examples: str, program: str = "", note: str = "") -> argparse.ArgumentParser:
    """Return the parser of the module ``name``, whose help ends in examples of its arguments. Tests parse these."""
    program = program or f"python -m {__package__}.{name}"
    lines = "".join(f"  {program} {example}\n" for example in examples)
    return argparse.ArgumentParser(
        prog=program, description=description, epilog=f"{note}examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


def words_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return an argument type for words with commas between, all in ``known``."""
    return several(arguments.one_of(known))


def _add(parser, name: str, parse: Callable, meaning: str, default) -> None:
    if isinstance(default, list):
        text, parse, metavar = ",".join(default), several(parse), f"{name.upper()},..."
    else:
        text, metavar = default, name.upper()
    parser.add_argument(f"--{name}", type=parse, default=default, metavar=metavar, help=f"{meaning} (default: {text})")


def add_layout(parser, default: list[str] | str) -> None:
    """Add ``--layout``. Several layouts with commas between are permitted if the default is a list."""
    _add(parser, "layout", arguments.layout, arguments.LAYOUT, default)


def add_dtype(parser, default: list[str]) -> None:
    """Add ``--dtype``. Its results are the short names, which the benchmark uses."""
    _add(parser, "dtype", arguments.short_dtype, arguments.DTYPE, default)


def add_threads(parser, default: int) -> None:
    """Add ``--threads``."""
    parser.add_argument("--threads", type=arguments.threads, default=default, metavar="N", help=f"threads (default: {default})")
