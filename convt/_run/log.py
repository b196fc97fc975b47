"""What convt says while it works, through ``logging.getLogger("convt")``: a line for each call, and notes about other events.

CONVT_VERBOSE=1 adds a handler that prints on standard error. Call lines are logged only if CONVT_VERBOSE or `config.config` ask
for them, because each call then repeats all checks.
"""

import logging
import sys

from . import config

_LOGGER = logging.getLogger("convt")
_LEVEL = logging.INFO


class _Printer(logging.Handler):
    """A handler that prints on standard error, as it is at that time."""

    def emit(self, record):
        """Print a record; logging calls this method."""
        print(self.format(record), file=sys.stderr)


_PRINTER = _Printer()

if config.VERBOSE:
    _LOGGER.addHandler(_PRINTER)
    _LOGGER.setLevel(_LEVEL)


def report(problem, plan, seconds):
    """Log the line of one call. ``seconds`` is its duration."""
    _say(f"convt,exec,{plan.backend},{plan.algorithm},{plan.isa},{problem.descriptor()},{seconds * 1e3:.3f} ms")


def note(what, text):
    """Log a line about an event other than a call."""
    if config.verbose() or _LOGGER.isEnabledFor(_LEVEL):
        _say(f"convt,{what},{text}")


def _say(text):
    if _LOGGER.isEnabledFor(_LEVEL):
        _LOGGER.log(_LEVEL, "%s", text)
    else:  # ``with config(verbose=True):`` in a process that has not set up logging
        _PRINTER.handle(_LOGGER.makeRecord("convt", _LEVEL, __file__, 0, text, (), None))
