"""Tests of the effects on the user's process: state that calls must not change, interrupts, forked and spawned workers, and
other OpenMP code in the process."""

import ctypes
import ctypes.util
import importlib.util
import locale
import os
import platform
import random
import resource
import shutil
import signal
import subprocess
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import SAMPLES, child, each_dtype, operator, run

import convt
from convt import _core

X86 = platform.machine() == "x86_64"
LINUX = os.path.exists("/proc/self/status")
needs_openmp = pytest.mark.skipif(not _core.openmp(), reason="built without OpenMP")

# ---------------------------------------------------------------- state

if X86:
    _libm = ctypes.CDLL(ctypes.util.find_library("m"))

STATUS = 0x3F  # bits of MXCSR for exceptions that occurred; every division sets some


class Float:
    """The floating-point control state of this thread: MXCSR and the x87 control word."""

    def __init__(self):
        self.saved = ctypes.create_string_buffer(32)
        _libm.fegetenv(self.saved)

    def control(self):
        mxcsr = int.from_bytes(self.saved.raw[28:32], "little")
        return mxcsr & ~STATUS, int.from_bytes(self.saved.raw[:2], "little")

    def with_control(self, bits):
        """Set additional control bits of MXCSR."""
        now = ctypes.create_string_buffer(self.saved.raw, 32)
        mxcsr = int.from_bytes(now.raw[28:32], "little") | bits
        now[28:32] = mxcsr.to_bytes(4, "little")
        _libm.fesetenv(now)

    def restore(self):
        _libm.fesetenv(self.saved)


def calls(dtype):
    """Call operators and the function, on one thread and two, in both layouts, with an activation that is not linear."""
    for name in ("dense", "depthwise", "deep"):
        for data_format in ("NXC", "NCX"):
            case = replace(SAMPLES[name], dtype=dtype, data_format=data_format, activation="swish")
            data, filter, bias = case.arrays()
            for threads in (1, 2):
                with convt.num_threads(threads):
                    operator(case, filter, bias)(data)
                    run(case, data, filter, bias)


@pytest.mark.skipif(not X86, reason="MXCSR exists on x86 only")
@pytest.mark.parametrize("bits", [0, 0x2000, 0x6000, 0x8040], ids=["default", "down", "to zero", "denormals flushed"])
@each_dtype
def test_floating_point_control_is_left_alone(dtype, bits):
    before = Float()
    before.with_control(bits)
    try:
        wanted = Float().control()
        calls(dtype)
        found = Float().control()
    finally:
        before.restore()
    assert found == wanted and wanted[0] & bits == bits


def state():
    """Return the state that belongs to the user of this process."""
    status = Path("/proc/self/status").read_text().splitlines() if LINUX else []
    return {
        "signals": {each: signal.getsignal(each) for each in signal.valid_signals()},
        "signals of the kernel": [line for line in status if line.startswith(("SigBlk", "SigIgn", "SigCgt"))],
        "locale": locale.setlocale(locale.LC_ALL),
        "affinity": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "files": sorted(os.listdir("/proc/self/fd")) if LINUX else None,
        "limits": [resource.getrlimit(each) for each in (resource.RLIMIT_AS, resource.RLIMIT_STACK, resource.RLIMIT_NOFILE)],
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "errors of NumPy": np.geterr(),
        "warnings": list(warnings.filters),
        "random": (random.getstate(), np.random.get_state()[1].tobytes()),
    }


@each_dtype
def test_the_process_is_left_as_it_was(dtype):
    calls(dtype)
    before = state()
    calls(dtype)
    after = state()
    for name, value in before.items():
        assert after[name] == value, name


def test_an_import_leaves_the_process_as_it_was():
    script = """
import numpy, ml_dtypes
from run import test_process
before = test_process.state()
import importlib, sys
for name in [name for name in sys.modules if name.partition(".")[0] == "convt"]:
    del sys.modules[name]
import convt
after = test_process.state()
print([name for name in before if after[name] != before[name]])
"""
    code, out, errors = child(script)
    assert (code, out) == (0, "[]\n"), errors


_WRITES = """
import os, sys
home = sys.argv[1]
os.chdir(home)
opened = []

def note(event, given):
    if event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        opened.extend({given[0]} - {os.devnull})
    elif event in ("os.mkdir", "os.rename", "os.symlink", "os.link", "socket.connect", "socket.bind"):
        opened.append((event, given[0]))

import numpy, ml_dtypes
sys.addaudithook(note)
from run import test_process
from cases import SAMPLES, operator
import convt, convt.onnx, convt.openvino, convt.tuning
test_process.calls("float32")
case = SAMPLES["dense"]
data, filter, bias = case.arrays()
operator(case, filter, bias, backend="tune")(data)
convt.show_config(mode="dicts")
convt.clear_caches()
left = [os.path.join(folder, name) for folder, folders, files in os.walk(home) for name in (*folders, *files)]
print(opened, left)
"""


def test_nothing_is_written_and_nobody_called(tmp_path):
    """Check that no file is opened by Python's functions, and that nothing writes to the usual folders of a user."""
    package = Path(convt.__file__).parent
    before = {path: path.stat().st_mtime_ns for path in package.rglob("*")}
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), str(tmp_path))
    code, out, errors = child(_WRITES, tmp_path, PYTHONDONTWRITEBYTECODE="1", **places)
    assert (code, out.strip()) == (0, "[] []"), errors
    assert {path: path.stat().st_mtime_ns for path in package.rglob("*")} == before


