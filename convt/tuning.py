"""What ``backend="tune"`` found, kept for later processes: FFTW's wisdom is the model.

`save` writes everything that this process knows as JSON, one entry a line; `load` reads such a file, as does importing convt
with ``CONVT_TUNING=FILE``. An operator with ``backend="tune"`` then measures only problems that no entry speaks of, and "auto"
takes what an entry says in place of what it expects, in every door.

An entry is of one problem (dtype, sizes, layout), algorithms to choose from, threads, instruction set, CPU and kernels (a hash
of the code that computes). Entries of another CPU or other kernels are skipped with a note (``CONVT_VERBOSE=1`` shows it);
`save` writes them back, so that one file can serve several machines.

Examples
--------
>>> import convt, os, tempfile
>>> path = os.path.join(tempfile.mkdtemp(), "tuning.json")
>>> convt.tuning.save(path)
0
>>> convt.tuning.load(path)
Loaded(taken=0, skipped=0)
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _config, _core, _words
from .algorithms import ALGORITHMS, BACKENDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._problem import Problem

__all__ = ["Loaded", "clear", "load", "save"]

FORMAT = "convt tuning 2"
_NAMES = {**ALGORITHMS, **BACKENDS}
_KEY = {"problem": str, "layout": str, "algorithm": str, "threads": int, "isa": str, "cpu": str, "kernels": str}

# Values of _KEY, in order -> {algorithm: milliseconds}; the GIL guards it, as it is only ever set and copied.
_known: dict[tuple[Any, ...], dict[str, float]] = {}


class Loaded(NamedTuple):
    """Counts of the entries of a file that were taken, and that were skipped because their CPU or kernels are others."""

    taken: int
    skipped: int


@functools.cache
def cpu() -> str:
    """What names this CPU in a file: vendor, family, model, name and caches."""
    fields: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    names = [f"{word} {fields[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in fields]
    caches = "/".join(f"{size >> 10}K" for size in _core.cache_bytes())
    vendor, name = fields.get("vendor_id", "unknown"), fields.get("model name", "unknown")
    return " ".join([vendor, *names, f"({name})", f"caches {caches}"])


@functools.cache
def kernels() -> str:
    """The name of the code in a file: a hash of the compiled code, and of the Python beside it, which cuts the blocks."""
    import hashlib

    found = hashlib.sha256(_core.identity().encode())
    for source in sorted(Path(__file__).with_name("algorithms").rglob("*.py")):
        found.update(source.read_bytes())
    return found.hexdigest()[:16]


def _key(problem: Problem, algorithm: str, threads: int) -> tuple[Any, ...]:
    layout = "NCX" if problem.planar else "NXC"
    return problem.descriptor(), layout, algorithm, threads, _core.isa(), cpu(), kernels()


def find(problem: Problem, algorithm: str, threads: int) -> dict[str, float] | None:
    """What is known of a problem: {algorithm: milliseconds}, or None."""
    return _known.get(_key(problem, algorithm, threads)) if _known else None  # a key takes a while to make


def keep(problem: Problem, algorithm: str, threads: int, seconds: dict[str, float]) -> None:
    """Remember what was measured: ``seconds`` by algorithm; those that can't do it are infinite, and left out."""
    milliseconds = {name: round(s * 1e3, 6) for name, s in seconds.items() if math.isfinite(s)}
    _known[_key(problem, algorithm, threads)] = milliseconds


def clear() -> None:
    """Forget everything that was measured or loaded. Operators that exist keep what they chose."""
    _known.clear()


def save(path: str | os.PathLike[str]) -> int:
    """Write everything that is known to a JSON file, whole or not at all; returns how many entries it has.

    Raises OSError where the file can't be written.
    """
    import json  # here, as they are slow to load, and as most processes never save
    import tempfile

    entries = [dict(zip(_KEY, key, strict=True)) | {"milliseconds": times} for key, times in _known.copy().items()]
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    text = f'{{"format": {json.dumps(FORMAT)}, "entries": [\n{lines}\n]}}\n'
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return len(entries)


