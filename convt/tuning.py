"""Results of ``backend="tune"``, saved for later processes like FFTW's wisdom.

`save` adds all results of this process to a JSON file, one entry per line. `load` reads such a file; the environment variable
CONVT_TUNING names a file that convt loads at import. With a matching entry, ``backend="tune"`` does not measure, and "auto"
uses the fastest algorithm of the entry, in all integrations.

An entry belongs to one problem (dtype, sizes, layout), the algorithms that were allowed, the number of threads, the instruction
set, the CPU, and the kernels (a hash of the code that computes). Entries of another CPU or other kernels are skipped with a
note, which ``CONVT_VERBOSE=1`` prints. `save` writes them back, so that one file can serve several machines.

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
import itertools
import math
import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core
from ._base import environment, files, words
from ._run import log
from .algorithms import ALGORITHMS, NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._base.problem import Problem

__all__ = ["Loaded", "clear", "load", "save"]

FORMAT = "convt tuning 3"
_MEASURED = (*ALGORITHMS, "onednn")
_KEY = {"problem": str, "layout": str, "algorithm": str, "threads": int, "isa": str, "cpu": str, "kernels": str}

# Values of _KEY, in order -> {algorithm: milliseconds}. It needs no lock, because setting and copying a dict is atomic.
_results: dict[tuple[Any, ...], dict[str, float]] = {}
_changes = itertools.count(1)
version = 0  # another number after each change of the results


class Loaded(NamedTuple):
    """The result of `load`: the number of entries for this CPU and these kernels, and the number of skipped ones."""

    taken: int
    skipped: int


@functools.cache
def cpu() -> str:
    """Return the identity of this CPU in tuning files: vendor, family, model, name and caches."""
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
    """Return the identity of the kernels in tuning files: a hash of the compiled code and the Python code that decides."""
    import hashlib

    found = hashlib.sha256(_core.identity().encode())
    for room in ("_run", "_model", "algorithms"):
        for source in sorted(Path(__file__).with_name(room).rglob("*.py")):
            found.update(source.read_bytes())
    return found.hexdigest()[:16]


def _key(problem: Problem, algorithm: str, threads: int) -> tuple[Any, ...]:
    """Return the key of an entry, the values of _KEY in order."""
    layout = "NCX" if problem.planar else "NXC"
    return problem.descriptor(), layout, algorithm, threads, _core.isa(), cpu(), kernels()


def find(problem: Problem, algorithm: str, threads: int) -> dict[str, float] | None:
    """Return the results for a problem, {algorithm: milliseconds}, or None."""
    return _results.get(_key(problem, algorithm, threads)) if _results else None  # making a key takes time


def keep(problem: Problem, algorithm: str, threads: int, seconds: dict[str, float]) -> None:
    """Keep the results for a problem, {algorithm: seconds}, except infinite times of algorithms that do not support it."""
    milliseconds = {name: round(s * 1e3, 6) for name, s in seconds.items() if math.isfinite(s)}
    _results[_key(problem, algorithm, threads)] = milliseconds
    _note_change()


def _note_change() -> None:
    global version
    version = next(_changes)


def clear() -> None:
    """Remove all results that were measured or loaded. Existing operators keep their choice.

    Examples
    --------
    >>> import convt
    >>> convt.tuning.clear()
    """
    _results.clear()
    _note_change()


def save(path: str | os.PathLike[str]) -> int:
    """Add all results of this process to a JSON file.

    The results are those that were measured or loaded, including entries of other CPUs and kernels. They replace entries of the
    file with the same keys. Processes can save to one file at the same time. The file is written whole or not at all.

    Parameters
    ----------
    path : str or path-like
        The file. A file that `load` refuses as damaged is replaced.

    Returns
    -------
    int
        The number of entries in the file.

    Raises
    ------
    OSError
        The file cannot be written.

    Examples
    --------
    >>> import convt, os, tempfile
    >>> convt.tuning.clear()
    >>> convt.tuning.save(os.path.join(tempfile.mkdtemp(), "tuning.json"))
    0
    """
    import json  # imported here, because it loads slowly and most processes never save

    with files.locked(path):
        found = _results.copy()
        if files.is_replaced(path):
            with contextlib.suppress(FileNotFoundError, ValueError):
                found = _parsed(path, "path") | found
        entries = [dict(zip(_KEY, key, strict=True)) | {"milliseconds": times} for key, times in found.items()]
        lines = ",\n".join(json.dumps(entry) for entry in entries)
        files.write(path, f'{{"format": {json.dumps(FORMAT)}, "entries": [\n{lines}\n]}}\n')
    return len(found)


def load(path: str | os.PathLike[str]) -> Loaded:
    """Add the entries of a file that `save` wrote to the results of this process.

    Entries of the file replace existing results for the same key.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    Loaded
        The numbers of entries ``taken`` for this CPU and these kernels, and ``skipped``.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        The file is damaged. The message names the line. No entry is loaded.

    Examples
    --------
    >>> import convt, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "tuning.json")
    >>> convt.tuning.clear()
    >>> convt.tuning.save(path)
    0
    >>> convt.tuning.load(path)
    Loaded(taken=0, skipped=0)
    """
    return read(path, "path")


def read(path: str | os.PathLike[str], what: str) -> Loaded:
    """Do what `load` does; error messages call the path ``what``."""
    found = _parsed(path, what)
    usable = {key: times for key, times in found.items() if key[-2:] == (cpu(), kernels())}
    _results.update(found)
    _note_change()
    skipped = len(found) - len(usable)
    if skipped:
        of = words.count(len(found), "entry", "entries")
        log.note("tuning", f"{path}: {skipped} of {of} skipped, because it is for another CPU or other kernels")
    return Loaded(len(usable), skipped)


def _parsed(path: str | os.PathLike[str], what: str) -> dict[tuple[Any, ...], dict[str, float]]:
    """Return the entries of a file in the form of `_results`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{what}: got {str(path)!r}, which is not UTF-8 text ({error.reason}); wanted a file of convt.tuning.save"
        ) from error
    return dict(_checked(path, line, entry, what) for line, entry in _entries(path, text, what))


