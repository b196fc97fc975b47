"""The examples run, and what they make is right."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(("name", "made", "most"), [("photo", "photo.png", 1e-5), ("istft", "istft.wav", 1e-6)])
def test_example(name, made, most, tmp_path):
    pytest.importorskip("scipy", reason="scipy is not installed")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](tmp_path) < most
    assert (tmp_path / made).stat().st_size > 10_000
