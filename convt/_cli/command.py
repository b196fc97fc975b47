"""Helpers of convt's command lines: error lines and exit codes. `_base.arguments` has their options."""

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
