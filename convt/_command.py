"""Helpers of convt's command lines: errors as lines, exit codes, and types of arguments."""

import argparse
import contextlib
import os
import sys

from ._errors import BackendUnavailableError

# Errors that arguments, files or the machine can cause.
_REFUSALS = BackendUnavailableError, ImportError, MemoryError, OSError, OverflowError, TypeError, ValueError


class Complaints:
    """The one place where errors become lines on standard error."""

    def __init__(self, program):
        self._program = program
        self.count = 0

    @contextlib.contextmanager
    def about(self, what=""):
        """Say the error that ends the block; the program goes on behind it."""
        try:
            yield
        except BrokenPipeError:
            raise
        except _REFUSALS as error:
            self.say(f"{what}{': ' if what else ''}{_text(error)}")

    def say(self, text):
        """One line, whatever the text."""
        self.count += 1
        print(f"{self._program}: {' '.join(text.split())}", file=sys.stderr)


def _text(error):
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or {MemoryError: "not enough memory"}.get(type(error), type(error).__name__)


def carry_out(program, work):
    """Call ``work`` with `Complaints`. SystemExit with code 1 if there were any, with 130 after Ctrl-C."""
    complaints, code = Complaints(program), 0
    try:
        with complaints.about():
            work(complaints)
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        complaints.say("interrupted")
        code = 130
    except BrokenPipeError:  # whoever read the output has seen enough; else Python would complain when it flushes at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    if code or complaints.count:
        sys.exit(code or 1)


def _sizes(text):
    """Integers of at least 1 with commas between, or None."""
    words = text.split(",")
    fits = all(word.isdecimal() and len(word) < 20 and 0 < int(word) < 2**63 for word in words)
    return list(map(int, words)) if fits else None


def threads(text):
    """The type of --threads."""
    if len(found := _sizes(text) or ()) != 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted an integer of at least 1")
    return found[0]


def shape(text):
    """The type of --shape, for the action `Shapes`."""
    name, _, sizes = text.rpartition("=")
    if not name or not _sizes(sizes):
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted NAME=N,N,... of integers of at least 1")
    return name, _sizes(sizes)


class Shapes(argparse.Action):
    """Collects --shape in a dict, once for each input."""

    def __call__(self, parser, namespace, value, option=None):
        """Called by argparse, as `argparse.Action` describes."""
        name, sizes = value
        found = getattr(namespace, self.dest)
        if name in found:
            raise argparse.ArgumentError(self, f"got {name!r} twice, wanted one shape for each input")
        setattr(namespace, self.dest, found | {name: sizes})
