"""Tests of threads inside a host: convt uses as many as PyTorch or an ONNX Runtime session may, and none of its own. Each test
runs in a process of its own and counts the threads of the process. A child that is forked tells whether there was a parallel
region of OpenMP."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from cases import child, needs_checkout

import convt
from convt import _core

pytestmark = [
    pytest.mark.skipif(not _core.openmp(), reason="built without OpenMP"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc lists the threads of a process"),
]

_COUNT = """
import os, sys
import numpy as np
from convt import _core

def threads():
    return len(os.listdir("/proc/self/task"))

def has_used_openmp():
    pid = os.fork()
    if pid == 0:
        os._exit(_core.serial)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""

# Layers with weights that several threads pack and compute checksums of.
_TORCH = (
    _COUNT
    + """
import torch, convt.torch as ct
allowed, nn = int(sys.argv[1]), torch.nn
torch.set_num_threads(allowed)
before = threads()

def run(model, x, **settings):
    model, report = ct.accelerate(model.eval(), **settings)
    assert report.swapped
    with torch.no_grad():
        for _ in range(4):
            model(x)
        model[0].weight.mul_(2)
        model(x)

for dtype in (torch.float32, torch.float64, torch.bfloat16):
    for settings in ({}, {"tune": True}):
        for groups in (1, 4):
            model = nn.Sequential(nn.ConvTranspose2d(256, 256, 3, 2, groups=groups), nn.BatchNorm2d(256), nn.PReLU())
            run(model.to(dtype), torch.randn(2, 256, 12, 12).to(dtype), **settings)
    run(nn.Sequential(nn.ConvTranspose1d(512, 256, 8, 4, 2)).to(dtype), torch.randn(1, 512, 40).to(dtype))
    run(nn.Sequential(nn.ConvTranspose2d(128, 128, 2, 2), nn.ReLU()).to(dtype), torch.randn(1, 128, 40, 40).to(dtype))
assert threads() <= before + allowed - 1, (before, threads())
assert has_used_openmp() == (allowed > 1)
print("done")
"""
)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("allowed", [1, 2])
def test_torchs_number_of_threads(allowed):
    code, out, errors = child(_TORCH, allowed, timeout=400, CONVT_NUM_THREADS="4")
    assert (code, out) == (0, "done\n"), errors[-2000:]


_ONNXRUNTIME = (
    _COUNT
    + """
import onnxruntime
from onnx import helper
from integrations.onnx_models import conv, model_of, norm, weights
from convt.onnxruntime import InferenceSession
allowed = int(sys.argv[1])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = allowed
for dtype in (np.float32, np.float64):
    for groups in (1, 4):
        for channels, size, k in ((256, 12, 3), (32, 60, 8)):
            node, tensors = norm("U", "Y", channels)
            constants = {"W": weights(channels, channels // groups, k, k), **tensors}
            model = model_of(
                [conv(output="U", group=groups, strides=[2, 2]), node], {"X": ("N", channels, "H", "V")},
                constants={name: value.astype(dtype) for name, value in constants.items()},
                dtype=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
            session = InferenceSession(model, options)
            assert session.report.packed
            before = threads()
            for batch in (1, 3):
                for _ in range(3):
                    session.run(None, {"X": weights(batch, channels, size, size).astype(dtype)})
            assert threads() == before, (before, threads())
assert not has_used_openmp()
print("done")
"""
)


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_threads_of_an_onnxruntime_session(allowed):
    code, out, errors = child(_ONNXRUNTIME, allowed, timeout=400, CONVT_NUM_THREADS="4")
    assert (code, out) == (0, "done\n"), errors[-2000:]


@needs_checkout
def test_parallel_regions_are_in_one_place():
    """Check that all loops over threads run through `convt._core.run_in_parallel`, which knows the host's threads."""
    package = Path(convt.__file__).parent
    found = {
        f"{path.relative_to(package)}: {line.strip()}"
        for path in package.rglob("*.p[yx]*")
        if path.suffix in (".pyx", ".pxd")
        for line in path.read_text().splitlines()
        if re.search(r"\bprange\(|\bparallel\(", line)
    }
    assert sorted(each.split(":")[0] for each in found) == ["_core.pyx", "_core.pyx", "_model/rates.pyx"], found
