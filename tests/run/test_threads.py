"""Tests of calls from Python threads: results have the bits of a single thread while other threads call, change settings and
clear caches, and the GIL is free while kernels compute."""

import itertools
import sysconfig
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from cases import DTYPES, SAMPLES, child, in_threads, matrix_unit, meanwhile, operator, run, switching_often

import convt
from convt import _core
from convt._plan import keep, repeat

THREADS = 16
# Each operator's arguments beyond its case: every dtype, the precisions of float32, an algorithm by name, NCX.
KINDS = {
    **{dtype: ({"dtype": dtype}, {}) for dtype in DTYPES},
    **{f"{dtype} NCX": ({"dtype": dtype, "data_format": "NCX"}, {}) for dtype in ("float32", "float16", "bfloat16")},
    "high": ({}, {"precision": "high"}),
    "medium": ({}, {"precision": "medium"}),
    "winograd": ({}, {"algorithm": "winograd"}),
    "scatter": ({}, {"algorithm": "scatter"}),
    **({"amx": ({}, {"algorithm": "direct:amx"})} if matrix_unit() else {}),
}


def prepared(kind, sizes):
    """Return (operator, case, [(data, bytes that one thread computes)]) of one of KINDS, for inputs of these sizes."""
    fields, keywords = KINDS[kind]
    case = replace(SAMPLES["dense"], dilations=(1, 1), **fields)
    _, filter, bias = case.arrays(exact=False)
    op = operator(case, filter, bias, **keywords)
    pairs = []
    for n, in_sizes in enumerate(sizes):
        data = replace(case, in_sizes=in_sizes, batch=1 + n % 2, seed=n).arrays(exact=False)[0]
        with convt.num_threads(1):
            pairs.append((data, op(data).tobytes()))
    return op, case, pairs


@pytest.mark.parametrize("kind", KINDS)
def test_one_operator_gives_sixteen_threads_the_bits_of_one(kind):
    op, _, pairs = prepared(kind, [(3 + n, 9 - n) for n in range(6)])
    convt.set_num_threads(2)

    def worker(first):
        return [op(data).tobytes() == want for data, want in (pairs[(first + n) % 6] for n in range(12))]

    with switching_often():
        assert all(map(all, in_threads(worker, THREADS)))


def test_operators_at_once_while_plans_threads_and_caches_change(monkeypatch):
    monkeypatch.setattr(keep, "OPERATOR_PLANS", 20_000)
    made = [prepared(kind, [(2 + n, 8 - n) for n in range(4)]) for kind in KINDS]
    numbers = itertools.cycle((1, 2))

    def worker(op, case, pairs):
        right = True
        for n in range(6):
            data, want = pairs[n % len(pairs)]
            right &= op(data).tobytes() == want
            if n % 3 == 0:  # operators and the plans of one-shot calls are also dropped
                _, filter, bias = case.arrays()
                small = case.arrays()[0]
                right &= run(case, small, filter, bias).tobytes() == operator(case, filter, bias)(small).tobytes()
        return right

    def change():
        convt.set_num_threads(next(numbers))
        convt.clear_caches()
        time.sleep(0.1)

    with meanwhile(change):
        assert all(in_threads(lambda n: worker(*made[n]), len(made)))


def test_caches_are_cleared_while_operators_are_made():
    filter = np.ones((2, 2, 1), np.float32)
    operators = [convt.ConvTranspose(filter) for _ in range(2000)]  # enough that threads switch meanwhile

    with switching_often(), meanwhile(convt.clear_caches):
        for _ in range(1000):
            operators.append(convt.ConvTranspose(filter))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_a_long_call_does_not_hold_the_gil(data_format, dtype):
    """Check that another thread advances during a call, which is possible only if the call releases the GIL."""
    ticks = [0]

    def tick():
        ticks[0] += 1
        time.sleep(0.0005)

    kind = DTYPES[dtype][0]
    op = convt.ConvTranspose(np.ones((5, 5, 128, 128), kind), data_format=data_format, algorithm="direct:vectors")
    data = np.ones((1, 160, 160, 128) if data_format == "NXC" else (1, 128, 160, 160), kind)
    out = op(data)
    with switching_often(100), meanwhile(tick), convt.num_threads(1):
        before, start = ticks[0], time.perf_counter()
        op(data, out=out)
        seconds, found = time.perf_counter() - start, ticks[0] - before
    assert found > 3, (seconds, found)


@pytest.mark.skipif(not _core.openmp(), reason="built without OpenMP")
def test_plans_balance_shares_for_as_many_threads_as_a_call_has():
    op, _, pairs = prepared("float32", [(17, 19)])
    (data, want), counts = pairs[0], (1, 2, 3, 5, 8)

    def worker(threads):
        with convt.num_threads(threads):
            return all(op(data).tobytes() == want for _ in range(10))

    assert all(in_threads(lambda n: worker(counts[n % len(counts)]), 2 * len(counts)))


