"""Execution of a case with convt and without it, and the comparison after each statement: `agree`, `perform`."""

import ast
import contextlib
import ctypes
import functools
import re
import warnings

import torch
from torch import nn

import convt.torch
from convt.torch import _weights

from ..pool import Difference
from . import parts
from .tolerance import Perturbed, allowed

try:
    from torch.testing._internal.jit_utils import clear_class_registry
except ImportError:  # it needs expecttest; without it, the classes of earlier cases stay in memory

    def clear_class_registry():
        """Do nothing."""


_TRANSPOSED = nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d


_UNITS = {"medium": 2.0**-7, "high": 2.0**-10}  # precision -> relative error of a product


_TORCHSCRIPT = "of TorchScript"
_M_PERTURB, _BYTES = -6, (0xFE, 0x7E)  # glibc's option, and bytes of large numbers in all floating-point types


# ---------------------------------------------------------------- what the name ct stands for


class Plain:
    """The functions and classes of convt.torch, without convt."""

    accelerate = staticmethod(lambda model, **keywords: (model, None))
    restore = refresh = staticmethod(lambda model: model)
    functional = staticmethod(lambda **keywords: contextlib.nullcontext())

    def __init__(self):
        self.faults = []


for _cls in _TRANSPOSED:
    setattr(Plain, _cls.__name__, staticmethod(lambda *a, precision=None, freeze=False, _cls=_cls, **k: _cls(*a, **k)))
    _name = f"conv_transpose{_cls.__name__[-2:]}"
    _function = getattr(nn.functional, _name)
    setattr(Plain, _name, staticmethod(lambda *a, precision=None, freeze=False, _f=_function, **k: _f(*a, **k)))


class Convt:
    """The functions and classes of convt.torch. Their reports and what they leave in a model are checked: see ``faults``."""

    def __init__(self):
        self.faults = []

    def __getattr__(self, name):
        return getattr(convt.torch, name)

    def accelerate(self, model, **keywords):
        model, report = convt.torch.accelerate(model, **keywords)
        modules = dict(model.named_modules(remove_duplicate=False))
        wanted = {name for name, module in model.named_modules() if isinstance(module, _TRANSPOSED)}
        named = [*report.swapped, *report.kept]
        swapped = tuple(report.swapped) if keywords.get("freeze") else ()
        present = {"" if each not in modules else each for each in (*named, *report.functional)}
        if len(set(named)) != len(named) or not present >= wanted or {*report.functional} & {*named}:
            self.faults.append(f"report names {named}, the model has {sorted(wanted)}")
        if not set(report.fused) <= set(report.swapped) or report.frozen != swapped:
            self.faults.append(f"report of {report}")
        for name in report.swapped:
            module = modules.get(name, model)
            if not (_is_convts(vars(module).get("forward")) or any(map(_is_convts_class, type(module).__mro__))):
                self.faults.append(f"{name} is said to be computed by convt")
        return model, report

    def restore(self, model):
        convt.torch.restore(model)
        for name, module in model.named_modules():
            left = [attribute for attribute, value in vars(module).items() if _is_convts(value)]
            if left or any(_is_convts_class(cls) for cls in type(module).__mro__):
                self.faults.append(f"restore left {left or type(module)} in {name!r}")
        return model


def _is_convts(value):
    return _is_convts_class(type(value))


def _is_convts_class(cls):
    return cls.__module__.partition(".")[0] == "convt"


# ---------------------------------------------------------------- execution


class Observed:
    """What can be seen after a statement: its error, its warnings, and tensors and texts by name."""

    def __init__(self, error, said, faults, found):
        self.error, self.warnings, self.faults, self.found = error, said, faults, found


def statements(source):
    return [ast.unparse(each) for each in ast.parse(source).body]


