"""``python -m convt.torch SCRIPT.py``: Run a script and measure what convt changes in the models that it calls.

The script runs as ``__main__`` with its arguments, unchanged and without convt's help. Each module of PyTorch that it calls,
and that is not called by another module, is noted with the arguments of the last call. When the script ends, each of these
models is measured as `convt.torch.profile` measures it. The last line weighs the models by the time that the script spent in
them. With ``--json -``, what the script prints goes to standard error.
"""

import argparse
import contextlib
import dataclasses
import runpy
import sys
import threading
import time
import traceback
from pathlib import Path

import torch

from .._base import arguments as _arguments
from .._base import words
from .._call.worth import Worth, percent, times
from . import profile

_PROGRAM = "python -m convt.torch"


@dataclasses.dataclass
class Noted:
    """A model that a script calls: its last arguments, the seconds and number of its calls, and what `profile` finds."""

    model: torch.nn.Module
    arguments: tuple = ((), {})
    seconds: float = 0.0
    calls: int = 0
    worth: Worth | None = None

    def title(self):
        """Return the name of the model's class, and its calls."""
        return f"{type(self.model).__name__}, {words.count(self.calls, 'call')} of {self.seconds:.3g} s together"


@contextlib.contextmanager
def noting():
    """Note the outermost modules that any thread calls inside the block, and yield {id of a module: Noted}."""
    models, local, call = {}, threading.local(), torch.nn.Module.__call__

    def noted_call(module, *arguments, **keywords):
        if getattr(local, "inside", False) or torch.compiler.is_compiling():
            return call(module, *arguments, **keywords)
        noted = models.setdefault(id(module), Noted(module))
        local.inside, start = True, time.perf_counter()
        try:
            return call(module, *arguments, **keywords)
        finally:
            local.inside = False
            noted.seconds, noted.calls = noted.seconds + time.perf_counter() - start, noted.calls + 1
            noted.arguments = arguments, keywords

    torch.nn.Module.__call__ = noted_call
    try:
        yield models
    finally:
        torch.nn.Module.__call__ = call


def run(script, arguments):
    """Run a script as a program and return its exit code. Its traceback is printed if it raises an exception."""
    argv, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:1] = [script, *arguments], [str(Path(script).resolve().parent)]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stopped:
        return stopped.code
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        sys.argv, sys.path[:] = argv, path
    return 0


def measured(models, budget):
    """Return ([`Noted` of each model that was measured], [title and reason of the others]), the most time first."""
    found, failed = [], []
    for noted in sorted(models, key=lambda each: -each.seconds):
        arguments, keywords = noted.arguments
        try:
            noted.worth = profile(noted.model, *arguments, keywords=keywords, budget=budget)
            found.append(noted)
        except Exception as error:  # whatever a model raises, for example because the script changed or moved it
            failed.append(f"{noted.title()}: not measured, because it raises {type(error).__name__}: {error}")
    return found, failed


def report(found, failed):
    """Print the models that compute transposed convolutions, and a summary of all, weighted by the script's time in them."""
    served = [noted for noted in found if noted.worth.layers]
    for noted in served:
        print(f"\n{noted.title()}")
        noted.worth.show()
    print(*failed, sep="\n", end="\n" if failed else "")
    if not found:
        print("Nothing was measured: the script called no module of PyTorch to its end.")
    elif not served:
        print(f"Nothing is to gain: {found[0].worth.verdict().partition(': ')[2]}")
    elif len(found) > 1:
        seconds = sum(noted.seconds for noted in found)
        ours = sum(noted.seconds / (noted.worth.reached if noted.worth.layers else 1) for noted in found)
        rest = sum(noted.seconds * (1 - noted.worth.share) for noted in found)
        whole = Worth("PyTorch", (), seconds, ours, rest_seconds=rest)
        print(
            f"\nAll {len(found)} models ({len(found) - len(served)} without transposed convolution): it takes "
            f"{percent(whole.share)} of their time, so they can get at most {times(whole.bound)} as fast; with convt they are "
            f"{times(whole.reached)} as fast."
        )


def main(arguments=None):
    parser = _arguments.parser(_PROGRAM, __doc__.split(": ", 1)[1], "SCRIPT.py", "--budget 5 --json - SCRIPT.py ARGUMENTS")
    _arguments.add_budget(parser, "seconds to time each model")
    _arguments.add_json(parser)
    parser.add_argument("script", help="Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    asked, code = parser.parse_args(arguments), 0

    def work(_):
        nonlocal code
        if not Path(asked.script).is_file():
            raise ValueError(f"script: got {asked.script!r}, wanted a Python file")
        with contextlib.redirect_stdout(sys.stderr) if asked.json == "-" else contextlib.nullcontext(), noting() as models:
            code = run(asked.script, asked.arguments)
        found, failed = measured(models.values(), asked.budget)
        report(found, failed)
        spent = [{"model": noted.title(), "seconds": noted.seconds, "calls": noted.calls} for noted in found]
        worths = [noted.worth.as_dict() for noted in found]
        return {"models": [each | its for each, its in zip(spent, worths, strict=True)], "not_measured": failed}

    _arguments.run(_PROGRAM, asked.json, work)
    return code


if __name__ == "__main__":
    sys.exit(main())
