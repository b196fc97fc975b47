"""Tests of what operators keep: plans and packed weights have bounds in bytes, and the least recently used ones are dropped
first. Tests count plans, forms and bytes."""

import itertools

import numpy as np
import pytest
from cases import child, in_threads, kept_forms, meanwhile

import convt
from convt._call import api
from convt._plan import keep, repeat
from convt._plan import plans as _plan
from convt.algorithms import onednn, stages

f32 = np.float32
SIZES = [(8, 8), (16, 16), (4, 4), (32, 32), (2, 2), (12, 20)]


@pytest.fixture
def planned(monkeypatch):
    """Record the algorithm of each plan that is made."""
    names, bind = [], _plan.Plans._bind
    monkeypatch.setattr(_plan.Plans, "_bind", lambda self, *rest: names.append(rest[-1]) or bind(self, *rest))
    return names


@pytest.fixture
def default_limit():
    convt.set_packed_weights_limit(None)


# ---------------------------------------------------------------- plans


def line(n, channels=8):
    return np.ones((1, n, channels), f32)


def test_a_thousand_lengths_in_turns_are_planned_once_each(planned):
    op = convt.ConvTranspose(np.ones((4, 8, 1), f32), strides=2, groups=8, backend="native", algorithm="depthwise")
    for _ in range(2):
        for n in range(1, 1001):
            assert op(line(n)).shape == (1, 2 * n + 2, 8)
    assert len(planned) == 1000
    plans = op._plans.calls
    assert 1000 << 10 < plans.bytes <= keep.OPERATOR_PLANS and len(plans) == 2000  # two keys: problem and layout


def test_a_thousand_lengths_of_one_shot_calls_stay_within_their_bound(planned):
    convt.clear_caches()
    filter, keywords = np.ones((4, 8, 1), f32), dict(strides=2, groups=8, backend="native", algorithm="depthwise")
    for n in range(1, 1001):
        convt.conv_transpose(line(n), filter, **keywords)
    assert len(api._ONE_SHOT_CALLS) == 1000 and api._ONE_SHOT_CALLS.bytes <= keep.ONE_SHOT_PLANS
    before = len(planned)
    convt.conv_transpose(line(1), filter, **keywords)
    assert len(planned) == before


def test_the_plan_that_was_not_used_for_longest_goes_first(planned, monkeypatch):
    monkeypatch.setattr(keep, "OPERATOR_PLANS", 100_000)
    op = convt.ConvTranspose(np.ones((4, 8, 8), f32), strides=2, backend="native", algorithm="direct")
    for n in range(1, 200):
        op(line(1))
        op(line(n))
        assert 0 < op._plans.calls.bytes <= 100_000
    assert len(planned) == 199  # the first plan was used all the time, so it was kept
    op(line(2))
    assert len(planned) == 200


def test_plans_that_are_too_large_are_kept_alone(planned, monkeypatch):
    monkeypatch.setattr(keep, "OPERATOR_PLANS", 1)
    op = convt.ConvTranspose(np.ones((4, 8, 8), f32), strides=2)
    for _ in range(3):
        op(line(5))
    assert len(planned) == 1 and len(op._plans.calls) == 2
    op(line(6))
    assert len(planned) == 2 and len(op._plans.calls) == 2


def test_all_operators_together_have_a_bound(monkeypatch):
    convt.clear_caches()
    monkeypatch.setattr(keep, "ALL_PLANS", 400_000)
    operators = [convt.ConvTranspose(np.ones((4, 8, 8), f32), strides=2, algorithm="direct") for _ in range(10)]
    for n, op in itertools.product(range(1, 31), operators):
        op(line(n))
        assert sum(each._plans.calls.bytes for each in operators) + api._ONE_SHOT_CALLS.bytes <= 400_000
    assert all(len(each._plans.calls) for each in operators)


