"""Options of the command lines of convt and of its benchmark: one spelling, one meaning and one error for all of them.

The functions are types for argparse. This module imports only `words` and `files`, because the benchmark loads it by its path.
"""

import argparse
import contextlib
import io
import json
import math
import os
import sys

from . import files, words

LAYOUT = "NXC or NCX, also channels_last, NHWC, NLC, NDHWC, channels_first, NCHW, ..."  # for help
DTYPE = "float32, float64, float16 or bfloat16, also f32, f64, f16, bf16, single, double, half, ..."


def _error(text, wanted):
    return argparse.ArgumentTypeError(f"got {text!r}, wanted {wanted}")


def _word(known):
    """Return a type from a function of `words`, whose errors argparse would hide."""

    def parse(text):
        try:
            return known(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


layout, dtype = map(_word, (words.layout, words.dtype))


def integer(text, least=1):
    """Parse an integer from ``least`` to 2**63 - 1."""
    if not text.isdecimal() or len(text) > 19 or not least <= int(text) < 2**63:
        raise _error(text, f"an integer of at least {least}")
    return int(text)


threads = integer


def positive(text):
    """Parse a finite number above 0, such as seconds."""
    with contextlib.suppress(ValueError):
        if 0 < (found := float(text)) < math.inf:
            return found
    raise _error(text, "a number above 0")


class Shapes(argparse.Action):
    """An argparse action that collects options NAME=N,N,... in a dict, name -> sizes. ``const`` is the least size."""

    def __call__(self, parser, namespace, value, option=None):
        """Add one option to the dict; argparse calls this method."""
        name, _, sizes = value.rpartition("=")
        found, least = getattr(namespace, self.dest), self.const
        try:
            parsed = [integer(size, least) for size in sizes.split(",")] if sizes or least else []  # X= is a scalar
        except argparse.ArgumentTypeError:
            name = ""
        if not name:
            wanted = f"NAME=N,N,... of integers of at least {least}, as in X=1,3,64,64"
            raise argparse.ArgumentError(self, f"got {value!r}, wanted {wanted}")
        if name in found:
            raise argparse.ArgumentError(self, f"got {name!r} twice, wanted one shape for each input")
        setattr(namespace, self.dest, found | {name: parsed})


def add_shape(parser, least, meaning):
    """Add ``--shape NAME=N,N,...``, whose result is a dict, name -> sizes of at least ``least``."""
    parser.add_argument("--shape", action=Shapes, const=least, default={}, metavar="NAME=N,N,...", help=meaning)


def add_json(parser, **keywords):
    """Add ``--json [FILE]``. Its result, the name of a file, "-" or None, is for `printing`."""
    parser.add_argument("--json", type=_json_file, nargs="?", const="-", metavar="FILE", **keywords,
                        help="write JSON; FILE is - by default, standard output with nothing else on it")  # fmt: skip


def _json_file(text):
    """Return the name of a file that can be written. A file that holds something else than JSON is not replaced."""
    if text == "-":
        return text
    files.argument(text)
    with contextlib.suppress(OSError), open(text if os.path.isfile(text) else os.devnull, "rb") as file:
        if (start := file.read(1)) and start not in b"[{":
            raise _error(text, "a file of JSON, a new file, or -")
    return text


@contextlib.contextmanager
def printing(path):
    """Yield a function that writes a value as JSON: to the file ``path``, to standard output for "-", nowhere for None.

    With "-", what is printed in the block does not reach standard output. Characters that the encoding of standard output lacks
    are printed as escapes.
    """
    stdout = sys.stdout
    if hasattr(stdout, "reconfigure"):
        stdout.reconfigure(errors="backslashreplace")
    with contextlib.ExitStack() as stack:
        if path == "-" or stdout is None:  # None: the program was started without standard output
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))

        def write(value):
            text = json.dumps(value, indent=1) + "\n"
            if path == "-":
                print(text, end="", file=stdout, flush=True)
            elif path:
                files.write(path, text)

        yield write