def execute(source, world, perturbed=contextlib.nullcontext):
    """Return what was `Observed` after each statement. ``perturbed`` makes the context in which statements run."""
    names, observed = parts.NAMES | {"ct": world}, []
    _reset()
    try:
        for n, text in enumerate(statements(source)):
            names.pop("y", None)
            torch.manual_seed(0)  # the same numbers if statements before are dropped
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                error = None
                try:
                    with perturbed():
                        exec(compile(text, f"<statement {n}>", "exec"), names)
                except Exception as found:
                    error = type(found).__name__, _readable(str(found))
                    error = ("error", error[1]) if error[1] == _TORCHSCRIPT else error
                said = {(each.category.__name__, _readable(str(each.message))) for each in caught}
                said = sorted(each for each in said if not each[1].startswith("convt: "))  # of tuning
                faults, world.faults = world.faults, []
                observed.append(Observed(error, said, faults, dict(_look(names))))
    finally:
        _reset()
    return observed


def _reset():
    # Classes that TorchScript compiled are shared by later models, with what it learned in their calls, also if it failed.
    clear_class_registry()
    torch.set_num_threads(1)
    torch.set_warn_always(True)
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")


def _readable(text):
    """Return a message without what depends on addresses, and without TorchScript's and Dynamo's names and places."""
    if re.search("__torch__|TorchScript|Tracing failed|being compiled|supported yet|string literal|Expected a value of", text):
        return _TORCHSCRIPT
    if "has no attribute or method" in text:  # also TorchScript's, at the first time in a process
        return _TORCHSCRIPT
    text = text.partition("Detailed error:")[0].partition("\n\nfrom user code:")[0]
    text = text.partition("Dynamo failed to run FX node")[0]  # with sizes that are known or open
    return re.sub(r"0x[0-9a-f]+|\bid \d+|<statement \d+>|\bz?[suf]+\d+\b|grad_fn=<\w+>", "...", text)[:600]  # Dynamo's symbols


def _look(names):
    """Yield (name, tensor or text) of the result ``y`` and of the models."""
    if "y" in names:
        yield from _leaves("y", names["y"])
    for name in ("model", "twin"):
        model = names.get(name)
        if isinstance(model, nn.Module):
            try:
                yield from _state(name, model)
            except Exception as error:
                yield f"state of {name}", f"{type(error).__name__}: {_readable(str(error))}"


def _leaves(name, value):
    if isinstance(value, torch.Tensor):
        yield name, _Tensor(value)
    elif isinstance(value, (list, tuple, dict)):
        yield name, f"{type(value).__name__} of {len(value)}"
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(f"{name}[{key!r}]", each)
    else:
        yield name, _readable(repr(value))


def _state(name, model):
    yield f"repr of {name}", repr(model)
    for place, module in model.named_modules():
        own = sorted(key for key in vars(module) if key not in ("forward", "_convt_settings", "__module__"))
        yield f"attributes of {name}.{place}", f"{module.training} {type(module).__name__} {' '.join(own)}"
    for key, value in model.state_dict(keep_vars=True).items():
        yield from _leaves(f"{name}.{key}", value)
        yield from _leaves(f"gradient of {name}.{key}", getattr(value, "grad", None))


class _Tensor:
    """A copy of a tensor, and its properties."""

    def __init__(self, t):
        self.values = None
        if nn.parameter.is_lazy(t):
            self.form = "lazy"
            return
        self.form = f"{type(t).__name__} {tuple(t.shape)} {t.dtype} {t.layout} {t.device}"
        self.form += f" requires_grad={t.requires_grad} leaf={t.is_leaf} inference={t.is_inference()} neg={t.is_neg()}"
        if t.layout is torch.strided and t.device.type == "cpu":
            self.form += f" strides {t.stride()}"
            self.values = t.detach().clone().resolve_neg()


# ---------------------------------------------------------------- comparison


