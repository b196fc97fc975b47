"""Run and check one case: `perform`."""

import atexit
import contextlib
import functools
import io
import json
import os
import re
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import onnx.printer
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented

import convt.onnxruntime

from ..oracle import same_bits
from ..pool import Difference
from . import build, oracle


def perform(case):
    """Run a case, and return (outcome, counts). Raise `Difference` if convt's session differs from ONNX Runtime's.

    The outcome is "right", "refused" if both sessions raise the same class of exception at load, or "beyond" if ONNX Runtime
    cannot run the model and convt runs it.
    """
    built = build.build(case)
    if not built.files and case.get("model") != "path":
        return _Comparison(case, built).compare()
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # because removing a folder of a disk takes milliseconds
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        return _Comparison(case, built, folder).compare()


class _Comparison:
    def __init__(self, case, built, folder=None):
        self.case, self.built, self.told = case, built, Counter()
        self.source = self.ours = text = built.model.SerializeToString()
        if folder is not None:
            self.source = self.ours = os.path.join(folder, "model.onnx")
            for name, data in {"model.onnx": text, **built.files}.items():
                Path(folder, name).write_bytes(data)
        elif case.get("model") == "proto":
            self.ours = built.model
        self.theirs = _Heard()  # ONNX Runtime's session
        self.values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(each) for name, each in built.added.items()}

    def compare(self):
        options = self._options()
        theirs = self.theirs = _heard(lambda: self._session(onnxruntime.InferenceSession, self.source, options))
        for _ in range(self.case.get("sessions", 1)):
            before = _settings(options)
            ours = _heard(lambda: self._session(convt.onnxruntime.InferenceSession, self.ours, options))
            if _settings(options) != before:
                raise Difference("options", f"before: {before}, after: {_settings(options)}")
            if theirs.error is not None and ours.error is None and self._is_limited(theirs.error):
                return self._beyond(ours.result)
            if theirs.error is not None and ours.error is not None and self._is_limited(theirs.error):
                return "refused", self.told  # because of another node, which ONNX Runtime did not reach
            self._check_heard("load", ours, theirs)
            if theirs.error is not None:
                self.told[f"load: {type(theirs.error).__name__}"] += 1
                return "refused", self.told
            self._check_session(ours.result, theirs.result)
            for run, feed in zip(self.case["runs"], self.built.feeds, strict=True):
                self._check_run(ours.result, theirs.result, run, feed)
            self._check_report(ours.result.report)
        return "right", self.told

    def _is_limited(self, error):
        """Check whether ONNX Runtime refuses a model that it could run: it lacks a kernel that convt has, or it infers a wrong
        shape from an output_shape or from sizes that the model declares wrong, which it does for each node anew."""
        if "InsertedPrecisionFreeCast" in str(error):
            return True  # it inserts a Cast for float16 that is not valid in old opsets
        inferred = "ShapeInferenceError" in str(error) and (self._has_output_shape() or self._declares_wrong_sizes())
        return isinstance(error, NotImplemented) or inferred

    def _is_misled(self, got, want):
        """Check whether a run failed because ONNX Runtime reuses a buffer, or allocates an output of If, by wrong sizes that
        the model declares. Which sizes it uses depends on the nodes, and fused nodes are one."""
        errors = f"{got.error} {want.error}"
        misled = "Shape mismatch attempting to" in errors or "The output OrtValue provided for output" in errors
        return misled and (self._declares_wrong_sizes() or bool((got.said | want.said) & _ABOUT_SIZES))

    def _declares_wrong_sizes(self):
        return '"wrong"' in json.dumps(self.case) or self.theirs.said & _ABOUT_SIZES

    def _has_output_shape(self):
        return b"output_shape" in self.built.model.SerializeToString()

    def _beyond(self, ours):
        """Check a session of a model for which ONNX Runtime has no kernel: its outputs against the oracle."""
        for run, feed in zip(self.case["runs"], self.built.feeds, strict=True):
            names = [each.name for each in ours.get_outputs()]
            feed = self._known(ours, feed)
            got = _heard(functools.partial(_outputs, ours, names, feed, run.get("how")))
            if got.error is None:
                limits = self._limits(feed)
                for name, mine in zip(names, got.result, strict=True):
                    self._check_output(feed, name, mine, None, limits[name])
        return "beyond", self.told

    def _known(self, session, feed):
        known = {each.name for each in (*session.get_inputs(), *session.get_overridable_initializers())}
        return {name: value for name, value in feed.items() if name in known}

    def _limits(self, feed):
        return oracle.bounds(self.built.model, feed, self.built.added, self.built.files)

    def _options(self, level=None):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.case.get("threads", 1)
        level = self.case.get("level", 4) if level is None else level
        options.graph_optimization_level = list(onnxruntime.GraphOptimizationLevel.__members__.values())[level]
        for name, each in self.values.items():
            options.add_initializer(name, each)
        return options

    def _session(self, kind, source, options):
        providers = self.case.get("providers", ["CPUExecutionProvider"])
        if providers is not None:
            providers = [tuple(each) if isinstance(each, list) else each for each in providers]
        return kind(source, options, providers)

    def _check_heard(self, where, ours, theirs):
        """Check that both calls raise the same class of exception, and that convt's adds no warning."""
        mine, other = type(ours.error).__name__, type(theirs.error).__name__
        if mine != other and not (ours.error and theirs.error and _failing_node(ours.error) != _failing_node(theirs.error)):
            error = ours.error or theirs.error
            raise Difference(f"error at {where}", f"convt: {mine}, ONNX Runtime: {other}: {str(error)[:600]}")
        more = ours.said - theirs.said - (_ABOUT_SIZES if self._declares_wrong_sizes() else set())
        if theirs.error is None and more:
            raise Difference("warning", f"at {where}: {' | '.join(sorted(more))[:800]}")

    def _check_session(self, ours, theirs):
        for what in ("get_inputs", "get_outputs", "get_overridable_initializers"):
            mine, other = ([(each.name, each.type, each.shape) for each in getattr(s, what)()] for s in (ours, theirs))
            if not self._agree(mine, other) and not self._has_output_shape():
                # ONNX Runtime may infer a shape only after it merged equal nodes, which convt's session has no longer.
                plain = self._session(onnxruntime.InferenceSession, self.source, self._options(0))
                if not self._agree(mine, [(each.name, each.type, each.shape) for each in getattr(plain, what)()]):
                    raise Difference(what, f"convt: {mine}, ONNX Runtime: {other}")
        providers = [each for each in ours.get_providers() if each != convt.onnxruntime.get_ep_name()]
        if providers != theirs.get_providers():
            raise Difference("providers", f"convt: {ours.get_providers()}, ONNX Runtime: {theirs.get_providers()}")

    def _agree(self, mine, other):
        """Check whether declared values agree: names, types, ranks and sizes. A size may be open in one of the sessions.

        ONNX Runtime infers shapes again after it optimised a model. convt's session then has other nodes, and may know fewer or
        more sizes. If the model declares wrong sizes, it may know others, or no rank.
        """
        if self._declares_wrong_sizes() and [value[:2] for value in mine] == [value[:2] for value in other]:
            return all(not a[2] or not b[2] or len(a[2]) == len(b[2]) for a, b in zip(mine, other, strict=True))
        if [(*value[:2], len(value[2])) for value in mine] != [(*value[:2], len(value[2])) for value in other]:
            return False
        sizes = [pair for a, b in zip(mine, other, strict=True) for pair in zip(a[2], b[2], strict=True)]
        known = [(m, n) for m, n in sizes if isinstance(m, int) and isinstance(n, int)]
        return all(m == n for m, n in known)

    def _check_run(self, ours, theirs, run, feed):
        names = [each.name for each in theirs.get_outputs()][:: -1 if run.get("how") == "reversed" else 1]
        feed = _spoilt(self._known(theirs, feed), run.get("bad"))
        got, want = (_heard(functools.partial(_outputs, s, names, feed, run.get("how"))) for s in (ours, theirs))
        if got.error is None and want.error is not None and self._ignores_values():
            self.told["run: ONNX Runtime uses other values than those of the options"] += 1
            return
        if type(got.error) is not type(want.error) and self._is_misled(got, want):
            self.told["run: a buffer has a wrong size that the model declares"] += 1
            return
        self._check_heard("run", got, want)
        if want.error is not None:
            self.told[f"run: {type(want.error).__name__}"] += 1
            return
        self.told["runs"] += 1
        limits = None
        for name, mine, other in zip(names, got.result, want.result, strict=True):
            if (mine.shape, mine.dtype) != (other.shape, other.dtype):
                text = f"{name}: convt: {mine.shape} {mine.dtype}, ONNX Runtime: {other.shape} {other.dtype}"
                raise Difference("shape", text)
            if same_bits(mine, other):
                self.told["equal elements"] += mine.size
                continue
            if limits is None:
                limits = self._limits(feed)
            self._check_output(feed, name, mine, other, limits[name])

    def _check_output(self, feed, name, mine, other, limits):
        """Check an output against ONNX Runtime's, or against the oracle if that has none: ``other`` is None.

        ONNX Runtime's optimiser changes some outputs: it folds norms that make weights infinite, merges pairs of quantizations,
        and ignores values of the session's options. Then what is computed without optimisation counts, for merged quantizations
        in both sessions, because convt's has them merged, too.
        """
        try:
            self._check_numbers(name, mine, limits[0] if other is None else other, *limits)
        except Difference:
            if self.case.get("dtype") == "float16" and '"Softplus"' in json.dumps(self.case):
                # ONNX Runtime's Softplus of float16 overflows. Its own session computes float32 if the value comes from a
                # ConvTranspose, of which it has no kernel for float16.
                self.told["outputs that cannot be judged: a Softplus of float16"] += 1
                return
            own = other is None or self._ignores_values()
            kind = convt.onnxruntime.InferenceSession if own else onnxruntime.InferenceSession
            plain = _heard(lambda: self._session(kind, self.source, self._options(0)).run([name], feed)[0])
            if plain.error is not None and not own:
                raise
            if plain.error is not None and self._ignores_values():
                self.told["outputs that cannot be judged: the optimiser ignores values of the options"] += 1
                return
            mine, other = (mine, plain.result) if not own else (mine if plain.error else plain.result, limits[0])
            if not own and json.dumps(self.case).count('"quantize"') > 1:
                session = self._session(convt.onnxruntime.InferenceSession, self.source, self._options(0))
                (mine,) = session.run([name], feed)
            self._check_numbers(name, mine, other, *limits)
            self.told["outputs equal to those without optimisation only"] += 1

    def _ignores_values(self):
        """Check whether ONNX Runtime's optimiser may ignore values of the session's options: it folds those of the model."""
        return self.built.added and self.case.get("level") != 0

    def _check_numbers(self, name, mine, other, v, e):
        if v.shape != mine.shape:
            raise Difference("oracle", f"{name}: shape {v.shape} instead of {mine.shape}")
        mine, other = mine.astype(np.float64), other.astype(np.float64)
        with np.errstate(invalid="ignore"):
            same = (mine == other) | (np.isnan(mine) & np.isnan(other))
            wrong = ~same & ~np.isinf(e) & ~(np.abs(mine - other) <= 2 * e)
            self.told["unsure elements"] += int(np.isinf(e).sum())
            self.told["compared elements"] += int(e.size - np.isinf(e).sum())
        if wrong.any():
            at = tuple(int(n[0]) for n in np.nonzero(wrong))
            text = f"{name}: {wrong.sum()} of {wrong.size} wrong, at {at}: convt {mine[at]!r}, ONNX Runtime {other[at]!r}"
            raise Difference("numbers", f"{text}, float64 {v[at]!r} +- {e[at]:.3g}")

    def _check_report(self, report):
        served, kept = [*report.packed, *report.unpacked], list(report.kept)
        found, expected = set(served) | set(kept), self.built.nodes
        if len(set(served)) != len(served) or not all(report.kept.values()):
            raise Difference("report", f"a node twice, or a reason that is empty: {report}")
        # With optimisations, ONNX Runtime computes equal nodes once, and drops nodes that nothing needs and branches that are
        # never taken. If the model has functions, it also shows a graph before it optimises it, with other names.
        wrong = len(found) != expected if self.case.get("level") == 0 else len(found) > (expected or 0)
        if expected is not None and "mutation" not in self.case and not self.built.model.functions and wrong:
            raise Difference("report", f"{len(found)} nodes instead of {expected}: {report}")
        self.told["served"] += len(served)
        for name, why in report.kept.items():
            if name not in served:
                self.told["kept: " + re.sub(r"[0-9]+|'.*?'", "_", why)[:90]] += 1


