"""Settings of the whole suite: Hypothesis profiles with the same examples on every machine, a fixture that restores the process
settings after each test, the selection of tests without ``--all`` and under CONVT_ISA, and the CPU that tests under CONVT_COSTS
pretend.

Without ``--all``, tests run at the instruction set in use. If no file, folder or name is given either, `OF_PROJECT` is
left out and each other test has at most MOST_SETS of its parameter sets, so that the suite takes few minutes."""

import functools
import importlib.util
import inspect
import itertools
import math
import os
import re
import sys
import tempfile
import zlib
from collections import defaultdict
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # the other workers need the cores on which waiting threads would spin
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for the definition in cases.py, whose arrays are small

import pytest
from hypothesis import HealthCheck, settings

import convt
from convt import _core, tuning

if importlib.util.find_spec("bench") is None:  # beside a wheel, which installs it by another name
    sys.modules["bench"] = importlib.import_module("convt_bench")
from convt._model import constants, machine
from convt._plan import choose, plans
from convt._plan import measure as _measure
from convt._run import config as _config

settings.register_profile("convt", derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("more", deadline=None, max_examples=5000, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "convt"))

# Tests whose results do not depend on the instruction set: folders, and test modules by the beginnings of their names.
ISA_INDEPENDENT = (
    "base/test_arrays", "base/test_environment", "base/test_files", "base/test_padding", "base/test_tensorflow_same",
    "benchmark/", "call/test_bad_input", "cli/", "fuzz/test_fuzz_", "fuzz/test_fuzzers",
    "integrations/test_jax", "integrations/test_onnxruntime_", "integrations/test_packages", "integrations/test_torch_",
    "model/", "plan/test_measure", "project/", "run/test_growth", "run/test_quotas", "run/test_warnings",
)  # fmt: skip
TESTS = Path(__file__).parent
MOST_SETS, MOST_SETS_OF_LEVEL = 16, 32  # with ``--few-sets``, without CONVT_ISA and with it
FILES_PER_TEST = 3  # one machine file of so many runs a parameter set
# Tests of pages, tools and long-running behaviour, which do not depend on the build: folders, and modules by the beginnings of
# their names.
OF_PROJECT = (
    "benchmark/test_bench_recorded", "benchmark/test_bench_models", "fuzz/test_fuzz_graphs", "fuzz/test_fuzz_models",
    "fuzz/test_fuzzers", "project/", "run/test_growth", "run/test_quotas", "run/test_warnings",
)  # fmt: skip

# A test whose text matches this looks at a decision of the planner, and gets the marker ``decisions``, unless a process of its
# own decides (`cases.child`), because that has no machine file. Some folders have no such tests.
NO_DECISIONS = ("base", "fuzz", "integrations", "project")
DECISION = re.compile(
    r"\.plan\(|\bplan\.|schedule\(|\bchoose\.(?!_Tuned)|explain\(|\.cost\(|_workspace|recording\(|\.form\b|kept_forms"
)


def pytest_collection_modifyitems(config, items):
    """Mark the tests that look at decisions, and deselect tests.

    If CONVT_ISA is set, `ISA_INDEPENDENT` and tests that choose an instruction set themselves are left out. Otherwise, without
    ``--all``, tests at another instruction set than the one in use. With ``--few-sets``, also those that `_chosen` leaves out.
    """
    for item in items:
        if looks_at_decisions(item.obj):
            item.add_marker("decisions")
    if os.environ.get("CONVT_ISA"):
        left_out = lambda item: chooses_isa(item) or _of(item).startswith(ISA_INDEPENDENT)  # noqa: E731
    elif config.option.all:
        return
    else:
        left_out = _is_at_another_isa
    kept = [item for item in items if not left_out(item)]
    if config.option.few_sets:
        kept = _chosen(kept)
    ids = {item.nodeid for item in kept}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in ids])
    items[:] = kept


def _chosen(items):
    """Return the items that are not of OF_PROJECT, with some parameter sets of each test, as if chosen at random.

    Each instruction set and machine file has other sets, and each machine file has a part of the tests (FILES_PER_TEST).
    """
    by_test = defaultdict(list)
    for item in (each for each in items if not _of(each).startswith(OF_PROJECT)):
        by_test[item.nodeid.partition("[")[0]].append(item)
    pretended, isa = Path(os.environ.get("CONVT_COSTS", "")).name, os.environ.get("CONVT_ISA", "")
    order = lambda item: zlib.crc32((pretended + isa + item.nodeid).encode())  # noqa: E731
    most = MOST_SETS_OF_LEVEL if isa else MOST_SETS
    chosen = {item.nodeid for each in by_test.values() for item in sorted(each, key=order)[:most]}
    return [item for item in items if item.nodeid in chosen and (not pretended or order(item) % FILES_PER_TEST == 0)]


def _is_at_another_isa(item):
    isa = getattr(getattr(item, "callspec", None), "params", {}).get("isa")
    return isinstance(isa, str) and isa != _core.isa()


def pytest_addoption(parser):
    help = "run all parameter sets of all tests, also at other instruction sets than the one in use"
    parser.addoption("--all", action="store_true", help=help)
    parser.addoption("--few-sets", action="store_true", help="what the README's command runs: see conftest.py")
    parser.addoption("--list-skipped", metavar="FILE", help="write the tests that were skipped to FILE, one per line")


