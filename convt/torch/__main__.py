"""``python -m convt.torch SCRIPT.py``: Run a script and measure what convt changes in the models that it calls.

The script runs as ``__main__`` with its arguments, unchanged and without convt's help. Each module of PyTorch that it calls,
and that is not called by another module, is noted with the arguments of the last call. When the script ends, each of these
models is measured as `convt.torch.profile` measures it. The last line weighs the models by the time that the script spent in
them. With ``--json -``, what the script prints goes to standard error.
"""

import argparse
import contextlib
import math
import runpy
import sys
import threading
import time
import traceback
from pathlib import Path

import torch

from .._base import arguments as _arguments
from .._call.worth import percent, times
from . import profile

_PROGRAM = "python -m convt.torch"


class Noted:
    """A model that a script calls: its last arguments, and the seconds and number of its calls."""

    def __init__(self, model):
        self.model, self.arguments, self.seconds, self.calls = model, ((), {}), 0.0, 0


class Notes:
    """While entered, notes the outermost modules that any thread calls: ``models`` is {id of a module: Noted}."""

    def __init__(self):
        self.models, self._local, self._call = {}, threading.local(), torch.nn.Module.__call__

    def __enter__(self):
        call, local, models = self._call, self._local, self.models

        def noting(module, *arguments, **keywords):
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

        torch.nn.Module.__call__ = noting
        return self

    def __exit__(self, *_):
        torch.nn.Module.__call__ = self._call


def run(script, arguments, notes):
    """Run a script as a program and return its exit code. Its traceback is printed if it raises an exception."""
    argv, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:1] = [script, *arguments], [str(Path(script).resolve().parent)]
    try:
        with notes:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as stopped:
        code = stopped.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
        return code if isinstance(code, int) else int(code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        sys.argv, sys.path[:] = argv, path
    return 0


def measured(notes, budget):
    """Return ([(title, Worth, Noted)], [title and reason of models that cannot be measured]), the most time first."""
    found, failed = [], []
    for noted in sorted(notes.models.values(), key=lambda each: -each.seconds):
        title = f"{type(noted.model).__name__}, {noted.calls} call{'s' * (noted.calls != 1)} of {noted.seconds:.3g} s together"
        arguments, keywords = noted.arguments
        try:
            found.append((title, profile(noted.model, *arguments, keywords=keywords, budget=budget), noted))
        except Exception as error:  # whatever a model raises, for example because the script changed or moved it
            failed.append(f"{title}: not measured, because it raises {type(error).__name__}: {error}")
    return found, failed


def together(found):
    """Return (share, bound, reached) of all models, weighted by the time that the script spent in them."""
    total = sum(noted.seconds for *_, noted in found)
    share = sum(noted.seconds * worth.share for _, worth, noted in found) / total if total else 0.0
    after = sum(noted.seconds / (worth.reached if worth.layers else 1.0) for _, worth, noted in found)
    return share, 1 / (1 - share) if share < 1 else math.inf, total / after if after else 1.0


def report(found, failed):
    """Print the models that compute transposed convolutions, and a summary of all."""
    with_layers = [each for each in found if each[1].layers]
    for title, worth, _ in with_layers:
        print(f"\n{title}")
        worth.show()
    print(*failed, sep="\n", end="\n" if failed else "")
    others = len(found) - len(with_layers)
    if not found:
        print("Nothing was measured: the script called no module of PyTorch to its end.")
    elif not with_layers:
        print(f"Nothing is to gain: {found[0][1].verdict().partition(': ')[2]}")
    elif len(found) > 1:
        share, bound, reached = together(found)
        print(
            f"\nAll {len(found)} models ({others} without transposed convolution): it takes {percent(share)} of their time, so "
            f"they can get at most {times(bound)} as fast; with convt they are {times(reached)} as fast."
        )


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description=__doc__.split(": ", 1)[1], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget", type=_arguments.positive, default=2.0, help="seconds to time each model (default: 2)")
    _arguments.add_json(parser)
    parser.add_argument("script", help="Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    asked = parser.parse_args(arguments)
    if not Path(asked.script).is_file():
        parser.exit(1, f"{parser.prog}: script: got {asked.script!r}, wanted a Python file\n")
    notes = Notes()
    with _arguments.printing(asked.json) as write_json:
        try:
            with contextlib.redirect_stdout(sys.stderr) if asked.json == "-" else contextlib.nullcontext():
                code = run(asked.script, asked.arguments, notes)
            found, failed = measured(notes, asked.budget)
        except KeyboardInterrupt:
            parser.exit(130, f"{parser.prog}: stopped\n")
        report(found, failed)
        spent = lambda noted: {"seconds": noted.seconds, "calls": noted.calls}  # noqa: E731
        models = [{"model": title, **spent(noted), **worth.as_dict()} for title, worth, noted in found]
        write_json({"models": models, "not_measured": failed})
    return code


if __name__ == "__main__":
    sys.exit(main())