def shown(case):
    """Return the model of a case in ONNX's text syntax."""
    return onnx.printer.to_text(build.build(case).model)


def _settings(options):
    """Return the values of session options."""
    return {name: getattr(options, name) for name in dir(options) if name[0] != "_" and not callable(getattr(options, name))}


def _spoilt(feed, bad):
    """Return a feed that has this mistake."""
    x = feed.pop("X")
    others = {"missing": {}, "extra": {"X": x, "Y": x}, "dtype": {"X": np.zeros(x.shape, np.int8)}, "rank": {"X": x[None]}}
    return feed | others.get(bad, {"X": x})


class _Heard:
    """What a call returned or raised, and the warnings that it printed or issued."""

    def __init__(self):
        self.result = self.error = None
        self.said = set()


def _failing_node(error):
    """Return the type of the node that ended a run. If two nodes fail, which of them runs first is open."""
    return re.search("running ([A-Za-z]+) node|$", str(error))[1]


_FILE = tempfile.TemporaryFile()  # noqa: SIM115 - standard error goes there during calls
atexit.register(_FILE.close)
_ABOUT_SIZES = {"MergeShapeInfo", "VerifyOutputSizes", "AllocateMLValueTensorPreAllocateBuffer"}
_LINE = re.compile(r"\[[WEFI]:onnxruntime:[^,]*, ([\w.]+):\d+ (\w+)[^\]]*\] (.*)")


