"""Print the lowest versions that convt accepts of some of its requirements, for pip.

    python tools/lowest.py numpy onnx                                # numpy==1.26 onnx==1.18
"""

import re
import sys
from itertools import chain
from pathlib import Path

import tomllib


def lowest(names):
    """Return ``name==version`` for each name, with the version after ">=" in pyproject.toml."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {}
    for requirement in [*project["dependencies"], *chain(*project["optional-dependencies"].values())]:
        if match := re.match(r"([\w-]+)((?:\[.*\])?)>=([\d.]+)", requirement):
            name, extras, version = match.groups()
            found[name] = f"{name}{extras}=={version}"
    return [found[name] for name in names]


if __name__ == "__main__":
    print(*lowest(sys.argv[1:]))