# ---------------------------------------------------------------- interrupts

_INTERRUPTED = """
import os, signal, threading, time
import numpy as np, convt
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process that a shell began in the background ignores
op = convt.ConvTranspose(np.ones((5, 5, 96, 96), np.float32), backend="native")
data = np.ones((1, 128, 128, 96), np.float32)
want, wrong = op(data), 0
out = np.zeros_like(want)
came = 0
for n in range(6):
    out[...] = 0
    start = time.monotonic()
    try:
        threading.Timer(0.02 + 0.003 * n, os.kill, (os.getpid(), signal.SIGINT)).start()
        while time.monotonic() - start < 30:
            op(data, out=out)
    except KeyboardInterrupt:
        came += 1
    # The call that was running was finished, or was not begun: no part of an output is of another call.
    assert (out == want).all() or (out == 0).all()
    assert (op(data) == want).all() and (convt.conv_transpose(data[:, :9, :9], np.ones((3, 3, 96, 8), "f4")) > 0).all()
print(came)
"""


@pytest.mark.skipif(not hasattr(os, "kill"), reason="needs os.kill")
def test_an_interrupt_comes_when_a_call_returns_and_harms_nothing():
    code, out, errors = child(_INTERRUPTED, timeout=120)
    assert (code, out) == (0, "6\n"), errors[-2000:]


# ---------------------------------------------------------------- processes

_WORKERS = """
import multiprocessing, sys
import numpy as np, convt
from cases import SAMPLES, operator
from dataclasses import replace
convt.set_num_threads(2)
for dtype in ("float32", "bfloat16"):
    case = replace(SAMPLES["dense"], dtype=dtype)
    data, filter, bias = case.arrays()
    op = operator(case, filter, bias)
    want = op(data)
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        assert all(y.tobytes() == want.tobytes() for y in pool.map(op, [data] * 4))
    assert op(data).tobytes() == want.tobytes()
print("done")
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_compute_what_their_parent_computes(method):
    code, out, errors = child(_WORKERS, method, timeout=120)
    assert (code, out) == (0, "done\n"), errors[-2000:]


# ---------------------------------------------------------------- threads of other libraries

_NESTED = """
void each(int n, void (*work)(int))
{
#pragma omp parallel for num_threads(3) schedule(static, 1)
    for (int i = 0; i < n; i++)
        work(i);
}
"""


@needs_openmp
def test_calls_within_anothers_parallel_region(tmp_path):
    """Check calls from a nested parallel region, to which OpenMP gives one thread that runs all tasks."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("no GCC")
    library = tmp_path / "nested.so"
    subprocess.run([gcc, "-xc", "-", "-O1", "-fopenmp", "-fPIC", "-shared", "-o", library], input=_NESTED.encode(), check=True)
    convt.set_num_threads(2)
    made = []
    for n, dtype in enumerate(("float32", "float16", "bfloat16") * 2):
        case = replace(SAMPLES["dense"], dtype=dtype, data_format=("NXC", "NCX")[n // 3])
        data, filter, bias = case.arrays(exact=False)
        op = operator(case, filter, bias)
        made.append((op, data, filter, bias, case, op(data)))
    got = [None] * len(made)

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def work(n):
        op, data, filter, bias, case, _ = made[n]
        got[n] = op(data), run(case, data, filter, bias, backend="native")

    ctypes.CDLL(library).each(len(made), work)
    for (*_, want), pair in zip(made, got, strict=True):
        assert pair[0].tobytes() == want.tobytes() and np.isfinite(pair[1].astype(np.float32)).all()


@needs_openmp
@pytest.mark.skipif(not LINUX, reason="LD_PRELOAD needs Linux")
def test_a_preloaded_openmp_library():
    gcc = shutil.which("gcc")
    path = gcc and subprocess.run([gcc, "-print-file-name=libgomp.so.1"], capture_output=True, text=True).stdout.strip()
    if not path or not os.path.isabs(path):
        pytest.skip("no libgomp of GCC")
    script = """
import convt
from cases import SAMPLES, operator
convt.set_num_threads(2)
for case in SAMPLES.values():
    data, filter, bias = case.arrays()
    case.check(operator(case, filter, bias)(data), data, filter, bias)
print("done")
"""
    code, out, errors = child(script, LD_PRELOAD=path)
    assert (code, out) == (0, "done\n"), errors[-2000:]


_BESIDE = """
import threading
import numpy as np, torch, convt
convt.set_num_threads(2), torch.set_num_threads(2)
x, w = torch.rand(1, 32, 24, 24), torch.rand(32, 16, 4, 4)
wanted = torch.nn.functional.conv_transpose2d(x, w, stride=2)
op = convt.ConvTranspose(w.numpy(), strides=2, data_format="NCX", filter_format="IOX")
mine = op(x.numpy())
np.testing.assert_allclose(mine, wanted.numpy(), rtol=1e-4)
right = []
def ours():
    right.append(all(op(x.numpy()).tobytes() == mine.tobytes() for _ in range(30)))
def theirs():
    right.append(all(torch.allclose(torch.nn.functional.conv_transpose2d(x, w, stride=2), wanted) for _ in range(30)))
threads = [threading.Thread(target=each) for each in (ours, theirs) * 2]
[thread.start() for thread in threads], [thread.join() for thread in threads]
print(right)
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_computes_at_the_same_time():
    code, out, errors = child(_BESIDE, timeout=120)
    assert (code, out) == (0, "[True, True, True, True]\n"), errors[-2000:]
