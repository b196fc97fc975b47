"""Tests of the optional oneDNN backend: its results, the problems it refuses, the search for the library, threads, and the
effect on other code in the process. Results are compared with the float64 definition in cases.py and with the native
backend."""

import importlib.metadata
import os
import pickle
import re
import shutil
import subprocess
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from cases import (
    CURVED_ACTIVATIONS,
    EXACT_ACTIVATIONS,
    INPUT_MEMORY,
    MEMORY,
    ROOT,
    Case,
    Out,
    cases,
    child,
    copy_in,
    in_threads,
    matrix_unit,
    needs_checkout,
    onednn_has,
    operator,
    run,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import convt
from convt import _core
from convt._base.activation import ACTIVATIONS
from convt._base.dtypes import COMPUTED
from convt._plan import choose
from convt._run import config
from convt.algorithms.onednn import library, primitive

HERE = library.available()
needs_onednn = pytest.mark.skipif(not HERE, reason=f"oneDNN {library.describe()}")


def python(code, **environment):
    """Run code in a process of its own and return its standard output."""
    status, out, errors = child(textwrap.dedent(code), timeout=300, **environment)
    assert status == 0, errors
    return out


# ---------------------------------------------------------------- results


@needs_onednn
@given(
    cases(activations=(*EXACT_ACTIVATIONS, *CURVED_ACTIVATIONS)),
    st.tuples(*[st.sampled_from(["contiguous", *INPUT_MEMORY])] * 2, st.sampled_from(["contiguous", *MEMORY])),
)
@settings(max_examples=300)
def test_agrees_with_the_definition_in_any_memory(case, memory):
    data, filter, bias = case.arrays(exact=case.activation in EXACT_ACTIVATIONS)
    data, filter = copy_in(memory[0], data), copy_in(memory[1], filter)
    out = Out(memory[2], np.zeros(case.out_shape, case.numpy_dtype))
    try:
        run(case, data, filter, bias, backend="onednn", out=out.view)
    except convt.BackendUnavailableError as error:
        assert re.search(r"oneDNN|can't do this problem", str(error)) and "wanted" in str(error)
        out.assert_untouched()
        assume(False)
    case.check(np.array(out.view), data, filter, bias, exact=case.activation in EXACT_ACTIVATIONS)
    out.assert_only_elements_written()


def needs_dtype(dtype):
    """Skip the test if oneDNN has no deconvolution of a dtype for the instruction set that it found."""
    if not onednn_has(str(dtype)):
        pytest.skip(f"oneDNN has no {dtype} for {library.opened()['isa']}")


@needs_onednn
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("sizes", "ci"), [((9,), 2048), ((4, 3), 1024), ((3, 3, 2), 512)], ids=["1d", "2d", "3d"])
def test_bias_and_activation_are_applied_once_where_the_depth_is_large(sizes, ci, dtype, bias, activation):
    """Check depths for which oneDNN divides the taps into blocks. Whole numbers make any sum exact."""
    needs_dtype(dtype)
    case = Case(
        dtype=dtype, ci=ci, co=64, in_sizes=sizes, kernel=4, strides=2, pads_begin=1, pads_end=1, bias=bias,
        activation=activation,
    )  # fmt: skip
    arrays = case.arrays()
    op = operator(case, *arrays[1:], backend="onednn")
    for got in (op(arrays[0]), op(arrays[0]), run(case, *arrays, backend="onednn")):
        case.check(got, *arrays)


@needs_onednn
@given(cases(activations=(*EXACT_ACTIVATIONS, *CURVED_ACTIVATIONS)), st.integers(0, 2**32), st.booleans())
def test_nan_and_infinity_stay_in_place_or_are_refused(case, seed, in_filter):
    data, filter, bias = case.arrays()
    place = filter if in_filter else data
    assume(place.size)
    rng = np.random.default_rng(seed)
    place[tuple(rng.integers(0, n) for n in place.shape)] = rng.choice([np.nan, np.inf, -np.inf])
    try:
        got, want = run(case, data, filter, bias, backend="onednn"), case.expected(data, filter, bias)
    except convt.BackendUnavailableError:
        assume(False)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))


