"""Settings of the whole suite: the same examples on every machine, and a process left as it was found."""

import os

import pytest
from hypothesis import HealthCheck, settings

import convt
from convt import _config, _core

settings.register_profile("convt", derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("more", deadline=None, max_examples=5000, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "convt"))


def pytest_collection_modifyitems(config, items):
    """Tests that choose an instruction set themselves need no second run where CONVT_ISA chooses one for the process."""
    if os.environ.get("CONVT_ISA"):
        chooses = lambda item: "isa" in getattr(getattr(item, "callspec", None), "params", ())  # noqa: E731
        config.hook.pytest_deselected(items=list(filter(chooses, items)))
        items[:] = [item for item in items if not chooses(item)]


@pytest.fixture(autouse=True)
def process_settings():
    """Instruction set and threads are the process's: give them back after every test."""
    isa, threads = _core.isa(), _config._threads
    yield
    _core.use_isa(isa)
    _config._threads = threads
    assert convt.get_num_threads() >= 1