def test_what_is_kept_by_two_keys_is_counted_once():
    cache = keep.Recent(10_000)
    kept, other = repeat.Kept(3000), repeat.Kept(1000)
    for key in ("a", "b", "b"):
        cache.keep(key, kept)
    assert cache.bytes == 3000 + 2 * keep._KEY and len(cache) == 2
    cache.keep("b", other)
    assert cache.bytes == 4000 + 2 * keep._KEY and cache.get("a") is kept and cache.get("b") is other
    cache.keep("a", other)
    assert cache.bytes == 1000 + 2 * keep._KEY and not kept.keys and sorted(other.keys) == ["a", "b"]
    cache.keep("c", repeat.Kept(9000))
    assert list(cache.entries) == ["c"]
    cache.clear()
    assert cache.bytes == 0 and cache.get("c") is None


# ---------------------------------------------------------------- packed weights


def images(op, shapes, channels):
    return [op(np.random.default_rng(0).standard_normal((1, *shape, channels), f32)).tobytes() for shape in shapes]


@pytest.mark.parametrize("channels, times", [(256, stages.MOST_FORM), (48, 2 * stages.MOST_SMALL_FORM)])
def test_packed_weights_of_all_forms_together_have_a_bound(channels, times, default_limit):
    filter = np.ones((4, 4, channels, channels), f32)
    op = convt.ConvTranspose(filter, strides=2, pads_begin=1, pads_end=1, backend="native")
    limit = op.plan((1, 4, 4, channels)).packed_limit
    assert limit == times * filter.nbytes == op._plans.weights.limit
    for shape in SIZES[:3] + SIZES[4:]:
        images(op, [shape], channels)
        forms = kept_forms(op)
        assert op._plans.weights.bytes == sum(form.nbytes for form in forms) > 0
        assert op._plans.weights.bytes <= limit or len(forms) == 1


def test_the_form_that_was_not_used_for_longest_is_dropped(default_limit):
    w, data = np.ones((2, 2, 8, 8), f32), np.ones((1, 3, 3, 8), f32)
    weights = keep.PackedWeights(w.nbytes)
    direct, scatter, rows = (
        convt.ConvTranspose._borrowing(w, None, weights=weights, strides=2, backend="native", algorithm=name, data_format="NCX")
        for name in ("direct", "scatter", "rows")
    )
    data = np.ones((1, 8, 3, 3), f32)
    kept = lambda: [op._attributes.algorithm for op in (direct, scatter, rows) if kept_forms(op)]  # noqa: E731
    convt.set_packed_weights_limit(100)
    for op in (direct, scatter, rows):
        op(data)
    assert kept() == ["direct", "scatter", "rows"]
    sizes = {op: op.plan(data.shape).packed_bytes for op in (direct, scatter, rows)}
    assert weights.bytes == sum(sizes.values())
    weights.clear()
    convt.set_packed_weights_limit(max(sum(sizes.values()) - each for each in sizes.values()) / w.nbytes)  # room for two
    direct(data)
    scatter(data)
    direct(data)
    rows(data)
    assert kept() == ["direct", "rows"]
    rows(data)
    direct(data)
    scatter(data)
    assert kept() == ["direct", "scatter"] and weights.bytes <= weights.limit


def test_results_do_not_depend_on_what_was_dropped(default_limit):
    rng = np.random.default_rng(1)
    filter = rng.standard_normal((4, 4, 48, 40), f32)
    make = lambda: convt.ConvTranspose(filter, strides=2, pads_begin=1, pads_end=1)  # noqa: E731
    want = dict(zip(SIZES, images(make(), SIZES, 48), strict=True))
    for limit, order in ((None, SIZES[::-1]), (0, SIZES * 2), (0, SIZES[::-1]), (float("inf"), SIZES)):
        convt.set_packed_weights_limit(limit)
        op = make()
        for shape, got in zip(order, images(op, order, 48), strict=True):
            assert got == want[shape]
        assert limit != 0 or len(kept_forms(op)) == 1