@needs_onednn
def test_what_oneDNN_can_not_do_in_place_is_refused_before_anything_is_written():
    data, filter = np.full((1, 4, 4, 8), np.nan, np.float32), np.ones((2, 2, 8, 8), np.float32)
    op = convt.ConvTranspose(filter, strides=2, activation="relu", backend="onednn")
    out = np.full((1, 8, 8, 8), 5, np.float32)
    for _ in range(2):  # the second call takes the fast path of repeated calls
        with pytest.raises(convt.BackendUnavailableError, match="NaN or infinity"):
            op(data, out=out)
        assert (out == 5).all()
        op(np.ones_like(data), out=out.copy())


@needs_onednn
def test_a_refusal_of_its_own_is_in_its_own_words():
    said = python(
        """
    import numpy as np, convt, ml_dtypes
    data, filter = (np.ones(s, ml_dtypes.bfloat16) for s in [(1, 9, 9, 8), (2, 2, 8, 8)])
    try:
        convt.conv_transpose(data, filter, backend="onednn")
    except convt.BackendUnavailableError as error:
        print(error)
    """,
        ONEDNN_MAX_CPU_ISA="SSE41",
    )
    assert re.match(r"backend: oneDNN 3\.\S+ says 'unimplemented' to .* for bfloat16 mb1 .*; wanted 'auto' or 'native'", said)


@needs_onednn
@pytest.mark.parametrize(("case", "reason"), [
    (dict(dtype=np.float64), "no float64"), (dict(rank=4), "at most 3 spatial axes"),
    (dict(size=0, output_padding=3), "empty input"), (dict(output_padding=2), "end pads"),
])  # fmt: skip
def test_refuses_with_a_reason(case, reason):
    rank, size = case.get("rank", 2), case.get("size", 3)
    data, filter = (np.ones(s, case.get("dtype", np.float32)) for s in [(1, *[size] * rank, 2), (*[2] * rank, 2, 2)])
    options = {"strides": 2, "output_padding": case.get("output_padding", 0)}
    with pytest.raises(convt.BackendUnavailableError, match=f"backend: 'onednn'.*{reason}.*wanted 'auto' or 'native'"):
        convt.conv_transpose(data, filter, backend="onednn", **options)
    with pytest.raises(convt.BackendUnavailableError, match=reason):
        convt.ConvTranspose(filter, backend="onednn", **options)(data)
    convt.conv_transpose(data, filter, **options)


# ---------------------------------------------------------------- operators


@needs_onednn
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize("dtype", [each.dtype.name for each in COMPUTED if each.onednn])
def test_operator(dtype, data_format):
    case = Case(
        dtype=dtype, batch=2, ci=32, co=24, in_sizes=(5, 5), kernel=4, strides=2, pads_begin=1, pads_end=1,
        data_format=data_format,
    )  # fmt: skip
    _, filter, bias = case.arrays(exact=False)
    op = operator(case, filter, bias, backend="onednn")
    needs_dtype(dtype)
    copy = pickle.loads(pickle.dumps(op))
    for size in (5, 6, 5):
        now = replace(case, in_sizes=(size, size))
        data = now.arrays(exact=False)[0]
        got = op(data)
        now.check(got, data, filter, bias, exact=False)
        np.testing.assert_array_equal(copy(data), got)
        np.testing.assert_array_equal(run(now, data, filter, bias, backend="onednn"), got)
    plan = op.plan(data.shape)
    assert plan.backend == "onednn" and plan.algorithm and plan.packed_bytes >= filter.nbytes
    assert plan.isa == library.opened()["isa"]


@needs_onednn
def test_an_activation_that_it_lacks_is_refused(monkeypatch):
    monkeypatch.setitem(ACTIVATIONS, "swish", ACTIVATIONS["swish"]._replace(onednn=None))
    data, filter = np.ones((1, 4, 4, 8), np.float32), np.ones((2, 2, 8, 8), np.float32)
    with pytest.raises(convt.BackendUnavailableError, match="it has no activation swish"):
        convt.conv_transpose(data, filter, activation="swish", backend="onednn")


