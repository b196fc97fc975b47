"""The execution provider in one session: its options, the nodes that it claims, and what the report of a session says."""

from typing import NamedTuple

from .._base.problem import PRECISIONS
from . import _fuse, _host
from ._node import Node

NAME = "ConvtExecutionProvider"
OPTIONS = ("threads", "precision", "tune", "fuse", "session")
_SWITCH = {"": None, "0": False, "false": False, "1": True, "true": True}

# Key of a `convt.onnxruntime.InferenceSession` that is being created -> its provider. The option "session" is the key.
sessions = {}


class Options(NamedTuple):
    """The options of a provider."""

    threads: int = 0  # 0 for convt's own number
    precision: str | None = None
    tune: bool = False
    fuse: bool = True


class Provider:
    """A provider. ``options`` is a dict of texts, "" for those that are not set.

    Attributes
    ----------
    nodes : dict
        Name -> `Node` that convt computes.
    """

    def __init__(self, options):
        threads, precision = options["threads"] or "0", options["precision"] or None
        if not threads.isdecimal():
            raise ValueError(f"option threads: got {threads!r}, wanted an integer >= 0")
        if precision not in (None, *PRECISIONS):
            raise ValueError(f"option precision: got {precision!r}, wanted one of {', '.join(PRECISIONS)}")
        tune, fuse = (_switch(name, options[name]) for name in ("tune", "fuse"))
        # ONNX Runtime cannot save compiled nodes in a model with cached contexts of providers.
        fuse = options["context"] != "1" and fuse is not False
        self.settings = Options(int(threads), precision, bool(tune), fuse)
        self.nodes, self._left = {}, {}  # names of a node that is left, and of its output -> reason
        # Name of an output -> the group of a registered kernel; the last group that has this output. ONNX Runtime compiles the
        # groups of a graph before it shows the next, which may use the same names, but makes kernels at the end.
        self._alone, self._groups = {}, {}
        if options["session"]:
            sessions[options["session"]] = self

    def claim(self, nodes, opset):
        """Return the groups of nodes that convt computes, ``(nodes, whether ONNX Runtime is to compile them into one)``.

        ``nodes`` are the ConvTranspose nodes of a graph, and ``opset`` is the version of ONNX's operators.
        """
        groups, taken = [], set()
        for node in nodes:
            output = node.outputs[0].name
            if node.provider == NAME and output in self._groups:
                continue  # ONNX Runtime shows a graph again after it has assigned some of its nodes
            try:
                group, members = _fuse.fused(node, opset, taken if self.settings.fuse else None)
                is_fused = len(members) > 1 or output in self._alone
                if is_fused and not self.settings.fuse:
                    raise _fuse.Left("a node of another graph has an output of the same name")
            except Exception as error:
                if _host.is_foreign(error):
                    raise
                why = "" if isinstance(error, _fuse.Left) else f"convt cannot claim it: {type(error).__name__}: "
                self._left[node.name, output] = f"{why}{error}"
                continue
            self._groups[group.output] = group
            if not is_fused:
                self._alone[output] = group
            groups.append((members, is_fused))
            taken.update(each.id for each in members)
        return groups

    def in_order(self):
        """Return ``nodes`` in the order in which ONNX Runtime showed them: it makes kernels after all groups."""
        order = {output: n for n, output in enumerate(self._groups)}
        return dict(sorted(self.nodes.items(), key=lambda each: order.get(each[1].group.output, len(order))))

    @property
    def kept(self):
        """Return {name of a ConvTranspose node left to ONNX Runtime: reason}."""
        found = {}
        for (name, output), why in self._left.items():
            found[_unique(name or output, {*self.nodes, *found})] = why
        return found

    def fused(self, made):
        """Return the node for a node that ONNX Runtime made of a group."""
        return self._add(self._groups[made.outputs[0].name], [value.name for value in made.inputs], made.name)

    def alone(self, output):
        """Return the node of a registered kernel with this output."""
        (original,) = self._alone[output].originals
        return self._add(self._alone[output], original.inputs, original.name)

    def _add(self, group, order, host_name):
        node = self.nodes[_unique(group.name, self.nodes)] = Node(group, self.settings, order, host_name)
        return node


def _unique(name, taken):
    while name in taken:
        name += "'"
    return name


def _switch(name, text):
    if text.lower() not in _SWITCH:
        raise ValueError(f"option {name}: got {text!r}, wanted 0 or 1")
    return _SWITCH[text.lower()]
