"""Modules with a forward of their own, in which torch.fx finds a batch norm or an activation behind a transposed convolution.

Such a module gets a class whose forward, in inference, runs the graph that torch.fx traced, with these computed together. A
graph holds what the forward did once. So it stands for the forward only while the module's own attributes and children are the
ones of then, for tensors in its arguments' places, and after its first results were those of the forward.
"""

import functools
import inspect
import weakref

import torch
from torch import fx
from torch.nn import functional
from torch.nn.modules import module as _module

from .. import _config
from . import _fuse, _stand

# What computes an activation -> what convt calls it
_FUNCTIONS = {
    torch.relu: "relu", functional.relu: "relu", torch.tanh: "tanh", functional.tanh: "tanh", torch.sigmoid: "sigmoid",
    functional.sigmoid: "sigmoid", functional.silu: "swish",
}  # fmt: skip
_METHODS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}
# How far results may lie apart, of the largest, as weights with a batch norm in them are rounded otherwise: by the precision.
_DIFFERENCE = {"highest": 1e-4, "high": 1e-3, "medium": 3e-2}
_PLAIN = (bool, int, float, str, type(None))
_BASE = frozenset(vars(torch.nn.Module()))  # attributes that every module has


class _Children(fx.Tracer):
    """Traces a forward down to the calls of the module's children."""

    def is_leaf_module(self, module, name):
        return True


class _Together(torch.nn.Module):
    """A transposed convolution with the batch norm and the activation, a module or a function, behind it."""

    def __init__(self, conv, norm, activation):
        super().__init__()
        self.conv, self.norm, self.activation = conv, norm, activation

    def forward(self, input):
        parts = [part for part in (self.conv, self.norm, self.activation) if part is not None]
        if all(_fuse.unhooked(part) for part in parts if isinstance(part, torch.nn.Module)) and not (
            self.norm is not None and self.norm.training
        ):
            is_module = isinstance(self.activation, torch.nn.Module)
            name = _fuse.activation_of(self.activation) if is_module else _FUNCTIONS.get(self.activation)
            known = self.activation is None or name is not None
            result = _fuse.together(self.conv, self.norm, name, input) if known and self.conv.padding_mode == "zeros" else None
            if result is not None:
                return result
        for part in parts:
            input = part(input)
        return input


class _Graph:
    """The traced forward of a module, while it stands for it."""

    def __init__(self, module):
        self.state = _state(module)
        self.joined, self.run, self.checked, self.traces = {}, None, False, 0
        self.parts = {}  # name in the graph -> _Together
        parameters = list(inspect.signature(type(module).forward).parameters.values())
        self.arguments = len(parameters) - 1
        plain = all(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in parameters)
        if self.state is None or not plain:
            return
        try:
            graph = _Children().trace(module)
        except Exception:  # a forward that does other things than to call operators on tensors
            return
        finally:
            changed = self.state != _state(module)
            if changed:  # it counts its calls, or the like
                _restore(module, self.state[0])
        if changed:
            return
        called = [node for node in graph.nodes if node.op == "call_module"]
        targets = {node.target for node in graph.nodes if node.op in ("call_module", "get_attr")}
        if any("." in target for target in targets):  # something of a child, whose changes the state does not show
            return
        parts = self.parts
        for node in called:
            if type(module.get_submodule(node.target)) in _fuse.RANKS:
                self._join(module, graph, node)
        if parts:
            targets = {node.target for node in graph.nodes if node.op in ("call_module", "get_attr")}
            found = {name: parts[name] if name in parts else getattr(module, name) for name in targets}
            self.run = fx.GraphModule(found, graph).forward

    def difference(self):
        """How far its results may lie from the forward's: _DIFFERENCE of its least exact part."""
        return max(_DIFFERENCE[part.conv._convt_precision or _config.default_precision()] for part in self.parts.values())

    def _join(self, module, graph, node):
        conv, names = module.get_submodule(node.target), []
        if len(node.args) != 1 or node.kwargs:
            return
        norm, last = None, node
        behind = _only_user(last)
        if _calls(behind, last) and _fuse.normalizes(module.get_submodule(behind.target), _fuse.RANKS[type(conv)]):
            norm, last = module.get_submodule(behind.target), behind
            names.append(type(norm).__name__)
            behind = _only_user(last)
        activation = None
        if _calls(behind, last) and _fuse.activation_of(module.get_submodule(behind.target)) is not None:
            activation, last = module.get_submodule(behind.target), behind
            names.append(type(activation).__name__)
        elif (activation := _function(behind, last)) is not None:
            last = behind
            names.append(_FUNCTIONS[activation])
        if last is node:
            return
        name = f"_convt_{len(self.parts)}"
        self.parts[name] = _Together(conv, norm, activation)
        self.joined[node.target] = tuple(names)
        with graph.inserting_before(node):
            whole = graph.call_module(name, node.args)
        last.replace_all_uses_with(whole)
        while last is not node:
            before = last.args[0]
            graph.erase_node(last)
            last = before
        graph.erase_node(node)