@needs_onednn
def test_many_threads_at_once():
    rng = np.random.default_rng(0)
    op = convt.ConvTranspose(rng.uniform(-1, 1, (3, 3, 20, 20)).astype(np.float32), strides=2, backend="onednn")
    data = [rng.uniform(-1, 1, (1, n, n, 20)).astype(np.float32) for n in (6, 7, 8, 9)]
    want = [op(x) for x in data]

    def work(n):
        return all(np.array_equal(op(data[(n + i) % 4]), want[(n + i) % 4]) for i in range(60))

    assert all(in_threads(work, 6))


@needs_onednn
def test_primitives_are_cached_and_bounded():
    data, filter = np.ones((1, 4, 4, 8), np.float32), np.ones((2, 2, 8, 8), np.float32)
    try:
        primitive.set_capacity(2)
        for stride in (1, 2, 3, 4):
            convt.conv_transpose(data, filter, strides=stride, backend="onednn")
        assert len(primitive._primitives) == 2
        primitive.set_capacity(0)
        assert not primitive._primitives
        convt.conv_transpose(data, filter, backend="onednn")
        with pytest.raises(ValueError, match="n: got -1"):
            primitive.set_capacity(-1)
    finally:
        primitive.set_capacity(256)


@needs_onednn
def test_overhead_of_a_planned_call():
    data, filter = np.ones((1, 1, 1, 16), np.float32), np.ones((1, 1, 16, 16), np.float32)
    with convt.num_threads(1):
        op = convt.ConvTranspose(filter, backend="onednn")
        out = op(data)
        best = min(_seconds(lambda: op(data, out=out), 500) for _ in range(20))
    assert best < 50e-6  # the target is a few microseconds; this catches tens


def _seconds(call, count):
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


# ---------------------------------------------------------------- threads, in processes of their own

LAYER = """
    import os, numpy as np, convt
    from convt.algorithms.onednn import library
    count = lambda: len(os.listdir("/proc/self/task"))
    data, filter = np.ones((2, 16, 16, 64), np.float32), np.ones((4, 4, 64, 64), np.float32)
"""


@needs_onednn
def test_threads_start_at_the_first_call_and_are_as_many_as_asked():
    python(
        LAYER
        + """
    before = count()
    convt.show_config(mode="dicts")
    assert library.available() and count() == before
    op = convt.ConvTranspose(filter, strides=2, backend="onednn")
    assert count() == before
    with convt.num_threads(1):
        one = op(data)
        assert op.plan(data.shape).threads == 1 and count() == before, count()
    with convt.num_threads(3):
        three = op(data)
        assert op.plan(data.shape).threads == 3 and count() == before + 2, count()
    np.testing.assert_allclose(three, one, rtol=1e-6)
    """
    )


@needs_onednn
def test_a_forked_child_computes():
    python(
        LAYER
        + """
    convt.set_num_threads(2)
    op = convt.ConvTranspose(filter, strides=2, backend="onednn")
    want = op(data)
    child = os.fork()
    if child == 0:
        fine = np.array_equal(op(data), want) and op.plan(data.shape).threads == 1
        fine = fine and convt.ConvTranspose(filter, strides=3, backend="onednn")(data).size > 0
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert np.array_equal(op(data), want)
    """
    )


def test_only_calls_that_name_it_open_the_library():
    python(
        """
    import numpy as np, convt, ml_dtypes
    opened = lambda: "libdnnl" in open("/proc/self/maps").read()
    assert not opened()
    data, filter = np.ones((1, 40, 40, 64), ml_dtypes.bfloat16), np.ones((2, 2, 64, 64), ml_dtypes.bfloat16)
    convt.ConvTranspose(filter, strides=2, backend="native")(data)
    convt.conv_transpose(data, filter, strides=2)  # auto, but for one call
    assert not opened()
    """
    )


# ---------------------------------------------------------------- finding the library