def _entries(path: str | os.PathLike[str], text: str, what: str) -> Iterator[tuple[int, Any]]:
    """Yield ``(line, entry)`` of each entry in a file's text."""
    import json

    refuse = lambda line, why: ValueError(f"{what}: got {str(path)!r}, line {line}: {why}")  # noqa: E731
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refuse(getattr(error, "lineno", 1), f"not JSON ({getattr(error, 'msg', error)})") from error
    if not isinstance(whole, dict) or whole.get("format") != FORMAT or not isinstance(whole.get("entries"), list):
        raise refuse(1, f'wanted {{"format": "{FORMAT}", "entries": [...]}}')
    at, decoder = re.search(r'"entries"\s*:\s*\[', text).end(), json.JSONDecoder()  # type: ignore[union-attr]
    for _ in whole["entries"]:
        at = re.compile(r"[\s,]*").match(text, at).end()  # type: ignore[union-attr]
        line = text.count("\n", 0, at) + 1
        entry, at = decoder.raw_decode(text, at)
        yield line, entry


def _checked(path: str | os.PathLike[str], line: int, entry: Any, what: str) -> tuple[tuple[Any, ...], dict[str, float]]:
    """Validate an entry and return ``(key, {algorithm: milliseconds})``."""
    refuse = lambda why: ValueError(f"{what}: got {str(path)!r}, line {line}: {why}")  # noqa: E731
    wanted = {*_KEY, "milliseconds"}
    if not isinstance(entry, dict) or set(entry) != wanted:
        differs = sorted(set(entry) ^ wanted) if isinstance(entry, dict) else type(entry).__name__
        raise refuse(f"wanted an object with the keys {', '.join(sorted(wanted))}; difference: {differs}")
    for name, kind in _KEY.items():
        if type(entry[name]) is not kind:
            raise refuse(f"{name}: got {entry[name]!r}, wanted {kind.__name__}")
    if entry["threads"] < 1:
        raise refuse(f"threads: got {entry['threads']}, wanted 1 or more")
    if entry["algorithm"] not in ("auto", *NAMES, *ALGORITHMS):
        raise refuse(f"algorithm: got {entry['algorithm']!r}, wanted 'auto' or one of {', '.join(NAMES)}")
    times = entry["milliseconds"]
    if not isinstance(times, dict) or not times:
        raise refuse(f"milliseconds: got {times!r}, wanted an object {{algorithm: milliseconds}}")
    for name, time in times.items():
        if name not in _MEASURED:
            raise refuse(f"milliseconds: got the algorithm {name!r}, wanted one of {', '.join(_MEASURED)}")
        if isinstance(time, bool) or not isinstance(time, (int, float)) or not 0 < time < math.inf:
            raise refuse(f"milliseconds: got {time!r} for {name}, wanted a number above 0")
    return tuple(entry[name] for name in _KEY), times


if _path := environment.read("CONVT_TUNING"):
    try:
        read(_path, "CONVT_TUNING")
    except (OSError, ValueError) as error:  # convt works without the file, so a missing or damaged one is only a warning
        _why = f"CONVT_TUNING: got {_path!r}, which can't be read ({error.strerror})" if isinstance(error, OSError) else error
        warnings.warn(f"{_why}; the file is ignored", RuntimeWarning, stacklevel=3)
