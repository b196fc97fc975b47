"""Settings of the whole suite: the same examples on every machine, and a process left as it was found."""

import inspect
import math
import os

import pytest
from hypothesis import HealthCheck, settings

import convt
from convt import _config, _core, _measure, _plan, tuning
from convt.algorithms import machine

settings.register_profile("convt", derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("more", deadline=None, max_examples=5000, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "convt"))

# Tests whose answers no instruction set changes: of the benchmark, pages, types, torch's tools, examples, memory that can't be
# had, mistakes on the command line, and of models on their way into ONNX Runtime.
ONCE = (
    "test_bench", "test_docs", "test_types", "test_torch_tools", "test_examples", "test_growth", "test_site",
    "test_licence", "test_main_errors", "test_onnxruntime_loading", "test_onnxruntime_main", "test_onnxruntime_rewrite",
    "test_onnxruntime_scopes",
)  # fmt: skip


def pytest_collection_modifyitems(config, items):
    """Leaves out, if CONVT_ISA chooses an instruction set for the process, tests that choose one themselves, and `ONCE`."""
    if os.environ.get("CONVT_ISA"):
        left_out = lambda item: chooses_isa(item) or item.path.name.startswith(ONCE)  # noqa: E731
        config.hook.pytest_deselected(items=list(filter(left_out, items)))
        items[:] = [item for item in items if not left_out(item)]


def pytest_configure(config):
    config.addinivalue_line("markers", "every_isa: computes with every instruction set, each time one that it names itself")


def chooses_isa(item):
    """Whether a test is given an ``isa``, by pytest or by Hypothesis, or says that it goes through them."""
    drawn = getattr(item.obj, "hypothesis", None)
    return (
        item.get_closest_marker("every_isa") is not None
        or "isa" in getattr(getattr(item, "callspec", None), "params", ())
        or (drawn is not None and "isa" in inspect.signature(drawn.inner_test).parameters)
    )


@pytest.fixture(autouse=True)
def process_settings():
    """Instruction set, threads, the limit of packed weights and what was tuned are the process's: give them back after every
    test."""
    isa, threads, limit = _core.isa(), _config._threads, convt.get_packed_weights_limit()
    tuning.clear()
    yield
    _core.use_isa(isa)
    _config._threads = threads
    convt.set_packed_weights_limit(limit)
    assert convt.get_num_threads() >= 1


@pytest.fixture
def non_temporal_stores():
    """Depthwise writes outputs of any size by non-temporal stores, where it can."""
    with machine.pretend(depthwise_non_temporal=0, depthwise_ordered=0):
        yield


@pytest.fixture
def no_caches():
    """Plans are those of a machine without L2 and last-level cache."""
    with machine.pretend(l2=0, l3=0):
        yield


@pytest.fixture
def direct_wins(monkeypatch):
    """Measuring takes no time, and direct is the fastest."""

    def measure(runs):
        for run in runs.values():
            run()
        return {name: 1e-3 * (2 - (name == "direct")) for name in runs}

    monkeypatch.setattr(_measure, "measure", measure)
    monkeypatch.setattr(_plan, "NEAR", math.inf)
