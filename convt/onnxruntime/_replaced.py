"""The ONNX nodes that a node of convt replaces, as a model of their own.

ONNX Runtime infers the shape of a node's output from this model while it loads the whole model, and computes with it what convt
refuses (`Fallback`).
"""

import base64
import itertools

import onnx
import onnxruntime

from . import _host, _inputs, _options

_OPEN = "open size of convt "  # begin of the name of a size that is unknown before a run


class Fallback:
    """The base class of a node. For calls that convt refuses, it runs ONNX Runtime's operators instead.

    ``refused`` is None or ``(shapes, reason)``: the shapes of X and W that convt refused last; ``shapes`` is None if convt
    refuses all shapes. A subclass sets ``arguments``, ``element_type`` and ``threads``.
    """

    def __init__(self):
        self.refused, self._sessions = None, {}

    def refuse(self, error, shapes):
        """Record that convt refuses inputs of these shapes with ``error``, and create the ONNX Runtime session for them.

        ``shapes`` is None if convt refuses all shapes. Raise ``error`` if it comes from a signal handler, or if ONNX Runtime
        refuses such a node too.
        """
        if _host.is_foreign(error):
            raise error
        try:
            self.begin()
        except Exception as theirs:  # ONNX Runtime has no operator for such a node
            raise (theirs if _host.is_foreign(theirs) else error) from None
        if self.refused is None or self.refused[0] is not None:
            self.refused = shapes, f"{type(error).__name__}: {error}"

    def compute_with_onnxruntime(self, error, inputs):
        """Compute the output with ONNX Runtime for input arrays that convt refused with ``error``."""
        self.refuse(error, tuple(each.shape for each in inputs[:2]))
        return self._run(self.begin(), inputs)

    def computed_rest(self, convolved, inputs):
        """Compute a run's output from that of the ConvTranspose and its bias with ONNX Runtime."""
        biased = self.arguments["biased"]
        return self._run(self.begin(biased), inputs, {biased: convolved})

    def begin(self, after=""):
        """Return the session of the operators, or of those behind a value. The first call creates it."""
        if after not in self._sessions:
            self._sessions[after] = _session(self.arguments, self.element_type, self.threads, after)
        return self._sessions[after]

    def _run(self, session, inputs, more=()):
        """Return the output of one of the sessions for a run's inputs."""
        feed = {name: value for name, value in zip(self.arguments["inputs"], inputs, strict=False) if name} | dict(more)
        return session.run(None, {each.name: feed[each.name] for each in session.get_inputs()})[0]


def text_of(scope, nodes):
    """Return the nodes of a scope that a node of convt replaces as text, in an order in which they can be computed."""
    graph = onnx.GraphProto(name="replaced", node=nodes)
    made = [name for node in nodes for name in node.output if name]
    graph.value_info.extend(info for info in map(scope.declared, made[:-1]) if info is not None)
    graph.output.add(name=made[-1])
    return base64.b64encode(graph.SerializeToString()).decode()


def node_names(arguments):
    """Return the names of the nodes that a node of convt with these arguments replaces."""
    return [each.name for each in onnx.GraphProto.FromString(base64.b64decode(arguments["replaced"])).node]


def _session(arguments, element_type, threads, after=""):
    """Return a session of ONNX Runtime that computes the nodes that a node of convt replaces. It prints nothing.

    ``arguments`` are those of the node. If ``after`` is the name of a value between the nodes, the session computes only the
    nodes behind it, and reads it.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, _options.SILENT  # the outer session logs errors
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would take the outer session's cores
    model = _model(arguments, element_type, itertools.repeat(None))
    if after:
        _make_input(model.graph, after, element_type)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def _make_input(graph, name, element_type):
    """Make a value an input of a graph, and remove the nodes and inputs that only it needs."""
    needed, kept = {each.name for each in graph.output}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output) and name not in node.output:
            needed.update(node.input)
            kept.insert(0, node)
    inputs = [each for each in graph.input if each.name in needed]
    del graph.node[:], graph.input[:], graph.value_info[:]
    graph.node.extend(kept)
    graph.input.extend([*inputs, onnx.helper.make_tensor_value_info(name, element_type, None)])


def _model(arguments, element_type, shapes):
    """Return a model of the nodes that a node of convt replaces, for inputs of these shapes; None is an unknown shape."""
    graph = onnx.GraphProto.FromString(base64.b64decode(arguments["replaced"]))
    kinds, scalars = arguments["kinds"], arguments["scalars"]
    infos = {
        name: onnx.helper.make_tensor_value_info(name, kinds.get(name, element_type), () if name in scalars else dims)
        for name, dims in zip(_inputs.given(arguments["inputs"]), shapes, strict=False)
    }
    graph.input.extend(infos.values())
    graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info(graph.output[0].name, element_type, None))
    opset = onnx.helper.make_opsetid("", arguments["attributes"]["opset"])
    return onnx.helper.make_model(graph, ir_version=8, opset_imports=[opset])


def output_dims(arguments, element_type, shapes):
    """Return the shape of a node's output as integers and names of open sizes, or None if its rank is unknown.

    ``arguments`` are those of the node. ``shapes`` has a list of sizes, and names or None for open ones, for each given input.
    It is empty for scalars and for unknown shapes, which ONNX Runtime does not tell apart.
    """
    known = _host.creation(arguments["session"]).shapes
    key = arguments["node"], *map(tuple, shapes)
    if key not in known:
        model = _model(arguments, element_type, [each or None for each in shapes])
        # ONNX Runtime warns of a wrong shape that the model declares for a value between the nodes.
        dims = _options.load(model, arguments["severity"] if model.graph.value_info else _options.SILENT)[0].shape
        if any(isinstance(size, int) and size < 0 for size in dims):  # ONNX Runtime shows it, but takes none from an operator
            raise ValueError(f"ONNX Runtime infers the shape {dims} of its output")
        # An open size needs a name: ONNX Runtime takes a missing one for -1. The same name in two values means the same size.
        known[key] = [f"{_OPEN}{key[0]} {ax}" if size is None else size for ax, size in enumerate(dims)] or None
    return known[key]


def without_names(outputs):
    """Return a session's outputs without the names that `output_dims` gave to open sizes."""
    return [_without_names(each) if any(str(size).startswith(_OPEN) for size in each.shape) else each for each in outputs]


def _without_names(output):
    kind = onnx.TensorProto.DataType.Value(output.type.removeprefix("tensor(").removesuffix(")").upper())
    dims = [None if str(size).startswith(_OPEN) else size for size in output.shape]
    info = onnx.helper.make_tensor_value_info(output.name, kind, dims)
    graph = onnx.helper.make_graph([], "outputs", [info], [info])
    return _options.load(onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)]))[0]
