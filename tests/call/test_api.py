"""Tests of the public API apart from the numbers: ``out``, operators, threads, forks, DLPack and other arrays, environment
variables, configuration, memory, and imports. Results are compared with the float64 definition in cases.py."""

import copy
import doctest
import gc
import inspect
import math
import os
import pickle
import re
import weakref
from dataclasses import replace

import numpy as np
import pytest
from cases import (
    ALL_DTYPES,
    DTYPES,
    SAMPLES,
    assert_same,
    child,
    each_dtype,
    each_sample,
    in_threads,
    matrix_unit,
    operator,
    run,
    switching_often,
    using_isa,
)

import convt
from convt._call import api
from convt._plan import choose, keep
from convt._plan import plans as _plan

f32 = np.float32
DENSE = SAMPLES["dense"]


# ---------------------------------------------------------------- out


@each_dtype
@each_sample
def test_out_is_written_in_place_and_returned(case, dtype):
    case = replace(case, dtype=dtype)
    arrays = case.arrays()
    want = run(case, *arrays)
    op = operator(case, *arrays[1:])
    for call in (lambda out: run(case, *arrays, out=out), lambda out: op(arrays[0], out=out), lambda out: op(arrays[0], out)):
        out = np.full_like(want, np.nan)
        for _ in range(3):  # later calls take the fast path, the first one checks everything
            address = out.ctypes.data
            assert call(out) is out and out.ctypes.data == address
            assert out.tobytes() == want.tobytes()
            out[...] = np.nan


def test_a_result_is_new_memory_every_time():
    arrays = DENSE.arrays()
    op = operator(DENSE, *arrays[1:])
    results = [f() for f in [lambda: run(DENSE, *arrays), lambda: op(arrays[0])] * 3]
    for n, result in enumerate(results):
        assert not any(np.shares_memory(result, other) for other in results[:n])
        assert result.flags.c_contiguous and result.flags.writeable and result.flags.aligned
        assert result.ctypes.data % 64 == 0  # aligned for any size; otherwise threads would share cache lines


@pytest.mark.parametrize("dtype, other", [
    ("float32", lambda a: a.astype(np.int32)), ("float32", lambda a: a.view(">f4")), ("float32", lambda a: a.view(np.uint32)),
    ("float32", lambda a: a.astype(np.float64)), ("float16", lambda a: a.view(DTYPES["bfloat16"][0])),
    ("bfloat16", lambda a: a.view(np.float16)),
])  # fmt: skip
def test_a_good_call_makes_no_bad_one_pass(dtype, other):
    """Check that the fast path of repeated calls does not accept equal shape and strides with another dtype."""
    case = replace(DENSE, dtype=dtype)
    arrays = dict(zip(("data", "filter", "bias"), case.arrays(), strict=True))
    op = operator(case, arrays["filter"], arrays["bias"])
    out = run(case, *arrays.values())
    for _ in range(2):
        run(case, *arrays.values(), out=out)
        op(arrays["data"], out)
        for name in arrays:
            wrong = other(arrays[name])
            named = "bias" if name == "filter" and wrong.dtype in ALL_DTYPES else name  # bias is checked first
            with pytest.raises(TypeError, match=f"^{named}: got"):
                run(case, *{**arrays, name: wrong}.values())
        with pytest.raises(TypeError, match=r"^data: got"):
            op(other(arrays["data"]))
        for call in (lambda out: op(arrays["data"], out), lambda out: run(case, *arrays.values(), out=out)):
            with pytest.raises(TypeError, match=r"^out: got"):
                call(other(out))


# ---------------------------------------------------------------- operators


def test_filter_and_bias_are_copied_by_an_operator_and_read_afresh_by_the_function():
    data, filter, bias = DENSE.arrays()
    op = operator(DENSE, filter, bias)
    before = op(data)
    DENSE.check(run(DENSE, data, filter, bias), data, filter, bias)
    filter += 1
    bias -= 2
    assert op(data).tobytes() == before.tobytes()
    assert op(data[:1]).tobytes() == before[:1].tobytes()
    for _ in range(3):  # new values in the same arrays
        filter += 1
        DENSE.check(run(DENSE, data, filter, bias), data, filter, bias)
    filter[0, 0, 0, 0] = np.nan
    DENSE.check(run(DENSE, data, filter, bias), data, filter, bias)
    filter[0, 0, 0, 0] = 1
    DENSE.check(run(DENSE, data, filter, bias), data, filter, bias)


