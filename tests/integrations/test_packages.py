"""Tests of what all integrations have: an error that says how to install a missing package, and examples that run."""

import doctest
import os

import pytest
from cases import child

pytestmark = pytest.mark.skipif("CONVT_ISA" in os.environ, reason="does not depend on the instruction set")


@pytest.mark.parametrize("package, used, says", [
    ("onnx", "import convt.onnx; convt.onnx.Backend", "convt.onnx.Backend needs the onnx package: pip install onnx"),
    ("onnx", "import convt.onnx; convt.onnx.ConvTranspose", "onnx.ConvTranspose needs the onnx package: pip install onnx"),
    ("onnxruntime", "import convt.onnxruntime", "pip install onnxruntime"),
    ("dask", "import convt.dask", 'pip install "dask[array]"'),
    ("torch", "import convt; convt.torch", "convt.torch needs PyTorch: pip install torch"),
    ("jax", "import convt.jax", "convt.jax needs JAX 0.9.1 or newer: pip install 'jax>=0.9.1'"),
])  # fmt: skip
def test_the_error_says_how_to_install_what_is_missing(package, used, says):
    code, _, errors = child(f"import sys; sys.modules[{package!r}] = None; {used}")
    last = errors.strip().splitlines()[-1]
    assert code == 1 and last.startswith("ImportError: ") and says in last, errors


@pytest.mark.parametrize("module", ["dask", "jax", "onnx", "onnxruntime", "openvino", "torch"])
def test_public_names_have_examples_that_run(module):
    integration, without = pytest.importorskip(f"convt.{module}", exc_type=ImportError), set()
    for name in integration.__all__:
        (test,) = doctest.DocTestFinder(recurse=False).find(getattr(integration, name), name, globs={})
        without |= set() if test.examples else {name}
        assert doctest.DocTestRunner().run(test).failed == 0, name
    assert without <= {"Report", "register", "get_ep_name", "get_ep_names", "get_library_path"}
