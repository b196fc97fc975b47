"""What the command lines of convt, its integrations and its benchmark share: parsers, options, JSON, error lines, exit codes.

This module imports only `errors`, `files` and `words`, because the benchmark loads it by its path.
"""

import argparse
import contextlib
import io
import json
import math
import os
import sys

from . import errors, files, words

LAYOUT = "NXC or NCX, also channels_last, NHWC, NLC, NDHWC, channels_first, NCHW, ..."  # for help
DTYPE = "float32, float64, float16 or bfloat16, also f32, f64, f16, bf16, single, double, half, ..."
# Exceptions that wrong arguments, files or the machine can cause; others are bugs and keep their traceback.
_REFUSALS = errors.BackendUnavailableError, ImportError, MemoryError, OSError, OverflowError, TypeError, ValueError


def parser(program, description, *examples, note="", make=argparse.ArgumentParser):
    """Return a parser from ``make``, whose help ends in examples of its arguments. Tests parse these."""
    lines = "".join(f"  {program} {example}".rstrip() + "\n" for example in examples)
    return make(
        prog=program, description=description, epilog=f"{note}examples:\n{lines}" if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


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


def add_budget(parser, meaning):
    """Add ``--budget SECONDS``."""
    parser.add_argument("--budget", type=positive, default=2.0, help=f"{meaning} (default: 2)")


def check_sizes(name, shape):
    """Raise ValueError if a shape of a model's input has open axes, whose sizes are no integers."""
    if not all(isinstance(size, int) for size in shape):
        sizes = ",".join(str(size) if isinstance(size, int) else "N" for size in shape)
        raise ValueError(f"input {name}: got no sizes for the open axes of {shape}, wanted --shape {name}={sizes}")


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


class ErrorPrinter:
    """A printer that writes errors as lines to standard error and counts them. ``refusals`` are their classes."""

    def __init__(self, program, refusals=_REFUSALS):
        self._program, self._refusals, self.count = program, refusals, 0

    @contextlib.contextmanager
    def reporting(self, what=""):
        """Print an error raised inside the block, after ``what`` and a colon, and continue after the block."""
        try:
            yield
        except BrokenPipeError:
            raise
        except self._refusals as error:
            self.print_error(f"{what}{': ' if what else ''}{text_of(error)}")

    def print_error(self, text):
        """Print ``text`` as one line, after the name of the program."""
        self.count += 1
        print(f"{self._program}: {' '.join(text.split())}", file=sys.stderr)


def text_of(error):
    """Return the text of an error, with the file's name first."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or {MemoryError: "not enough memory"}.get(type(error), type(error).__name__)


def run(program, json_file, work, refusals=_REFUSALS):
    """Call ``work(printer)`` with an `ErrorPrinter`, and write what it returns as JSON, as `printing` does.

    Raise SystemExit with code 1 if there were errors, with code 130 after Ctrl-C.
    """
    printer, code = ErrorPrinter(program, refusals), 0
    try:
        with printer.reporting():
            with printing(json_file) as write_json:
                write_json(work(printer))
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        printer.print_error("interrupted")
        code = 130
    except BrokenPipeError:  # the reader closed the pipe; /dev/null keeps Python from failing to flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    if code or printer.count:
        sys.exit(code or 1)
