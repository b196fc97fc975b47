"""Run and check one case: `perform`."""

import contextlib
import math
import pickle
from collections import Counter

import ml_dtypes
import numpy as np
from cases import DTYPES, filter_in, using_isa

import convt
import convt.onnx
import convt.openvino
from convt import _core
from convt._call import api
from convt._plan import plans as _plan

from . import machines, memory, odd, oracle, schedules


class Array:
    """An array that only ``__dlpack__`` or only ``__array__`` gives access to."""

    def __new__(cls, a, integration):
        if integration == "numpy" or a is None:
            return a
        return _Dlpack(a) if integration == "dlpack" and a.dtype.kind == "f" and a.flags.writeable else _Array(a)


class _Dlpack:
    def __init__(self, a):
        self._a = a

    def __dlpack__(self, **keywords):
        return self._a.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self._a.__dlpack_device__()


class _Array:
    def __init__(self, a):
        self._a = a

    def __array__(self, dtype=None, copy=None):
        return self._a


@contextlib.contextmanager
def recording(forced=()):
    """Record the plans made inside, as (algorithm, text, schedule). ``forced`` is as in `schedules.recording`."""
    found, bind = [], _plan.Plans._bind

    def recorded(self, *arguments):
        call = bind(self, *arguments)
        plan, threads = call.plan, convt.get_num_threads()
        text = f"{plan.isa} {getattr(plan, 'tile', '')} {plan.tasks} tasks, {plan.threads(threads)} threads, "
        text += f"{plan.workspace} bytes each, {call.form.key[1:]}"
        found.append((plan.algorithm, text, schedules.to_text(last_schedule())))
        return call

    _plan.Plans._bind = recorded
    try:
        with schedules.recording(forced) as last_schedule:
            yield found
    finally:
        _plan.Plans._bind = bind


def perform(call):
    """Run a case, and return (outcome, numbers of calls and plans). Raise AssertionError if a result, or a refusal, is wrong.

    If the case has "schedules", its plans use them.
    """
    api._ONE_SHOT_CALLS.clear()  # these hold plans for the machine of the previous case
    with using_isa(call["isa"]), machines.using(call["machine"]), recording(call.get("schedules", ())) as plans:
        assert _core.isa() == call["isa"]
        try:
            return _Run(call, plans).run_calls(), _told(call, plans)
        except Exception as error:
            error.told, error.more = _told(call, plans), {"schedules": list(dict.fromkeys(schedule for *_, schedule in plans))}
            raise


def _told(call, plans):
    told = Counter({f"calls, {call['isa']}": len(call["calls"])})
    told.update(f"{name}, {call['isa']}\n{text}\n{schedule}" for name, text, schedule in plans)
    return told


