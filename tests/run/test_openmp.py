"""Tests of OpenMP: convt, oneDNN and torch share one pool of threads in any order of import, and an installed wheel brings its
own OpenMP library."""

import importlib.util
import itertools
from pathlib import Path

import pytest
from cases import child

import convt
from convt import _core
from convt.algorithms.onednn import library

pytest.importorskip("threadpoolctl")
pytestmark = pytest.mark.skipif(not _core.openmp(), reason="built without OpenMP")

BROUGHT = Path(convt.__file__).parents[1] / "convt.libs/libgomp.so.1"
START = "import numpy as np; x, w = np.ones((4, 64, 64, 64), 'f'), np.ones((4, 4, 64, 64), 'f')"
# One call for each library, with enough work for several threads.
CALLS = {
    "convt": "import convt; convt.conv_transpose(x, w, backend='native')",
    "onednn": "import convt; convt.conv_transpose(x, w, backend='onednn')",
    "torch": "import torch; torch.nn.functional.conv_transpose2d(torch.ones(4, 64, 64, 64), torch.ones(64, 64, 4, 4))",
}
END = """
import threadpoolctl
for pool in threadpoolctl.threadpool_info():
    if pool["user_api"] == "openmp":
        print(pool["filepath"])
"""
THERE = {"convt": lambda: True, "onednn": library.available, "torch": lambda: importlib.util.find_spec("torch")}
HERE = [name for name, there in THERE.items() if there()]


def openmp_libraries(order):
    """Return the files of the OpenMP libraries in a process that makes these calls in order."""
    code = "\n".join([START, *(CALLS[name] for name in order), END])
    status, out, errors = child(code)
    assert status == 0, errors
    return out.splitlines()


@pytest.mark.parametrize("order", [*itertools.permutations(HERE)], ids=" ".join)
def test_one_pool_in_any_order(order):
    assert len(openmp_libraries(order)) == 1


def test_limits_of_threadpoolctl_do_not_change_convts_number():
    """Check what docs/performance.md says."""
    import threadpoolctl

    convt.set_num_threads(2)
    assert any(pool["user_api"] == "openmp" for pool in threadpoolctl.threadpool_info())
    with threadpoolctl.threadpool_limits(1):
        assert convt.get_num_threads() == 2
    convt.set_num_threads(None)
    default = convt.get_num_threads()
    with threadpoolctl.threadpool_limits(1):
        convt.set_num_threads(None)
        assert convt.get_num_threads() == default


@pytest.mark.skipif(not BROUGHT.parent.exists(), reason="needs an installed, repaired wheel")
def test_a_wheel_needs_no_openmp_library_of_the_system():
    assert [Path(path).resolve() for path in openmp_libraries(["convt"])] == [BROUGHT.resolve()]