@each_dtype
@each_sample
def test_pickle_and_copy_round_trip(case, dtype):
    case = replace(case, dtype=dtype, data_format="NCX", filter_format="GIOX", activation=("clip", -7, 9.5), auto_pad="valid")
    data, filter, bias = case.arrays()
    op = operator(case, filter, bias)
    want = op(data)
    for other in (
        *(pickle.loads(pickle.dumps(op, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)),
        copy.copy(op), copy.deepcopy(op), pickle.loads(pickle.dumps(operator(case, filter, bias))),
    ):  # fmt: skip
        assert other(data).tobytes() == want.tobytes()
        assert repr(other) == repr(op) and other.plan(data.shape) == op.plan(data.shape)


def test_the_operator_takes_the_keywords_of_the_function():
    function = inspect.signature(convt.conv_transpose).parameters
    operator = inspect.signature(convt.ConvTranspose).parameters
    assert [p for p in function if p not in ("data", "out", "add")] == list(operator)
    for name, parameter in operator.items():
        assert (parameter.kind, parameter.default) == (function[name].kind, function[name].default)
        assert parameter.kind == inspect.Parameter.KEYWORD_ONLY or name in ("filter", "bias", "unknown")


_GROWTH = """
import numpy as np, convt
data_shape, kernel, co, keywords = {!r}
def status(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))
small = convt.ConvTranspose(np.ones((16,) * len(kernel) + (16, 16), np.float32), strides=2)
small(np.ones((4, *[16] * len(kernel), 16), np.float32))  # starts the threads
data, filter = np.ones(data_shape, np.float32), np.ones((*kernel, data_shape[-1], co), np.float32)
op = convt.ConvTranspose(filter, backend="native", **keywords)
out = np.ones(op.output_shape(data_shape), np.float32)
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
before, code = status("VmRSS"), status("RssFile")
op(data, out=out), op(data, out=out)
plan = op.plan(data_shape)
code = status("RssFile") - code  # the library's own, mapped as it is first run: 0.1 to 1 MiB, as the system likes
print(plan.key, status("VmHWM") - before - code, plan.packed_bytes + plan.workspace_bytes)
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="only Linux reports the peak of memory")
@pytest.mark.parametrize("problem, algorithm", [
    (((1, 40, 60, 1024), (2, 2), 512, {"strides": 2}), "direct:vectors"),
    (((1, 40, 60, 1024), (2, 2), 512, {"strides": 2}), "direct:amx"),
    (((1, 32, 24, 256), (4, 4), 256, {"strides": 2, "pads_begin": 1}), "winograd:vectors"),
    (((1, 120, 160, 128), (5, 5), 3, {"strides": 2}), "scatter:vectors"),
])  # fmt: skip
def test_a_plan_tells_the_memory_a_call_takes(problem, algorithm):
    """Packed weights and workspace are all that a call takes beyond input, output and operator, up to 1 MiB of tables."""
    if algorithm == "direct:amx" and not matrix_unit():
        pytest.skip("no matrix unit")
    problem[-1]["algorithm"] = algorithm
    code, told, error = child(_GROWTH.format(problem))
    assert code == 0, error
    name, grew, said = told.split()
    assert name == algorithm
    assert int(grew) <= int(said) + (1 << 20)
    assert int(said) <= int(grew) + (4 << 20)  # the plan does not report much more than the call takes


@each_sample
def test_shapes_and_plans_are_told_without_data(case):
    _, filter, bias = case.arrays()
    for data_format in ("NXC", "NCX"):
        now = replace(case, data_format=data_format)
        op = operator(now, filter, bias)
        assert op.output_shape(now.data_shape) == op.output_shape(list(now.data_shape)) == now.out_shape
        plan = op.plan(now.data_shape)
        assert plan.backend == "native" and plan.key in _plan.ALGORITHMS and plan.key.startswith(plan.algorithm)
        assert plan.packed_bytes >= filter.nbytes and plan.workspace_bytes > 0 and plan.tasks >= plan.threads >= 1
        slow = operator(now, filter, bias, backend="reference").plan(now.data_shape)
        assert slow.backend == "reference"
    assert convt.resolve(
        case.in_sizes, case.kernel, strides=case.strides, dilations=case.dilations, pads_begin=case.pads_begin,
        pads_end=case.pads_end, output_padding=case.output_padding,
    ) == (case.pads_begin, case.pads_end, case.windows[1])  # fmt: skip


@pytest.mark.parametrize("groups, ci, co", [(1, 4, 5), (6, 1, 1), (2, 3, 4), (1, 0, 3), (2, 0, 3), (1, 3, 0)])
@pytest.mark.parametrize("shape", [(1, 5, 5), (0, 5, 5), (2, 0, 5), (2, 5, 0), (0, 0, 0)])
def test_plans_of_empty_problems(shape, groups, ci, co):
    op = convt.ConvTranspose(np.ones((3, 3, groups * ci, co), f32), groups=groups)
    data = np.ones((*shape, groups * ci), f32)
    plan = op.plan(data.shape)
    assert plan.backend == "native" and plan.threads >= 1
    assert op(data).shape == op.output_shape(data.shape) == (shape[0], shape[1] + 2, shape[2] + 2, groups * co)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_plans_of_empty_outputs(shape, data_format):
    op = convt.ConvTranspose(np.ones((1, 1, 1, 1), f32), output_shape=shape, data_format=data_format)
    data = np.ones((1, 1, 1, 1), f32)
    with using_isa("baseline"):
        assert op.plan(data.shape).threads == 1
    assert op.plan(data.shape).threads == 1 and op(data).size == 0


def test_what_calls_keep_is_bounded():
    filter = np.ones((3, 2, 2), f32)
    op = convt.ConvTranspose(filter)
    for n in range(1, 301):
        data = np.ones((1, n, 2), f32)
        assert op(data).shape == convt.conv_transpose(data, filter).shape == (1, n + 2, 2)
        op(np.ones((1, n, 4), f32)[..., ::2])
    holders = [vars(op), vars(op._plans), vars(api), vars(_plan)]
    sizes = {k: len(v) for members in holders for k, v in members.items() if isinstance(v, dict) and k != "__builtins__"}
    assert sizes and max(sizes.values()) <= 64, sizes
    for kept in (op._plans.calls, api._ONE_SHOT_CALLS):
        assert 0 < kept.bytes <= kept.limit and len(kept) > 1


# ---------------------------------------------------------------- threads


def test_a_bounded_cache_is_filled_from_many_threads_at_once():
    """Check that two threads do not both drop the same oldest entry."""
    cache = keep.Recent(5000)
    make = lambda n: choose._Tuned(str(n), "")  # noqa: E731
    fill = lambda first: [int(cache.get_or_make((first, n), lambda: make(n)).name) for n in range(10000)]  # noqa: B023, E731
    with switching_often():
        for _ in range(3):
            assert in_threads(fill) == [list(range(10000))] * 8
            assert len(cache) <= 4 and cache.bytes <= cache.limit
            cache.clear()
    assert cache.bytes == 0 and not cache.entries


def test_threads_are_set_got_and_scoped():
    convt.set_num_threads(3)
    assert convt.get_num_threads() == 3
    with convt.num_threads(2):
        assert convt.get_num_threads() == 2
        with convt.num_threads(1):
            assert convt.get_num_threads() == 1
            convt.set_num_threads(4)
            assert convt.get_num_threads() == 1
        assert convt.get_num_threads() == 2
    assert convt.get_num_threads() == 4
    with pytest.raises(KeyError), convt.num_threads(2):
        raise KeyError
    assert convt.get_num_threads() == 4
    convt.set_num_threads(np.int64(2))
    assert convt.get_num_threads() == 2
    convt.set_num_threads(10**6)  # more than any machine has: the number is bounded and convt computes
    assert 2 <= convt.get_num_threads() <= 10**6
    arrays = DENSE.arrays()
    DENSE.check(run(DENSE, *arrays), *arrays)


@pytest.mark.parametrize("convts, openmps, threads, by", [
    ("3", None, 3, "CONVT"), (None, "2", 2, "OMP"), ("3", "2", 3, "CONVT"), ("", "4,2", 4, "OMP"), (" 2 ", None, 2, "CONVT"),
    ("1", None, 1, "CONVT"),
])  # fmt: skip
def test_none_restores_the_number_of_threads_of_the_environment(convts, openmps, threads, by, monkeypatch):
    for name, value in {"CONVT_NUM_THREADS": convts, "OMP_NUM_THREADS": openmps}.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    convt.set_num_threads(7)
    convt.set_num_threads(None)
    config = convt.show_config(mode="dicts")
    assert convt.get_num_threads() == config["threads"] == threads and config["threads set by"] == f"{by}_NUM_THREADS"
    with convt.num_threads(8):
        convt.set_num_threads(None)
        assert convt.get_num_threads() == 8


# ---------------------------------------------------------------- fork

_FORK = """
import os, sys, threading
import numpy as np, convt
from cases import SAMPLES, operator, run
case = SAMPLES["dense"]
data, filter, bias = case.arrays()
convt.set_num_threads(3)
more = {"algorithm": sys.argv[2]}
op = operator(case, filter, bias, **more)
def right():
    return all((f() == want).all() for f in (lambda: op(data), lambda: run(case, data, filter, bias, **more)) for _ in range(3))
def in_child(then):
    child = os.fork()
    if child == 0:
        os._exit(0 if then() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
want = case.expected(data, filter, bias).astype(data.dtype)
if sys.argv[1] == "unused":
    assert in_child(lambda: right() and convt.get_num_threads() == 3)
assert op.plan(data.shape).threads == 3 and right()
alone = lambda: right() and convt.get_num_threads() == 1 and op.plan(data.shape).threads == 1
if sys.argv[1] == "twice":
    assert in_child(lambda: alone() and in_child(alone))
elif sys.argv[1] == "thread":
    found = []
    thread = threading.Thread(target=lambda: found.append(in_child(alone)))
    thread.start(), thread.join()
    assert found == [True]
elif sys.argv[1] == "pool":
    import multiprocessing
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert all((y == want).all() for y in pool.map(op, [data] * 4))
else:
    assert in_child(alone)
assert convt.get_num_threads() == 3 and right()
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("algorithm", ["auto", "direct:amx"])
@pytest.mark.parametrize("how", ["once", "twice", "thread", "pool", "unused"])
def test_a_forked_child_computes(how, algorithm):
    if algorithm == "direct:amx" and not matrix_unit():
        pytest.skip("no matrix unit")
    code, out, errors = child(_FORK, how, algorithm, timeout=60)
    assert (code, out) == (0, "done\n"), errors[-2000:]


# ---------------------------------------------------------------- arrays of other libraries


class Duck:
    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


class Sub(np.ndarray):
    pass


@pytest.mark.parametrize("wrap", [Duck, lambda a: a.view(Sub), np.asfortranarray])
def test_whatever_gives_an_array_is_taken(wrap):
    arrays = DENSE.arrays()
    for which in range(3):
        got = run(DENSE, *(wrap(a) if n == which else a for n, a in enumerate(arrays)))
        assert type(got) is np.ndarray
        DENSE.check(got, *arrays)


@each_dtype
@each_sample
def test_torch_tensors_are_shared_not_copied(case, dtype):
    torch = pytest.importorskip("torch")
    case = replace(case, dtype=dtype)
    arrays = case.arrays()
    tensors = [torch.from_numpy(a.astype(np.float64)).to(getattr(torch, dtype)) for a in arrays]
    case.check(run(case, *tensors), *arrays)
    op = operator(case, *tensors[1:])
    for _ in range(2):
        case.check(op(tensors[0]), *arrays)
        case.check(op(tensors[0].detach()), *arrays)
    spread = [torch.stack([t, t + 1], -1)[..., 0] for t in tensors]  # every second element
    turned = [t.permute(*range(t.ndim - 1, -1, -1)).contiguous().permute(*range(t.ndim - 1, -1, -1)) for t in tensors]
    for others in (spread, turned):
        assert not any(t.is_contiguous() for t in others if t.ndim > 1)
        case.check(run(case, *others), *arrays)
    same = tensors[0][:1].expand(tensors[0].shape)  # stride 0
    case.check(op(same), np.broadcast_to(arrays[0][:1], arrays[0].shape), *arrays[1:])
    for _ in range(2):
        out = torch.zeros(case.out_shape, dtype=getattr(torch, dtype))
        assert run(case, *tensors, out=out) is out and op(tensors[0], out=out) is out
        case.check(out.double().numpy().astype(case.numpy_dtype), *arrays)
        assert run(case, *arrays, out=out) is out and op(arrays[0], out=out) is out
    line = torch.ones(1, 4, 1, dtype=out.dtype)
    with pytest.raises(ValueError, match=r"^out: got an array that overlaps data"):
        convt.conv_transpose(line, line[:, :1], out=line)


@pytest.mark.parametrize("name, make", [
    ("a gradient", lambda t: t.requires_grad_()), ("another device", lambda t: t.to("meta")),
    ("sparse", lambda t: t.to_sparse()), ("integers", lambda t: t.int()), ("complex", lambda t: t + 0j),
    ("a lazy minus", lambda t: (t + 1j * t).conj().imag),
])  # fmt: skip
def test_torch_tensors_that_can_not_be_shared_are_named(name, make):
    torch = pytest.importorskip("torch")
    arrays = DENSE.arrays()
    for which, argument in enumerate(("data", "filter", "bias")):
        mixed = [make(torch.from_numpy(a.copy())) if n == which else a for n, a in enumerate(arrays)]
        with pytest.raises(TypeError, match=f"^{argument}: got "):
            run(DENSE, *mixed)
    with pytest.raises(TypeError, match=r"^out: got "):
        run(DENSE, *arrays, out=make(torch.zeros(DENSE.out_shape)))


def test_shared_memory_lives_as_long_as_it_is_used():
    torch = pytest.importorskip("torch")
    for _ in range(50):
        op = convt.ConvTranspose(torch.ones(3, 5, 7), torch.ones(7))
        junk = [torch.full((3, 5, 7), torch.nan) for _ in range(4)]
        assert (op(torch.ones(1, 9, 5))[0, 2:-2] == 16).all() and junk


# ---------------------------------------------------------------- environment, configuration, command line

_ONE_CALL = "import numpy as np, convt; x = np.ones((1, 9, 9, 8), 'f4'); w = np.ones((3, 3, 8, 8), 'f4'); "


@pytest.mark.parametrize("value", ["99999999999999999999", "100000"])
def test_absurd_thread_counts_are_bounded(value):
    script = _ONE_CALL + "print(convt.conv_transpose(x, w).max(), convt.get_num_threads())"
    code, out, errors = child(script, CONVT_NUM_THREADS=value)
    assert code == 0 and out.split()[0] == "72.0" and 1 <= int(out.split()[1]) <= 100000, errors


def test_the_default_is_the_cores_this_process_may_use():
    script = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); import convt; print(convt.get_num_threads())"
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("needs CPU affinity")
    assert child(script)[:2] == (0, "1\n")


@pytest.mark.parametrize("backend", ["native", "reference", "auto"])
def test_the_backend_comes_from_the_environment_and_the_argument_goes_first(backend):
    script = _ONE_CALL + (
        "print(convt.ConvTranspose(w).plan(x.shape).backend, convt.ConvTranspose(w, backend='native').plan(x.shape).backend,"
        "convt.ConvTranspose(w, backend='reference').plan(x.shape).backend, convt.conv_transpose(x, w).max())"
    )
    code, out, errors = child(script, CONVT_BACKEND=backend)
    want = backend.replace("auto", "native")
    assert (code, out.split()) == (0, [want, "native", "reference", "72.0"]), errors


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_verbose_prints_a_line_for_every_call(backend):
    script = _ONE_CALL + (
        "op = convt.ConvTranspose(w, strides=2)\nfor _ in range(3): op(x); convt.conv_transpose(x, w, activation='relu')"
    )
    line = r"convt,exec,{},[\w:]+,\w+,float32 mb1 g1 ic8 oc8 i9x9 o{} k3x3 s{} d1x1 b0x0 act:{},\d+\.\d+ ms"
    code, out, errors = child(script, CONVT_VERBOSE="1", CONVT_BACKEND=backend)
    lines = errors.splitlines()
    assert (code, out, len(lines)) == (0, "", 6)
    for op, function in zip(lines[::2], lines[1::2], strict=True):
        assert re.fullmatch(line.format(backend, "19x19", "2x2", "none"), op)
        assert re.fullmatch(line.format(backend, "11x11", "1x1", "relu"), function)
    for quiet in ("", "0"):
        assert child(script, CONVT_VERBOSE=quiet) == (0, "", "")


def test_show_config_says_what_there_is(capsys):
    config = convt.show_config(mode="dicts")
    assert capsys.readouterr().out == ""
    assert config["version"] == convt.__version__
    assert config["isa"]["in use"] in config["isa"]["found"] and set(config["isa"]["found"]) <= set(config["isa"]["built"])
    assert config["threads"] == convt.get_num_threads()
    assert 1 << 12 < config["caches"]["L1"] < config["caches"]["L2"] < config["caches"]["L3"]
    assert {"native", "reference", "onednn"} <= set(config["backends"])
    assert config["dtypes"] == list(DTYPES)
    assert convt.show_config() is None
    shown = capsys.readouterr().out
    for word in (convt.__version__, config["isa"]["in use"], "threads: ", "openmp: ", "onednn: ", np.__version__):
        assert word in shown


def test_importing_convt_imports_nothing_heavy():
    script = _ONE_CALL + (
        "convt.conv_transpose(x, w); convt.ConvTranspose(w)(x); dir(convt); import sys; print(sorted("
        "{'onnx', 'onnxruntime', 'torch', 'dask', 'jax', 'scipy', 'openvino', 'Cython'} & set(sys.modules)))"
    )
    assert child(script) == (0, "[]\n", "")


def test_the_dialects_compute_without_their_packages():
    script = (
        "import sys\nfor name in ('onnx', 'openvino', 'torch', 'dask'): sys.modules[name] = None\n"
        "import numpy as np, convt\nx = np.ones((1, 2, 5, 5), 'f4'); w = np.ones((2, 3, 2, 2), 'f4')\n"
        "print(convt.onnx.conv_transpose(x, w).max(), convt.openvino.convolution_backprop_data("
        "x, w, strides=[1, 1], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1]).max())"
    )
    assert child(script) == (0, "8.0 8.0\n", "")


def test_public_names_are_there_and_documented():
    for name in convt.__all__:
        thing = getattr(convt, name)
        assert name in dir(convt) and (isinstance(thing, str) or len(inspect.getdoc(thing)) > 40), name
    for extra in ("dask", "jax", "onnx", "onnxruntime", "openvino", "torch"):  # imported when they are named
        said = child(f"import convt\ntry: print(convt.{extra}.__name__)\nexcept ImportError as error: print(error)")[1]
        assert said.startswith(f"convt.{extra}"), said
    with pytest.raises(AttributeError, match="module 'convt' has no attribute 'nothing'"):
        _ = convt.nothing
    assert issubclass(convt.BackendUnavailableError, RuntimeError)


@pytest.mark.parametrize("call", [
    "convt.conv_transpose(x, w, backend='onednn')", "convt.conv_transpose(x[:0], w, backend='onednn')",
    "convt.ConvTranspose(w, backend='onednn')",
])  # fmt: skip
def test_a_backend_that_is_not_there_says_so(call):
    code, _, errors = child(_ONE_CALL + call, CONVT_ONEDNN_LIB="/nowhere/libdnnl.so.3")
    assert code == 1 and re.search(r"BackendUnavailableError: CONVT_ONEDNN_LIB: /nowhere/.+wanted .+pip install", errors), (
        errors
    )
    script = _ONE_CALL + "print(convt.conv_transpose(x, w).max(), convt.show_config(mode='dicts')['backends']['onednn'])"
    code, out, _ = child(script, CONVT_ONEDNN_LIB="/nowhere/libdnnl.so.3")
    assert code == 0 and out.startswith("72.0 not available: CONVT_ONEDNN_LIB: /nowhere/libdnnl.so.3: ")


@pytest.mark.parametrize("name", [
    "conv_transpose", "ConvTranspose", "resolve", "show_config", "onnx.conv_transpose", "openvino.convolution_backprop_data",
])  # fmt: skip
def test_the_examples_of_the_documentation_run(name):
    thing = convt
    for part in name.split("."):
        thing = getattr(thing, part)
    tests = doctest.DocTestFinder(recurse=False).find(thing, name, globs={})
    assert sum(len(test.examples) for test in tests) >= 2
    for test in tests:
        result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
        assert result.failed == 0


# ---------------------------------------------------------------- memory


def test_arrays_given_are_let_go():
    data, filter, bias = (a.view(Sub) for a in DENSE.arrays())
    gone = [weakref.ref(a) for a in (data, filter, bias)]
    op = operator(DENSE, filter, bias)
    for _ in range(2):
        run(DENSE, data, filter, bias)
        op(data)
    del data, filter, bias
    gc.collect()
    assert all(ref() is None for ref in gone)
    assert_same(op(DENSE.arrays()[0]), run(DENSE, *DENSE.arrays()))


@pytest.mark.parametrize(("name", "same"), [
    ("channels_last", "NXC"), ("channels_first", "NCX"), ("NWC", "NXC"), ("NCW", "NCX"), ("NHWC", "NXC"), ("NCHW", "NCX"),
    ("NDHWC", "NXC"), ("NCDHW", "NCX"), ("NLC", "NXC"), ("NCL", "NCX"),
])  # fmt: skip
def test_layouts_have_the_names_that_people_type(name, same):
    rank = len(name) - 2 if name.startswith("N") else 2
    shape = (1, *range(4, 4 + rank), 3) if same == "NXC" else (1, 3, *range(4, 4 + rank))
    data, filter = np.arange(math.prod(shape), dtype=np.float32).reshape(shape), np.ones((*(2,) * rank, 3, 5), np.float32)
    want = convt.conv_transpose(data, filter, data_format=same)
    np.testing.assert_array_equal(convt.conv_transpose(data, filter, data_format=name), want)
    op = convt.ConvTranspose(filter, data_format=name)
    np.testing.assert_array_equal(op(data), want)
    assert op.output_shape(shape) == want.shape and f"data_format={same!r}" in repr(op)


def test_a_layouts_name_has_the_filters_rank():
    wanted = r"data_format: got 'NHWC' with a filter of 3 spatial axes, wanted 'NXC' or a name for this rank"
    with pytest.raises(ValueError, match=wanted):
        convt.ConvTranspose(np.ones((2, 2, 2, 3, 5), np.float32), data_format="NHWC")


def test_data_of_the_other_layout_is_told_so():
    filter = np.ones((2, 2, 3, 5), np.float32)
    with pytest.raises(ValueError, match="wanted 3, the filter's; the shape fits data_format='NCX'"):
        convt.conv_transpose(np.ones((1, 3, 8, 8), np.float32), filter)
    with pytest.raises(ValueError, match="wanted 3, the filter's; the shape fits data_format='NXC'"):
        convt.conv_transpose(np.ones((1, 8, 8, 3), np.float32), filter, data_format="NCHW")
    with pytest.raises(ValueError, match="wanted 3, the filter's$"):
        convt.conv_transpose(np.ones((1, 8, 8, 4), np.float32), filter)