@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_threads_call_while_forms_are_dropped(data_format, default_limit):
    """Check threads of which several want forms at once while only one form is kept."""
    rng = np.random.default_rng(2)
    filter = rng.standard_normal((4, 4, 16, 12), f32)
    op = convt.ConvTranspose(filter, strides=2, data_format=data_format)
    shapes = [(1, 3, 3), (1, 16, 16), (1, 1, 1), (2, 9, 30)]
    data = [rng.standard_normal((n, h, w, 16) if data_format == "NXC" else (n, 16, h, w), f32) for n, h, w in shapes]
    want = [op(each).tobytes() for each in data]
    convt.set_packed_weights_limit(0)

    def work(first):
        return all(op(data[(first + n) % 4]).tobytes() == want[(first + n) % 4] for n in range(60))

    with meanwhile(op._plans.weights.clear):
        assert all(in_threads(work))


def test_calls_that_are_repeated_pack_again_what_was_dropped():
    op, data = convt.ConvTranspose(np.ones((2, 2, 8, 8), f32), strides=2), np.ones((1, 5, 5, 8), f32)
    want = op(data).tobytes()
    for _ in range(3):
        assert op(data).tobytes() == want and len(kept_forms(op)) == 1
        op._plans.weights.clear()
        assert not kept_forms(op) and op._plans.weights.bytes == 0


def test_one_shot_calls_keep_no_weights():
    convt.clear_caches()
    convt.conv_transpose(np.ones((1, 5, 5, 8), f32), np.ones((2, 2, 8, 8), f32), strides=2)
    (shot,) = api._ONE_SHOT_CALLS.entries.values()
    assert shot.bytes > 0 and shot.form.nbytes == 0


@pytest.mark.skipif(not onednn.library.available(), reason="oneDNN is not installed")
def test_layouts_that_onednn_wants_are_bounded(default_limit):
    rng = np.random.default_rng(0)
    filter = rng.standard_normal((4, 4, 32, 32), f32)
    op = convt.ConvTranspose(filter, strides=2, backend="onednn")
    shapes = [(1, 2, 2), (1, 40, 40), (7, 3, 3), (16, 20, 20)]
    data = [rng.standard_normal((*shape, 32), f32) for shape in shapes]
    want = [op(each).tobytes() for each in data]
    (form,) = kept_forms(op)
    assert 0 < form.nbytes <= op._plans.weights.limit
    form.weights().bound_to(0)
    most = form.nbytes
    for each, wanted in zip(data * 2, want * 2, strict=True):
        assert op(each).tobytes() == wanted
        assert form.nbytes <= most * 2  # one layout only


# ---------------------------------------------------------------- the setting


def test_the_limit_is_set_and_got(default_limit):
    assert convt.get_packed_weights_limit() is None
    name = "packed weights of an operator, times its filter"
    assert convt.show_config("dicts")["kept"][name] == [stages.MOST_FORM, 2 * stages.MOST_SMALL_FORM]
    for given, want in ((3, 3.0), (np.float32(1.5), 1.5), (0, 0.0), (float("inf"), float("inf")), (np.int64(2), 2.0)):
        convt.set_packed_weights_limit(given)
        assert convt.get_packed_weights_limit() == want
        assert convt.show_config("dicts")["kept"][name] == [want]
        filter = np.ones((2, 2, 4, 4), f32)
        assert convt.ConvTranspose(filter).plan((1, 3, 3, 4)).packed_limit == want * filter.nbytes
    for wrong in (-1, float("nan"), -np.inf):
        with pytest.raises(ValueError, match=r"^times: got .*wanted a number >= 0"):
            convt.set_packed_weights_limit(wrong)
    for wrong in ("2", True, [2], 2j):
        with pytest.raises(TypeError, match=r"^times: got .*wanted a number"):
            convt.set_packed_weights_limit(wrong)


@pytest.mark.parametrize("text, want", [("3", "3.0"), ("0.5", "0.5"), ("inf", "inf"), ("", "None")])
def test_the_environment_sets_the_limit(text, want):
    script = "import convt; print(convt.get_packed_weights_limit())"
    assert child(script, CONVT_PACKED_LIMIT=text)[:2] == (0, want + "\n")