MISSING = """
    import numpy as np, convt
    data, filter = np.ones((1, 40, 40, 64), np.float32), np.ones((2, 2, 64, 64), np.float32)
    import ml_dtypes
    for dtype in (np.float32, ml_dtypes.bfloat16):
        for backend in ("auto", "tune"):
            op = convt.ConvTranspose(filter.astype(dtype), strides=2, backend=backend)
            assert op(data.astype(dtype)).shape == (1, 80, 80, 64) and op.plan(data.shape).backend == "native"
    for call in (convt.ConvTranspose, lambda *a, **k: convt.conv_transpose(data, *a, **k)):
        try:
            call(filter, backend="onednn")
        except convt.BackendUnavailableError as error:
            print(error)
        else:
            raise AssertionError("no error")
    print(convt.show_config(mode="dicts")["backends"]["onednn"])
"""


def test_without_the_wheel():
    """Check a process that does not find the wheel. It may still find a system's libdnnl."""
    said = python(
        """
    import importlib.metadata, sys
    import convt, numpy as np
    importlib.metadata.files, sys.prefix = lambda name: None, "/nowhere"
    try:
        convt.conv_transpose(np.ones((1, 3, 2), "f"), np.ones((2, 2, 2), "f"), backend="onednn")
    except convt.BackendUnavailableError as error:
        print(error)
    """
    )
    assert not said or re.match(r"backend: got 'onednn', but libdnnl.so.3: .*pip install onednn-cpu-gomp", said)


def errors_with(path):
    lines = python(MISSING, CONVT_ONEDNN_LIB=str(path)).splitlines()
    assert len(lines) == 3 and lines[0] == lines[1] and lines[2] == f"not available: {lines[0]}"
    assert lines[0].startswith("CONVT_ONEDNN_LIB: ") and "pip install onednn-cpu-gomp" in lines[0]
    return lines[0]


def test_the_error_of_a_missing_library_keeps_no_array_of_its_callers(tmp_path):
    """An exception that is kept to be raised again would keep the frames of the call that failed first."""
    code = """
    import weakref, numpy as np, convt
    def call():
        data, filter = np.ones((1, 3, 2), "f"), np.ones((2, 2, 2), "f")
        try:
            convt.conv_transpose(data, filter, backend="onednn")
        except convt.BackendUnavailableError:
            pass
        return weakref.ref(data), weakref.ref(filter)
    print([each() is None for each in call()])
    """
    assert python(code, CONVT_ONEDNN_LIB=str(tmp_path / "libdnnl.so.3")).split() == ["[True,", "True]"]


@pytest.mark.parametrize(
    ("contents", "why"),
    [(None, "No such file"), (b"not a library" * 99, "invalid ELF header"), (b"", "too short")],
    ids=["missing", "text", "empty"],
)
def test_a_file_that_is_no_library(contents, why, tmp_path):
    path = tmp_path / "libdnnl.so.3"
    if contents is not None:
        path.write_bytes(contents)
    assert why in errors_with(path)


