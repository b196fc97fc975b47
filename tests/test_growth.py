"""Memory: it does not grow with calls, operators or shapes; where it can't be had, a call fails whole."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cases import child

ROOT = Path(__file__).parents[1]
GROWTH = ROOT / "tools" / "growth.py"


@pytest.mark.skipif(not (GROWTH.exists() and Path("/proc/self/statm").exists()), reason="no checkout, or not Linux")
def test_memory_does_not_grow():
    done = subprocess.run([sys.executable, GROWTH, "0.02"], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


# Fails the n-th request for memory that comes from one of convt's modules, on the thread that asked for it.
_FAILING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_memalign(size_t, size_t);

static __thread long left, failures;

void fail_at(long n) { left = n, failures = 0; }
long failed(void) { left = 0; return failures; }

static int fails(void *caller)
{
    Dl_info from;
    if (left <= 0 || !dladdr(caller, &from) || !from.dli_fname)
        return 0;
    if (!strstr(from.dli_fname, "/convt/")) /* (NumPy's own handling of failures is not ours to test) */
        return 0;
    failures += --left == 0;
    return left == 0;
}

void *malloc(size_t size) { return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size); }
int posix_memalign(void **out, size_t alignment, size_t size)
{
    if (fails(__builtin_return_address(0)) || !(*out = __libc_memalign(alignment, size)))
        return ENOMEM;
    return 0;
}
"""

_CALLS = """
import ctypes, gc, itertools, sys, traceback
from dataclasses import replace
import numpy as np, convt
from convt import _memory
from cases import SAMPLES, operator, run

library = ctypes.PyDLL(None)

def attempts(case, call):
    data, filter, bias = case.arrays()
    want = case.expected(data, filter, bias).astype(data.dtype)
    out = np.empty(want.shape, want.dtype)
    failed = 0
    for n in itertools.count(1):  # until a call gets all it wants
        out.view(np.uint8)[...] = 0xA5
        convt.clear_caches()
        made = call(case, data, filter, bias)
        error = None
        library.fail_at(ctypes.c_long(n))
        try:
            made(out)
        except MemoryError as raised:
            error, raised_at = type(raised), traceback.format_exc()
        finally:
            came = library.failed()
        if error is None:
            assert (out == want).all()
            if not came:
                return failed
            continue  # what was asked for in vain was not needed
        assert (out.view(np.uint8) == 0xA5).all(), (n, made, raised_at)
        failed += 1
        made(out)
        assert (out == want).all()

calls = {
    "operator": lambda case, data, filter, bias: lambda out: operator(case, filter, bias)(data, out=out),
    "call": lambda case, data, filter, bias: (lambda op: lambda out: op(data, out=out))(operator(case, filter, bias)),
    "function": lambda case, data, filter, bias: lambda out: run(case, data, filter, bias, out=out, backend="native"),
}
convt.set_num_threads(2)
case = replace(SAMPLES[sys.argv[1]], dtype=sys.argv[2], data_format=sys.argv[3], batch=1)
found = {}
for name, call in calls.items():
    call(case, *case.arrays())(None)  # imports what is imported when it is needed
    found[name] = attempts(case, call)
del call
gc.collect()
convt.clear_caches()
assert _memory.kept_bytes() == 0
# An operator's weights and a workspace, or a workspace alone, or what a call keeps of the weights that it brings.
assert found["operator"] >= 2 and found["call"] >= 1 and found["function"] >= 1, found
print("done")
"""


@pytest.mark.parametrize("name, dtype, data_format", [
    ("dense", "float32", "NXC"), ("dense", "bfloat16", "NCX"), ("depthwise", "float16", "NXC"), ("deep", "float32", "NCX"),
])  # fmt: skip
def test_a_call_without_memory_fails_whole(name, dtype, data_format, tmp_path):
    """Wherever a call or its packing asks for memory: MemoryError, `out` as it was, and the next call is right."""
    gcc = shutil.which("gcc")
    if gcc is None or sys.platform != "linux":
        pytest.skip("no GCC, or not Linux")
    library = tmp_path / "failing.so"
    done = subprocess.run(
        [gcc, "-xc", "-", "-O1", "-fPIC", "-shared", "-o", library, "-ldl"], input=_FAILING, text=True, capture_output=True
    )
    if done.returncode:
        pytest.skip("this C library has no such functions to stand in for")
    code, out, errors = child(_CALLS, name, dtype, data_format, timeout=200, LD_PRELOAD=str(library))
    assert (code, out) == (0, "done\n"), errors[-3000:]