def load(path: str | os.PathLike[str]) -> Loaded:
    """Read a file that `save` wrote, beside what is known already; newer entries replace older ones.

    Returns `Loaded`. Raises OSError where the file can't be read, and ValueError, which names the line, where it is damaged:
    then nothing of it is taken.
    """
    return read(path, "path")


def read(path: str | os.PathLike[str], what: str) -> Loaded:
    """`load` whose errors call the path ``what``."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{what}: got {str(path)!r}, which is no text ({error.reason}); wanted one of save") from error
    found = dict(_checked(path, line, entry, what) for line, entry in _entries(path, text, what))
    of_here = {key: times for key, times in found.items() if key[-2:] == (cpu(), kernels())}
    _known.update(found)
    skipped = len(found) - len(of_here)
    if skipped:
        of = _words.count(len(found), "entry", "entries")
        _config.note("tuning", f"{path}: {skipped} of {of} skipped, as of another CPU or other kernels")
    return Loaded(len(of_here), skipped)


def _entries(path: str | os.PathLike[str], text: str, what: str) -> Iterator[tuple[int, Any]]:
    """(line, entry) of a file's text."""
    import json

    refuse = lambda line, why: ValueError(f"{what}: got {str(path)!r}, line {line}: {why}")  # noqa: E731
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refuse(getattr(error, "lineno", 1), f"no JSON ({getattr(error, 'msg', error)})") from error
    if not isinstance(whole, dict) or whole.get("format") != FORMAT or not isinstance(whole.get("entries"), list):
        raise refuse(1, f'wanted {{"format": "{FORMAT}", "entries": [...]}}')
    at, decoder = re.search(r'"entries"\s*:\s*\[', text).end(), json.JSONDecoder()  # type: ignore[union-attr]
    for _ in whole["entries"]:
        at = re.compile(r"[\s,]*").match(text, at).end()  # type: ignore[union-attr]
        line = text.count("\n", 0, at) + 1
        entry, at = decoder.raw_decode(text, at)
        yield line, entry


def _checked(path: str | os.PathLike[str], line: int, entry: Any, what: str) -> tuple[tuple[Any, ...], dict[str, float]]:
    """(key, times) of an entry."""
    refuse = lambda why: ValueError(f"{what}: got {str(path)!r}, line {line}: {why}")  # noqa: E731
    wanted = {*_KEY, "milliseconds"}
    if not isinstance(entry, dict) or set(entry) != wanted:
        differs = sorted(set(entry) ^ wanted) if isinstance(entry, dict) else type(entry).__name__
        raise refuse(f"wanted an object with {', '.join(sorted(wanted))}; differing: {differs}")
    for name, kind in _KEY.items():
        if type(entry[name]) is not kind:
            raise refuse(f"{name}: got {entry[name]!r}, wanted {kind.__name__}")
    if entry["threads"] < 1:
        raise refuse(f"threads: got {entry['threads']}, wanted 1 or more")
    if entry["algorithm"] not in ("auto", *ALGORITHMS):
        raise refuse(f"algorithm: got {entry['algorithm']!r}, wanted 'auto' or one of {', '.join(ALGORITHMS)}")
    times = entry["milliseconds"]
    if not isinstance(times, dict) or not times:
        raise refuse(f"milliseconds: got {times!r}, wanted an object, algorithm: milliseconds")
    for name, time in times.items():
        if name not in _NAMES:
            raise refuse(f"milliseconds: got the algorithm {name!r}, wanted one of {', '.join(_NAMES)}")
        if isinstance(time, bool) or not isinstance(time, (int, float)) or not 0 < time < math.inf:
            raise refuse(f"milliseconds: got {time!r} for {name}, wanted a number above 0")
    return tuple(entry[name] for name in _KEY), times


if _path := os.environ.get("CONVT_TUNING"):
    try:
        read(_path, "CONVT_TUNING")
    except (OSError, ValueError) as error:  # a cache that is gone or damaged is no reason not to start
        _why = f"CONVT_TUNING: got {_path!r}, which can't be read ({error.strerror})" if isinstance(error, OSError) else error
        warnings.warn(f"{_why}; the file is ignored", RuntimeWarning, stacklevel=3)