class _Run:
    def __init__(self, call, plans):
        self.call, self.plans, self.operator, self.results, self.sums = call, plans, None, {}, {}
        self.problem = call["problem"]
        self.intended, self.keywords = self._arguments()

    def _arguments(self):
        """Return the problem that the arguments describe, or None if they are invalid, and the keywords to pass."""
        p = self.problem
        given = {name: p[name] for name in (*odd.NAMES, "auto_pad")}
        intended = p
        if "odd" in self.call:
            name, kind = self.call["odd"]
            given[name], meaning = odd.value(name, kind, len(p["kernel"]))
            intended = None if meaning is odd.INVALID else {**p, name: meaning}
            if given[name] is None and (name == "output_shape" or self.call["dialect"] != "core"):
                none = {"strides": 1, "dilations": 1, "output_padding": 0}.get(name)
                intended = {**p, name: None if none is None else [none] * len(p["kernel"])}
                if none is not None and self.call["dialect"] == "openvino" and name != "output_padding":
                    intended = None
        return intended, given

    def run_calls(self):
        outcomes = [self.run_call(each) for each in self.call["calls"]]
        return outcomes[-1]

    def run_call(self, each):
        call, p = self.call, self.problem
        if each["clear"]:
            convt.clear_caches()
        values = self._values(each["values"])
        guarded = [
            v if v is None else memory.guarded_copy(v, each[name])
            for name, v in zip(("data", "filter", "bias"), values, strict=True)
        ]
        if self.operator is not None:  # an operator keeps filter and bias of the first call
            guarded[1:] = self.first_arrays[1:]
        else:
            self.first_arrays = guarded
        arrays = [h if h is None else h.view for h in guarded]
        try:
            windows = None if self.intended is None else oracle.windows(self.intended, call["dialect"])
            if self.intended is not None and self.intended["groups"] != p["groups"]:
                windows = None  # the filter does not have the shape for these groups
        except oracle.Invalid:
            windows = None
        shape = None if windows is None else (p["batch"], *(out for _, out in windows), p["groups"] * p["co"])
        # An output without elements may have sizes that no array can have.
        too_large = ("odd" in call) if shape is None else math.prod(max(n, 1) for n in shape) > 10_000_000
        user_shape = None if shape is None or p["data_format"] == "NXC" else (shape[0], shape[-1], *shape[1:-1])
        out = None
        accepts_out = call["dialect"] == "core" and call["form"] not in ("dask", "stream")
        if each["out"] is not None and shape is not None and not too_large and accepts_out:
            out = memory.Guarded(user_shape or shape, DTYPES[p["dtype"]][0], each["out"])
        guarded_add = None  # kept, because it owns the memory of `add`
        if p["add"] and shape is not None and not too_large:
            guarded_add = memory.guarded_copy(self._addends(user_shape or shape, each["values"]), each["add"])
        add = guarded_add and guarded_add.view
        try:
            with convt.num_threads(each["threads"]):
                got = self._compute(arrays, out and out.view, add, each)
        except (ValueError, TypeError, MemoryError) as error:
            assert out is None or out.untouched(), "an exception was raised, but out was written to"
            return self._refused(error, windows, too_large)
        if windows is None and self.intended is not None and self.intended["groups"] != p["groups"]:
            return "another problem"  # by chance the filter's shape also fits these groups
        assert windows is not None, f"wanted an error, got a result of shape {got.shape}"
        if not too_large:
            self._check(got, out, user_shape or shape, windows, arrays, add, each)
        return "right"

    def _refused(self, error, windows, too_large):
        text = str(error)
        if windows is None or too_large:
            assert ": got " in text or isinstance(error, MemoryError), f"an error without a message: {error!r}"
            return "refused"
        if text.startswith("algorithm: got") and self.call["algorithm"] != "auto":
            return "not by this algorithm"
        sizes = [n for name in odd.AXES for n in self.intended[name] or ()]
        assert max(sizes) > 2**31, f"refused: {error!r}"
        return "refused"

    def _values(self, number):
        call, p = self.call, self.problem
        rng = np.random.default_rng([call["seed"], number])
        dtype = DTYPES[p["dtype"]][0]
        channels = p["groups"] * p["ci"]
        shape = (p["batch"], *p["in_sizes"], channels) if p["data_format"] == "NXC" else (p["batch"], channels, *p["in_sizes"])
        kind = call["values"]

        def drawn(shape, top):
            return rng.uniform(-1, 1, shape) if kind in ("real", "huge") else rng.integers(-top, top + 1, shape)

        data = drawn(shape, 4).astype(dtype)
        filter = drawn((p["groups"], p["ci"], p["co"], *p["kernel"]), 3).astype(dtype)
        bias = drawn(p["groups"] * p["co"], 8).astype(dtype) if p["bias"] else None
        if kind == "denormal":
            tiny = np.finfo(dtype).smallest_subnormal
            data = data * tiny
            bias = None if bias is None else bias * tiny
        if kind in ("special", "huge"):
            for a in (data, filter, bias):
                if a is not None and a.size and rng.random() < 0.6:
                    top = float(ml_dtypes.finfo(dtype).max) * 0.99
                    bad = [np.nan, np.inf, -np.inf] if kind == "special" else [top, -top, top / 2, top**0.5]
                    at = rng.integers(0, a.size, 3)
                    a.reshape(-1)[at] = rng.choice(bad, 3).astype(dtype)
        return data, np.ascontiguousarray(filter_in(p["filter_format"], filter)), bias

    def _addends(self, shape, number):
        """Return values for ``add``, of the kind of the other arrays."""
        call, dtype = self.call, DTYPES[self.problem["dtype"]][0]
        rng = np.random.default_rng([call["seed"], number, 1])
        kind = call["values"]
        found = rng.uniform(-8, 8, shape) if kind in ("real", "huge") else rng.integers(-8, 9, shape)
        found = found.astype(dtype) * (np.finfo(dtype).smallest_subnormal if kind == "denormal" else dtype.type(1))
        if kind == "special" and found.size:
            found.reshape(-1)[rng.integers(0, found.size, 2)] = rng.choice([np.nan, np.inf, -np.inf], 2).astype(dtype)
        return found.astype(dtype)

    def _compute(self, arrays, out, add, each):
        call, p, k = self.call, self.problem, self.keywords
        if call["dialect"] == "onnx":
            return self._onnx(*arrays)
        if call["dialect"] == "openvino":
            k = {name: value for name, value in k.items() if name not in ("groups", "output_shape")}
            function = "convolution_backprop_data" if p["filter_format"] == "IOX" else "group_convolution_backprop_data"
            given = dict(k, precision=call["precision"])
            return getattr(convt.openvino, function)(*arrays[:2], self.keywords["output_shape"], **given)
        activation = tuple(p["activation"]) if isinstance(p["activation"], list) else p["activation"]
        more = {name: call[name] for name in ("backend", "algorithm", "precision")}
        k = dict(k, **more, activation=activation, data_format=p["data_format"], filter_format=p["filter_format"])
        integration = each["as"]
        if call["form"] == "shot":
            return convt.conv_transpose(*(Array(a, integration) for a in arrays), **k, out=out, add=Array(add, integration))
        if call["form"] == "dask":
            return self._dask(arrays, k, each)
        if self.operator is None:
            make = convt.ConvTranspose._borrowing if call["form"] == "borrowing" else convt.ConvTranspose
            self.operator = make(arrays[1], arrays[2], **k)
            if call["form"] == "pickled":
                self.operator = pickle.loads(pickle.dumps(self.operator))
        if call["form"] == "stream":
            return self._stream(arrays[0], integration)
        got = self.operator(Array(arrays[0], integration), out, add=Array(add, integration))
        assert got.shape == self.operator.output_shape(arrays[0].shape)
        return got

    def _onnx(self, data, filter, bias):
        k = dict(self.keywords, group=self.keywords["groups"], precision=self.call["precision"])
        begin, end = k.pop("pads_begin"), k.pop("pads_end")
        del k["groups"]
        k |= {"pads": [*begin, *end], "auto_pad": (k["auto_pad"] or "notset").upper(), "kernel_shape": self.problem["kernel"]}
        return convt.onnx.conv_transpose(data, filter, bias, **k)

    def _dask(self, arrays, keywords, each):
        import dask.array as da

        import convt.dask

        batch, *spatial = self.call["chunks"]
        channels = arrays[0].shape[-1 if self.problem["data_format"] == "NXC" else 1] or 1
        chunks = (batch, *spatial, channels) if self.problem["data_format"] == "NXC" else (batch, channels, *spatial)
        lazy = da.from_array(arrays[0], chunks=chunks, name=False)
        lazy = convt.dask.conv_transpose(lazy, *arrays[1:], **keywords, threads=min(each["threads"], 4))
        got = np.asarray(lazy.compute(scheduler="synchronous"))
        if self.call["algorithm"] == "invariant" and got.size:
            whole = convt.conv_transpose(np.ascontiguousarray(arrays[0]), *arrays[1:], **keywords)
            assert oracle.same_bits(got, whole), "the result of chunks differs in bits from a single call"
        return got

    def _stream(self, data, integration):
        axis, chunks = self.call["stream"]["axis"] % len(self.problem["kernel"]), self.call["stream"]["chunks"]
        place = axis + (1 if self.problem["data_format"] == "NXC" else 2)
        stream = self.operator.stream(len(data), axis)
        pieces = [stream(Array(chunk, integration)) for chunk in np.split(data, np.cumsum(chunks, dtype=int), place)]
        got = np.concatenate([*pieces, stream.finish()], place)
        if self.call["algorithm"] == "invariant" and got.size:
            assert oracle.same_bits(got, self.operator(data)), "the result of chunks differs in bits from a single call"
        return got

    def _check(self, got, out, shape, windows, arrays, add, each):
        p = self.problem
        assert got.shape == shape and got.dtype == DTYPES[p["dtype"]][0]
        assert out is None or got is out.view
        kept = got.copy()
        if out is not None:
            assert out.only_elements_written(), "memory between the elements of out was written to"
        layouts = tuple(str(each[name]) for name in ("data", "filter", "bias", "add", "out"))
        if self.call["form"] != "dask":  # equal arrays in equal layouts are summed in the same order for any number of threads
            before = self.results.setdefault((*layouts, each["values"], each["as"]), kept)
            assert oracle.same_bits(before, kept), "a repeated call gave different bits"
        if not got.size:  # the other sizes may be larger than an array of sums can have
            return
        inputs = (*layouts[:4], each["values"])
        if inputs not in self.sums:
            self.sums[inputs] = oracle.sums(self.intended, windows, *arrays, add)
        names = {algorithm for algorithm, _, _ in self.plans}
        oracle.assert_right(self.call, names, oracle.nxc(kept, p["data_format"]), *self.sums[inputs])
