"""Tests of the structure of the package: imports go down from room to room, and the rooms say what they are."""

import importlib.util
import re
from pathlib import Path

import pytest

from convt.algorithms import NAMES

TOOL = Path(__file__).parents[2] / "tools" / "structure.py"
if not TOOL.exists():
    pytest.skip("needs a checkout", allow_module_level=True)
_spec = importlib.util.spec_from_file_location("structure", TOOL)
structure = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(structure)


# What may fall, never rise: one in, one out (CONTRIBUTING.md, Architecture). When a number falls, write the new one here.
MOST = {
    "code of _call": 906,
    "code of _cli": 336,
    "code of _base": 1051,
    "code of _run": 6112,
    "code of _model": 600,
    "code of _plan": 1029,
    "code of algorithms": 8445,
    "code of dask": 78,
    "code of jax": 589,
    "code of onnx": 63,
    "code of onnxruntime": 1254,
    "code of openvino": 84,
    "code of torch": 1457,
    "code of all rooms": 22_029,
    "words of the glossary": 50,
    "public names": 50,
    "ways to pack weights": 10,
    "prefetchers": 5,
    "lower bounds of costs": 8,
    "names of algorithms": 8,
}


def test_nothing_grows():
    found = structure.figures() | {"names of algorithms": len(NAMES)}
    assert found.keys() == MOST.keys()
    risen = [f"{what}: {MOST[what]} -> {number}" for what, number in found.items() if number > MOST[what]]
    assert not risen, (
        f"{'; '.join(risen)}. Make room in the same place, or raise MOST and say why in the message of the change: "
        'see "One in, one out" in CONTRIBUTING.md, section Architecture.'
    )
    # So that what one change deletes is not there for the next one to fill.
    assert {what: number for what, number in found.items() if number < 0.98 * MOST[what] - 5} == {}


def test_imports_go_down():
    found = structure.arrows()
    assert len(found) > 300
    assert [f"{one.importer} -> {one.imported}" for one in found if not structure.is_down(one)] == []


def test_no_function_or_class_is_too_long():
    assert structure.too_long() == []
    found = {name: count for _, name, count in structure._cython_blocks(structure.ROOT / "convt/_core.pyx")}
    assert len(found) > 40 and 100 < found["NativePlan"] <= structure.LONGEST_CLASS


def test_an_import_up_is_found():
    assert not structure.is_down(structure.Arrow("convt._base.check", "convt._plan.plans"))
    assert not structure.is_down(structure.Arrow("convt.torch._fuse", "convt.onnxruntime._node"))
    assert not structure.is_down(structure.Arrow("convt._call.api", "convt.torch"))
    assert structure.is_down(structure.Arrow("convt.torch._fuse", "convt._base.norm"))


def test_imports_of_each_kind_are_read(tmp_path):
    path = tmp_path / "_there.pyx"
    path.write_text(
        "from convt._core cimport (  # a comment\n    Call, Plan,\n)\nfrom .._base import check, files as _files\n"
        "def late():\n    from ..tuning import find\ncimport numpy as cnp\nimport convt._run.memory\n"
        "if TYPE_CHECKING:\n    from .. import torch\n"
    )
    known = structure.modules()
    assert sorted(structure._imported("convt._plan._there", path, known)) == [
        "convt._base.check", "convt._base.files", "convt._core", "convt._core", "convt._run.memory", "convt.tuning",
    ]  # fmt: skip


def test_a_class_has_a_name_of_its_own():
    """Check that no two classes of the package have one name, except those that are the same part of several integrations or
    algorithms."""
    paths = [path for files in structure.modules().values() for path in files if path.suffix != ".pxd"]
    names = [name for path in paths for name in re.findall(r"^(?:cdef )?class (\w+)", path.read_text(encoding="utf-8"), re.M)]
    assert "ConvTranspose" in names and "DirectPlan" in names
    assert {name for name in names if names.count(name) > 1} == {"Class", "ConvTranspose", "Report", "Schedule"}


@pytest.mark.parametrize("name", [name for name in (*structure.ROOMS, *structure.INTEGRATIONS)])
def test_every_room_exists_and_says_what_it_is(name):
    folder = structure.ROOT / "convt" / name
    text = (folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")).read_text(encoding="utf-8")
    assert text.startswith('"""') and len(text.split('"""')[1]) > 40


def test_no_module_stands_outside_the_rooms():
    rooms = {structure.room(name) for name in structure.modules()}
    assert rooms == {*structure.ROOMS, *structure.INTEGRATIONS}
