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
        # Name of a group's output -> the group. Two graphs may use one name: ONNX Runtime compiles the groups of a graph before
        # it shows the next. It makes kernels at the end, so these take from here only what cannot change results.
        self._groups, self._opset = {}, 0
        if options["session"]:
            sessions[options["session"]] = self

    def claim(self, nodes, opset):
        """Return the groups of nodes that convt computes: a list for each, of the ConvTranspose node and those fused with it.

        ``nodes`` are the ConvTranspose nodes of a graph, and ``opset`` is the version of ONNX's operators.
        """
        groups, taken, self._opset = [], set(), opset
        for node in nodes:
            if node.provider == NAME:
                continue  # ONNX Runtime shows a graph again after it has assigned some of its nodes
            try:
                group, members = _fuse.fused(node, opset, taken if self.settings.fuse else None)
            except Exception as error:
                if _host.is_foreign(error):
                    raise
                why = "" if isinstance(error, _fuse.Left) else f"convt cannot claim it: {type(error).__name__}: "
                self._left[node.name, node.outputs[0].name] = f"{why}{error}"
                continue
            self._groups[group.output] = group
            groups.append(members)
            taken.update(members)
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

    def compile(self, fused):
        """Return the node of a group that ONNX Runtime fused into one node."""
        group = self._groups[fused.outputs[0].name]
        return self._add(group, [value.name for value in fused.inputs], fused.name)

    def single(self, name, output, attributes, version, given):
        """Return the node of a registered kernel.

        ``version`` is that of its operator. ``given`` has (name, whether it is a constant) of each input.
        """
        inputs, claimed = [each for each, _ in given], self._groups.get(output)
        host_name = claimed.originals[0].name if claimed else name
        original = _fuse.Original("ConvTranspose", tuple(inputs), (output,), attributes, host_name)
        group = _fuse.Group(name or output, attributes, self._opset or version, inputs, [original])
        group.constants = {n for n, (_, is_constant) in enumerate(given) if is_constant}
        group.in_model = claimed is None or claimed.in_model
        return self._add(group, inputs, host_name)

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