def damaged(how):
    whole = Path(library.opened()["path"]).read_bytes()
    size = len(whole)
    if how == "cut":
        return [whole[: int(share * size)] for share in (0.001, 0.3, 0.6)]
    if how == "zeros":
        return [whole[: size // 10] + bytes(size - size // 10), whole[: size // 2] + bytes(size - size // 2)]
    changed = bytearray(whole)
    for place in np.random.default_rng(0).integers(4096, size, 2000):
        changed[place] ^= 255
    return [bytes(changed)]


@needs_onednn
@pytest.mark.parametrize("how", ["cut", "zeros", "changed"])
def test_a_damaged_file(tmp_path, how):
    path = tmp_path / "libdnnl.so.3"
    for contents in damaged(how):
        path.write_bytes(contents)
        assert re.search("is damaged: .* ended with|too short|invalid|cannot", errors_with(path))


COMPILER = shutil.which(os.environ.get("CC", "cc"))
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


def compiled(folder, source, *flags):
    """Compile C source to a shared library."""
    (folder / "source.c").write_text(textwrap.dedent(source))
    path = folder / "libdnnl.so.3"
    command = [COMPILER, "-shared", "-fPIC", "-o", str(path), str(folder / "source.c"), *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


VERSION = """
    #include "onednn_api.h"
    const onednn_version *dnnl_version(void) {{
        static const onednn_version version = {{{major}, 7, 1, "", {runtime}, 0}};
        return &version;
    }}
"""


@needs_checkout
@needs_compiler
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("int nothing;", "undefined symbol: dnnl_version"),
        (VERSION.format(major=2, runtime=2), "is oneDNN 2.7.1; wanted oneDNN 3.x"),
        (VERSION.format(major=3, runtime=2), "undefined symbol: dnnl_get_effective_cpu_isa"),
    ],
    ids=["another library", "version 2", "a part of it"],
)
def test_a_wrong_library(tmp_path, source, words):
    assert words in errors_with(compiled(tmp_path, source, f"-I{ROOT / 'third_party/onednn'}"))


# ---------------------------------------------------------------- choosing


@needs_onednn
def test_auto_takes_it_for_bfloat16_on_amx(monkeypatch):
    data, filter = (np.ones(s, ml_dtypes.bfloat16) for s in [(1, 32, 32, 64), (4, 4, 64, 64)])
    monkeypatch.setattr(choose, "native", lambda *_: "scatter:amx" if matrix_unit("bfloat16") else "scatter:vectors")
    op = convt.ConvTranspose(filter, strides=2)
    amx = "amx" in library.opened()["isa"] and matrix_unit("bfloat16")  # a build may have no AMX
    unasked = _core.isa() == config.preferred_isa()  # if CONVT_ISA names another one, oneDNN would ignore it
    assert op.plan(data.shape).backend == ("onednn" if amx and unasked else "native")
    native = convt.ConvTranspose(filter, strides=2, backend="native")
    for value in (1, np.nan, np.nan):  # NaN and infinity are computed natively
        data[0, 5, 5, 5] = value
        np.testing.assert_array_equal(op(data).astype(np.float32), native(data).astype(np.float32))
    assert convt.ConvTranspose(filter.astype(np.float32), strides=2).plan(data.shape).backend == "native"


LAYER_OF_THE_CLASS = dict(sizes=(16, 16), ci=32, co=16, kernel=4, groups=1, strides=2, pads_begin=1, pads_end=1)


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        ({}, True),
        ({"co": 15, "sizes": (64, 64)}, False),
        ({"sizes": (16,)}, False),  # too little work
        ({"sizes": (512,), "ci": 64, "co": 64}, True),
        ({"sizes": (8, 8, 8)}, False),
        ({"ci": 8, "sizes": (32, 32)}, False),
        ({"sizes": (8, 8)}, False),  # too little work
        ({"sizes": (1, 8), "ci": 128, "co": 64}, False),
        ({"groups": 2, "ci": 64}, False),
        ({"dilations": 2}, False),
        ({"kernel": 17}, False),
        ({"pads_begin": 4}, False),
        ({"pads_end": 4}, False),
        ({"data_format": "NCX"}, False),
        ({"algorithm": "direct"}, False),
        ({"backend": "native"}, False),
    ],
)
def test_the_class_that_auto_gives_it(change, taken, monkeypatch):
    """Check the choice as on a CPU with AMX and with the library, whatever this machine has."""
    monkeypatch.setattr(library, "opened", lambda: {"isa": "avx512_core_amx"})
    monkeypatch.setattr(primitive, "can", lambda problem: True)
    monkeypatch.setattr(config, "preferred_isa", _core.isa)
    monkeypatch.setattr(choose, "native", lambda *_: "scatter:amx")
    layer = {**LAYER_OF_THE_CLASS, **change}
    sizes, ci, co, kernel = (layer.pop(name) for name in ("sizes", "ci", "co", "kernel"))
    for dtype in (ml_dtypes.bfloat16, np.float32, np.float16):
        op = convt.ConvTranspose(np.ones((*[kernel] * len(sizes), ci, co), dtype), **layer)
        shape = (1, ci, *sizes) if layer.get("data_format") == "NCX" else (1, *sizes, ci)
        name = choose.choose(op._plans, op._attributes.problem(shape))[0]
        assert (name == "onednn") == (taken and dtype is ml_dtypes.bfloat16)


