"""Tests of values that convt.onnxruntime reads: of the session's options, of files beside the model, of branches that use one
name, of initializers that a run may replace, and values for which fusion could change results. Each model runs in ONNX
Runtime's own session, too."""

import numpy as np
import pytest
from onnx_models import (
    TensorProto,
    alike,
    choice,
    conv,
    graph_of,
    model_of,
    norm,
    numpy_helper,
    onnx,
    onnxruntime,
    op,
    plain,
    same,
    weights,
)

from convt.onnxruntime import InferenceSession

X, W = weights(1, 6, 5, 4), weights(6, 8, 3, 3)
RNG = np.random.default_rng(2)
QUANTIZED = {"Q": RNG.integers(-128, 128, W.shape, np.int8), "S": RNG.uniform(0.01, 0.02, 8).astype(np.float32),
             "Z": RNG.integers(-20, 20, 8, np.int8)}  # fmt: skip


def quantized_model():
    """Return a model of quantized weights and of a PRelu."""
    nodes = [op("DequantizeLinear", ["Q", "S", "Z"], "W"), conv(output="c"), op("PRelu", ["c", "P"])]
    return model_of(nodes, {"X": X.shape}, constants=QUANTIZED | {"P": weights(8, 1, 1)})


def norm_model():
    node, constants = norm("c", "n", 8)
    return model_of([conv(output="c"), node, op("Relu", ["n"])], {"X": X.shape}, constants=constants | {"W": W})


def outcome(session, feed):
    try:
        return session.run(None, feed)[0]
    except Exception as error:
        return type(error)


def agree(session, theirs, feed=None):
    """Check that two sessions return the same, but for 1e-5 of the largest output, or raise the same class."""
    got, want = (outcome(each, feed or {"X": X}) for each in (session, theirs))
    if isinstance(want, type):
        assert got is want
    else:
        largest = np.abs(want, where=np.isfinite(want), out=np.zeros_like(want)).max(initial=0)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * largest)