def _heard(call):
    """Call a function, and return `_Heard`."""
    heard, printed = _Heard(), io.StringIO()
    _FILE.seek(0)
    _FILE.truncate()
    kept = os.dup(2)
    os.dup2(_FILE.fileno(), 2)
    try:
        with warnings.catch_warnings(record=True) as issued, contextlib.redirect_stdout(printed):
            warnings.simplefilter("always")
            try:
                heard.result = call()
            except Exception as error:
                heard.error = error
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    _FILE.seek(0)
    for line in re.sub(r"\x1b\[[0-9;]*m", "", _FILE.read().decode(errors="replace")).splitlines():
        match = _LINE.search(line)
        if match:  # of wrong sizes that a model declares, ONNX Runtime speaks with names that depend on its optimisation
            heard.said.add(match[2] if match[2] in _ABOUT_SIZES else " ".join(match.groups()))
        elif line.strip():
            heard.said.add(line)
    heard.said.update(printed.getvalue().splitlines())
    heard.said |= {f"{each.category.__name__}: {each.message}" for each in issued}
    ours = f", {convt.onnxruntime.get_ep_name()}"  # in the list of available providers, once it is registered
    heard.said = {each.replace(ours, "") for each in heard.said}
    return heard


def _outputs(session, names, feed, how):
    """Run a session, and return its outputs by name."""
    if how == "binding":
        binding = session.io_binding()
        for name, value in feed.items():
            binding.bind_cpu_input(name, value)
        for name in names:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()
    if how == "values":
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in feed.items()}
        return [each.numpy() for each in session.run_with_ort_values(names, values)]
    return session.run(names, feed)
