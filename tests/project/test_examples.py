"""Tests of the examples: each runs, and its results are right."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("name", "made", "most", "needs"), [
    ("photo", "photo.png", 1e-5, []), ("istft", "istft.wav", 1e-6, []), ("generator", "generator.png", 0.05, []),
    ("streaming_codec", "streaming_codec.wav", 1e-6, []),
    ("onnx_interfaces", "onnx_interfaces.png", 1e-6, ["onnx", "onnxruntime"]),
    ("openvino_groups", "openvino_groups.png", 1e-6, []),
])  # fmt: skip
def test_example(name, made, most, needs, tmp_path):
    for module in ("scipy", "matplotlib", *needs):
        pytest.importorskip(module, reason=f"{module} is not installed")
    assert runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](tmp_path) < most
    assert (tmp_path / made).stat().st_size > 10_000


def test_the_generator_is_the_definition():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    example = runpy.run_path(str(EXAMPLES / "generator.py"))
    image = example["photograph"]()[:96, :96]
    pictures = [example["generated"](*example["generator"](image, backend)) for backend in ("native", "reference")]
    np.testing.assert_allclose(*pictures, rtol=0, atol=1e-3)


@pytest.mark.parametrize("workers", [0, 2])
def test_volume_from_zarr_to_zarr_within_its_memory(workers, tmp_path):
    """Check memory in a process of its own, because the peak is counted per process. The example fails beyond its limit, and on
    wrong results."""
    for module in ("zarr", "dask.array", "matplotlib", *(["distributed"] if workers else [])):
        pytest.importorskip(module, reason=f"{module} is not installed")
    command = [
        sys.executable, EXAMPLES / "volume.py", tmp_path, "--gigabytes", "0.03", "--limit", "2", "--workers", str(workers),
    ]  # fmt: skip
    run = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "100% Completed" in run.stdout  # the progress bar
    assert re.search(r"peak of memory [01]\.\d\d GB of 2 GB\n", run.stdout), run.stdout
    assert (tmp_path / "volume.png").stat().st_size > 5_000