# ---------------------------------------------------------------- declarations

CHECK = """
    #include "oneapi/dnnl/dnnl.h"
    #include "onednn_api.h"

    #define SAME(name, value) _Static_assert((unsigned)(name) == ONEDNN_##name && ONEDNN_##name == value, #name);
    ONEDNN_CONSTANTS(SAME)

    #define FIELD(ours, theirs, field) \\
        _Static_assert(offsetof(ours, field) == offsetof(theirs, field), #field); \\
        _Static_assert(sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->field), #field);
    FIELD(onednn_version, dnnl_version_t, major)
    FIELD(onednn_version, dnnl_version_t, minor)
    FIELD(onednn_version, dnnl_version_t, patch)
    FIELD(onednn_version, dnnl_version_t, hash)
    FIELD(onednn_version, dnnl_version_t, cpu_runtime)
    FIELD(onednn_version, dnnl_version_t, gpu_runtime)
    FIELD(onednn_exec_arg, dnnl_exec_arg_t, arg)
    FIELD(onednn_exec_arg, dnnl_exec_arg_t, memory)
    _Static_assert(sizeof(onednn_version) == sizeof(dnnl_version_t), "version");
    _Static_assert(sizeof(onednn_exec_arg) == sizeof(dnnl_exec_arg_t), "argument");
    _Static_assert(sizeof(onednn_dims) == sizeof(dnnl_dims_t), "dims");

    /* The structures agree; their names may now stand for one another, so that the functions can be compared. */
    #define onednn_version dnnl_version_t
    #define onednn_exec_arg dnnl_exec_arg_t
    #define DECLARED(result, name, parameters) result (*check_##name) parameters = name;
    ONEDNN_ENTRY_POINTS(DECLARED)
"""
NUMBERS = {f"eltwise_{each.onednn}": each.onednn_kind for each in ACTIVATIONS.values() if each.onednn}
NUMBERS |= dict(zip(("f32", None, "f16", "bf16"), [each.onednn for each in COMPUTED], strict=True))
TABLES = "".join(f'_Static_assert(dnnl_{name} == {number}, "");\n' for name, number in NUMBERS.items() if name)


def headers():
    """Return the folder of the real headers, or None."""
    try:
        files = importlib.metadata.files("onednn-devel-cpu-gomp") or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [Path(f.locate()) for f in files if f.as_posix().endswith("include/oneapi/dnnl/dnnl.h")]
    return next((path.resolve().parents[2] for path in found if path.exists()), None)


def agreement(folder, text):
    (folder / "onednn_api.h").write_text(text)
    (folder / "check.c").write_text(textwrap.dedent(CHECK) + TABLES)
    command = [COMPILER, "-std=c11", "-fsyntax-only", "-Werror", f"-I{folder}", f"-I{headers()}", str(folder / "check.c")]
    return subprocess.run(command, capture_output=True, text=True)


@needs_checkout
@needs_compiler
@pytest.mark.skipif(headers() is None, reason="the wheel onednn-devel-cpu-gomp is not installed")
def test_declarations_agree_with_the_real_headers(tmp_path):
    text = (ROOT / "third_party/onednn/onednn_api.h").read_text()
    done = agreement(tmp_path, text)
    assert done.returncode == 0, done.stderr
    # Check the check itself: a wrong value, parameter and structure are each found.
    for right, wrong in [
        ("F(dnnl_cpu, 1)", "F(dnnl_cpu, 4)"),
        ("(onednn_stream stream))", "(onednn_engine stream))"),
        ("float alpha, float beta", "double alpha, float beta"),
        ("int major, minor, patch;", "int major, minor;"),
    ]:
        assert right in text
        assert agreement(tmp_path, text.replace(right, wrong, 1)).returncode != 0, wrong
