"""Modules of convt that the benchmark uses, loaded by their paths. They import no other module of convt than each other.

An ordinary import would load all of convt, which must not be in the processes of the other libraries.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def _loaded(name: str) -> ModuleType:
    (folder,) = importlib.util.find_spec("convt").submodule_search_locations
    spec = importlib.util.spec_from_file_location(f"{__name__}.{name}", Path(folder) / "_base" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


environment = _loaded("environment")
errors = _loaded("errors")
files = _loaded("files")
layer_format = _loaded("layer_format")
terminal = _loaded("terminal")
dtypes = _loaded("dtypes")
words = _loaded("words")  # after dtypes, which it imports from here
arguments = _loaded("arguments")  # after errors, files and words, which it imports from here