def pytest_terminal_summary(terminalreporter, config):
    if path := config.option.list_skipped:
        skipped = dict.fromkeys(report.nodeid for report in terminalreporter.stats.get("skipped", ()))
        Path(path).write_text("".join(f"{each}\n" for each in skipped), encoding="utf-8")
    if not config.option.all:
        terminalreporter.line(
            f"These tests ran at {_core.isa()}"
            + ", with a part of the parameter sets, without those of pages and tools" * config.option.few_sets
            + ". `python -m pytest --all` runs all, also at other instruction sets; `bash .ci/run` repeats them in fresh "
            "environments."
        )


def _of(item):
    """Return the path of a test's module in this folder."""
    return item.path.relative_to(TESTS).as_posix()


def looks_at_decisions(test):
    """Check whether the text of a test, or of a function of its module that it calls, matches DECISION."""
    return _looks_at_decisions(getattr(getattr(test, "hypothesis", None), "inner_test", test))


@functools.cache
def _looks_at_decisions(test):
    called = [test.__globals__.get(name) for name in test.__code__.co_names]
    own = [each for each in called if inspect.isfunction(each) and each.__module__ == test.__module__]
    texts = [inspect.getsource(each) for each in (test, *own)]
    return any(map(DECISION.search, texts)) and " = child(" not in texts[0]


def pytest_ignore_collect(collection_path, config):
    return (config.option.markexpr == "decisions" and collection_path.name in NO_DECISIONS) or None


def pytest_configure(config):
    # xdist gives its workers the options, but not where the arguments are from.
    whole = config.args_source is config.ArgsSource.TESTPATHS and not config.option.keyword and not config.option.markexpr
    config.option.few_sets |= whole and not config.option.all
    if path := os.environ.get("CONVT_COSTS"):
        pretend_cpu(path)
    if worker := getattr(config, "workerinput", None):
        note_plans(config, plan_file(worker["testrunuid"], worker["workerid"]))
    config.addinivalue_line("markers", "every_isa: computes with every instruction set, each time one that it names itself")
    config.addinivalue_line("markers", "decisions: looks at a plan, a schedule or a cost")


def plan_file(run, worker):
    return Path(tempfile.gettempdir(), f"convt-plan-{run}-{worker}")


def note_plans(config, path):
    """Write the algorithm and the problem of each new plan of a worker to a file, which is kept if the worker crashes."""
    bind = plans.Plans._bind

    def noted(self, problem, ins, outs, name):
        path.write_text(f"{name} at {_core.isa()}, {problem}", encoding="utf-8")
        return bind(self, problem, ins, outs, name)

    plans.Plans._bind = noted
    config.add_cleanup(lambda: path.unlink(missing_ok=True))


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report):
    """Add the last plan that the crashed worker made to the report of its test."""
    path = plan_file(report.node.workerinput["testrunuid"], report.node.workerinput["workerid"])
    if path.exists():
        report.longrepr += f"; its last plan: {path.read_text(encoding='utf-8')}"
        path.unlink()


def pretend_cpu(path):
    """Pretend the first CPU of a machine file in this process: its constants, where vectors are as wide as its own, and caches.

    At other vector widths, that CPU has the constants of other files, as `constants.of_cpu` says.
    """
    from cases import machine_caches  # imported here, because only these runs need it

    cpus, caches = constants.read(path).cpus, machine_caches(path)
    machine._CACHES = tuple(caches[name] for name in ("l1", "l2", "l3"))
    machine._DESCRIPTION = None
    machine.cpu = lambda: cpus[0][:3] if cpus else ("", 0, 0)
    machine._machine.cache_clear()


def chooses_isa(item):
    """Check whether a test gets an ``isa`` from pytest or Hypothesis, or has the marker ``every_isa``."""
    drawn = getattr(item.obj, "hypothesis", None)
    return (
        item.get_closest_marker("every_isa") is not None
        or "isa" in getattr(getattr(item, "callspec", None), "params", ())
        or (drawn is not None and "isa" in inspect.signature(drawn.inner_test).parameters)
    )


@pytest.fixture(autouse=True)
def process_settings():
    """Restore the settings of the process after each test: instruction set, threads, limit of packed weights, and tuned
    entries."""
    isa, threads, limit = _core.isa(), _config._threads, convt.get_packed_weights_limit()
    tuning.clear()
    yield
    _core.use_isa(isa)
    _config._threads = threads
    convt.set_packed_weights_limit(limit)
    assert convt.get_num_threads() >= 1


@pytest.fixture
def measured(monkeypatch):
    """Record the candidates of each measurement as a list of lists of names. The candidates win in turns, and take no time."""
    seen, turn = [], itertools.count()

    def measure(runs):
        times = {name: 0.5 if run() is not False else math.inf for name, run in runs.items()}
        able = [name for name, seconds in times.items() if seconds < 1]
        times[able[next(turn) % len(able)]] = 0.25
        seen.append(list(runs))
        return times

    monkeypatch.setattr(_measure, "measure", measure)
    monkeypatch.setattr(choose, "NEAR", math.inf)
    return seen


@pytest.fixture
def direct_wins(monkeypatch):
    """Make measurements take no time, and direct the fastest."""

    def measure(runs):
        for run in runs.values():
            run()
        return {name: 1e-3 * (2 - (name == "direct:vectors")) for name in runs}

    monkeypatch.setattr(_measure, "measure", measure)
    monkeypatch.setattr(choose, "NEAR", math.inf)