@pytest.mark.skipif(not _core.openmp(), reason="built without OpenMP")
@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_a_thread_takes_what_others_have_not_begun(data_format, limit):
    """Each task runs once although OpenMP starts fewer threads than there are shares, so that one thread may run all."""
    script = f"""
import numpy as np, convt
rng = np.random.default_rng(1)
for ci, co, kernel, groups in ((16, 24, 2, 1), (16, 24, 3, 1), (8, 1, 3, 8), (8, 4, 2, 2), (16, 1, 4, 1)):
    data = rng.random((1, 30, 31, ci) if "{data_format}" == "NXC" else (1, ci, 30, 31), np.float32)
    filter = rng.random((kernel, kernel, ci, co) if groups == 1 else (kernel, kernel, ci // groups, co * groups), np.float32)
    for algorithm in ("direct", "turned", "scatter", "rows", "depthwise"):
        try:
            op = convt.ConvTranspose(filter, strides=(2, 2), groups=groups, data_format="{data_format}", algorithm=algorithm)
            with convt.num_threads(1):
                want = op(data).tobytes()
        except ValueError:
            continue
        for threads in (3, 8):
            with convt.num_threads(threads):
                out = np.full(op(data).shape, np.nan, np.float32)
                assert op(data, out=out).tobytes() == want, (ci, co, algorithm, threads)
                print("equal")
"""
    code, out, errors = child(script, OMP_THREAD_LIMIT=str(limit))
    assert code == 0 and out.count("equal") >= 12, errors


def test_a_cache_is_not_cleared_while_it_drops_its_oldest():
    clearing = []
    cache = keep.Recent(2000)
    cache.keep("oldest", repeat.Kept(500))

    class Entries(dict):
        def values(self):
            if not clearing:  # this thread also calls values()
                clearing.append(threading.Thread(target=keep.clear))
                clearing[-1].start()
                clearing[-1].join(0.1)
            return super().values()

    cache.entries = Entries(cache.entries)
    cache.keep("key", repeat.Kept(500))
    for each in clearing:
        each.join()
    assert clearing and not cache.entries and cache.bytes == 0


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="a Python with a GIL")
def test_importing_convt_leaves_the_gil_off():
    script = "import sys, numpy\noff = not sys._is_gil_enabled()\nimport convt\nprint(off, sys._is_gil_enabled())"
    code, out, errors = child(script)
    assert (code, out.split()) == (0, ["True", "False"]), errors


MS = 1_000_000  # nanoseconds


def calls(threads, brief, *, wait_each=0, wait=0, now=0, until=10_000 * MS):
    """Yield parallel regions of ``threads`` threads that compute for ``brief`` nanoseconds each, one after the other. If
    ``wait_each`` is not 0, one region each ``wait_each`` nanoseconds takes ``wait`` longer."""
    last = now
    while now < until:
        late = wait if wait_each and now - last >= wait_each else 0
        last = now if late else last
        yield threads, now, brief, now + brief + late
        now += brief + late


def test_a_quiet_machine_has_all_threads():
    assert set(_core.team_sizes(8, calls(8, MS // 10, until=1000 * MS))) == {8}
    # Barriers cost some microseconds, and sometimes another program interrupts.
    assert set(_core.team_sizes(2, calls(2, MS // 10, wait_each=50 * MS, wait=2 * MS, until=1000 * MS))) == {2}


def test_a_thread_that_another_process_delays_is_done_without():
    """Check calls of a tenth of a millisecond, of which one each 8 ms waits for a time slice of 4 ms: a thread is left out."""
    found = _core.team_sizes(2, calls(2, MS // 10, wait_each=8 * MS, wait=4 * MS, until=60 * MS))
    assert found[0] == 2 and found[-1] == 1
    # With eight threads, the time saved in 8 ms exceeds a wait of 4 ms.
    assert set(_core.team_sizes(8, calls(8, MS // 10, wait_each=8 * MS, wait=4 * MS, until=60 * MS))) == {8}
    # If it does not, one thread is left out, and more threads if that does not help.
    found = _core.team_sizes(8, calls(8, MS // 10, wait_each=MS, wait=8 * MS, until=30 * MS))
    assert 7 in found and found[-1] < 7 and found == sorted(found, reverse=True)


def test_the_first_calls_meet_few_waits():
    """Check 300 calls of a tenth of a millisecond while each full team waits 24 ms: three wait at most, so that the 99th
    percentile is that of the others."""
    now, waits, regions, threads = 0, 0, [], 2
    for _ in range(300):
        late = 24 * MS * (threads == 2)
        regions.append((threads, now, MS // 10, now + MS // 10 + late))
        waits, now = waits + (threads == 2), regions[-1][-1]
        threads = _core.team_sizes(2, regions)[-1]
    assert 1 <= waits <= 3


def test_the_pause_grows_and_ends():
    slow = list(calls(2, MS // 10, wait_each=MS, wait=4 * MS, until=30 * MS))
    found = _core.team_sizes(2, slow)
    assert found[-1] == 1
    end = slow[-1][-1]
    # When the waits end, all threads return for good.
    later = _core.team_sizes(2, slow + list(calls(2, MS // 10, now=end + 1000 * MS, until=end + 6000 * MS)))
    assert later[-1] == 2
