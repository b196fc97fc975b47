"""The path of the oneDNN library, and a check whether loading it crashes the process. Used by library.pyx."""

import contextlib
import os
import sys
from pathlib import Path

from ..._base import environment


def library_path():
    """Return the path to load: CONVT_ONEDNN_LIB, else the file of the wheel, else a name for the dynamic loader to look up."""
    path = environment.read("CONVT_ONEDNN_LIB")
    if path:
        return path
    import importlib.metadata  # imported here, because it is slow to load and most processes do not need it

    places = [Path(sys.prefix, "lib", "libdnnl.so.3")]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        places += [f.locate() for f in importlib.metadata.files("onednn-cpu-gomp") or () if f.name == "libdnnl.so.3"]
    return next((str(place.resolve()) for place in map(Path, places) if place.exists()), "libdnnl.so.3")


_TRIAL = """
import ctypes, sys
library, engine = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()
library.dnnl_engine_create(ctypes.byref(engine), 1, ctypes.c_size_t(0))
"""


def loading_crash(path):
    """Return a description of the crash that loading a library causes, or None if loading it does not crash.

    A damaged library can crash the process in the dynamic loader or in an initialiser, so a child process loads it first.
    There is no check for a library that the loader finds by name, because it belongs to the system, or if no Python can be
    started.
    """
    if os.sep not in path or "python" not in os.path.basename(sys.executable or ""):
        return None
    import signal  # imported here, because most processes do not need it
    import subprocess

    try:
        command = [sys.executable, "-I", "-S", "-c", _TRIAL, path]
        code = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60).returncode
    except (OSError, subprocess.SubprocessError):
        return None
    if code < 0:
        return signal.Signals(-code).name
    return None if code in (0, 1) else f"exit code {code}"  # 1: a Python error, which loading it here reports