def _only_user(node):
    return next(iter(node.users)) if len(node.users) == 1 else None


def _calls(node, source):
    """Whether a node is the call of a child, on another node alone."""
    return node is not None and node.op == "call_module" and node.args == (source,) and not node.kwargs


def _function(node, source):
    """The function of _FUNCTIONS that a node computes of another one; None for other nodes."""
    if node is None or node.args != (source,) or any(node.kwargs.values()):
        return None
    if node.op == "call_method":
        return _METHODS.get(node.target)
    return node.target if node.op == "call_function" and node.target in _FUNCTIONS else None


def _state(module):
    """What a forward may look at besides its arguments: plain attributes, children and tensors. None where it has others, which
    may change unseen."""
    own = {name: value for name, value in vars(module).items() if name not in _BASE}
    if not all(isinstance(each, _PLAIN) for value in own.values() for each in (value if type(value) is tuple else (value,))):
        return None
    children = {name: (id(child), type(child)) for name, child in module._modules.items()}
    tensors = {name: id(t) for name, t in (*module._parameters.items(), *module._buffers.items())}
    return own, children, tensors


def _restore(module, own):
    """Give a module the plain attributes of a state again."""
    for name in set(vars(module)) - set(own) - _BASE:
        delattr(module, name)
    for name, value in own.items():
        setattr(module, name, value)


_TRACES = 8  # of a module, which is left alone when it has changed so often
_graphs = weakref.WeakKeyDictionary()  # module -> _Graph


def joined(module):
    """{child: what is computed with it} of a module whose forward can be traced; empty for others."""
    cls = type(module)
    original = _stand.original(cls)
    if not any(type(child) in _fuse.RANKS for child in module.children()) or "forward" in vars(module):
        return {}
    if original.forward in (torch.nn.Sequential.forward, torch.nn.Module.forward) or isinstance(module, torch.jit.ScriptModule):
        return {}
    return _graph(module).joined


def _graph(module):
    known = _graphs.get(module)
    if known is None or (known.state != _state(module) and known.traces < _TRACES):
        traces = 0 if known is None else known.traces
        known = _graphs[module] = _Graph(module)
        known.traces = traces + 1
    return known


@functools.cache
def swapped(cls):
    """The class that stands for a module's: the same with a forward that computes some things together in inference."""

    def forward(self, *inputs, **keywords):
        plain = lambda: cls.forward(self, *inputs, **keywords)  # noqa: E731
        if (
            self.training or keywords or torch.is_grad_enabled() or torch.compiler.is_compiling()
            or _module._has_any_global_hook() or not all(type(each) is torch.Tensor for each in inputs)
        ):  # fmt: skip
            return plain()
        graph = _graph(self)
        if graph.run is None or graph.traces == _TRACES or len(inputs) != graph.arguments:
            return plain()
        result = graph.run(*inputs)
        if not graph.checked:
            want = plain()
            if not _alike(result, want, graph.difference()):
                graph.run = None
                return want
            graph.checked = True
        return result

    forward.__signature__ = inspect.signature(cls.forward)
    return _stand.standing_for(cls, forward, swapped)


def _alike(a, b, difference):
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        far = difference * float(b.abs().max()) if b.numel() else 0.0
        return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=1e-3, atol=far, equal_nan=True)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(_alike(*each, difference) for each in zip(a, b, strict=True))
    return type(a) is type(b) and isinstance(a, _PLAIN) and a == b
