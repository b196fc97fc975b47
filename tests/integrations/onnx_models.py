"""Helpers of the tests of convt.onnxruntime: small ONNX models, and the comparison with ONNX Runtime's own session."""

import re
from pathlib import Path

import numpy as np
import pytest
from onnx_builder import MINE, OPSET, TensorProto, conv, helper, info, model_of, numpy_helper, onnx, op, tensors  # noqa: F401

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from cases import PARAMETERS  # noqa: E402

import convt.onnxruntime  # noqa: E402
from convt._base.activation import ACTIVATIONS  # noqa: E402

AttributeProto = onnx.AttributeProto
VERSION = tuple(map(int, onnxruntime.__version__.split(".")[:2]))

PATHS = [str(each) for each in Path(__file__).parents[:2]]  # folders of the modules that these tests import
RNG = np.random.default_rng(0)
FUSED_ACTIVATIONS = {  # operator -> attributes
    row.onnx[0]: {attribute: PARAMETERS[name][0][n] for n, (attribute, _) in enumerate(row.onnx[1:])}
    for name, row in ACTIVATIONS.items() if row.onnx
}  # fmt: skip
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
FUSED = re.compile(r"while running \S+ node\. Name:'[^']*'")  # ONNX Runtime names the node that it made of several
SOURCE = re.compile(r"^.*?\[([A-Z]):onnxruntime:[^,]*, \S+ ")  # time, session and source line of a message of the logger


def graph_of(nodes, *outputs, inputs=(), constants=()):
    """Make a graph for an If, a Loop or a Scan. Without ``outputs``, it has that of the last node."""
    outputs = [info(each) if isinstance(each, str) else each for each in outputs or nodes[-1].output]
    return helper.make_graph(nodes, "inner", list(inputs), outputs, tensors(constants))


def choice(then, other, output="Y"):
    """Make an If node of two graphs or lists of nodes."""
    then, other = (each if isinstance(each, onnx.GraphProto) else graph_of(each) for each in (then, other))
    return helper.make_node("If", ["which"], [output], then_branch=then, else_branch=other)


def function_of(name, nodes, inputs=("a", "b"), output="c", opset=OPSET, attributes=()):
    return helper.make_function("mine", name, inputs, [output], nodes, [helper.make_opsetid("", opset), MINE], list(attributes))


def norm(source, output, channels, **attributes):
    """Make a batch norm and its tensors by name."""
    names = [f"{output}_{part}" for part in ("scale", "shift", "mean", "var")]
    arrays = [*(weights(channels) for _ in range(3)), RNG.uniform(0.5, 2, channels).astype(np.float32)]
    node = helper.make_node("BatchNormalization", [source, *names], [output], **attributes)
    return node, dict(zip(names, arrays, strict=True))


def weights(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def plain(model, options=None):
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def sessions(model, **settings):
    """Return convt's session of a model and ONNX Runtime's own, with these settings of the session options."""
    options = onnxruntime.SessionOptions()
    for name, value in settings.items():
        setattr(options, name, value)
    return convt.onnxruntime.InferenceSession(model, options), plain(model, options)


def same(model, feed, served=1, tolerance=1e-5, outputs=True):
    """Run a model, check that the outputs equal ONNX Runtime's own, and return the session."""
    session = convt.onnxruntime.InferenceSession(model)
    assert len(session.report.packed) + len(session.report.unpacked) == served, session.report
    theirs = plain(model)
    for got, want in zip(session.run(None, feed), theirs.run(None, feed), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        assert abs(got - want).max() <= tolerance * max(1e-6, abs(want).max())
    assert not outputs or [each.shape for each in session.get_outputs()] == [each.shape for each in theirs.get_outputs()]
    return session


def outcome(call, *arguments):
    """Return what a call returns, or the class and the message of its error, without addresses."""
    try:
        return call(*arguments)
    except Exception as error:
        return type(error), re.sub("0x[0-9a-f]+", "", without_node(str(error)))


def without_node(text):
    return FUSED.sub("while running a node", text)


def both(call):
    """Check that a function of a session's class has the same `outcome` for both classes, and return it."""
    want, got = (outcome(call, kind) for kind in (onnxruntime.InferenceSession, convt.onnxruntime.InferenceSession))
    assert got == want
    return want


def fused(session):
    """Return the types of the operators that are fused with the only node of a session."""
    (name,) = session.nodes
    return session.report.fused.get(name, ())


def joined(session):
    """Return the types of the operators that are fused with the only node of a session, without a batch norm: ONNX Runtime 1.31
    and later may fold it itself."""
    return tuple(name for name in fused(session) if name != "BatchNormalization")


def close(session, other, feed):
    """Check that two sessions give the same for a feed."""
    for got, want in zip(session.run(None, feed), other.run(None, feed), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def messages(capfd):
    """Return the messages of ONNX Runtime's loggers without times and source lines."""
    return [SOURCE.sub(r"\1 ", without_node(line)) for line in COLOURS.sub("", capfd.readouterr().err).splitlines()]


def observed(kind, model, feeds, capfd):
    """Return what a user sees of a session: its inputs and outputs, and the arrays, errors and messages of each run."""
    capfd.readouterr()
    try:
        session = kind(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:
        return None, [(type(error), without_node(str(error))), messages(capfd)], []
    seen = [messages(capfd)]
    for listed in (session.get_inputs(), session.get_overridable_initializers(), session.get_outputs()):
        seen.append([(each.name, each.type, each.shape) for each in listed])
    arrays = []
    for feed in feeds:
        try:
            arrays.append(session.run(None, feed))
        except Exception as error:
            seen.append((type(error), without_node(str(error))))
        seen.append(messages(capfd))
    return session, seen, arrays


def alike(model, feeds, capfd, served=1):
    """Check that a user sees the same of both sessions, and return convt's. ``served`` may be None for any number of nodes."""
    _, want, arrays = observed(onnxruntime.InferenceSession, model, feeds, capfd)
    session, seen, ours = observed(convt.onnxruntime.InferenceSession, model, feeds, capfd)
    assert seen == want
    for got, expected in zip(ours, arrays, strict=True):
        for a, b in zip(got, expected, strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    if session is not None and served is not None:
        assert len(session.nodes) == served, session.report
    return session