# ---------------------------------------------------------------- models

_DECODER = """
import ctypes, gc, io, sys
import numpy as np, torch, convt

def resident():
    convt.clear_caches()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(open("/proc/self/statm").read().split()[1]) * 4096

CHANNELS = (512, 512, 512, 256, 128, 64, 32)
SIZES = [(1, 1), (2, 2), (4, 4), (1, 3), (3, 5)]
layers = [torch.nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in zip(CHANNELS, CHANNELS[1:])]
weights = sum(layer.weight.nbytes for layer in layers)
model = torch.nn.Sequential(*(each for layer in layers for each in (layer, torch.nn.ReLU()))).eval()
images = [torch.randn(1, CHANNELS[0], *size) for size in SIZES]
with torch.no_grad():
    want = [model(image).numpy() for image in images]
"""

_IN_TORCH = (
    _DECODER
    + """
import convt.torch
from convt.torch import _weights
with torch.no_grad():
    before = resident()
    convt.torch.accelerate(model)
    for _ in range(2):
        for image, wanted in zip(images, want):
            np.testing.assert_allclose(model(image).numpy(), wanted, atol=1e-3)
    more = resident() - before
    kept = {layer: _weights._filters[id(layer.weight)].values.weights for layer in layers}
"""
)

_IN_ONNX = (
    _DECODER
    + """
import onnxruntime, convt.onnxruntime
file = io.BytesIO()
torch.onnx.export(model, (images[0],), file, dynamo=False, input_names=["x"], output_names=["y"],
                  dynamic_axes={"x": {2: "h", 3: "w"}})

def more_of(make):
    before = resident()
    session = make()
    for _ in range(2):
        for image, wanted in zip(images, want):
            np.testing.assert_allclose(session.run(None, {"x": image.numpy()})[0], wanted, atol=1e-3)
    return session, resident() - before

theirs, own = more_of(lambda: onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"]))
ours, more = more_of(lambda: convt.onnxruntime.InferenceSession(file.getvalue()))
more -= own
kept = dict(zip(layers, [node.operator._plans.weights for node in ours.nodes.values()], strict=True))
"""
)

_REPORT = """
for layer, each in kept.items():
    assert 0 < each.bytes and (each.bytes <= each.limit or len(each._forms) == 1), (layer, each.bytes / layer.weight.nbytes)
print(sum(each.bytes for each in kept.values()) / weights, (more - (6 << 20)) / weights)  # code takes some as well
"""


@pytest.mark.parametrize("script", [_IN_TORCH, _IN_ONNX], ids=["PyTorch", "ONNX Runtime"])
def test_a_decoder_that_meets_images_of_many_sizes(script):
    pytest.importorskip("torch")
    if script is _IN_ONNX:
        pytest.importorskip("onnxruntime")
    code, out, errors = child(script + _REPORT, timeout=300)
    assert code == 0, errors[-3000:]
    packed, resident = map(float, out.split()[-2:])
    assert packed <= stages.MOST_FORM and resident <= stages.MOST_FORM, (packed, resident)


def test_small_filters_keep_the_forms_of_several_shapes():
    op = convt.ConvTranspose(np.ones((6, 4, 3, 3), np.float32), strides=2, data_format="NCX", filter_format="IOX")
    shapes = [(1, 6, 5, 7), (2, 6, 9, 4), (1, 6, 16, 16), (3, 6, 1, 1)]
    for shape in shapes:
        op(np.ones(shape, np.float32))
    kept = [id(form.weights()) for form in kept_forms(op)]
    for shape in shapes * 2:
        op(np.ones(shape, np.float32))
    assert [id(form.weights()) for form in kept_forms(op)] == kept and len(kept) > 1
    assert op.plan(shapes[0]).packed_limit == keep.LEAST_PACKED