@pytest.mark.parametrize("level", ["ORT_ENABLE_ALL", "ORT_DISABLE_ALL"])
@pytest.mark.parametrize("name", ["Q", "S", "Z", "P", "n_scale", "n_var", "W", "nothing"])
def test_values_of_the_options_come_first(name, level):
    model = norm_model() if name in ("n_scale", "n_var", "W") else quantized_model()
    tensor = next((each for each in model.graph.initializer if each.name == name), model.graph.initializer[0])
    value = onnx.numpy_helper.to_array(tensor)
    other = onnxruntime.OrtValue.ortvalue_from_numpy((value[::-1] // 2 if value.dtype == np.int8 else value[::-1] * 2).copy())
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.add_initializer(name, other)
    session = InferenceSession(model, options)
    assert len(session.report.packed) == 1 and session.report.fused, session.report
    agree(session, plain(model, options))
    if name != "nothing" and (level == "ORT_DISABLE_ALL" or name in QUANTIZED):
        # With optimisations, ONNX Runtime folds a norm into the weights, and then overlooks values of the options.
        assert abs(session.run(None, {"X": X})[0] - plain(model).run(None, {"X": X})[0]).max() > 0.01


@pytest.mark.parametrize("name, shape", [
    ("Q", (6, 8, 2, 3)), ("Q", (6, 4, 3, 3)), ("S", (1,)), ("P", (1, 1, 4)), ("P", (8, 7, 6)), ("W", (6, 8, 1, 1)),
    ("n_mean", (1,)),
])  # fmt: skip
def test_values_of_another_shape(name, shape):
    """Check values whose shape is not that in the model, which ONNX Runtime does not compare."""
    model = norm_model() if name in ("n_mean", "W") else quantized_model()
    options, dtype = onnxruntime.SessionOptions(), np.int8 if name == "Q" else np.float32
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones(shape, dtype))
    options.add_initializer(name, value)
    session = InferenceSession(model, options)
    agree(session, plain(model, options))


@pytest.mark.parametrize("way", ["file", "values of the options", "files of the options"])
@pytest.mark.parametrize("make", [quantized_model, norm_model])
def test_values_outside_the_model_are_read_as_those_inside(make, way, tmp_path, monkeypatch):
    model, saved, options = make(), onnx.ModelProto(), onnxruntime.SessionOptions()
    saved.CopyFrom(model)
    path = tmp_path / "m.onnx"
    onnx.save(saved, path, save_as_external_data=True, location="data", size_threshold=0)
    lean, data = onnx.load(path, load_external_data=False), (tmp_path / "data").read_bytes()
    assert all(each.external_data for each in lean.graph.initializer)
    arrays = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    kept = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    if way != "file":
        (tmp_path / "data").unlink()
    if way == "values of the options":
        options.add_external_initializers([*kept], [*kept.values()])
    elif way == "files of the options":
        options.add_external_initializers_from_files_in_memory(["data"], [data], [len(data)])
    monkeypatch.chdir(tmp_path)
    session, inside = InferenceSession(path, options), InferenceSession(model)
    assert session.report == inside.report and len(session.report.packed) == 1
    agree(session, plain(model))


@pytest.mark.parametrize("what", ["quantized weights", "slopes", "norm"])
def test_branches_that_use_one_name(what):
    nodes = [op("DequantizeLinear", ["Q", "S", "Z"], "W"), conv(output="o")]
    constants = [QUANTIZED, {"Q": QUANTIZED["Q"][::-1].copy(), "S": QUANTIZED["S"] * 2, "Z": QUANTIZED["Z"] // 2}]
    if what == "slopes":
        nodes = [conv(output="c"), op("PRelu", ["c", "P"], "o")]
        constants = [{"W": W, "P": weights(8, 1, 1)}, {"W": W * 2, "P": weights(8, 1, 1)}]
    elif what == "norm":
        nodes = [conv(output="c"), norm("c", "o", 8)[0]]
        constants = [norm("c", "o", 8)[1] | {"W": W * n} for n in (1, 2)]
    model = model_of([choice(*(graph_of(nodes, constants=each) for each in constants))], {"X": X.shape})
    for which in (True, False):
        session = same(model, {"X": X, "which": np.array(which)}, 2, tolerance=3e-5)
    assert len(session.report.packed) == 2


@pytest.mark.parametrize("others", [[], [op("Neg", ["W"], "V")]], ids=["", "read"])
def test_a_branch_that_shares_quantized_weights(others):
    inner = [conv(output="o")]
    nodes = [op("DequantizeLinear", ["Q", "S", "Z"], "W"), conv(output="U"), *others, choice(inner, inner)]
    model = model_of(nodes, {"X": X.shape}, ("Y", "U", *(["V"] if others else [])), QUANTIZED)
    same(model, {"X": X, "which": np.array(True)}, 3)


def unread_constant():
    """Return a model with a large Constant node and an initializer that nothing reads."""
    array = numpy_helper.from_array(weights(40, 40))
    nodes = [op("Constant", [], "unread", value=array), conv(output="c"), op("Relu", ["c"])]
    return model_of(nodes, {"X": X.shape}, constants={"W": W, "more": weights(3)})


@pytest.mark.parametrize("make", [quantized_model, norm_model, unread_constant])
def test_warnings_are_those_of_onnxruntime(make, capfd):
    """Check that a model with fused values prints what ONNX Runtime prints, and no warning of unread initializers."""
    assert alike(make(), [{"X": X}] * 2, capfd).report.packed


# ------------------------------------------------------------------------------------------------ initializers that are inputs


RUNS = [{"X": X, "which": np.array(which)} for which in (True, False)]
SINGLE = {"Q": QUANTIZED["Q"], "S": np.array(0.01, np.float32), "Z": np.array(3, np.int8)}
DEQUANTIZE = op("DequantizeLinear", ["Q", "S", "Z"], "W")


def listed_model(nodes, ir_version, constants, listed):
    """Return a model. ``listed`` is whether its constants are inputs, too: all of those of IR version 3, others if a run may
    override them."""
    replaceable = constants if listed else ()
    return model_of(nodes, {"X": X.shape}, constants=constants, opset=13, replaceable=replaceable, ir_version=ir_version)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("ir_version", [3, 4, 8])
class TestVersions:
    def test_weights_and_what_is_fused(self, ir_version, listed, capfd):
        batch_norm, constants = norm("a", "n", 8)
        nodes = [conv(output="a"), batch_norm, op("Relu", ["n"])]
        fed = {name: 2 * value for name, value in constants.items()}
        runs = [{"X": X}, {"X": X, "W": 2 * W}, {"X": X, "W": weights(6, 5, 3, 3)}, {"X": X} | fed]
        alike(listed_model(nodes, ir_version, {"W": W} | constants, listed), runs, capfd)

    def test_quantized_weights(self, ir_version, listed, capfd):
        runs = [{"X": X}, {"X": X, "S": np.array(0.02, np.float32)}, {"X": X, "Q": SINGLE["Z"] - SINGLE["Q"]}]
        alike(listed_model([DEQUANTIZE, conv()], ir_version, SINGLE, listed), runs, capfd)

    def test_branches(self, ir_version, listed, capfd):
        model = listed_model([choice([conv(output="o")], [conv(output="u")])], ir_version, {"W": W}, listed)
        session = alike(model, [*RUNS, RUNS[0] | {"W": 2 * W}], capfd, served=2)
        assert (session is None) == (ir_version == 3 and not listed)  # both sessions refuse it

    def test_quantized_weights_of_branches(self, ir_version, listed, capfd):
        """Check weights that both branches and the outer graph dequantize, so that no initializer is left over."""
        branches = choice([conv(output="o")], [conv(output="u")], "v")
        nodes = [DEQUANTIZE, conv(output="t"), branches, op("Add", ["v", "t"])]
        runs = [*RUNS, RUNS[0] | {"S": np.array(0.02, np.float32)}]
        alike(listed_model(nodes, ir_version, SINGLE, listed), runs, capfd, served=3)


@pytest.mark.parametrize("channels", [4, 40], ids=["small", "large"])
@pytest.mark.parametrize("where", ["branches", "outer graph", "both"])
@pytest.mark.parametrize("ir_version", [3, 8])
def test_constant_nodes(ir_version, where, channels, capfd):
    """Check Constant nodes, which become initializers if they are large, that branches or the outer graph read."""
    x, w = weights(1, channels, 5, 7), weights(channels, channels, 3, 3)
    nodes = [op("Constant", [], "W", value=numpy_helper.from_array(w))]
    if where == "branches":
        nodes.append(choice([conv(output="o")], [conv(output="u")]))
    else:
        read = op("Neg", ["W" if where == "both" else "t"], "v")
        nodes += [conv(output="t"), choice([read], [op("Identity", ["t"], "u")])]
    runs = [{"X": x, "which": each["which"]} for each in RUNS]
    alike(model_of(nodes, {"X": x.shape}, ir_version=ir_version), runs, capfd, served=2 if where == "branches" else 1)


# ------------------------------------------------------------------------------------------------ values that forbid fusion


LARGE, SMALL, TINY = 1e20, 1e-25, 1e-42
FACTORS = {
    "infinite product": (LARGE, LARGE, 1e-30), "subnormal product": (SMALL, 1e-20, 1e38), "product of 0": (TINY, SMALL, 1e30),
    "infinite factor": (1.0, np.inf, 1.0), "no number": (1.0, np.nan, 1.0), "zero": (1.0, 0.0, 1.0),
    "subnormal weights": (1e-40, 1.0, 1e38),
}  # fmt: skip


def scaled(name, kind, dtype=np.float32):
    """Return a model of weights and of a following scale or norm, and an input."""
    by_weights, by_scale, by_data = FACTORS[name]
    value = (np.sign(W) * (1 + np.arange(W.size).reshape(W.shape) % 5) * by_weights).astype(dtype)
    factor = ((1 + np.arange(8) % 3) * by_scale).astype(dtype)
    constants, nodes = {"W": value}, [conv(("X", "W", "B"), "c", strides=[2, 2])]
    constants["B"] = (np.arange(8) * by_weights).astype(dtype)
    if kind == "Mul":
        nodes += [op("Mul", ["c", "F"], "m"), op("Add", ["m", "T"], "n")]
        constants |= {"F": factor.reshape(8, 1, 1), "T": np.zeros((8, 1, 1), dtype)}
    else:
        nodes.append(op("BatchNormalization", ["c", "F", "T", "M", "V"], "n", epsilon=0.0))
        constants |= {"F": factor, "T": np.zeros(8, dtype), "M": np.zeros(8, dtype), "V": np.ones(8, dtype)}
        if name == "infinite factor":
            constants |= {"F": np.ones(8, dtype), "V": np.zeros(8, dtype)}
    return nodes, constants, (np.abs(X) * by_data).astype(dtype)


@pytest.mark.parametrize("kind", ["Mul", "BatchNormalization"])
@pytest.mark.parametrize("given", [False, True], ids=["constant", "weights of the run"])
@pytest.mark.parametrize("behind", ["", "Relu", "PRelu", "Add and Relu"])
@pytest.mark.parametrize("name", FACTORS)
def test_a_scale_that_fusion_would_change(name, behind, given, kind):
    nodes, constants, x = scaled(name, kind)
    inputs, feed = {"X": [None] * 4}, {"X": x}
    if behind == "Add and Relu":
        nodes.append(op("Add", ["n", "A"], "a"))
        inputs["A"], feed["A"] = [None] * 4, weights(1, 8, 11, 9)
    if behind:
        nodes.append(op(behind.split()[-1], [nodes[-1].output[0], *(["P"] if behind == "PRelu" else [])], "r"))
        constants |= {"P": weights(8, 1, 1)} if behind == "PRelu" else {}
    nodes[-1].output[0] = "Y"
    if given:
        inputs["W"], feed["W"] = [*W.shape], constants.pop("W")
    model = model_of(nodes, inputs, constants=constants)
    session = InferenceSession(model)
    for _ in range(2):
        agree(session, plain(model), feed)
    assert len(session.report.packed + session.report.unpacked) == 1 and not session.report.kept, session.report


@pytest.mark.parametrize("kind", ["Mul", "BatchNormalization"])
def test_float64_is_scaled_by_onnxruntime(kind):
    """Check float64, of which ONNX Runtime has no ConvTranspose."""
    nodes, constants, x = scaled("infinite factor", kind, np.float64)
    nodes.append(op("Relu", ["n"]))
    model = model_of(nodes, {"X": x.shape}, constants=constants, dtype=TensorProto.DOUBLE)
    got = InferenceSession(model).run(None, {"X": x})[0]
    single = model_of(nodes, {"X": x.shape}, constants={name: value.astype(np.float32) for name, value in constants.items()})
    np.testing.assert_allclose(got, plain(single).run(None, {"X": x.astype(np.float32)})[0], rtol=1e-4)


def test_a_run_whose_weights_do_not_suit_and_then_do():
    nodes, constants, x = scaled("infinite product", "Mul")
    nodes[-1].output[0] = "Y"
    model = model_of(nodes, {"X": x.shape}, constants=constants | {"B": weights(8)}, replaceable="W")
    session, theirs = InferenceSession(model), plain(model)
    for feed, fused in (({}, False), ({"W": W}, True), ({}, False)):
        agree(session, theirs, {"X": x} | feed)
        assert bool(session.report.fused) == fused


@pytest.mark.parametrize("slopes", [np.array([np.inf]), np.array([np.nan]), np.full((8, 1, 1), np.inf), np.full((8, 1, 1), 9)])
@pytest.mark.parametrize("before", ["", "norm"])
def test_slopes_that_are_not_finite(slopes, before):
    node, constants = norm("c", "n", 8)
    nodes = [conv(output="c"), *([node] if before else []), op("PRelu", ["n" if before else "c", "P"])]
    constants |= {"W": W, "P": slopes.astype(np.float32)}
    model = model_of(nodes, {"X": X.shape}, constants=constants if before else {name: constants[name] for name in "WP"})
    session = InferenceSession(model)
    agree(session, plain(model))
    assert len(session.report.packed) == 1 and bool(session.report.fused) == bool(np.isfinite(slopes).all())
