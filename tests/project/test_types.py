"""Tests of the type annotations: mypy accepts the package and types_right.py, and finds every error of types_wrong.py."""

import importlib.util
import inspect
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

import convt
import convt.onnx
import convt.openvino

HERE = Path(__file__).parent
SETTINGS = HERE.parents[1] / "pyproject.toml"
OPTIONAL = ("dask", "onnx", "onnxruntime", "torch")

everything = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mypy", *OPTIONAL)), reason=f"needs mypy, {', '.join(OPTIONAL)}"
)


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("mypy")


def mypy(cache, *arguments):
    """Run mypy on the convt that is tested and return ``(exit code, output)``."""
    path = os.pathsep.join([str(Path(convt.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *map(str, arguments)], capture_output=True, text=True, timeout=300, cwd=SETTINGS.parent,
        env={**os.environ, "PYTHONPATH": path, "MYPY_CACHE_DIR": str(cache)},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def errors(printed, path):
    """Return the line numbers of a file for which mypy reports an error."""
    return {int(line) for line in re.findall(rf"^{re.escape(str(path))}:(\d+): error", printed, re.M)}


@everything
def test_the_package_is_typed(cache):
    code, printed = mypy(cache, "--config-file", SETTINGS)
    assert code == 0, printed


@everything
def test_calls_that_are_right_are_right_and_have_the_types_that_they_are_said_to_have(cache):
    path = HERE / "types_right.py"
    code, printed = mypy(cache, "--config-file", SETTINGS, path)
    assert code == 0, printed
    runpy.run_path(str(path))


@everything
def test_calls_that_are_wrong_are_found(cache):
    path = HERE / "types_wrong.py"
    wrong = {n for n, line in enumerate(path.read_text().splitlines(), 1) if "# wrong" in line}
    assert len(wrong) > 40
    _, printed = mypy(cache, "--config-file", SETTINGS, path)
    assert errors(printed, path) == wrong or errors(printed, path.relative_to(SETTINGS.parent)) == wrong, printed


@pytest.mark.parametrize(("function", "types", "apart"), [
    (convt.conv_transpose, "CallKeywords", {"out"}), (convt.ConvTranspose, "OperatorKeywords", set()),
    (convt.onnx.conv_transpose, "OnnxKeywords", set()), (convt.openvino.convolution_backprop_data, "OpenvinoKeywords", set()),
    (convt.openvino.group_convolution_backprop_data, "OpenvinoKeywords", set()),
])  # fmt: skip
def test_keywords_of_the_types_are_those_of_the_functions(function, types, apart):
    pytest.importorskip("typing_extensions")
    from convt._base import typing as _typing

    keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY and p.name not in apart]
    written = getattr(_typing, types)
    assert {p.name for p in keywords} == set(get_type_hints(written))
    assert {p.name for p in keywords if p.default is p.empty} == written.__required_keys__


def test_words_of_the_types_are_those_that_are_taken():
    pytest.importorskip("typing_extensions")
    from convt._base import activation, padding
    from convt._base import typing as _typing
    from convt._base.problem import PRECISIONS
    from convt._call import api
    from convt.algorithms import NAMES

    words = lambda alias: set(re.findall(r"'([^']*)'", str(alias)))  # noqa: E731
    assert words(_typing.DataFormat) == set(api.words.DATA_FORMATS)
    assert words(_typing.FilterFormat) == set(api.FILTER_FORMATS)
    assert words(_typing.Algorithm) == {"auto", *NAMES}
    assert words(_typing.Precision) == set(PRECISIONS)
    assert words(_typing.TorchPrecision) == {*PRECISIONS, "torch"}
    assert words(_typing.Backend) == set(api.BACKENDS) - {"tune"}
    assert words(_typing.Activation) == set(activation.ACTIVATIONS)
    assert words(_typing.AutoPad) == {each for word in padding._WORDS for each in (word, word.upper())}
    assert words(_typing.OpenvinoAutoPad) == words(_typing.AutoPad) | {"explicit", "EXPLICIT"}


def test_types_are_not_loaded():
    """Check that importing convt does not import the types, which only type checkers need, because that takes time."""
    script = "import sys, convt, convt.openvino, convt.onnx; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "convt.openvino" in loaded and "convt._base.typing" not in loaded
