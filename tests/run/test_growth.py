"""Tests of memory: it does not grow with calls, operators or shapes, and if an allocation fails, a call raises MemoryError and
changes nothing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cases import ROOT, child, needs_checkout


@needs_checkout
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_memory_does_not_grow():
    command = [sys.executable, ROOT / "tools/growth.py", "0.02"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


# A library that fails the n-th allocation by one of convt's modules on the calling thread, and counts the blocks that these
# modules hold.
_FAILING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

#define NEXT(result, name, ...) /* the function of the C library */ \
    static result (*next)(__VA_ARGS__); \
    if (!next) \
        next = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

enum { MOST = 1 << 12 };
static void *blocks[MOST];
static int count, lock;
static __thread long left, failures;

void fail_at(long n) { left = n, failures = 0; }
long failed(void) { left = 0; return failures; }
int held(void) { return count; }

static int ours(void *caller)
{
    Dl_info from;
    return dladdr(caller, &from) && from.dli_fname && strstr(from.dli_fname, "/convt/");
}

static int fails(void *caller)
{
    if (left <= 0 || !ours(caller)) /* allocations by NumPy do not fail */
        return 0;
    failures += --left == 0;
    return left == 0;
}

static void change(void *block, int taken)
{
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
        ;
    if (taken && count < MOST)
        blocks[count++] = block;
    for (int i = 0; !taken && i < count; i++)
        if (blocks[i] == block)
            blocks[i--] = blocks[--count];
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
}

void *malloc(size_t size)
{
    NEXT(void *, "malloc", size_t);
    return fails(__builtin_return_address(0)) ? NULL : next(size);
}

void *calloc(size_t n, size_t size)
{
    NEXT(void *, "calloc", size_t, size_t);
    return fails(__builtin_return_address(0)) ? NULL : next(n, size);
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
    NEXT(int, "posix_memalign", void **, size_t, size_t);
    const int failure = fails(__builtin_return_address(0)) ? ENOMEM : next(out, alignment, size);
    if (!failure && ours(__builtin_return_address(0)))
        change(*out, 1);
    return failure;
}

void free(void *block)
{
    NEXT(void, "free", void *);
    if (block && count)
        change(block, 0);
    next(block);
}
"""

_CALLS = """
import ctypes, itertools, sys, traceback
from dataclasses import replace
import numpy as np, convt
from convt._run import memory
from convt._plan import plans
from cases import SAMPLES, operator, run

library = ctypes.PyDLL(None)

def held():
    convt.clear_caches()
    assert memory.kept_bytes() == 0
    return library.held()

def attempts(case, call, given):
    data, filter, bias = case.arrays()
    want = call(case, data, filter, bias)(None).tobytes()  # imports what is imported when it is needed, too
    like = np.empty(case.out_shape, data.dtype)
    failed = 0
    for n in itertools.count(1):  # until a call gets all it wants
        out = like.copy() if given else None
        if given:
            out.view(np.uint8)[...] = 0xA5
        before, error = held(), None
        made = call(case, data, filter, bias)
        library.fail_at(ctypes.c_long(n))
        try:
            result = made(out)
        except MemoryError:
            error = traceback.format_exc()
        finally:
            came = library.failed()
        if error is None:
            assert result.tobytes() == want
            if not came:
                return failed
            continue  # what was asked for in vain was not needed
        failed += 1
        assert out is None or (out.view(np.uint8) == 0xA5).all(), (n, error)
        assert made(out).tobytes() == want
        del made
        assert held() == before, (n, held(), before, error)

def of_operator(case, data, filter, bias, **more):
    op = operator(case, filter, bias, **more)
    return lambda out: op(data, out=out)

# What is called while memory fails, and how often it has to ask at least: for an operator's weights and a workspace, a
# workspace alone, what a call keeps of the weights that it brings.
CALLS = {
    "made": (2, lambda case, *arrays, **more: lambda out: of_operator(case, *arrays, **more)(out)),
    "planned": (1, of_operator),
    "one-shot": (1, lambda case, *arrays, **more: lambda out: run(case, *arrays, out=out, backend="native", **more)),
}
convt.set_num_threads(2)
case = replace(SAMPLES[sys.argv[1]], dtype=sys.argv[2], data_format=sys.argv[3], batch=1)
data, filter, bias = case.arrays()
case.check(run(case, data, filter, bias), data, filter, bias)
found = []
for algorithm in ("auto", *plans.ALGORITHMS):
    for name, (least, call) in CALLS.items():
        for given in (True, False):
            here = lambda *arguments: call(*arguments, algorithm=algorithm)
            try:
                failed = attempts(case, here, given)
            except ValueError as error:
                assert str(error).startswith("algorithm: got")
                continue
            assert failed >= least, (algorithm, name, failed)
            found.append(algorithm)
print(*dict.fromkeys(found))
"""


@pytest.mark.parametrize("name, dtype, data_format", [
    ("dense", "float32", "NXC"), ("dense", "bfloat16", "NCX"), ("depthwise", "float16", "NXC"), ("depthwise", "float32", "NXC"),
    ("depthwise", "float64", "NCX"), ("deep", "float32", "NCX"),
])  # fmt: skip
def test_a_call_without_memory_fails_whole(name, dtype, data_format, tmp_path):
    """Check every allocation of a call and of its packing, for every algorithm. If it fails, the call raises MemoryError, `out`
    is unchanged, no block leaks, and the next call is right."""
    gcc = shutil.which("gcc")
    if gcc is None or sys.platform != "linux":
        pytest.skip("needs GCC and Linux")
    library = tmp_path / "failing.so"
    subprocess.run([gcc, "-xc", "-", "-O1", "-fPIC", "-shared", "-o", library, "-ldl"], input=_FAILING, text=True, check=True)
    code, out, errors = child(_CALLS, name, dtype, data_format, timeout=600, LD_PRELOAD=str(library))
    assert code == 0 and len(out.split()) > 2, (out, errors[-3000:])


_OBJECTS = """
import sys
from dataclasses import replace
import _testcapi, numpy as np, convt
from cases import SAMPLES, operator, run

convt.set_num_threads(2)
case = replace(SAMPLES["dense"], data_format=sys.argv[1], batch=1)
data, filter, bias = case.arrays()
op = operator(case, filter, bias)
out = np.empty(case.out_shape, data.dtype)
calls = {
    "planned": lambda: op(data, out=out),
    "planned, new output": lambda: op(data),
    "repeated": lambda: run(case, data, filter, bias, out=out, backend="native"),
}
for name, call in calls.items():
    want, failed = call().tobytes(), 0
    for n in range(1, 60):
        out.view(np.uint8)[...] = 0xA5
        result = None
        _testcapi.set_nomemory(n, n + 1)
        try:
            result = call()
        except MemoryError:
            failed += 1
        finally:
            _testcapi.remove_mem_hooks()
        if result is None:
            assert (out.view(np.uint8) == 0xA5).all() or out.tobytes() == want, (name, n)
        else:
            assert result.tobytes() == want, (name, n)
        assert call().tobytes() == want, (name, n)
    assert failed, name
print("done")
"""


@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_a_call_without_memory_for_an_object_fails_whole(data_format):
    """Check failures of the n-th allocation by Python, in calls that need only a few."""
    pytest.importorskip("_testcapi")
    code, out, errors = child(_OBJECTS, data_format, timeout=200)
    assert (code, out, errors) == (0, "done\n", ""), errors[-3000:]
