"""Tests of `convt.config` and of logging: settings count inside their block, for one thread or task, and end with it."""

import asyncio
import contextvars
import doctest
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cases import child, in_threads

import convt
from convt._call import api
from convt._run import config as _config

X, W = np.ones((1, 9, 9, 8), np.float32), np.ones((3, 3, 8, 8), np.float32)
NAMES = ("threads", "backend", "precision", "packed_weights_limit", "verbose")


def in_force():
    return tuple(getattr(convt.config(), name) for name in NAMES)


def test_blocks_nest_and_end():
    before = in_force()
    with convt.config(threads=1, backend="reference", precision="high"):
        assert in_force() == (1, "reference", "high", *before[3:]) and convt.get_num_threads() == 1
        with convt.config(precision="medium", packed_weights_limit=7) as inner, convt.num_threads(1):
            assert in_force()[:4] == (1, "reference", "medium", 7) and inner.precision == "medium"
            assert convt.get_packed_weights_limit() == 7
        assert in_force()[:3] == (1, "reference", "high") and convt.get_packed_weights_limit() is None
        with pytest.raises(ZeroDivisionError), convt.config(backend="native"):
            1 / 0  # noqa: B018
        assert convt.config().backend == "reference"
    assert in_force() == before
    block = convt.config(backend="reference")
    assert block.backend == "reference" and convt.config().backend == before[1]
    with block, block:
        assert convt.config().backend == "reference"
    assert in_force() == before
    shown = repr(convt.config(threads=1, backend="native", precision="high"))
    assert shown == "Config(threads=1, backend='native', precision='high', packed_weights_limit=None, verbose=False)"


def test_operators_and_calls_take_what_is_in_force():
    with convt.config(backend="reference", precision="medium"):
        op = convt.ConvTranspose(W)
        assert op.plan(X.shape).backend == "reference" and op._attributes.precision == "medium"
        assert convt.ConvTranspose(W, backend="native", precision="high")._attributes.precision == "high"
    assert op.plan(X.shape).backend == "reference"  # an operator keeps it
    assert convt.ConvTranspose(W).plan(X.shape).backend != "reference"


def test_repeated_calls_take_what_is_in_force(monkeypatch):
    used, compute = [], api.run.compute

    def counted(plans, *arguments):
        used.append(plans.attributes.backend)
        return compute(plans, *arguments)

    monkeypatch.setattr(api.run, "compute", counted)
    convt.clear_caches()
    results = []
    for backend in ("native", "reference", "native"):
        with convt.config(backend=backend):
            results += [convt.conv_transpose(X, W, dilations=2) for _ in range(3)]
    assert used[0] == "native" and used.count("reference") == 3  # the reference has no fast path; native calls repeat the first
    assert used.count("native") == 1 and all(np.allclose(each, results[0]) for each in results)


def test_other_threads_and_tasks_do_not_see_it():
    seen = lambda: (convt.get_num_threads(), convt.config().precision)  # noqa: E731
    convt.set_num_threads(3)

    async def task(threads, precision):
        with convt.num_threads(threads), convt.config(precision=precision):
            await asyncio.sleep(0.01)
            return seen()

    async def tasks(all):
        return await asyncio.gather(*(task(*each) for each in all))

    different = [(n, ("high", "medium")[n % 2]) for n in range(1, 9)]
    assert asyncio.run(tasks(different)) == different
    with convt.num_threads(2), convt.config(precision="high"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(contextvars.Context().run, seen).result() == (3, "highest")
        assert pool.submit(contextvars.copy_context().run, seen).result() == seen() == (2, "high")
    thread = threading.Thread(target=lambda: found.append(convt.config().precision))
    with convt.config(precision="high"):
        found = []
        thread.start()
        thread.join()
    assert found == ["highest"]


def test_a_block_may_be_entered_by_many_threads():
    block = convt.config(precision="high", verbose=False)

    def work(_):
        for _ in range(200):
            with block:
                assert convt.config().precision == "high"

    in_threads(work)
    assert convt.config().precision == "highest" and _config.verbose_scopes == 0


@pytest.mark.parametrize(("words", "error", "says"), [
    ({"threads": 0}, ValueError, "threads: got 0, wanted an integer >= 1"), ({"threads": "2"}, TypeError, "threads: got '2'"),
    ({"backend": "gpu"}, ValueError, "backend: got 'gpu', wanted"), ({"backend": "tune"}, ValueError, "backend: got 'tune'"),
    ({"precision": "low"}, ValueError, "precision: got 'low'"), ({"verbose": 1}, TypeError, "verbose: got int, wanted True"),
    ({"packed_weights_limit": -1}, ValueError, "packed_weights_limit: got -1"), ({"isa": "avx2"}, TypeError, "isa"),
])  # fmt: skip
def test_wrong_values(words, error, says):
    with pytest.raises(error, match=says):
        convt.config(**words)


def test_verbose_calls_are_logged(caplog, capsys):
    op = convt.ConvTranspose(W)
    op(X), op(X)
    with convt.config(verbose=True):
        op(X), convt.conv_transpose(X, W)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all(line.startswith("convt,exec,") for line in lines)
    with caplog.at_level(logging.INFO, "convt"), convt.config(verbose=True):
        op(X)
    (record,) = caplog.records
    assert record.name == "convt" and record.levelno == logging.INFO and record.message.startswith("convt,exec,")
    op(X)
    assert not capsys.readouterr().err and _config.verbose_scopes == 0


def test_notes_are_logged_where_info_is_enabled(caplog, tmp_path):
    convt.tuning.clear()
    convt.tuning.save(tmp_path / "t.json")
    with caplog.at_level(logging.INFO, "convt"):
        from convt._run import log

        log.note("tuning", "a note with % and {}")
    assert [each.message for each in caplog.records] == ["convt,tuning,a note with % and {}"]


def test_the_environment_variable_is_a_handler():
    script = "import logging, numpy as np, convt; h = logging.getLogger('convt').handlers; print(len(h))\n"
    script += "with convt.config(verbose=False): convt.conv_transpose(np.ones((1, 9, 2)), np.ones((3, 2, 2)))\n"
    code, out, errors = child(script, CONVT_VERBOSE="1")
    assert (code, out, errors) == (0, "1\n", "")


def test_torch_takes_what_is_in_force(monkeypatch):
    torch = pytest.importorskip("torch")
    import convt.torch as ct
    from convt._call import operator

    seen, make = [], operator.ConvTranspose._borrowing.__func__

    def made(cls, *arguments, **words):
        seen.append((words["precision"], words["backend"]))
        return make(cls, *arguments, **words)

    monkeypatch.setattr(operator.ConvTranspose, "_borrowing", classmethod(made))
    layer, x = ct.ConvTranspose2d(4, 4, 3), torch.ones(1, 4, 9, 9)
    with torch.no_grad():
        for words in ({}, {"precision": "high"}, {"backend": "reference"}, {}):
            with convt.config(**words):
                for _ in range(3):
                    layer(x)
    assert seen == [("highest", "auto"), ("high", "auto"), ("highest", "reference")]


@pytest.mark.parametrize("name", ["config", "num_threads"])
def test_examples(name):
    (test,) = doctest.DocTestFinder(recurse=False).find(getattr(convt, name), name, globs={})
    assert test.examples and doctest.DocTestRunner().run(test).failed == 0
