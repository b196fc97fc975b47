"""Where the oneDNN library is, and whether a process outlives opening it."""

import contextlib
import os
import sys
from pathlib import Path


def where():
    """The path to open: CONVT_ONEDNN_LIB, else the wheel's, else a name for the loader to look up."""
    asked = os.environ.get("CONVT_ONEDNN_LIB")
    if asked:
        return asked
    import importlib.metadata  # here, as it is slow to load, and as most processes never ask

    places = [Path(sys.prefix, "lib", "libdnnl.so.3")]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        places += [f.locate() for f in importlib.metadata.files("onednn-cpu-gomp") or () if f.name == "libdnnl.so.3"]
    return next((str(place.resolve()) for place in map(Path, places) if place.exists()), "libdnnl.so.3")


_TRIAL = """
import ctypes, sys
library, engine = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()
library.dnnl_engine_create(ctypes.byref(engine), 1, ctypes.c_size_t(0))
"""


def harm(path):
    """How opening a file ends a process, in words; None if it does not.

    A damaged library does not fail to open: the loader, or what it starts, crashes. So a child process opens it first. A
    library that the loader finds by name is the system's own and trusted, and so is every one where no Python can be started.
    """
    if os.sep not in path or "python" not in os.path.basename(sys.executable or ""):
        return None
    import signal  # here, as those of `where`
    import subprocess

    try:
        command = [sys.executable, "-I", "-S", "-c", _TRIAL, path]
        code = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60).returncode
    except (OSError, subprocess.SubprocessError):
        return None
    if code < 0:
        return signal.Signals(-code).name
    return None if code in (0, 1) else f"exit code {code}"  # 1: an error that opening it here will put in words