def agree(source):
    """Execute a case with convt and without, and raise `Difference` unless both do the same. Return what was observed."""
    source = "\n".join(statements(source))
    for _ in range(2):  # again, because torch says some things only once in a process
        wanted = execute(source, Plain())
        _weights.forget()
        got = execute(source, Convt())
        if all(ours.warnings == theirs.warnings for ours, theirs in zip(got, wanted, strict=True)):
            break
    unit = next((unit for word, unit in _UNITS.items() if f"'{word}'" in source), 0)
    perturbed_execution = functools.cache(lambda seed: execute(source, Plain(), lambda: Perturbed(seed, unit)))

    def perturbed(n, name):
        """Yield the values of a tensor in executions without convt whose results of each operation are changed a little."""
        for seed in range(40):
            found = perturbed_execution(seed)[n].found.get(name)
            yield found.values if isinstance(found, _Tensor) else None

    repeated_execution = functools.cache(lambda byte: _in_memory_of(byte, lambda: execute(source, Plain())))

    def repeated(n, name):
        """Yield the values of a tensor in executions without convt that find other bytes in new memory."""
        for byte in _BYTES:
            found = repeated_execution(byte)[n].found.get(name)
            yield found.values if isinstance(found, _Tensor) else None

    for n, (text, ours, theirs) in enumerate(zip(statements(source), got, wanted, strict=True)):
        first = _first(wanted[n - 1].found if n else {}, theirs.found)
        try:
            _compare(ours, theirs, functools.partial(perturbed, n), functools.partial(repeated, n), first)
        except Difference as difference:
            difference.args = (f"{difference.args[0]}\n  in statement {n}: {text}",)
            raise
    return got


def _first(before, after):
    """Return which call in a list ``y`` later ones repeat, or None, from what was found before and after a statement."""
    if any(name.endswith("_u") and name in before and not _same(before[name], each) for name, each in after.items()):
        return None  # a spectral norm in training iterates, so each call has other weights, which rounding may hide in torch
    was_lazy = any(isinstance(each, _Tensor) and each.form == "lazy" for each in before.values())
    return "y[1]" if was_lazy else "y[0]"  # the first call of a lazy module gives it weights, so later calls may fuse it


def _compare(got, wanted, perturbed, repeated, first):
    if got.error != wanted.error:
        raise Difference("error", f"got {got.error}, wanted {wanted.error}", f"{got.error}"[:80])
    if got.faults:
        raise Difference("fault", "; ".join(got.faults))
    if got.warnings != wanted.warnings:
        raise Difference("warnings", f"got {got.warnings}, wanted {wanted.warnings}")
    if got.found.keys() != wanted.found.keys():
        raise Difference("names", f"of only one: {sorted(got.found.keys() ^ wanted.found.keys())}")
    for name, ours in got.found.items():
        theirs = wanted.found[name]
        if not isinstance(ours, _Tensor) or not isinstance(theirs, _Tensor):
            if ours != theirs:
                raise Difference("text", f"{name}: got {ours}, wanted {theirs}")
            continue
        if ours.form != theirs.form:
            raise Difference("form", f"{name}: got {ours.form}, wanted {theirs.form}")
        if ours.values is not None:
            executions = functools.partial(perturbed, name), functools.partial(repeated, name)
            if why := allowed(ours.values, theirs.values, *executions):
                raise Difference("values", f"{name}, {ours.form}: {why}")
    if first is not None:
        _assert_repeats(got.found, wanted.found, first, repeated)


def _assert_repeats(got, wanted, first, repeated):
    """Check that calls in one list ``y``, from ``first``, that torch repeats bit by bit are repeated bit by bit."""
    for name in got:
        if name > first and re.fullmatch(r"y\[\d\]", name) and isinstance(wanted.get(first), _Tensor):
            same = [_same(each[first], each[name]) for each in (got, wanted)]
            if same[1] and not same[0] and all(_equal(each, wanted[first].values) for each in repeated(first)):
                most = (got[name].values.double() - got[first].values.double()).abs().max()
                raise Difference("repeat", f"{name} differs from {first} by up to {most:.3g}")


def _same(a, b):
    if not isinstance(b, _Tensor) or a.form != b.form or a.values is None:
        return False
    return _equal(a.values, b.values)


def _equal(a, b):
    return torch.equal(a.nan_to_num(nan=77), b.nan_to_num(nan=77))


def _in_memory_of(byte, function):
    """Return the result of a function while the C library fills new memory with a byte."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *arguments: None)
    mallopt(_M_PERTURB, byte ^ 0xFF)
    try:
        return function()
    finally:
        mallopt(_M_PERTURB, 0)


def perform(case):
    """Run and check a case. Return ("right", numbers of statements), or ("large", {}) if there was not enough memory for the
    comparison."""
    try:
        observed = agree(case)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            return "large", {}
        raise
    return "right", {"statements": len(observed), "statements without an error": sum(each.error is None for each in observed)}
