"""Helpers of convt's command lines: error lines, exit codes, and argument types."""

import argparse
import contextlib
import os
import sys

from .._base.errors import BackendUnavailableError

# Exceptions that wrong arguments, files or the machine can cause; others are bugs and keep their traceback.
_REFUSALS = BackendUnavailableError, ImportError, MemoryError, OSError, OverflowError, TypeError, ValueError


class ErrorPrinter:
    """A printer that writes errors as lines to standard error and counts them."""

    def __init__(self, program):
        self._program = program
        self.count = 0

    @contextlib.contextmanager
    def reporting(self, what=""):
        """Print an error raised inside the block, after ``what`` and a colon, and continue after the block."""
        try:
            yield
        except BrokenPipeError:
            raise
        except _REFUSALS as error:
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


def run_command(program, work):
    """Call ``work(errors)``. Raise SystemExit with code 1 if there were errors, with code 130 after Ctrl-C."""
    errors, code = ErrorPrinter(program), 0
    try:
        with errors.reporting():
            work(errors)
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        errors.print_error("interrupted")
        code = 130
    except BrokenPipeError:  # the reader closed the pipe; /dev/null keeps Python from failing to flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    if code or errors.count:
        sys.exit(code or 1)


def _sizes(text):
    """Parse comma-separated integers from 1 to 2**63 - 1 and return them as a list, or None for other text."""
    words = text.split(",")
    fits = all(word.isdecimal() and len(word) < 20 and 0 < int(word) < 2**63 for word in words)
    return list(map(int, words)) if fits else None


def threads(text):
    """Parse the value of --threads, for argparse."""
    if len(found := _sizes(text) or ()) != 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted an integer of at least 1")
    return found[0]


def shape(text):
    """Parse a value of --shape into ``(name, sizes)``, for argparse and `Shapes`."""
    name, _, sizes = text.rpartition("=")
    if not name or not _sizes(sizes):
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted NAME=N,N,... of integers of at least 1")
    return name, _sizes(sizes)


class Shapes(argparse.Action):
    """An argparse action that collects --shape options in a dict, name -> sizes."""

    def __call__(self, parser, namespace, value, option=None):
        """Add one option to the dict; argparse calls this method."""
        name, sizes = value
        found = getattr(namespace, self.dest)
        if name in found:
            raise argparse.ArgumentError(self, f"got {name!r} twice, wanted one shape for each input")
        setattr(namespace, self.dest, found | {name: sizes})
